"""SETs, WAITs, queues and the scalar unit: every cycle worked out on paper, and deadlocks named."""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulator.npu.errors import DeadlockError
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION
from simulator.npu.parts import Engine
from simulator.timing import simulate
from tests.messages import naming
from tests.programs import copy, flag_set, flag_wait, program, record
from tests.simulator.timing.on_paper import (
    CUBE,
    FIXPIPE,
    L0C,
    L1,
    MTE1,
    MTE2,
    MTE3,
    SCALAR,
    TINY,
    UB,
    VECTOR,
    load,
    mmad,
    run,
    spans,
    store,
    tiny_with,
    up,
    vector,
)


def test_flag_from_transfer_to_compute_queue_and_back() -> None:
    # load 4-14; SET takes effect at 14; MTE1 works 14-19; its SET at 19 lets the store issue: 23, 4 blocks at half a block per cycle: 31
    timing = run(
        [
            load(10), flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2), up(5),
            flag_set(MTE1, 0, MTE3), flag_wait(MTE3, 0, MTE1), store(4),
        ]
    )  # fmt: skip
    assert spans(timing) == [(4, 14), (0, 14), (0, 14), (14, 19), (14, 19), (0, 19), (23, 31)]
    assert timing.cycles == 31


def test_wait_blocks_only_its_own_queue_from_there() -> None:
    # MTE1 works 0-5 before its WAIT; CUBE, which does not wait, 0-3
    timing = run([load(10), flag_set(MTE2, 0, MTE1), up(5), flag_wait(MTE1, 0, MTE2), up(2), mmad(3)])
    assert spans(timing)[2:] == [(0, 5), (0, 14), (14, 16), (0, 3)]


def test_set_waits_for_earlier_work_only() -> None:
    # CUBE 0-6 and 6-9; the SET between them takes effect at 6
    timing = run([mmad(6), flag_set(CUBE, 0, FIXPIPE), mmad(3), flag_wait(FIXPIPE, 0, CUBE)])
    assert spans(timing)[3] == (0, 6)


def test_the_second_wait_belongs_to_the_second_set() -> None:
    # SETs at 6 and 9; the first WAIT passes at 6, the second at 9
    timing = run([mmad(6), flag_set(CUBE, 0, MTE1), mmad(3), flag_set(CUBE, 0, MTE1),
                  flag_wait(MTE1, 0, CUBE), up(1), flag_wait(MTE1, 0, CUBE), up(1)])  # fmt: skip
    assert spans(timing)[4:] == [(0, 6), (6, 7), (6, 9), (9, 10)]


def test_flag_ids_are_told_apart() -> None:
    # id 1 is set at 6, id 0 at 9
    timing = run(
        [mmad(6), flag_set(CUBE, 0, MTE1, 1), mmad(3), flag_set(CUBE, 0, MTE1, 0), flag_wait(MTE1, 0, CUBE, 0), flag_wait(MTE1, 0, CUBE, 1)]
    )
    assert spans(timing)[4:] == [(0, 9), (9, 9)]


def test_flag_to_another_core_takes_its_latency() -> None:
    # core 0 CUBE 0-6; the flag arrives at 6 + 3 = 9; core 1 works 9-11 and answers: 11 + 3 = 14
    timing = run(
        [mmad(6), flag_set(CUBE, 1, VECTOR), flag_wait(MTE1, 1, VECTOR), up(1)],
        [flag_wait(VECTOR, 0, CUBE), vector(2), flag_set(VECTOR, 0, MTE1)],
    )
    assert spans(timing, 1) == [(0, 9), (9, 11), (9, 11)]
    assert spans(timing, 0)[2:] == [(0, 14), (14, 15)]


def test_flag_from_transfer_to_another_core() -> None:
    # load 4-14, seen by core 1 at 17; the second SET is behind nothing new and follows at once
    timing = run(
        [load(10), flag_set(MTE2, 1, CUBE), flag_set(MTE2, 1, CUBE)], [flag_wait(CUBE, 0, MTE2), flag_wait(CUBE, 0, MTE2), mmad(1)]
    )
    assert spans(timing, 1) == [(0, 17), (17, 17), (17, 18)]


def test_a_chain_through_every_engine() -> None:
    # load 4-14, MTE1 14-19, CUBE 19-22, FIXPIPE (4 pixels * 64 bytes at 64) 22-26, VECTOR 26-28; the store is issued at 28: 32-36
    fixpipe = record(Op.FIXPIPE, FIXPIPE, 4, 16, 1, 4, 4, 0, src=L0C, dst=UB, d=0, s=(0,))
    work = [(MTE2, load(10)), (MTE1, up(5)), (CUBE, mmad(3)), (FIXPIPE, fixpipe), (VECTOR, vector(2)), (MTE3, store(2))]
    rows = [work[0][1]]
    for (before, _), (after, row) in pairwise(work):
        rows += [flag_set(before, 0, after), flag_wait(after, 0, before), row]
    timing = run(rows)
    assert spans(timing)[::3] == [(4, 14), (14, 19), (19, 22), (22, 26), (26, 28), (32, 36)]
    assert (timing.compute_cycles, timing.load_store_cycles, timing.cycles) == (5, 14, 36)


