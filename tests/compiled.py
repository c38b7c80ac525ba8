"""What must hold of every compiled program, checked in one place: legal, free of races, the right values, times within their bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.frontend import load_model, lower
from compiler.ops.lower_graph import pack_unit
from compiler.segment.blocks import rows_needed
from compiler.target.target_graph import TargetGraph
from simulator.functional import Counters
from simulator.host_layout import load_input, read_output
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import Program
from simulator.sanitizer import sanitize_program
from simulator.timing import prepare, program_bound, simulate
from tests.lane_sums import execute_checked, summed_lanes
from tests.models import Floats, random_feeds, reference_outputs

TOLERANCE = {DataType.float16: 1e-2, DataType.float32: 1e-4}


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its inputs and onnxruntime's answer, lowered for one machine and data type."""

    model: ModelProto
    target_graph: TargetGraph
    constants: NDArray[np.uint8]
    feeds: dict[str, Floats]
    expected: dict[str, Floats]


def make_case(model: ModelProto, machine: Machine, dtype: DataType, seed: int = 0) -> Case:
    feeds = random_feeds(model, seed)
    target_graph, constants = pack_unit(lower(load_model(model)), machine, dtype)
    return Case(model, target_graph, constants, feeds, reference_outputs(model, feeds))


def run_program(case: Case, program: Program, scramble_seed: int = 0) -> tuple[dict[str, Floats], Counters]:
    """Output name -> values as the NPU computes them.  Scratch memory in DDR starts as NaNs."""
    target_graph = case.target_graph
    ddr: NDArray[np.uint8] = np.full(target_graph.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: len(case.constants)] = case.constants
    for buffer in target_graph.memory.of_kind("input"):
        load_input(ddr, buffer, case.feeds[buffer.name], target_graph.memory.type_of(buffer))
    counters, faults = execute_checked(program, target_graph.machine, ddr, summed_lanes(target_graph), scramble_seed)
    assert not faults, faults
    return {b.name: read_output(ddr, b, target_graph.memory.type_of(b)) for b in target_graph.memory.of_kind("output")}, counters


def errors(case: Case, outputs: dict[str, Floats]) -> dict[str, float]:
    """max|out - ref| / max|ref| of every output of the model."""
    found = {}
    for name, expected in case.expected.items():
        difference = np.abs(outputs[name].reshape(expected.shape).astype(np.float64) - expected)
        largest = float(np.abs(expected).max(initial=0))
        found[name] = float(np.nan_to_num(difference, nan=np.inf).max(initial=0)) / (largest or 1.0)
    return found


def check_times(program: Program, machine: Machine) -> dict[str, int]:
    """Level -> cycles; asserts the bounds of every level."""
    p = prepare(program, machine)
    cycles = {}
    for level in machine.contention:
        condition = machine.contention[level]
        timing = simulate(p, machine, condition)
        assert timing.cycles >= program_bound(p, machine, condition)
        assert simulate(p, machine, condition, shared=False).cycles <= timing.cycles
        # slower alone at a part of the rate than together: at most one rounding cycle per transfer
        longest = simulate(p, machine, condition, shared=False, rate_divisor=max(1, p.dma_ports)).cycles
        assert timing.cycles <= longest + int(p.transfers.sum())
        assert timing.busy_cycles.max(initial=0) <= timing.cycles
        cycles[level] = timing.cycles
    return cycles


def needed_macs(target_graph: TargetGraph) -> int:
    """Multiply-accumulates of the model, without rows that nothing reads (a stride may step over them)."""
    each = (spec.macs * rows.size // spec.out_h for spec, rows in zip(target_graph.operators, rows_needed(target_graph), strict=True))
    return sum(each) * target_graph.storages[0].n


def check_program(case: Case, program: Program, tolerance: float | None = None) -> dict[str, float]:
    """Assert all that must hold of a program; returns the error of every output, which is none where outputs are integers."""
    machine = case.target_graph.machine
    program.verify(machine)
    findings = sanitize_program(program, machine)
    assert not findings, "; ".join(str(f) for f in findings[:3])
    check_times(program, machine)
    outputs, counters = run_program(case, program)
    assert counters.macs >= needed_macs(case.target_graph)
    found = errors(case, outputs)
    limit = TOLERANCE[case.target_graph.dtype] if tolerance is None else tolerance
    for name, error in found.items():
        assert error <= (0 if case.expected[name].dtype.kind in "iu" else limit), found
    return found
