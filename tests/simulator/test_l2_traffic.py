"""The L2: what re-reads cost, by hand and against a model in floats; times behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.ddr import ContentionTrace
from simulator.l2_traffic import draws_of
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.errors import BadInputError, ProgramError
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program
from simulator.timeline import timeline
from simulator.timing import prepare, program_bound, simulate, simulate_levels, simulate_trace
from tests.programs import copy, programs, record

LINES, LINE = 64, 2  # capacity, blocks of a line
L2 = {"bytes": LINES * LINE * BLOCK_BYTES, "line_bytes": LINE * BLOCK_BYTES, "fill_bytes_per_cycle": 8}


def with_l2(name: str, **l2: object) -> Machine:
    return Machine.model_validate(load_machine(name).model_dump() | {"l2": L2 | l2})


TINY, FOUR = with_l2("tiny"), with_l2("edge:cores=4")


def program_of(machine: Machine, *streams: Sequence[Code], blocks: int = 1 << 14) -> Program:
    codes = [np.stack(list(rows)) if len(rows) else np.zeros((0, isa.WORDS), np.int32) for rows in streams]
    codes += [np.zeros((0, isa.WORDS), np.int32)] * (machine.cores - len(codes))
    return Program(machine.digest, tuple(codes), MemoryMap(DataType.float16, (DdrBuffer("all", "scratch", 0, blocks),), blocks))


def load(line: int, lines: int = 1) -> Code:
    return copy(FOUR, Memory.DDR, Memory.L1, LINE * lines, at=LINE * line)


def store(line: int, lines: int = 1) -> Code:
    return copy(FOUR, Memory.L1, Memory.DDR, LINE * lines, to=LINE * line)


def drawn(program: Program, machine: Machine = FOUR, warm: bool = False) -> list[list[float]]:
    """Lines that each transfer draws, per core."""
    bus = tuple(price(code, machine).bus for code in program.streams)
    draws = draws_of(program, machine, bus, warm)
    return [(units / (LINE * BLOCK_BYTES << 16)).tolist() for units in draws.drawn_units]


def traffic(program: Program, machine: Machine = FOUR, warm: bool = False) -> list[float]:
    """Lines read, written back and left dirty."""
    found = prepare(program, machine, warm).l2
    assert found is not None
    return [size / (LINE * BLOCK_BYTES) for size in found]


def test_a_line_is_read_once() -> None:
    first, again, *_ = drawn(program_of(FOUR, [load(0), load(0)]))[0]
    assert first == 1
    assert again < 1e-4  # a transfer always draws something


@given(st.integers(1, 400))
def test_re_reads_miss_by_later_fills(between: int) -> None:
    *_, again = drawn(program_of(FOUR, [load(0), load(8, between), load(0)]))[0]
    assert again == pytest.approx(1 - math.exp(-between / LINES), abs=2e-3)


_MOVE = st.tuples(st.integers(0, 30), st.integers(1, 9), st.booleans())


@given(st.lists(st.lists(_MOVE, min_size=4, max_size=4) | st.lists(_MOVE, min_size=1, max_size=1).map(lambda move: 4 * move), max_size=25))
def test_a_model_in_floats(rounds: list[list[tuple[int, int, bool]]]) -> None:
    """Four cores in step, often with the same transfer: presence and dirtiness of every line, in the mean, and what each core draws."""
    filled, read, back, dirty = 0.0, 0.0, 0.0, 0.0
    touched, written, expected = dict[int, float](), dict[int, float](), list[list[float]]()
    for moves in rounds:
        fetched, readers = dict[int, float](), dict[int, int]()
        expected.append([0.0] * len(moves))
        for core, (first, lines, writes) in enumerate(moves):
            for line in range(first, first + lines):
                if not writes and line in readers:
                    readers[line] += 1
                    continue
                fill = 1 - math.exp(-(filled - touched[line]) / LINES) if line in touched else 1.0
                evicted = fill * dirty / LINES
                filled, dirty, back = filled + fill, dirty - evicted, back + evicted
                if writes:
                    dirty += 1 - math.exp(-(filled - written[line]) / LINES) if line in written else 1.0
                    written[line] = filled
                    expected[-1][core] += evicted
                else:
                    read += fill
                    fetched[line], readers[line] = fill + evicted, 1
                touched[line] = filled
        for core, (first, lines, writes) in enumerate(moves):
            if not writes:
                expected[-1][core] += sum(fetched[line] / readers[line] for line in range(first, first + lines))
    streams = [
        [store(first, lines) if writes else load(first, lines) for first, lines, writes in (moves[core] for moves in rounds)]
        for core in range(4)
    ]
    program = program_of(FOUR, *streams)
    assert traffic(program) == pytest.approx([read, back, dirty], abs=0.02 * 4 * len(rounds))
    for core, row in enumerate(drawn(program)[:4]):
        assert row == pytest.approx([moves[core] for moves in expected], abs=0.1)


@given(st.integers(1, 4), st.integers(1, 5))
def test_cores_wait_for_one_fill(cores: int, lines: int) -> None:
    program = program_of(FOUR, *[[load(0, lines)] for _ in range(cores)])
    assert [row[0] for row in drawn(program) if row] == pytest.approx([lines / cores] * cores, abs=1e-4)
    assert traffic(program) == pytest.approx([lines, 0, 0])


def test_a_core_that_comes_later_finds_the_line() -> None:
    behind = drawn(program_of(FOUR, [load(0), load(1)], [load(4), load(0)]))
    assert behind[0] == pytest.approx([1, 1])
    assert behind[1] == pytest.approx([1, 0], abs=0.05)


def test_writes_leave_when_evicted() -> None:
    assert traffic(program_of(FOUR, [store(0, 3)])) == pytest.approx([0, 0, 3], abs=0.2)
    read, back, dirty = traffic(program_of(FOUR, [store(0, 8), load(100, 10 * LINES)]))
    assert (read, back + dirty) == pytest.approx((10 * LINES, 8), abs=0.05)
    assert dirty < 0.01


def test_a_warm_cache_has_the_program() -> None:
    program = program_of(FOUR, [load(0, 8)])
    assert traffic(program) == pytest.approx([8, 0, 0])
    # of 8 fills, 7 - i came after that of line i
    assert traffic(program, warm=True)[0] == pytest.approx(sum(1 - math.exp(-(7 - i) / LINES) for i in range(8)), rel=0.1)


def test_segments_come_one_after_the_other() -> None:
    """The second core's only transfer is of the second segment: it finds what the first core has read in the first one."""
    late = load(0)
    late[isa.TAG] = isa.tag_of(1, 0)
    assert drawn(program_of(FOUR, [load(9), load(0)], [late]))[1][0] < 0.05


