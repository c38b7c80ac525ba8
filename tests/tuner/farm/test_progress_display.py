"""Plain lines off a terminal, nothing when quiet, a table on one."""

from __future__ import annotations

import io

from tests.tuner.platform.by_hand import Hand
from tuner.farm.progress_display import ProgressBar
from tuner.platform.real import REAL
from tuner.tune_request import Snapshot


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_say_everything_and_not_too_often() -> None:
    out, clock = io.StringIO(), Hand()
    with ProgressBar(clock, candidates=100, earlier_count=10, stream=out) as progress:
        clock.now_s = 100.0
        progress.update(Snapshot(11, note="epoch 1"))
        clock.now_s = 104.9
        progress.update(Snapshot(12, note="epoch 1"))
        clock.now_s = 105.0
        progress.update(Snapshot(30, {"none": 1500, "severe": 4000}, {"none": 3000}, {"crash": 2, "ok": 0}))
        progress.update(Snapshot(31, {"none": 1400}))
        clock.now_s = 105.5
        progress.update(Snapshot(32, {"none": 1400}))
        clock.now_s = 106.5
        progress.update(Snapshot(33, {"none": 1400}, note="retrained"))
        clock.now_s = 108.0
        progress.update(Snapshot(34, {"none": 1400}))
        progress.finish(Snapshot(100, {"none": 1400}))
        progress.say("waiting for 2 CPUs (free 0 of 2)")
    lines = out.getvalue().splitlines()
    assert lines[0] == "11 programs measured, 89 left, epoch 1"  # no estimate from how long the start took
    assert lines[1] == ("30 programs measured, 3.8/s, 70 left, about 18 s, 2 crash; best: none 1,500 cycles (2.00x); severe 4,000 cycles")
    assert lines[2].startswith("33 programs measured")
    assert "retrained" in lines[2]
    assert lines[3].startswith("100 programs measured, 11.1/s, 0 left; best")
    assert lines[4] == "waiting for 2 CPUs (free 0 of 2)"
    assert len(lines) == 5


def test_a_line_is_repeated_once_a_minute() -> None:
    out, clock = io.StringIO(), Hand()
    with ProgressBar(clock, candidates=100, stream=out) as progress:
        for clock.now_s in range(0, 130, 5):
            progress.update(Snapshot(0, note="epoch 0"))
        clock.now_s += 10.0
        progress.update(Snapshot(0, note="epoch 1"))
    assert [line.rpartition(" ")[2] for line in out.getvalue().splitlines()] == ["0", "0", "0", "1"]


def test_quiet_shows_nothing() -> None:
    for out in (io.StringIO(), Terminal()):
        with ProgressBar(REAL.clock, seconds=5, quiet=True, stream=out) as progress:
            progress.update(Snapshot(1, {"none": 3}))
            progress.say("hello")
        assert out.getvalue() == ""


def test_a_terminal_gets_a_table() -> None:
    out = Terminal()
    with ProgressBar(REAL.clock, seconds=60, stream=out) as progress:
        progress.update(Snapshot(7, {"none": 1500}, {"none": 3000}))
        progress.say("[a line] with brackets")
    text = out.getvalue()
    assert "best cycles" in text
    assert "2.00x" in text
    assert "7 programs measured" in text
    assert "[a line] with brackets" in text
