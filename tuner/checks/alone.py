"""Every operator on integers of a quantised model, on the NPU by itself from onnxruntime's own integers; and how good the model is.

Operators alone are compiled layer by layer for the file's machine: all of them in one program, each with inputs and outputs in DDR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.build import default_plan
from compiler.frontend.load import load
from compiler.frontend.lower import lower, lower_partition
from compiler.frontend.skeleton import Beside
from compiler.frontend.worth import Always
from compiler.ir.graph import Graph
from compiler.kinds.build import Packed, pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from tuner.checks.reference import IntegerReference, differing

Array = NDArray[Any]


@dataclass(frozen=True)
class OfOperators:
    """What operators on integers make of onnxruntime's integers.

    kinds: operator -> (how many, values, differing values).  first: one with a value that differs, or ''.  left_out: those that could not
    be run by themselves.
    """

    kinds: Mapping[str, tuple[int, int, int]]
    first: str
    left_out: tuple[str, ...]

    @property
    def total(self) -> tuple[int, int, int]:
        """Operators, values, differing values."""
        operators, values, wrong = (sum(each[i] for each in self.kinds.values()) for i in range(3))
        return operators, values, wrong


@dataclass(frozen=True)
class Agreement:
    """Of outputs with those of the float model.  top1: of so many choices among channels so many are the same.  sqnr_db: of all values."""

    top1: tuple[int, int]
    sqnr_db: float


@dataclass(frozen=True)
class Quantised:
    """What a check says of a quantised model beside its outputs.

    unfused, through: by how many steps integers differ from those of onnxruntime with nothing grouped -> how many do: of every operator
    given the same integers, and from the model's inputs on.  stock: values of the model's outputs that onnxruntime has otherwise by its
    default options, of so many.  cpu: features of this one.  exact_products: whether its products of uint8 and int8 are.
    """

    operators: OfOperators
    unfused: Mapping[str, int]
    through: Mapping[str, int]
    stock: tuple[int, int]
    cpu: tuple[str, ...]
    exact_products: bool
    agreement: Agreement | None

    @property
    def faults(self) -> tuple[str, ...]:
        _, values, wrong = self.operators.total
        if not wrong:
            return ()
        return (f"operators on integers: {wrong:,} of {values:,} values differ from onnxruntime's, first in {self.operators.first!r}",)


def quantised(expected: IntegerReference, made: Mapping[str, Array], machine: Machine, dtype: DataType) -> Quantised:
    """made: outputs of the compiled model.  Raises as `compiler.frontend.load`."""
    told = expected.told
    return Quantised(
        of_operators(expected, machine, dtype),
        told["unfused"],
        told["unfused_through"],
        (told["stock_differing"], told["stock_values"]),
        tuple(told["cpu"]),
        told["exact_products"],
        agreement(made, expected.floats) if expected.floats else None,
    )


def of_operators(expected: IntegerReference, machine: Machine, dtype: DataType) -> OfOperators:
    """Every one that can be compiled by itself."""
    kinds, left_out = expected.told["kinds"], list(expected.told["left_out"])
    found = executed(expected, machine, dtype) if kinds else {}
    counts: dict[str, Counter[str]] = {}
    first = ""
    for name, kind in kinds.items():
        if name not in found:
            left_out.append(name)
            continue
        theirs = expected.expected[name]
        wrong = differing(found[name], theirs)
        first = first or (name if wrong else "")
        counts.setdefault(kind, Counter()).update(operators=1, values=theirs.size, wrong=wrong)
    return OfOperators({kind: (c["operators"], c["values"], c["wrong"]) for kind, c in sorted(counts.items())}, first, tuple(left_out))


def executed(expected: IntegerReference, machine: Machine, dtype: DataType) -> dict[str, Array]:
    """Outputs of the operators that the machine can run."""

    model, data = load(expected.alone, where="operators on integers")
    found: dict[str, Array] = {}
    for unit, constants in _packed(model, data, machine, dtype):
        program = Compiler(unit).compile(default_plan(unit))
        if isinstance(program, Infeasible):
            continue
        memory = program.memory
        ddr = np.full(memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
        ddr[: constants.size] = constants
        for buffer in memory.of_kind("input"):
            load_input(ddr, buffer, expected.given[buffer.name], memory.type_of(buffer))
        execute(program, machine, ddr)
        for buffer in memory.of_kind("output"):
            found[buffer.name] = read_output(ddr, buffer, memory.type_of(buffer)).reshape(buffer.onnx_shape)
    return found


def _packed(model: ModelProto, data: Beside, machine: Machine, dtype: DataType) -> list[Packed]:
    """All of it, where the machine can; else what of it can, without those that the host has at the ends of pieces."""

    def pack(graph: Graph) -> Packed:
        return pack_unit(graph, machine, dtype)

    try:
        return [pack(lower(model, data=data))]
    except UnsupportedError:
        pass
    try:
        return [pack(graph) for graph in lower_partition(model, Always(machine, dtype), data, pack)[0]]
    except UnsupportedError:
        return []


def agreement(mine: Mapping[str, Array], floats: Mapping[str, Array]) -> Agreement:
    """Choices are along axis 1, of all outputs that have one of two channels or more."""
    same = choices = 0
    signal = noise = 0.0
    for name, ideal in floats.items():
        theirs, ours = ideal.astype(np.float64), np.asarray(mine[name], np.float64)
        signal, noise = signal + float((theirs**2).sum()), noise + float(((theirs - ours) ** 2).sum())
        if ideal.ndim > 1 and ideal.shape[1] > 1:
            chosen = theirs.argmax(axis=1) == ours.argmax(axis=1)
            same, choices = same + int(chosen.sum()), choices + chosen.size
    return Agreement((same, choices), float("inf") if noise == 0 else float(10 * np.log10(signal / noise)) if signal else -float("inf"))