def test_results_from_l0c_are_writes_of_planes() -> None:
    machine = load_machine("ascend910b")
    row = record(Op.FIXPIPE, Engine.MTE3, 16, 16, 2, 64, dtype=1, src=Memory.L0C, dst=Memory.DDR, d=0, s=(0,))
    program = program_of(machine, [row])
    program.verify(machine)
    timing = simulate(program, machine, NO_CONTENTION)
    assert (timing.ddr_read_bytes, timing.ddr_write_bytes) == (0, 16 * 32 * 4)
    found = prepare(program, machine).l2
    assert found is not None
    assert found.dirty_bytes == pytest.approx(4 * 512, abs=1)  # 4 planes, each 16 blocks of a line


def test_times_behind_it_on_paper() -> None:
    """Data begin after the latency; a miss at 8 B/cycle, then a hit at the path's 64, one after the other on one port."""
    machine = Machine.model_validate(FOUR.model_dump() | {"launch_cycles": 0})
    path = machine.path(Memory.DDR, Memory.L1)
    assert path is not None
    assert path.bytes_per_cycle == 64
    timing = simulate(program_of(machine, [load(0, 8), load(0, 8)]), machine, NO_CONTENTION, record=True)
    assert timing.recorded is not None
    (start, again), (end, over) = timing.recorded.start[0].tolist(), timing.recorded.end[0].tolist()
    assert start == 1 + machine.ddr.latency_cycles + path.startup_cycles
    # 7 lines of fills in between: 8 * (1 - exp(-7 / 64)) lines of 64 bytes once more
    missing = 8 * LINE * BLOCK_BYTES * (1 - math.exp(-7 / LINES))
    assert end - start == 8 * LINE * BLOCK_BYTES // 8
    assert over - again == pytest.approx(missing / 8 + (512 - missing) / 64, abs=3)
    assert timing.busy_cycles[0, Engine.MTE2] == end - start + over - again


@given(programs(TINY))
def test_bounds_and_determinism(program: Program) -> None:
    prepared = prepare(program, TINY)
    timings, again = simulate_levels(prepared, TINY), simulate_levels(program, TINY)
    assert {level: timing.cycles for level, timing in again.items()} == {level: timing.cycles for level, timing in timings.items()}
    for level, timing in timings.items():
        assert program_bound(prepared, TINY, TINY.contention[level]) <= timing.cycles
        alone = simulate(prepared, TINY, TINY.contention[level], shared=False)
        assert alone.cycles <= timing.cycles
    assert prepared.l2 is not None
    moved = sum(prepared.l2[:2])
    assert moved <= prepared.drawn_units >> 16 <= moved + 2 * LINE * BLOCK_BYTES + program.instructions


