"""What is timed behind an L2: whole programs, also on a clock that alone has one; segments without the launch of a program."""

from __future__ import annotations

import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType
from simulator.timing import simulate_levels
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product
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
