"""The longest chain, on the machine `tiny` where every cycle can be worked out on paper, and what holds of every program."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.critical_path import WORK, chain_cycles, critical_chain
from simulator.npu.cycles import latency_cycles
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import Code
from simulator.timeline import Cause, Timeline, join_timelines, timeline
from tests.models import small_model
from tests.programs import flag_set, flag_wait, program, random_program, record
from tests.simulator.test_timeline import CUBE, MTE1, MTE2, TINY, VECTOR, load, run, up, vector

EDGE = load_machine("edge")
# 32 rows through 16 x 16 cells in 32 cycles, results 46 cycles after
ARRAY = TINY.model_copy(update={"matrix": load_machine("tpu-like").matrix.model_copy(update={"rows": 16, "columns": 16})})
FIXPIPE = Engine.FIXPIPE


def mmad() -> Code:
    return record(Op.MMAD, CUBE, 32, 1, 1, 0, src=Memory.L0A, dst=Memory.L0C, d=0, s=(0, 0))


def out() -> Code:
    """128 cycles."""
    return record(Op.FIXPIPE, FIXPIPE, 32, 32, 4, 32, 32, 0, src=Memory.L0C, dst=Memory.UB, d=0, s=(0, -1, -1))


def links(t: Timeline) -> list[tuple[int, int, str, str]]:
    """(start, end, engine, cause)"""
    c = critical_chain(t)
    columns = zip(*(column.tolist() for column in c[1:]), strict=True)
    return [(start, end, Engine(e).name, "WORK" if cause == WORK else Cause(cause).name) for e, cause, start, end in columns]


def check_chain(t: Timeline) -> None:
    """Links without gap or overlap from 0 to the end; work where the engine works, waits where it does not."""
    c = critical_chain(t)
    assert (c.end > c.start).all()
    assert (c.start[1:] == c.end[:-1]).all()
    assert ((c.start[0], c.end[-1]) == (0, t.cycles)) if len(c.row) else t.cycles == 0
    works = c.cause == WORK
    assert (t.engine[c.row[works]] == c.engine[works]).all()
    assert (t.start[c.row[works]] == c.start[works]).all()
    assert (t.end[c.row[works]] == c.end[works]).all()
    assert sum(each.cycles for each in chain_cycles(t, c)) == t.cycles


def check_lengths(t: Timeline) -> None:
    """No link is longer than what the machine takes for it."""
    c, machine = critical_chain(t), t.machine
    length, worked = c.end - c.start, t.work[c.row]
    assert (length[c.cause == Cause.LATENCY] <= machine.ddr.latency_cycles).all()
    flag = c.cause == Cause.FLAG
    assert (length[flag & worked] <= latency_cycles(machine)).all()
    assert (c.engine[flag & worked] == Engine.CUBE).all()
    assert (length[flag & ~worked] == machine.flags.between_cores_cycles).all()
    for i in np.flatnonzero(c.cause == Cause.ISSUE):  # more than half of it the scalar unit handed out others
        others = t.dispatch[t.core == t.core[c.row[i]]]
        handed = int(((others > c.start[i]) & (others <= c.end[i])).sum())
        assert length[i] <= 2 * (machine.launch_cycles + machine.issue_cycles * handed)


def test_through_a_flag_to_the_work_before_it() -> None:
    # data 4..14, then 10 cycles of MTE1; VECTOR's 3 cycles hold up nobody
    t = run([load(10), flag_set(MTE2, 0, MTE1), vector(3), flag_wait(MTE1, 0, MTE2), up(10)])
    assert links(t) == [(0, 4, "MTE2", "LATENCY"), (4, 14, "MTE2", "WORK"), (14, 24, "MTE1", "WORK")]


def test_from_core_to_core() -> None:
    t = run([vector(10), flag_set(VECTOR, 1, VECTOR)], [vector(4), flag_wait(VECTOR, 0, VECTOR), vector(5)])
    assert links(t) == [(0, 10, "VECTOR", "WORK"), (10, 13, "VECTOR", "FLAG"), (13, 18, "VECTOR", "WORK")]


def test_set_behind_a_wait_is_its_cause() -> None:
    # MTE1 has done its own work long before it may hand the flag on
    first = [vector(20), flag_set(VECTOR, 0, MTE1), up(2), flag_wait(MTE1, 0, VECTOR), flag_set(MTE1, 0, MTE2)]
    t = run([*first, flag_wait(MTE2, 0, MTE1), load(4)])
    assert links(t) == [(0, 20, "VECTOR", "WORK"), (20, 24, "MTE2", "LATENCY"), (24, 28, "MTE2", "WORK")]


def test_a_set_behind_nothing() -> None:
    t = run([flag_set(CUBE, 0, MTE1), flag_wait(MTE1, 0, CUBE), up(5)])
    assert links(t) == [(0, 5, "MTE1", "WORK")]


@pytest.mark.parametrize("issue", [0, 3])
def test_what_the_scalar_unit_takes_is_a_wait(issue: int) -> None:
    machine = TINY.model_copy(update={"issue_cycles": issue, "launch_cycles": 7})
    t = run([vector(1), vector(1), up(1), vector(1)], machine=machine)
    check_chain(t)
    waits = sum(each.cycles for each in chain_cycles(t, critical_chain(t)) if each.cause == Cause.ISSUE)
    assert waits == t.cycles - 3  # VECTOR alone is on it


def test_results_of_an_array_lead_to_their_product() -> None:
    """Two more products have begun when FIXPIPE may go on: neither is what it waited for."""
    t = run(
        [mmad(), flag_set(CUBE, 0, FIXPIPE), mmad(), mmad(), flag_wait(FIXPIPE, 0, CUBE), out()],
        machine=ARRAY,
    )
    assert (t.start[3], t.end[3]) == (64, 96)
    assert links(t) == [(0, 32, "CUBE", "WORK"), (32, 78, "CUBE", "FLAG"), (78, 206, "FIXPIPE", "WORK")]


def test_results_that_nobody_waits_for_end_the_run() -> None:
    assert links(run([mmad(), vector(40)], machine=ARRAY)) == [(0, 32, "CUBE", "WORK"), (32, 78, "CUBE", "FLAG")]


def test_no_work_at_all() -> None:
    check_chain(run([]))
    t = run([flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2)], machine=TINY.model_copy(update={"issue_cycles": 2}))
    check_chain(t)
    assert [each.operator for each in chain_cycles(t, critical_chain(t))] == [-1]


@pytest.mark.parametrize("machine_name", ["tiny", "ascend310", "tpu-like", "tiny:ddr.outstanding=4,dma.load_ports=2,dma.store_ports=3"])
def test_random_programs(machine_name: str) -> None:
    machine = load_machine(machine_name)
    for seed in range(25):
        p = random_program(machine, seed, 60)
        for share in (SHARE_UNIT, SHARE_UNIT // 5):
            t = timeline(p, machine, Level.of_units(share))
            check_chain(t)
            check_lengths(t)


def test_links_are_no_longer_than_the_machine_takes() -> None:
    machine = load_machine("tpu-like")
    target_graph = make_unit(lower(small_model("inception_block")), machine, DataType.float16)
    plan = default_plan(target_graph)
    assert not isinstance(plan, Infeasible)
    compiled = Compiler(target_graph).compile(plan)
    assert not isinstance(compiled, Infeasible)
    for level in machine.contention:
        check_lengths(timeline(compiled, machine, machine.contention[level]))


@pytest.mark.parametrize("name", ["inception_block", "lrn_chain"])
def test_compiled_programs_one_after_the_other(name: str) -> None:
    target_graph = make_unit(lower(small_model(name)), EDGE, DataType.float16)
    plan = default_plan(target_graph)
    assert not isinstance(plan, Infeasible)
    compiled = Compiler(target_graph).compile(plan)
    assert not isinstance(compiled, Infeasible)
    for level in EDGE.contention:
        one = timeline(compiled, EDGE, EDGE.contention[level])
        check_chain(one)
        assert {each.engine for each in chain_cycles(one, critical_chain(one)) if each.cause == WORK} > {Engine.MTE2, Engine.MTE3}
        both = join_timelines([one, timeline(program(EDGE), EDGE, EDGE.contention[level]), one], [(20, 20)] * 3)
        c, alone = critical_chain(both), critical_chain(one)
        assert np.array_equal(c.end - c.start, np.tile(alone.end - alone.start, 2))
        assert both.cycles == 2 * one.cycles
        assert sum(each.cycles for each in chain_cycles(both, c)) == both.cycles
