"""Bytes in use and DDR bandwidth of small programs, worked out by hand, and what must hold of any program."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code
from simulator.occupancy import Steps, bytes_in_use, ddr_use, limit_points
from simulator.timeline import Timeline, timeline
from tests.programs import copy, flag_set, flag_wait, program, random_program, record

TINY = load_machine("tiny")
DDR, L1, L0A, L0C, UB = Memory.DDR, Memory.L1, Memory.L0A, Memory.L0C, Memory.UB
MTE2, MTE1 = Engine.MTE2, Engine.MTE1


def mmad(cycles: int, accumulate: int) -> Code:
    return record(Op.MMAD, Engine.CUBE, 16, cycles, 1, accumulate, src=L0A, dst=L0C, d=0, s=(0, 0))


def run(*streams: list[Code], share: int = SHARE_UNIT) -> Timeline:
    return timeline(program(TINY, *streams), TINY, Level.of_units(share))


def pairs(steps: Steps) -> list[tuple[int, float]]:
    return list(zip(steps.cycle.tolist(), steps.value.tolist(), strict=True))


def test_from_the_first_write_to_the_last_read() -> None:
    # ten blocks arrive in 4..14; four of them are read in 14..18, and the result is never read
    t = run([copy(TINY, DDR, L1, 10), flag_set(MTE2, 0, MTE1), flag_wait(MTE1, 0, MTE2), copy(TINY, L1, UB, 4)])
    use = bytes_in_use(t, 0)
    assert pairs(use[L1]) == [(4, 320), (14, 128), (18, 0)]
    assert pairs(use[UB]) == [(14, 128), (18, 0)]
    assert not pairs(use[L0A])
    assert not pairs(bytes_in_use(t, 1)[L1])


def test_the_reader_that_ends_last_counts() -> None:
    # eight blocks written 0..8; MTE3 reads them 8..16, the vector unit, which comes after it in the stream, 8..9
    relu = record(Op.VRELU, Engine.VECTOR, 8, 1, 1, 8, 1, 8, src=UB, dst=UB, d=64, s=(0,))
    flags = [flag_set(MTE1, 0, engine) for engine in (Engine.MTE3, Engine.VECTOR)]
    flags += [flag_wait(engine, 0, MTE1) for engine in (Engine.MTE3, Engine.VECTOR)]
    t = run([copy(TINY, L1, UB, 8), *flags, copy(TINY, UB, L1, 8, to=100), relu])
    assert pairs(bytes_in_use(t, 0)[UB]) == [(0, 256), (8, 512), (9, 256), (16, 0)]


def test_rewritten_block_is_free_in_between() -> None:
    # written 0..2, read 2..6 by the vector unit; idle; written again 10..12 and not read
    relu = record(Op.VRELU, Engine.VECTOR, 2, 1, 1, 8, 1, 8, src=UB, dst=UB, d=64, s=(0,))
    wait = [flag_set(MTE1, 0, Engine.VECTOR), flag_wait(Engine.VECTOR, 0, MTE1)]
    t = run([copy(TINY, L1, UB, 2), *wait, relu, copy(TINY, L1, UB, 8, to=100), copy(TINY, L1, UB, 2)])
    # 0..2 two blocks; 2..3 the vector unit reads them and writes two; 2..10 the eight that nobody reads; 10..12 two again
    assert pairs(bytes_in_use(t, 0)[UB]) == [(0, 64), (2, 64 + 64 + 256), (3, 256), (10, 64), (12, 0)]


def test_an_accumulation_goes_on_with_its_block() -> None:
    t = run([mmad(16, 0), mmad(8, 1), mmad(4, 0)])
    # 32 blocks; the third starts anew where the second ends
    assert pairs(bytes_in_use(t, 0)[L0C]) == [(0, 1024), (24, 1024), (28, 0)]


def test_blocks_of_a_race_are_counted_once() -> None:
    # ten blocks written 0..10, eight of them by the vector unit as well, 0..1
    relu = record(Op.VRELU, Engine.VECTOR, 8, 1, 1, 8, 1, 8, src=UB, dst=UB, d=0, s=(64,))
    assert pairs(bytes_in_use(run([copy(TINY, L1, UB, 10), relu]), 0)[UB]) == [(0, 320), (1, 64), (10, 0)]


def test_ddr_bandwidth_of_two_cores() -> None:
    use = ddr_use(run([copy(TINY, DDR, L1, 10)], [copy(TINY, DDR, L1, 5)]))
    # half the port each until the shorter one has its five blocks, at 14; then all of it
    assert pairs(use.read) == [(4, 32.0), (14, 32.0), (19, 0.0)]
    assert pairs(use.port) == [(4, 1.0), (14, 1.0), (19, 0.0)]
    assert [value for _, value in pairs(use.write)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(16))
def test_of_any_program(seed: int) -> None:
    """Races included: a memory holds what it can, the port gives what it has, and every byte passes."""
    share = SHARE_UNIT >> seed % 3
    t = timeline(random_program(TINY, seed, 150), TINY, Level.of_units(share))
    for core in range(TINY.cores):
        for memory, steps in bytes_in_use(t, core).items():
            assert (np.diff(steps.cycle) > 0).all()
            assert steps.value.min(initial=0) == 0
            assert steps.value.max(initial=0) <= TINY.buffer_blocks(memory) * 32
            assert steps.value[-1:].sum() == 0
    use = ddr_use(t)
    assert use.port.value.max(initial=0) <= 1
    transfers = int(t.transfer.sum())
    for steps, useful in ((use.read, t.useful[t.useful > 0].sum()), (use.write, -t.useful[t.useful < 0].sum())):
        passed = float((steps.value[:-1] * np.diff(steps.cycle)).sum())
        assert useful - 1e-6 <= passed <= useful + 32 * transfers  # the last cycle of a transfer is rounded up


def test_thinning_keeps_the_peaks() -> None:
    steps = Steps(np.arange(1000), np.random.default_rng(0).permutation(1000))
    few = limit_points(steps, 7)
    assert len(few.cycle) <= 7
    assert few.value.max() == 999
    assert (np.diff(few.cycle) > 0).all()
    assert limit_points(steps, 1000) is steps
