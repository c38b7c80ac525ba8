"""What engines wait for, on the machine `tiny` where every cycle can be worked out on paper (see `timing/on_paper.py` for its rates)."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code
from simulator.timeline import Cause, Timeline, covered_length, merge_intervals, timeline, uncontended_data_cycles
from simulator.timing import simulate
from tests.programs import copy, flag_set, flag_wait, program, random_program, record

TINY = load_machine("tiny")
MTE2, MTE1, CUBE, VECTOR, MTE3, SCALAR = Engine.MTE2, Engine.MTE1, Engine.CUBE, Engine.VECTOR, Engine.MTE3, Engine.SCALAR
DDR, L1, UB = Memory.DDR, Memory.L1, Memory.UB


def load(blocks: int) -> Code:
    return copy(TINY, DDR, L1, blocks)


def up(cycles: int) -> Code:
    return copy(TINY, L1, UB, cycles)


def vector(cycles: int) -> Code:
    return record(Op.VRELU, VECTOR, 1, cycles, 1, 1, 1, 1, src=UB, dst=UB, d=0, s=(0,))


def run(*streams: list[Code], machine: Machine = TINY, share: int = SHARE_UNIT) -> Timeline:
    p = program(machine, *streams)
    p.verify(machine)
    return timeline(p, machine, Level.of_units(share))


def found(t: Timeline, engine: Engine, core: int = 0) -> list[tuple[int, int, str, int, int, int]]:
    """(start, end, cause, source core, source engine, source row) of an engine's stalls."""
    s = t.stalls
    mine = (s.core == core) & (s.engine == engine)
    columns = (s.start, s.end, s.cause, s.source_core, s.source_engine, s.source_row)
    return [(a, b, Cause(c).name, *rest) for a, b, c, *rest in zip(*(column[mine].tolist() for column in columns), strict=True)]


def test_a_flag_and_the_work_behind_it() -> None:
    # data 4..14; MTE1 may start when they are there
    t = run([load(10), flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2), up(10)])
    assert found(t, MTE2) == [(0, 4, "LATENCY", -1, -1, -1)]
    assert found(t, MTE1) == [(0, 14, "FLAG", 0, MTE2, 0)]
    assert found(t, SCALAR) == []


def test_latency_is_hidden_by_early_issue() -> None:
    # the second is issued at 0 beside the first (two outstanding): its latency is over at 4, its data follow at 14
    assert found(run([load(10), load(10)]), MTE2) == [(0, 4, "LATENCY", -1, -1, -1)]
    # one outstanding: issued at 14, data at 18
    one = TINY.model_copy(update={"ddr": TINY.ddr.model_copy(update={"outstanding": 1})})
    assert found(run([load(10), load(10)], machine=one), MTE2) == [(0, 4, "LATENCY", -1, -1, -1), (14, 18, "LATENCY", -1, -1, -1)]


def test_flag_of_another_core_takes_three_more_cycles() -> None:
    t = run([vector(10), flag_set(VECTOR, 1, VECTOR)], [flag_wait(VECTOR, 0, VECTOR), vector(5)])
    assert found(t, VECTOR, core=1) == [(0, 13, "FLAG", 0, VECTOR, 0)]
    assert t.cycles == 18


def test_set_behind_nothing_has_no_source() -> None:
    t = run(
        [vector(10), flag_set(VECTOR, 0, MTE1), flag_wait(MTE1, 0, VECTOR), up(1), flag_set(CUBE, 0, MTE1), flag_wait(MTE1, 0, CUBE), up(1)]
    )
    assert found(t, MTE1) == [(0, 10, "FLAG", 0, VECTOR, 0)]  # CUBE's took effect at 0
    slow = TINY.model_copy(update={"issue_cycles": 1})
    t = run([flag_wait(MTE1, 0, CUBE), vector(1), flag_set(CUBE, 0, MTE1), up(1)], machine=slow)
    # WAIT handed out at 1, SET at 3, the copy at 4
    assert found(t, MTE1) == [(0, 1, "ISSUE", -1, -1, -1), (1, 3, "FLAG", 0, CUBE, -1), (3, 4, "ISSUE", -1, -1, -1)]


