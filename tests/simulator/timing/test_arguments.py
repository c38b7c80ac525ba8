"""What the timing model refuses, and what it leaves as it found it."""

from __future__ import annotations

import pytest

from simulator.npu.errors import BadInputError, ProgramError
from simulator.npu.level import NO_CONTENTION
from simulator.npu.machine_file import load_machine
from simulator.npu.program import Program
from simulator.timing import prepare, simulate, simulate_levels
from tests.programs import flag_set, program, random_program
from tests.simulator.timing.on_paper import (
    CUBE,
    MTE1,
    TINY,
    load,
    run,
)


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
        simulate(p, TINY, NO_CONTENTION, rate_divisor=2)
    with pytest.raises(BadInputError, match="prepared for machine tiny"):
        simulate(prepare(p, TINY), load_machine("edge"), NO_CONTENTION)
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
    assert simulate(Program(p.machine, p.streams, p.memory), TINY, NO_CONTENTION).cycles == 14
