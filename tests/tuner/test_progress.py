"""Plain lines off a terminal, nothing when quiet, a table on one."""

from __future__ import annotations

import io

from tuner.progress import Progress, Snapshot


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_say_everything_and_not_too_often() -> None:
    out, now = io.StringIO(), [0.0]
    with Progress(candidates=100, already=10, stream=out, clock=lambda: now[0]) as progress:
        now[0] = 5.0
        progress.update(Snapshot(30, {"none": 1500, "severe": 4000}, {"none": 3000}, {"crash": 2, "ok": 0}))
        progress.update(Snapshot(31, {"none": 1400}))
        now[0] = 5.5
        progress.update(Snapshot(32, {"none": 1400}))
        now[0] = 6.5
        progress.update(Snapshot(33, {"none": 1400}, note="retrained"))
        now[0] = 8.0
        progress.update(Snapshot(34, {"none": 1400}))
        progress.finish(Snapshot(100, {"none": 1400}))
        progress.say("waiting for 2 CPUs (free 0 of 2)")
    lines = out.getvalue().splitlines()
    assert lines[0] == (
        "30 measured, 4.0/s, 70 left, about 18 s, 2 crash; best: none 1,500 cycles (0.500 of baseline); severe 4,000 cycles"
    )
    assert lines[1].startswith("33 measured")
    assert "retrained" in lines[1]
    assert lines[2].startswith("100 measured, 11.2/s, 0 left; best")
    assert lines[3] == "waiting for 2 CPUs (free 0 of 2)"
    assert len(lines) == 4


def test_quiet_shows_nothing() -> None:
    for out in (io.StringIO(), Terminal()):
        with Progress(seconds=5, quiet=True, stream=out) as progress:
            progress.update(Snapshot(1, {"none": 3}))
            progress.say("hello")
        assert out.getvalue() == ""


def test_a_terminal_gets_a_table() -> None:
    out = Terminal()
    with Progress(seconds=60, stream=out) as progress:
        progress.update(Snapshot(7, {"none": 1500}, {"none": 3000}))
        progress.say("[a line] with brackets")
    text = out.getvalue()
    assert "best cycles" in text
    assert "0.500" in text
    assert "7 measured" in text
    assert "[a line] with brackets" in text
