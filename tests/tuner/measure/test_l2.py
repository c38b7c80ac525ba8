"""What is timed behind an L2: whole programs, also on a clock that alone has one; segments without the launch of a program."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.l2_warmth import WarmInputs
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts
from simulator.l2_traffic import L2Start, count_traffic
from simulator.npu import isa
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.npu.transfers import find_transfers
from simulator.timing import simulate_levels
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product
from tests.models import light_model
from tuner.measure.npu_target import Npu

LAUNCH = 5000


@pytest.mark.parametrize("granted", [{}, {"l2_bytes": 1 << 15}])
def test_times_are_those_of_the_program(granted: dict[str, int]) -> None:
    levels_of = {"none": 1.0, "severe": {"share": 0.25, **granted}}
    machine = Machine.model_validate(machine_of(4, True).model_dump() | {"launch_cycles": LAUNCH, "contention": levels_of})
    target_graph = make_case(product(96, 64, 256), machine, DataType.float16).target_graph
    segment = decode(target_graph, Gene(0, 1, 2, cores=(0, 1, 2, 3), split="channels", parts=2))
    assert segment is not None
    plan, levels = plan_of(target_graph, [segment]), tuple(machine.contention)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    expected = {level: timing.cycles for level, timing in simulate_levels(program, machine, levels).items()}
    npu = Npu(target_graph, levels)
    for _ in range(2):  # the second one is not resumed from the first
        timed, alone = npu.program(plan), npu.alone(segment, 0)
        assert not isinstance(timed, Infeasible)
        assert not isinstance(alone, Infeasible)
        assert timed[:, 0].tolist() == list(expected.values())
        assert alone[:, 0].tolist() == [cycles - LAUNCH for cycles in expected.values()]
        turned = npu.program(plan_of(target_graph, [segment.model_copy(update={"same_end": True})]))  # never taken from the segment alone
        assert not isinstance(turned, Infeasible)
        assert turned.tolist() == timed.tolist()


def test_a_clock_may_have_one() -> None:
    described, clock = machine_of(4, False), machine_of(4, True)
    clock = Machine.model_validate(described.model_dump() | {"l2": clock.model_dump()["l2"]})
    target_graph = make_case(product(96, 64, 256), described, DataType.float16).target_graph
    segment = decode(target_graph, Gene(0, 1, 2, cores=(0, 1, 2, 3), split="channels", parts=2))
    assert segment is not None
    plan, levels = plan_of(target_graph, [segment]), tuple(described.contention)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    timed = Npu(target_graph, levels, clock=clock).program(plan)
    assert not isinstance(timed, Infeasible)
    expected = simulate_levels(program, clock, levels)
    assert timed[:, 0].tolist() == [expected[level].cycles for level in levels]
    assert timed[0, 0] != simulate_levels(program, described, levels)[levels[0]].cycles


def drawn_lines(program: Program, machine: Machine, inputs: WarmInputs | None = None) -> dict[int, float]:
    """Lines that the segments of a program on one core draw.  inputs: of a segment alone."""
    assert machine.l2 is not None
    (code,) = program.streams
    transfers = find_transfers(code)
    segment = isa.segment_of(code[transfers.row, isa.TAG]).astype(np.int64)
    start = None if inputs is None else inputs.start(transfers.access)
    where = transfers.access, np.zeros_like(segment), segment, transfers.row
    drawn, _ = count_traffic(machine, program.memory.size_blocks, *where, start=start)
    return {int(number): drawn[segment == number].sum() / machine.l2.line_bytes / 65536 for number in np.unique(segment)}


@pytest.mark.parametrize(
    ("network", "bytes_of_l2", "gap"),
    [("squeezenet", 1 << 32, 0.01), ("squeezenet", 1 << 24, 0.05), ("squeezenet", 1 << 22, 0.2), ("resnet50", 1 << 26, 0.02)],
)
def test_segment_alone_draws_as_in_its_program(network: str, bytes_of_l2: int, gap: float) -> None:
    values = machine_of(1, True).model_dump()
    machine = Machine.model_validate(values | {"l2": values["l2"] | {"bytes": bytes_of_l2, "line_bytes": 512}})
    target_graph = make_unit(lower(light_model(network)), machine, DataType.float16)
    compiler, count = Compiler(target_graph), len(target_graph.operators)
    plans = [[decode(target_graph, Gene(i, i + 1, blocks)) for blocks in block_counts(target_graph, i, i + 1)] for i in range(count)]
    fitting = [next(plan for plan in of_operator if plan is not None) for of_operator in plans]
    program = compiler.compile(plan_of(target_graph, fitting))
    assert not isinstance(program, Infeasible)
    in_program, inputs = drawn_lines(program, machine), WarmInputs(target_graph, bytes_of_l2, 512)
    warm, cold = 0.0, 0.0
    for start, segment in enumerate(fitting):
        parts = compiler.alone(segment, start)
        assert not isinstance(parts, Infeasible)
        alone = compiler.link(parts)
        warm += abs(sum(drawn_lines(alone, machine, inputs).values()) - in_program[start])
        cold += abs(sum(drawn_lines(alone, machine).values()) - in_program[start])
    assert warm < gap * cold


def test_inputs_of_the_model_and_weights_are_cold() -> None:
    machine = machine_of(1, True)
    assert machine.l2 is not None
    target_graph = make_unit(lower(light_model("squeezenet")), machine, DataType.float16)
    compiler, inputs = Compiler(target_graph), WarmInputs(target_graph, machine.l2.bytes, machine.l2.line_bytes)
    ends = {}
    for start in (0, 1):
        segment = decode(target_graph, Gene(start, start + 1))
        assert segment is not None
        parts = compiler.alone(segment, start)
        assert not isinstance(parts, Infeasible)
        ends[start] = inputs.start(find_transfers(compiler.link(parts).streams[0]).access)
    assert ends[0] is None
    assert isinstance(ends[1], L2Start)
    storage = target_graph.storages[target_graph.operators[0].y.storage]
    (lines,) = np.nonzero(ends[1].touched >= 0)
    blocks = machine.l2.line_bytes // 32
    assert lines[0] == storage.address // blocks
    assert lines[-1] == (storage.address + storage.n * storage.image_blocks - 1) // blocks