def test_issue_and_a_full_queue() -> None:
    stream = [vector(10), vector(10), vector(10), up(5)]
    one = TINY.model_copy(update={"issue_cycles": 1})
    # handed out at 1, 2, 3, 4
    assert found(run(stream, machine=one), MTE1) == [(0, 4, "ISSUE", -1, -1, -1)]
    # a queue of one: the third waits until the second leaves, at 11, so the copy comes at 12
    t = run(stream, machine=one.model_copy(update={"queue_depth": 1}))
    assert found(t, SCALAR) == [(2, 10, "QUEUE", 0, VECTOR, -1)]
    assert found(t, MTE1) == [(0, 12, "QUEUE", 0, VECTOR, -1)]
    assert found(t, VECTOR) == [(0, 1, "ISSUE", -1, -1, -1)]


def test_a_launch_is_nobodys_full_queue() -> None:
    late = TINY.model_copy(update={"launch_cycles": 9})
    t = run([up(5)], machine=late)
    assert found(t, MTE1) == [(0, 9, "ISSUE", -1, -1, -1)]
    assert found(t, SCALAR) == []


def test_pipelined_array_results_delay_other_engines_only() -> None:
    # 16 rows through 16 x 16: 16 cycles, results 46 later
    matrix = load_machine("tpu-like").matrix.model_copy(update={"rows": 16, "columns": 16})
    tile = record(Op.MMAD, CUBE, 16, 1, 1, 0, src=Memory.L0A, dst=Memory.L0C, d=0, s=(0, 0))
    t = run([tile, flag_set(CUBE, 0, MTE1), tile, flag_wait(MTE1, 0, CUBE), up(1)], machine=TINY.model_copy(update={"matrix": matrix}))
    assert found(t, CUBE) == []
    assert found(t, MTE1) == [(0, 62, "FLAG", 0, CUBE, 0)]


def test_what_a_transfer_loses() -> None:
    two = run([load(10)], [load(10)])
    # half the port each: 20 cycles, alone 10
    assert (two.end - two.start).tolist() == [20, 20]
    assert uncontended_data_cycles(two, np.arange(2)).tolist() == [10, 10]
    half = run([load(10)], share=SHARE_UNIT // 2)
    assert (half.end - half.start).tolist() == uncontended_data_cycles(half, np.arange(1), SHARE_UNIT // 2).tolist() == [20]


@pytest.mark.parametrize("seed", range(24))
def test_work_and_stalls_fill_all_engine_time(seed: int) -> None:
    matrix = load_machine("tpu-like").matrix.model_copy(update={"rows": 16, "columns": 16}) if seed % 4 == 3 else TINY.matrix
    changes = {"issue_cycles": seed % 3, "queue_depth": 1 + seed % 5, "launch_cycles": seed % 2 * 11, "matrix": matrix}
    if seed % 2:
        changes |= {"dma": Dma(load_ports=1 + seed % 3, store_ports=2), "ddr": TINY.ddr.model_copy(update={"outstanding": 3})}
    machine = TINY.model_copy(update=changes)
    p = random_program(machine, seed, 120)
    share = SHARE_UNIT >> seed % 3
    t, timing = timeline(p, machine, Level.of_units(share)), simulate(p, machine, Level.of_units(share))
    s = t.stalls
    assert t.cycles == timing.cycles
    assert (s.end > s.start).all()
    for core in range(machine.cores):
        for engine in Engine:
            rows = t.queues[core * len(Engine) + engine]
            work, mine = rows[t.work[rows]], (s.core == core) & (s.engine == engine)
            if engine == SCALAR:
                rows = work = np.arange(t.stream_start[core], t.stream_start[core + 1])
                begin, end = t.dispatch[work] - machine.issue_cycles, t.dispatch[work]
                last = end.max(initial=machine.launch_cycles) - machine.launch_cycles
            else:
                begin, end = merge_intervals(t.start[work], t.end[work])
                last = np.where(t.code[rows, 0] == Op.SET, t.start[rows], t.end[rows]).max(initial=0)
            assert (end - begin).sum() == timing.busy_cycles[core, engine]
            begin, end = np.concatenate((begin, s.start[mine])), np.concatenate((end, s.end[mine]))
            order = np.lexsort((end, begin))
            assert (begin[order][1:] >= end[order][:-1]).all()
            assert (end - begin).sum() == last


def test_covered() -> None:
    start, end = np.array([2, 10]), np.array([5, 11])
    assert covered_length(start, end, np.array([0, 2, 3, 5, 8, 10, 11, 20])).tolist() == [0, 0, 1, 3, 3, 3, 4, 4]
    assert covered_length(start[:0], end[:0], np.array([7])).tolist() == [0]
