"""Check of a quantised model's integer operators, each isolated on the NPU with onnxruntime's integers; and the model's accuracy.

Isolated operators are compiled layer by layer for the file's machine: all in one program, each with inputs and outputs in DDR.
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
from tuner.verify.fixed_point import WHOSE, to_fixed_point
from tuner.verify.reference import IntegerReference, count_differing

Array = NDArray[Any]


@dataclass(frozen=True)
class OperatorCheck:
    """Comparison of integer operators with onnxruntime on the same integers.

    kinds: operator -> (count, values, differing values).  first: the first with a differing value, or ''.  left_out: operators that cannot
    run in isolation.
    steps: for fixed-point machines, which are compared with formulas of their rounding: steps off onnxruntime's value -> count.  None for
    others.
    """

    kinds: Mapping[str, tuple[int, int, int]]
    first: str
    left_out: tuple[str, ...]
    steps: Mapping[str, int] | None = None

    @property
    def total(self) -> tuple[int, int, int]:
        """Number of operators, values, differing values."""
        operators, values, differing = (sum(counts[i] for counts in self.kinds.values()) for i in range(3))
        return operators, values, differing


@dataclass(frozen=True)
class Agreement:
    """Agreement of outputs with the float model.  top1: equal choices among channels, and all choices.  sqnr_db: over all values."""

    top1: tuple[int, int]
    sqnr_db: float


@dataclass(frozen=True)
class QuantisedCheck:
    """Check of a quantised model beyond its outputs.

    unfused, through: steps off onnxruntime without groups -> number of integers: for each operator alone on the same integers, and through
    the model from its inputs on.  stock: number of output values that differ from onnxruntime with default options, and of all values.
    """

    operators: OperatorCheck
    unfused: Mapping[str, int]
    through: Mapping[str, int]
    stock: tuple[int, int]
    agreement: Agreement | None

    @property
    def faults(self) -> tuple[str, ...]:
        _, values, differing = self.operators.total
        steps = self.operators.steps
        lines = []
        if differing:
            source = "onnxruntime's" if steps is None else WHOSE
            lines.append(
                f"operators on integers: {differing:,} of {values:,} values differ from {source}, first in {self.operators.first!r}"
            )
        if steps is not None and steps.keys() - {"1"}:
            lines.append(
                f"operators on integers: values up to {max(steps, key=float)} steps off onnxruntime's; expected 1, which a rounding is"
            )
        return tuple(lines)


def check_quantised(expected: IntegerReference, outputs: Mapping[str, Array], machine: Machine, dtype: DataType) -> QuantisedCheck:
    """Check a quantised model.  outputs: outputs of the compiled model.  Raises as `compiler.frontend.onnx_io.load` does."""
    report = expected.answer
    return QuantisedCheck(
        check_operators(expected, machine, dtype),
        report["unfused"],
        report["unfused_through"],
        (report["stock_differing"], report["stock_values"]),
        measure_agreement(outputs, expected.floats) if expected.floats else None,
    )


def check_operators(expected: IntegerReference, machine: Machine, dtype: DataType) -> OperatorCheck:
    """Compare every operator that can be compiled in isolation."""
    kinds, left_out = expected.answer["kinds"], list(expected.answer["left_out"])
    outputs, formulas = run_operators(expected, machine, dtype) if kinds else ({}, {})
    steps: Counter[str] = Counter()
    counts: dict[str, Counter[str]] = {}
    first = ""
    # a fixed-point machine must match its formulas exactly; its distance to onnxruntime is only reported
    for name, kind in kinds.items():
        if name not in outputs:
            left_out.append(name)
            continue
        reference = expected.expected[name]
        if machine.rounding == "fixed_point":
            distance = np.abs(reference.astype(np.float64) - formulas[name])
            steps.update(f"{step:g}" for step in distance[distance > 0].tolist())
            reference = formulas[name]
        differing = count_differing(outputs[name], reference)
        first = first or (name if differing else "")
        counts.setdefault(kind, Counter()).update(operators=1, values=reference.size, wrong=differing)
    by_kind = {kind: (c["operators"], c["values"], c["wrong"]) for kind, c in sorted(counts.items())}
    return OperatorCheck(by_kind, first, tuple(left_out), dict(sorted(steps.items())) if machine.rounding == "fixed_point" else None)


def run_operators(expected: IntegerReference, machine: Machine, dtype: DataType) -> tuple[dict[str, Array], dict[str, Array]]:
    """Outputs of the operators that the machine can run; and by formulas for a machine with fixed-point rounding."""

    model, data = load(expected.isolated_model, where="operators on integers")
    lowered, packed_graph = _pack_graph(model, data, machine, dtype)
    program = (
        Infeasible("", "") if packed_graph is None else Compiler(packed_graph.target_graph).compile(default_plan(packed_graph.target_graph))
    )
    if lowered is None or packed_graph is None or isinstance(program, Infeasible):
        return {}, {}
    formulas = evaluate(to_fixed_point(lowered), expected.given) if machine.rounding == "fixed_point" else {}
    memory = program.memory
    ddr = np.full(memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: packed_graph.constants.size] = packed_graph.constants
    for buffer in memory.of_kind("input"):
        load_input(ddr, buffer, expected.given[buffer.name], memory.type_of(buffer))
    execute(program, machine, ddr)
    outputs = memory.of_kind("output")
    return {buffer.name: read_output(ddr, buffer, memory.type_of(buffer)).reshape(buffer.onnx_shape) for buffer in outputs}, formulas


def _pack_graph(model: ModelProto, data: ExternalData, machine: Machine, dtype: DataType) -> tuple[Graph | None, Packed | None]:
    """Graph with as many operators as the machine can run, and its packed form, which has no weights any more."""

    def pack(graph: Graph) -> Packed:
        return pack_unit(graph, machine, dtype)

    rest_model: ModelProto | None = model
    while rest_model is not None:
        try:
            graph = lower(rest_model, data=data)
            return graph, pack(graph)
        except UnsupportedError:
            able = MachineSupport(pack, no_floats(machine, dtype))
            rest_model, data = (
                _remove_nodes(ModelWithoutWeights(rest_model, data).filled(), check_support(rest_model, SUPPORTED, able).refused),
                NO_DATA,
            )
    return None, None


def _remove_nodes(model: ModelProto, unsupported: Collection[int]) -> ModelProto | None:
    """Model without the groups of refused nodes; None if nothing is removed, or nothing remains."""
    removed_nodes = {i for members in fuse_groups(model).members if not members.isdisjoint(unsupported) for i in members}
    nodes = [node for i, node in enumerate(model.graph.node) if i not in removed_nodes]
    if not removed_nodes or not nodes:
        return None
    read, outputs = names_read(nodes), {name for node in nodes for name in node.output}
    part = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = model.graph.name
    part.graph.node.extend(nodes)
    part.graph.input.extend(item for item in model.graph.input if item.name in read)
    part.graph.output.extend(item for item in model.graph.output if item.name in outputs)
    part.graph.initializer.extend(item for item in model.graph.initializer if item.name in read)
    part.graph.value_info.extend(item for item in model.graph.value_info if item.name in outputs)
    return part


def measure_agreement(outputs: Mapping[str, Array], floats: Mapping[str, Array]) -> Agreement:
    """Agreement of outputs with the float model; choices are along axis 1, of outputs with two channels or more."""
    equal = choices = 0
    signal = noise = 0.0
    for name, ideal in floats.items():
        float_values, npu_values = ideal.astype(np.float64), np.asarray(outputs[name], np.float64)
        signal, noise = signal + float((float_values**2).sum()), noise + float(((float_values - npu_values) ** 2).sum())
        if ideal.ndim > 1 and ideal.shape[1] > 1:
            equal_choices = float_values.argmax(axis=1) == npu_values.argmax(axis=1)
            equal, choices = equal + int(equal_choices.sum()), choices + equal_choices.size
    return Agreement((equal, choices), float("inf") if noise == 0 else float(10 * np.log10(signal / noise)) if signal else -float("inf"))