def test_a_level_scales_ddr_and_not_the_cache() -> None:
    large, share = with_l2("edge:cores=4", bytes=1 << 24, fill_bytes_per_cycle=64), 4
    none, severe = (large.contention[level].model_copy(update={"latency_cycles": 0}) for level in ("none", "severe"))
    first, again = program_of(large, [load(0, 8)]), program_of(large, [load(0, 8)] * 41)
    (once, slower), (hits, too) = ([simulate(p, large, level).cycles for level in (none, severe)] for p in (first, again))
    assert slower - once == pytest.approx((share - 1) * 8, abs=2)  # 512 bytes at some 64, and at a quarter of it
    assert hits - once == too - slower


@given(programs(TINY))
def test_level_with_less_is_a_smaller_cache(program: Program) -> None:
    shares = {"none": 1.0, "severe": 0.25}
    granted = {"none": 1.0, "severe": {"share": 0.25, "l2_bytes": L2["bytes"]}}
    machine, small, large = (
        Machine.model_validate(TINY.model_dump() | {"contention": contention, "l2": L2 | {"bytes": factor * LINES * LINE * BLOCK_BYTES}})
        for contention, factor in ((granted, 16), (shares, 1), (shares, 16))
    )
    timings, of_small, of_large = (simulate_levels(program, described) for described in (machine, small, large))
    assert timings["none"].cycles == of_large["none"].cycles
    assert timings["severe"].cycles == of_small["severe"].cycles
    load = ContentionTrace.constant(machine.contention["severe"].share_units)
    for prepared in (program, prepare(program, machine)):
        severe = machine.contention["severe"]
        assert simulate_trace(prepared, machine, load).cycles == simulate(prepared, machine, severe).cycles == timings["severe"].cycles
        assert program_bound(prepared, machine, severe) == program_bound(program, small, small.contention["severe"])
    assert timeline(program, machine, machine.contention["severe"]).cycles == timings["severe"].cycles


def test_granted_part_evicts_earlier() -> None:
    level = {"share": 1.0, "l2_bytes": L2["bytes"]}
    machine = Machine.model_validate(FOUR.model_dump() | {"l2": L2 | {"bytes": 1 << 24}, "contention": {"none": 1.0, "other": level}})
    program = program_of(machine, [load(0, LINES), load(0, LINES)])
    prepared = prepare(program, machine)
    assert prepared.l2 is not None
    assert prepared.l2.read_bytes == pytest.approx(LINES * LINE * BLOCK_BYTES, rel=0.01)
    smaller = prepared.behind(machine.contention["other"].l2_bytes).l2
    assert smaller is not None
    assert smaller.read_bytes > 1.4 * prepared.l2.read_bytes
    timings = simulate_levels(prepared, machine)
    assert timings["other"].cycles > timings["none"].cycles


def test_words_have_their_limits() -> None:
    machine = with_l2("tiny", bytes=1 << 22, line_bytes=1 << 16)
    row = record(Op.COPY, Engine.MTE2, 1, 128, 1 << 11, 0, 1, 0, 0, src=Memory.DDR, dst=Memory.L1, d=0, s=(0,))
    with pytest.raises(
        ProgramError, match="core 0 instruction 0: draws 8388608 bytes; accepted with an L2: transfers of less than 4194304"
    ):
        prepare(program_of(machine, [row], blocks=1 << 19), machine)


@pytest.mark.parametrize(
    ("l2", "why"),
    [
        ({"bytes": 64, "line_bytes": 64, "fill_bytes_per_cycle": 8}, "l2.bytes: 64; accepted: multiples of line_bytes, 64, from 4096 on"),
        ({"bytes": 4096 + 32, "line_bytes": 64, "fill_bytes_per_cycle": 8}, "accepted: multiples of line_bytes"),
        ({"bytes": 4096, "line_bytes": 64}, "fill_bytes_per_cycle"),
        ({"bytes": 4096, "line_bytes": 48, "fill_bytes_per_cycle": 8}, "line_bytes"),
    ],
)
def test_bad_descriptions(tmp_path, l2: dict, why: str) -> None:
    import yaml

    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(load_machine("tiny").model_dump(mode="json") | {"l2": l2}), encoding="utf-8")
    with pytest.raises(BadInputError, match=why):
        load_machine(str(path))
