"""Every operator on integers of a quantised model, on the NPU by itself from onnxruntime's own integers; and how good the model is.

Operators alone are compiled layer by layer for the file's machine: all of them in one program, each with inputs and outputs in DDR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.build import default_plan
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.lower import SUPPORTED, lower
from compiler.frontend.onnx_io.large_constants import NO_DATA, ExternalData, ModelWithoutWeights
from compiler.frontend.onnx_io.load import load
from compiler.frontend.partition.support_check import MachineSupport, check_support
from compiler.ir.graph import Graph
from compiler.ir.interpret import evaluate
from compiler.ops.lower_graph import Packed, pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.target.capabilities import no_floats
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.onnx_names import names_read
from tuner.verify.fixed_point import WHOSE, in_fixed_point
from tuner.verify.reference import IntegerReference, differing

Array = NDArray[Any]


@dataclass(frozen=True)
class OfOperators:
    """What operators on integers make of onnxruntime's integers.

    kinds: operator -> (how many, values, differing values).  first: one with a value that differs, or ''.  left_out: those that could not
    be run by themselves.
    steps: on a machine that rounds in fixed point values differ from formulas of that; by how many steps from onnxruntime's -> how many do.
    None elsewhere.
    """

    kinds: Mapping[str, tuple[int, int, int]]
    first: str
    left_out: tuple[str, ...]
    steps: Mapping[str, int] | None = None

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
    default options, of so many.
    """

    operators: OfOperators
    unfused: Mapping[str, int]
    through: Mapping[str, int]
    stock: tuple[int, int]
    agreement: Agreement | None

    @property
    def faults(self) -> tuple[str, ...]:
        _, values, wrong = self.operators.total
        steps = self.operators.steps
        out = []
        if wrong:
            whose = "onnxruntime's" if steps is None else WHOSE
            out.append(f"operators on integers: {wrong:,} of {values:,} values differ from {whose}, first in {self.operators.first!r}")
        if steps is not None and steps.keys() - {"1"}:
            out.append(
                f"operators on integers: values up to {max(steps, key=float)} steps off onnxruntime's; expected 1, which a rounding is"
            )
        return tuple(out)


def quantised(expected: IntegerReference, made: Mapping[str, Array], machine: Machine, dtype: DataType) -> Quantised:
    """made: outputs of the compiled model.  Raises as `compiler.frontend.onnx_io.load`."""
    told = expected.told
    return Quantised(
        of_operators(expected, machine, dtype),
        told["unfused"],
        told["unfused_through"],
        (told["stock_differing"], told["stock_values"]),
        agreement(made, expected.floats) if expected.floats else None,
    )


def of_operators(expected: IntegerReference, machine: Machine, dtype: DataType) -> OfOperators:
    """Every one that can be compiled by itself."""
    kinds, left_out = expected.told["kinds"], list(expected.told["left_out"])
    found, formulas = executed(expected, machine, dtype) if kinds else ({}, {})
    steps: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    first = ""
    for name, kind in kinds.items():
        if name not in found:
            left_out.append(name)
            continue
        theirs = expected.expected[name]
        if machine.rounding == "fixed_point":
            off = np.abs(theirs.astype(np.float64) - formulas[name])
            steps.update(f"{step:g}" for step in off[off > 0].tolist())
            theirs = formulas[name]
        wrong = differing(found[name], theirs)
        first = first or (name if wrong else "")
        counts.setdefault(kind, Counter()).update(operators=1, values=theirs.size, wrong=wrong)
    by_kind = {kind: (c["operators"], c["values"], c["wrong"]) for kind, c in sorted(counts.items())}
    return OfOperators(by_kind, first, tuple(left_out), dict(sorted(steps.items())) if machine.rounding == "fixed_point" else None)


def executed(expected: IntegerReference, machine: Machine, dtype: DataType) -> tuple[dict[str, Array], dict[str, Array]]:
    """Outputs of the operators that the machine can run; and by formulas, of a machine that rounds in fixed point."""

    model, data = load(expected.alone, where="operators on integers")
    lowered, packed = _packed(model, data, machine, dtype)
    program = Infeasible("", "") if packed is None else Compiler(packed.target_graph).compile(default_plan(packed.target_graph))
    if lowered is None or packed is None or isinstance(program, Infeasible):
        return {}, {}
    formulas = evaluate(in_fixed_point(lowered), expected.given) if machine.rounding == "fixed_point" else {}
    memory = program.memory
    ddr = np.full(memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: packed.constants.size] = packed.constants
    for buffer in memory.of_kind("input"):
        load_input(ddr, buffer, expected.given[buffer.name], memory.type_of(buffer))
    execute(program, machine, ddr)
    outputs = memory.of_kind("output")
    return {buffer.name: read_output(ddr, buffer, memory.type_of(buffer)).reshape(buffer.onnx_shape) for buffer in outputs}, formulas


def _packed(model: ModelProto, data: ExternalData, machine: Machine, dtype: DataType) -> tuple[Graph | None, Packed | None]:
    """As many of the operators as the machine can run, as one graph; that of the unit has no weights any more."""

    def pack(graph: Graph) -> Packed:
        return pack_unit(graph, machine, dtype)

    left: ModelProto | None = model
    while left is not None:
        try:
            graph = lower(left, data=data)
            return graph, pack(graph)
        except UnsupportedError:
            able = MachineSupport(pack, no_floats(machine, dtype))
            left, data = _without(ModelWithoutWeights(left, data).filled(), check_support(left, SUPPORTED, able).refused), NO_DATA
    return None, None


def _without(model: ModelProto, refused: Collection[int]) -> ModelProto | None:
    """Less the groups of some nodes; None where that is nothing less, or nothing is left."""
    gone = {i for members in fuse_groups(model).members if not members.isdisjoint(refused) for i in members}
    nodes = [node for i, node in enumerate(model.graph.node) if i not in gone]
    if not gone or not nodes:
        return None
    read, made = names_read(nodes), {name for node in nodes for name in node.output}
    left = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    left.graph.name = model.graph.name
    left.graph.node.extend(nodes)
    left.graph.input.extend(item for item in model.graph.input if item.name in read)
    left.graph.output.extend(item for item in model.graph.output if item.name in made)
    left.graph.initializer.extend(item for item in model.graph.initializer if item.name in read)
    left.graph.value_info.extend(item for item in model.graph.value_info if item.name in made)
    return left


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
