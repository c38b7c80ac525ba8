"""Micro-programs on the machine `tiny`, every cycle worked out on paper.

tiny: issue 0 cycles, queues of 16, DDR 32 bytes (one block) per cycle with reads up to 32 and writes up to 16, latency 4,
two transfers outstanding per queue; L1 -> L0A, L0C -> anywhere two blocks per cycle, other paths one; flags to the other core take
3 cycles.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simulator.ddr import ContentionTrace
from simulator.npu.errors import BadInputError
from simulator.npu.isa import Op
from simulator.npu.machine import SHARE_UNIT, Engine, Machine, Memory, SystolicUnit, load_machine
from simulator.npu.program import Code, DeadlockError, Program, ProgramError
from simulator.timing import Timing, prepare, program_bound, simulate, simulate_levels, simulate_trace
from tests.programs import copy, flag_set, flag_wait, program, random_program, record

TINY = load_machine("tiny")
MTE2, MTE1, CUBE, FIXPIPE, VECTOR, MTE3 = Engine.MTE2, Engine.MTE1, Engine.CUBE, Engine.FIXPIPE, Engine.VECTOR, Engine.MTE3
SCALAR = Engine.SCALAR
DDR, L1, L0A, L0B, L0C, UB = Memory.DDR, Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C, Memory.UB


def load(blocks: int) -> Code:
    return copy(TINY, DDR, L1, blocks)


def store(blocks: int) -> Code:
    return copy(TINY, UB, DDR, blocks, to=64)


def up(cycles: int) -> Code:
    """L1 -> UB on MTE1: one block per cycle."""
    return copy(TINY, L1, UB, cycles)


def mmad(cycles: int) -> Code:
    """One fractal per cycle: m = n = 16, k = cycles."""
    return record(Op.MMAD, CUBE, 16, cycles, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))


def vector(cycles: int) -> Code:
    """One repeat per cycle."""
    return record(Op.VRELU, VECTOR, 1, cycles, 1, 1, 1, 1, src=UB, dst=UB, d=0, s=(0,))


def run(*streams: list[Code], machine: Machine = TINY, share: int = SHARE_UNIT) -> Timing:
    p = program(machine, *streams)
    p.verify(machine)
    return simulate(p, machine, share, record=True)


def spans(timing: Timing, core: int = 0) -> list[tuple[int, int]]:
    assert timing.recorded is not None
    return list(zip(timing.recorded.start[core].tolist(), timing.recorded.end[core].tolist(), strict=True))


def tiny_with(ddr: dict[str, int] | None = None, **values: int) -> Machine:
    return TINY.model_copy(update=values | {"ddr": TINY.ddr.model_copy(update=ddr or {})})


def test_nothing_takes_no_time() -> None:
    timing = run([])
    assert (timing.cycles, timing.instructions, timing.balance) == (0, 0, float("inf"))


@pytest.mark.parametrize(
    ("row", "engine", "cycles"),
    [
        # latency 4, then 10 blocks at a block per cycle
        (copy(TINY, DDR, L1, 10), MTE2, 14),
        (copy(TINY, DDR, UB, 10), MTE2, 14),
        # latency 4, then 10 blocks at half a block per cycle
        (copy(TINY, UB, DDR, 10, to=64), MTE3, 24),
        (copy(TINY, L1, DDR, 10, to=64), MTE3, 24),
        # on chip: one block per cycle
        (copy(TINY, L1, UB, 10), MTE1, 10),
        (copy(TINY, L1, L0B, 10), MTE1, 10),
        (copy(TINY, UB, L1, 10), MTE3, 10),
        # im2col: k = 3 columns of mpad = 16 blocks, two per cycle
        (record(Op.IM2COL, MTE1, 2, 2, 2, 4, 1, 1, 1, 1, 1, 1, 0, 0, 2, 0, 4, 16, 0, 3, 16, src=L1, dst=L0A, d=0, s=(0,)), MTE1, 24),
        # mmad: m 32 / 16 * k 3 * n1 2 fractals; float32 takes two cycles each
        (record(Op.MMAD, CUBE, 32, 3, 2, 0, src=L0A, dst=L0C, d=0, s=(0, 0)), CUBE, 12),
        (record(Op.MMAD, CUBE, 32, 3, 2, 0, dtype=1, src=L0A, dst=L0C, d=0, s=(0, 0)), CUBE, 24),
        # fixpipe: 10 pixels * 2 * 64 bytes of accumulators, 64 bytes per cycle
        (record(Op.FIXPIPE, FIXPIPE, 10, 16, 2, 10, 10, 0, src=L0C, dst=UB, d=0, s=(0,)), FIXPIPE, 20),
        (record(Op.FIXPIPE, FIXPIPE, 10, 16, 2, 10, 10, 0, src=L0C, dst=L1, d=0, s=(0,)), FIXPIPE, 20),
        # vector: 5 repeats of 1 (simple), 4 (exp), 2 (divide), 2 (reduce) cycles
        (record(Op.VRELU, VECTOR, 8, 5, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(0,)), VECTOR, 5),
        (record(Op.VEXP, VECTOR, 8, 5, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(0,)), VECTOR, 20),
        (record(Op.VDIV, VECTOR, 8, 5, 1, 8, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(0, 8)), VECTOR, 10),
        (record(Op.VLANE_SUM, VECTOR, 8, 5, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(0,)), VECTOR, 10),
    ],
)
def test_one_instruction_of_every_engine(row: Code, engine: Engine, cycles: int) -> None:
    timing = run([row])
    assert timing.cycles == cycles
    expected = np.zeros((2, 7), np.int64)
    moves_ddr = int(DDR) in (row[4], row[5])
    expected[0, engine] = cycles - 4 if moves_ddr else cycles
    assert (timing.busy_cycles == expected).all()
    assert timing.load_store_cycles == (cycles - 4 if moves_ddr else 0)
    assert timing.compute_cycles == (cycles if engine in (CUBE, VECTOR) else 0)


def test_engines_run_side_by_side_and_queues_in_order() -> None:
    # MTE1 0-5, 5-8; CUBE 0-4; VECTOR 0-6, 6-7
    timing = run([up(5), mmad(4), up(3), vector(6), vector(1)])
    assert spans(timing) == [(0, 5), (0, 4), (5, 8), (0, 6), (6, 7)]
    assert timing.compute_cycles == 7  # CUBE 0-4 lies inside VECTOR 0-7
    assert timing.cycles == 8


def test_compute_cycles_are_a_union() -> None:
    # CUBE 0-4, then 14-17 behind a load that ends at 14; VECTOR 0-3, then 14-20: union 4 + 6
    timing = run([mmad(4), vector(3), load(10), flag_set(MTE2, 0, CUBE), flag_set(MTE2, 0, VECTOR), flag_wait(CUBE, 0, MTE2),
                  flag_wait(VECTOR, 0, MTE2), mmad(3), vector(6)])  # fmt: skip
    assert timing.compute_cycles == 10
    assert timing.load_store_cycles == 10
    assert timing.balance == 1.0


def test_a_flag_from_a_transfer_to_a_compute_queue_and_back() -> None:
    # load 4-14; SET takes effect at 14; MTE1 works 14-19; its SET at 19 lets the store issue: 23, 4 blocks at half a block per cycle: 31
    timing = run(
        [
            load(10), flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2), up(5),
            flag_set(MTE1, 0, MTE3), flag_wait(MTE3, 0, MTE1), store(4),
        ]
    )  # fmt: skip
    assert spans(timing) == [(4, 14), (0, 14), (0, 14), (14, 19), (14, 19), (0, 19), (23, 31)]
    assert timing.cycles == 31


def test_a_wait_blocks_only_its_own_queue_and_only_what_follows() -> None:
    # MTE1 works 0-5 before its WAIT; CUBE, which does not wait, 0-3
    timing = run([load(10), flag_set(MTE2, 0, MTE1), up(5), flag_wait(MTE1, 0, MTE2), up(2), mmad(3)])
    assert spans(timing)[2:] == [(0, 5), (0, 14), (14, 16), (0, 3)]


def test_a_set_waits_for_the_work_before_it_not_after_it() -> None:
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


def test_a_flag_to_the_other_core_takes_its_latency() -> None:
    # core 0 CUBE 0-6; the flag arrives at 6 + 3 = 9; core 1 works 9-11 and answers: 11 + 3 = 14
    timing = run(
        [mmad(6), flag_set(CUBE, 1, VECTOR), flag_wait(MTE1, 1, VECTOR), up(1)],
        [flag_wait(VECTOR, 0, CUBE), vector(2), flag_set(VECTOR, 0, MTE1)],
    )
    assert spans(timing, 1) == [(0, 9), (9, 11), (9, 11)]
    assert spans(timing, 0)[2:] == [(0, 14), (14, 15)]


def test_a_flag_from_a_transfer_to_the_other_core() -> None:
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


def test_flags_from_one_dma_to_the_other_and_behind_a_move_on_chip() -> None:
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


def test_a_blocked_wait_keeps_its_place_in_the_queue() -> None:
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


def test_a_launch_is_in_every_bound_and_in_the_trace_of_the_load() -> None:
    machine = tiny_with(launch_cycles=7)
    p = program(machine, [load(10)])
    assert program_bound(p, machine) == 7 + 10
    assert simulate(p, machine, SHARE_UNIT, shared=False).cycles == 7 + 14
    assert {level: t.cycles for level, t in simulate_levels(p, machine).items()} == {"none": 21, "slight": 31, "severe": 51}
    # data from 11 on: 5 blocks by 16, the other 5 at a quarter: 20 cycles
    assert simulate_trace(p, machine, ContentionTrace.of([(0, 65536), (16, 16384)])).cycles == 36
    assert program_bound(program(machine, []), machine) == 7


# 16 x 16, weight-stationary: a tile of 32 rows passes in 32 cycles, its results are there 2 * 16 + 16 - 2 = 46 later
ARRAY = SystolicUnit(
    kind="systolic", rows=16, columns=16, dataflow="weight-stationary", pipelined=True, passes={"float16": 1}, startup_cycles=0
)
TILE = record(Op.MMAD, CUBE, 32, 1, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))


def test_a_pipelined_array_takes_the_next_tile_before_the_results_of_the_last() -> None:
    machine = TINY.model_copy(update={"matrix": ARRAY})
    timing = run([TILE, flag_set(CUBE, 0, MTE1), TILE, flag_wait(MTE1, 0, CUBE), up(3)], machine=machine)
    assert spans(timing) == [(0, 32), (0, 78), (32, 64), (0, 78), (78, 81)]
    assert timing.cycles == 64 + 46  # results of the second tile
    assert timing.busy_cycles[0, CUBE] == timing.compute_cycles == 64


def test_a_pipelined_array_that_ran_dry_fills_again() -> None:
    # the second tile waits for the first one's results and a move: 78, 79; 79-111, results at 157
    machine = TINY.model_copy(update={"matrix": ARRAY})
    rows = [TILE, flag_set(CUBE, 0, MTE1), flag_wait(MTE1, 0, CUBE), up(1), flag_set(MTE1, 0, CUBE), flag_wait(CUBE, 0, MTE1), TILE]
    timing = run(rows, machine=machine)
    assert (spans(timing)[6], timing.cycles) == ((79, 111), 157)
    # a SET with nothing before it has nothing to wait for
    assert spans(run([flag_set(CUBE, 0, MTE1), flag_wait(MTE1, 0, CUBE), up(1)], machine=machine))[2] == (0, 1)


def test_other_matrix_units_have_their_results_at_the_end() -> None:
    # 2 * 16 + 16 + 32 - 2 = 78 each
    machine = TINY.model_copy(update={"matrix": ARRAY.model_copy(update={"pipelined": False})})
    assert spans(run([TILE, flag_set(CUBE, 0, MTE1), TILE, flag_wait(MTE1, 0, CUBE)], machine=machine))[1:] == [(0, 78), (78, 156), (0, 78)]


def test_latency_is_hidden_behind_the_transfer_before() -> None:
    # both issued at 0: data 4-14, 14-24
    assert spans(run([load(10), load(10)])) == [(4, 14), (14, 24)]


def test_latency_shows_where_transfers_are_short() -> None:
    # two outstanding, one block each: issued 0, 0, then at the ends 5 and 6: data 4-5, 5-6, 9-10, 10-11
    assert spans(run([load(1)] * 4)) == [(4, 5), (5, 6), (9, 10), (10, 11)]


def test_one_outstanding_pays_the_latency_every_time() -> None:
    assert spans(run([load(3)] * 3, machine=tiny_with({"outstanding": 1}))) == [(4, 7), (11, 14), (18, 21)]


def test_many_outstanding_pay_it_once() -> None:
    assert spans(run([load(1)] * 4, machine=tiny_with({"outstanding": 4}))) == [(4, 5), (5, 6), (6, 7), (7, 8)]


def test_a_move_on_chip_in_a_dma_queue_waits_for_the_data_before_it() -> None:
    # store 5 blocks: 4-14; UB -> L1 14-17; the next store is issued when that starts (14), its data at max(18, 17): 18-20
    timing = run([store(5), copy(TINY, UB, L1, 3), store(1)])
    assert spans(timing) == [(4, 14), (14, 17), (18, 20)]
    assert timing.busy_cycles[0, MTE3] == 10 + 3 + 2
    assert timing.load_store_cycles == 12  # DDR data only


def test_moves_on_chip_in_a_dma_queue_follow_each_other() -> None:
    # UB -> L1 0-3 and 3-5; the store is issued at 3 with the second, latency until 7
    assert spans(run([copy(TINY, UB, L1, 3), copy(TINY, UB, L1, 2), store(1)])) == [(0, 3), (3, 5), (7, 9)]


def test_a_reader_and_a_writer_share_the_port() -> None:
    # from 4 on 16 bytes each (the write cap is 16 too): 16 blocks take 32 cycles, 4-36; the other's 8 blocks 4-20, then the
    # reader has the port: 8 blocks left at 20, one per cycle: 28
    timing = run([load(16), store(8)])
    assert spans(timing) == [(4, 28), (4, 20)]
    assert timing.load_store_cycles == 24  # one core: cycles with either count once


def test_what_the_write_cap_leaves_goes_to_the_reader() -> None:
    # write cap 8: reader 24, writer 8 bytes per cycle.  Reader: 24 blocks = 768 B in 32 cycles, 4-36.  The writer has 8 blocks through by
    # then and stays at its cap: 12 blocks in 48 cycles, 4-52
    machine = tiny_with({"write_cap_bytes_per_cycle": 8})
    assert spans(run([load(24), store(12)], machine=machine)) == [(4, 36), (4, 52)]


def test_two_cores_share_the_port() -> None:
    # both read: 16 bytes each from 4 on: core 1's 5 blocks end at 14; core 0 then has 5 of 10 blocks left: 19
    timing = run([load(10)], [load(5)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 19)], [(4, 14)])
    assert timing.load_store_cycles == 15 + 10
    assert timing.busy_cycles[:, MTE2].tolist() == [15, 10]


def test_a_store_on_one_core_and_a_load_of_it_on_the_other() -> None:
    # core 0 stores 4 blocks at 16 bytes: 4-12; the flag arrives at 15; core 1 loads: 19-23
    timing = run([store(4), flag_set(MTE3, 1, MTE2)], [flag_wait(MTE2, 0, MTE3), load(4)])
    assert (spans(timing, 0)[0], spans(timing, 1)[1]) == ((4, 12), (19, 23))


def test_four_queues_of_two_cores_share_the_port() -> None:
    # 8 bytes each from 4 on, 4 cycles a block: those of 4 blocks end at 20; then 16 each: the 4 blocks that are left take 8 cycles
    timing = run([load(8), store(4)], [load(4), store(8)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 28), (4, 20)], [(4, 20), (4, 28)])
    assert timing.load_store_cycles == 24 + 24
    assert timing.cycles == program_bound(program(TINY, [load(8), store(4)], [load(4), store(8)]), TINY) + 4


def test_a_share_of_a_third_rounds_up_once() -> None:
    # two readers and a writer take 32/3 bytes = 699,050 units per cycle.  3 blocks =
    # 6,291,456 units: 9 cycles would move 6,291,450, so all end after 10, at 14
    timing = run([load(3), store(3)], [load(3)])
    assert (spans(timing, 0), spans(timing, 1)) == ([(4, 14), (4, 14)], [(4, 14)])


def test_levels_stretch_only_the_data_phase() -> None:
    # 10 blocks at 32, 16 and 8 bytes per cycle behind a latency of 4
    p = program(TINY, [load(10), flag_set(MTE2, 0, CUBE), flag_wait(CUBE, 0, MTE2), mmad(7)])
    timings = simulate_levels(p, TINY)
    assert {level: timing.cycles for level, timing in timings.items()} == {"none": 21, "slight": 31, "severe": 51}
    assert [timing.busy_cycles[0, CUBE] for timing in timings.values()] == [7, 7, 7]
    assert simulate_levels(p, TINY, ("severe",))["severe"].cycles == 51


def test_short_bursts_cost_bus_time() -> None:
    # edge: lone blocks use half of a 64-byte burst: 10 blocks = 640 bus bytes at 64 per cycle, latency 120, issue 1
    edge = load_machine("edge")
    lone = record(Op.COPY, MTE2, 1, 10, 2, 1, 1, 0, 0, src=DDR, dst=L1, d=0, s=(0,))
    joined = record(Op.COPY, MTE2, 1, 10, 1, 1, 1, 0, 0, src=DDR, dst=L1, d=0, s=(0,))
    assert run([lone], machine=edge).cycles == 1 + 120 + 10
    assert run([joined], machine=edge).cycles == 1 + 120 + 5


def test_a_load_that_changes_while_a_transfer_runs() -> None:
    # data from 4 on: 6 blocks by 10 at full rate; then a quarter: 4 blocks take 16 cycles: 26; or full again from 14, with one
    # block more by then and 3 to go: 17
    p = program(TINY, [load(10)])
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, 65536), (10, 16384)])).cycles == 26
    assert simulate_trace(p, TINY, ContentionTrace.of([(0, 65536), (10, 16384), (14, 65536)])).cycles == 17


def test_the_longest_path_shares_nothing() -> None:
    # reader 4-20 at 32, writer 4-20 at its cap 16, as if alone; at half the port both run at 16: 4-36 and 4-20
    p = program(TINY, [load(16), store(8)])
    assert simulate(p, TINY, SHARE_UNIT, shared=False).cycles == 20
    assert simulate(p, TINY, SHARE_UNIT, shared=False, rate_divisor=2).cycles == 36
    assert prepare(p, TINY).dma_queues == 2


def test_program_bound_is_the_busiest_engine_or_the_bus() -> None:
    assert program_bound(program(TINY, [mmad(9), load(5)]), TINY) == 9
    assert program_bound(program(TINY, [mmad(2), store(5)]), TINY) == 10  # write cap
    assert program_bound(program(TINY, [load(5), store(5)]), TINY) == 10  # either: 10 blocks of the bus
    assert program_bound(program(TINY, [load(8), store(3)]), TINY) == 11  # the bus
    assert program_bound(program(TINY, [load(8), store(3)]), TINY, SHARE_UNIT // 4) == 44
    assert program_bound(program(TINY, [mmad(1)] * 4), tiny_with(issue_cycles=3)) == 12  # the scalar unit
    # rounding up is per transfer: 3 loads of a block at 32/3 bytes (699,050 units) take 4 cycles each
    assert program_bound(program(TINY, [load(1)] * 3), TINY, SHARE_UNIT // 3) == 12


def test_program_bound_holds_where_rates_are_at_their_least() -> None:
    # a port of one unit per cycle, two queues that still get one each: a block is 32 * 65,536 units
    machine = tiny_with({"bytes_per_cycle": 1})
    p = program(machine, [load(1)], [load(1)])
    assert simulate(p, machine, 1).cycles == 4 + 32 * SHARE_UNIT
    assert program_bound(p, machine, 1) == 32 * SHARE_UNIT


def test_bytes_and_counts() -> None:
    timing = run([load(10), store(4)], [load(3)])
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes, timing.instructions) == (13 * 32, 4 * 32, 3)
    assert timing.bus_units == 17 * 32 * SHARE_UNIT


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
    with pytest.raises(DeadlockError, match=r"core 0 cannot dispatch instruction 2: the queue of MTE1 is full \(2 entries\)"):
        run(rows, machine=tiny_with(queue_depth=2))


def test_a_missing_set_is_a_deadlock() -> None:
    with pytest.raises(DeadlockError, match="core 1 CUBE instruction 0 waits for a SET that does not exist"):
        simulate(program(TINY, [], [flag_wait(CUBE, 0, MTE1)]), TINY, SHARE_UNIT)


@pytest.mark.parametrize(("word", "value"), [(1, 7), (1, -1), (10, 2), (10, -1), (11, 7), (12, 4), (12, -1)])
def test_an_unverified_flag_never_reaches_the_kernel(word: int, value: int) -> None:
    row = flag_set(MTE1, 0, CUBE)
    row[word] = value
    with pytest.raises(ProgramError, match="core 0 instruction 1"):
        prepare(program(TINY, [load(1), row]), TINY)


def test_ddr_on_another_engine_is_refused() -> None:
    row = load(1)
    row[1] = MTE1
    with pytest.raises(ProgramError, match="core 0 instruction 0: DDR"):
        prepare(program(TINY, [row]), TINY)


def test_bad_arguments_are_refused() -> None:
    p = program(TINY, [load(1)])
    with pytest.raises(BadInputError, match=r"'medium'.*none, slight, severe"):
        simulate_levels(p, TINY, ("medium",))
    with pytest.raises(BadInputError, match="rate_divisor"):
        simulate(p, TINY, SHARE_UNIT, rate_divisor=2)
    with pytest.raises(BadInputError, match="prepared for machine tiny"):
        simulate(prepare(p, TINY), load_machine("edge"), SHARE_UNIT)
    with pytest.raises(ProgramError, match="2 streams"):
        prepare(p, load_machine("edge"))


def test_preparing_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p = random_program(TINY, 5, 80)
    whole = prepare(p, TINY)
    monkeypatch.setattr("simulator.timing._CHUNK", 7)
    parts = prepare(p, TINY)
    assert (whole.word == parts.word).all()
    assert (whole.ddr_read_bytes, whole.ddr_write_bytes) == (parts.ddr_read_bytes, parts.ddr_write_bytes)


def test_a_result_cannot_be_changed() -> None:
    timing = run([load(1)])
    with pytest.raises(ValueError, match="read-only"):
        timing.busy_cycles[0, 0] = 1


def test_streams_may_come_read_only() -> None:
    p = program(TINY, [load(10)])
    p.streams[0].flags.writeable = False
    assert simulate(Program(p.machine, p.streams, p.memory), TINY, SHARE_UNIT).cycles == 14