def test_two_buffers_and_a_flag_back_for_each() -> None:
    # loads into slots 0 and 1: 4-12, 12-20.  MTE1 works on slot 0 12-22 and gives it back: the third load is issued at 22, 26-34.  Slot 1:
    # 22-32; slot 0 again: 34-44
    timing = run(
        [
            load(8), flag_set(MTE2, 0, MTE1, 0), load(8), flag_set(MTE2, 0, MTE1, 1),
            flag_wait(MTE1, 0, MTE2, 0), up(10), flag_set(MTE1, 0, MTE2, 0),
            flag_wait(MTE2, 0, MTE1, 0), load(8), flag_set(MTE2, 0, MTE1, 0),
            flag_wait(MTE1, 0, MTE2, 1), up(10), flag_wait(MTE1, 0, MTE2, 0), up(10),
        ]
    )  # fmt: skip
    found = spans(timing)
    assert [found[i] for i in (0, 2, 5, 8, 11, 13)] == [(4, 12), (12, 20), (12, 22), (26, 34), (22, 32), (34, 44)]
    assert timing.cycles == 44


def test_flags_between_dmas_and_behind_moves_on_chip() -> None:
    # load 4-8, then the store is issued: 12-16
    assert spans(run([load(4), flag_set(MTE2, 0, MTE3), flag_wait(MTE3, 0, MTE2), store(2)]))[3] == (12, 16)
    # UB -> L1 0-3, MTE1 3-5
    assert spans(run([copy(TINY, UB, L1, 3), flag_set(MTE3, 0, MTE1), flag_wait(MTE1, 0, MTE3), up(2)]))[1:] == [(0, 3), (0, 3), (3, 5)]


def test_one_engine_tells_several() -> None:
    # CUBE 0-6; all three start at 6
    others = (MTE1, VECTOR, FIXPIPE)
    sets, waits = [flag_set(CUBE, 0, e) for e in others], [flag_wait(e, 0, CUBE) for e in others]
    assert spans(run([mmad(6), *sets, *waits, up(1), vector(2)]))[1:] == [(0, 6)] * 6 + [(6, 7), (6, 8)]


def test_a_barrier_gathers_in_the_scalar_queue() -> None:
    # MTE1 0-5, CUBE 0-7; the scalar unit's queue passes both WAITs at 7 and lets VECTOR go
    rows = [up(5), flag_set(MTE1, 0, SCALAR), mmad(7), flag_set(CUBE, 0, SCALAR)]
    rows += [flag_wait(SCALAR, 0, MTE1), flag_wait(SCALAR, 0, CUBE), flag_set(SCALAR, 0, VECTOR), flag_wait(VECTOR, 0, SCALAR), vector(2)]
    assert spans(run(rows))[4:] == [(0, 5), (5, 7), (7, 7), (0, 7), (7, 9)]


def test_the_scalar_unit_takes_its_cycles() -> None:
    # issue 2: handed out at 2, 4, 6, 8; CUBE 2-3, 4-5, 8-9; MTE1 6-11
    timing = run([mmad(1), mmad(1), up(5), mmad(1)], machine=tiny_with(issue_cycles=2))
    assert spans(timing) == [(2, 3), (4, 5), (6, 11), (8, 9)]
    assert timing.busy_cycles[0, Engine.SCALAR] == 8


def test_a_full_queue_stops_the_scalar_unit() -> None:
    # depth 2: CUBE 0-5 has left at 0, 5-10 and 10-15 stand; the fourth is handed out when the second starts (5), and the
    # MTE1 move behind it as well: 5-6
    timing = run([mmad(5), mmad(5), mmad(5), mmad(5), up(1)], machine=tiny_with(queue_depth=2))
    assert timing.recorded is not None
    assert timing.recorded.dispatch[0].tolist() == [0, 0, 0, 5, 5]
    assert spans(timing) == [(0, 5), (5, 10), (10, 15), (15, 20), (5, 6)]


def test_blocked_wait_keeps_its_place_in_queue() -> None:
    # depth 1: MTE1's queue holds its WAIT until 14, so its move is handed out at 14, and the MMAD behind it too
    timing = run([load(10), flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2), up(1), mmad(2)], machine=tiny_with(queue_depth=1))
    assert spans(timing)[3:] == [(14, 15), (14, 16)]


def test_a_launch_comes_first() -> None:
    # launch 7, issue 2: the load is handed out at 9 and moves 13-23, the MMAD at 11
    machine = tiny_with(launch_cycles=7, issue_cycles=2)
    timing = run([load(10), mmad(3)], machine=machine)
    assert timing.recorded is not None
    assert timing.recorded.dispatch[0].tolist() == [9, 11]
    assert spans(timing) == [(13, 23), (11, 14)]
    assert timing.busy_cycles[0, SCALAR] == 4  # issuing, not waiting for the launch
    assert run([], machine=machine).cycles == 7


def test_a_deadlock_names_both_ends() -> None:
    # each waits before it sets
    rows = [flag_wait(MTE1, 0, CUBE), flag_set(MTE1, 0, CUBE), flag_wait(CUBE, 0, MTE1), flag_set(CUBE, 0, MTE1)]
    with pytest.raises(DeadlockError) as error:
        run(rows)
    assert str(error.value) == (
        "deadlock: core 0 MTE1 instruction 0 waits for the SET at core 0 CUBE instruction 3; "
        "core 0 CUBE instruction 2 waits for the SET at core 0 MTE1 instruction 1"
    )


def test_a_deadlock_by_a_full_queue_says_so() -> None:
    # the SET stands behind an entry that does not fit
    rows = [flag_wait(MTE1, 0, CUBE), up(1), up(1), flag_set(CUBE, 0, MTE1)]
    assert run(rows).cycles == 2
    with pytest.raises(DeadlockError, match=naming("core 0", "instruction 2", "MTE1", "2 entries")):
        run(rows, machine=tiny_with(queue_depth=2))


def test_a_missing_set_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError, match=naming("core 1 CUBE", "instruction 0", "SET")):
        simulate(program(TINY, [], [flag_wait(CUBE, 0, MTE1)]), TINY, NO_CONTENTION)
