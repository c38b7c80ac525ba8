"""What each instruction takes, engines side by side, and the matrix units: every cycle worked out on paper."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine_parts import SystolicUnit
from simulator.npu.parts import Engine
from simulator.npu.program import Code
from tests.programs import copy, flag_set, flag_wait, record
from tests.simulator.timing.on_paper import (
    CUBE,
    DDR,
    FIXPIPE,
    L0A,
    L0B,
    L0C,
    L1,
    MTE1,
    MTE2,
    MTE3,
    TINY,
    UB,
    VECTOR,
    load,
    mmad,
    run,
    spans,
    store,
    up,
    vector,
)


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


def test_engines_run_in_parallel_and_queues_in_order() -> None:
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


def test_bytes_and_counts() -> None:
    timing = run([load(10), store(4)], [load(3)])
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes, timing.instructions) == (13 * 32, 4 * 32, 3)
    assert timing.bus_units == 17 * 32 * SHARE_UNIT


# 16 x 16, weight-stationary: a tile of 32 rows passes in 32 cycles, its results are there 2 * 16 + 16 - 2 = 46 later
ARRAY = SystolicUnit(
    kind="systolic", rows=16, columns=16, dataflow="weight-stationary", pipelined=True, passes={"float16": 1}, startup_cycles=0
)


TILE = record(Op.MMAD, CUBE, 32, 1, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))


def test_pipelined_array_takes_next_tile_before_last_results() -> None:
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


def test_other_matrix_units_have_results_at_the_end() -> None:
    # 2 * 16 + 16 + 32 - 2 = 78 each
    machine = TINY.model_copy(update={"matrix": ARRAY.model_copy(update={"pipelined": False})})
    assert spans(run([TILE, flag_set(CUBE, 0, MTE1), TILE, flag_wait(MTE1, 0, CUBE)], machine=machine))[1:] == [(0, 78), (78, 156), (0, 78)]
