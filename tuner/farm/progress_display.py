"""Progress display of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from simulator.terminal import escape_line, say
from tuner.measure.merit import speedup
from tuner.platform.interfaces import Clock
from tuner.tune_request import Snapshot

LINE_EVERY_S = 10.0
BEST_EVERY_S = 1.0
SAME_EVERY_S = 60.0  # repeated unchanged line, so that the user sees that the run is alive, as while kernels are compiled
_ENOUGH = 4  # least programs for a rate: the first epochs measure hundreds of segments per program, which would look too slow


class ProgressBar:
    """Progress display.  `candidates`, `seconds` or `measurements`: budget.  earlier_count: part of it that was measured before a resume.

    Output goes to `stream` (default stderr), so that stdout stays free for data; `quiet` shows nothing.  watch: called with every snapshot.
    """

    def __init__(
        self,
        clock: Clock,
        candidates: int | None = None,
        seconds: float | None = None,
        earlier_count: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        watch: Callable[[Snapshot], None] | None = None,
        measurements: int | None = None,
    ) -> None:
        self._reads, self._budget = measurements is not None, candidates if measurements is None else measurements
        self._seconds, self._earlier_count, self._quiet = seconds, earlier_count, quiet
        self._stream, self._clock, self._watch = stream or sys.stderr, clock, watch
        self._start_s = clock.monotonic_s()
        self._first_measured: tuple[int, float] | None = (
            None  # (count, time) of the first measurements: start-up time does not count in the rate
        )
        self._last_s = -LINE_EVERY_S
        self._snapshot: Snapshot | None = None
        console = Console(file=self._stream)
        self._live_table = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None

    def __enter__(self) -> Self:
        if self._live_table is not None:
            self._live_table.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live_table is not None:
            self._live_table.stop()

    def say(self, line: str) -> None:
        """A line of its own, above the table."""
        if self._quiet:
            return
        if self._live_table is not None:
            self._live_table.console.print(escape_line(line), highlight=False, markup=False)
        else:
            say(line, self._stream)

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot; cheap enough to call after every result."""
        if self._watch is not None:
            self._watch(snapshot)
        if self._quiet:
            return
        now_s = self._clock.monotonic_s()
        if self._first_measured is None and self._count(snapshot) > self._earlier_count:
            self._first_measured = self._count(snapshot), now_s
        if self._live_table is not None:
            if now_s - self._last_s >= 0.25:
                self._last_s = now_s
                self._live_table.update(self.table(snapshot))
            return
        patience_s = BEST_EVERY_S
        if self._snapshot is not None and snapshot.best == self._snapshot.best:
            patience_s = LINE_EVERY_S if snapshot != self._snapshot else SAME_EVERY_S
        if now_s - self._last_s >= patience_s:
            self._last_s, self._snapshot = now_s, snapshot
            self.say(self.line(snapshot))

    def finish(self, snapshot: Snapshot) -> None:
        """Show the last snapshot, unless it is shown already."""
        if snapshot != self._snapshot:
            self._last_s = -LINE_EVERY_S
            self.update(snapshot)

    def _count(self, snapshot: Snapshot) -> int:
        """Count in the unit of the budget: readings or programs."""
        return snapshot.readings if self._reads else snapshot.measured

    def _rate(self, snapshot: Snapshot) -> float:
        """Measurements per second; 0 while unknown."""
        if self._first_measured is None or self._count(snapshot) - self._first_measured[0] < _ENOUGH:
            return 0.0
        return (self._count(snapshot) - self._first_measured[0]) / max(1e-9, self._clock.monotonic_s() - self._first_measured[1])

    def _remaining_text(self, snapshot: Snapshot) -> str:
        if self._seconds is not None:
            return f"{max(0.0, self._seconds - (self._clock.monotonic_s() - self._start_s)):.0f} s left"
        if self._budget is None:
            return ""
        remaining_count = max(0, self._budget - self._count(snapshot))
        rate = self._rate(snapshot)
        return f"{remaining_count} left" + (f", about {remaining_count / rate:.0f} s" if remaining_count and rate > 0 else "")

    def _counts(self, snapshot: Snapshot) -> str:
        failed = " ".join(f"{count} {status}" for status, count in sorted(snapshot.failures.items()) if count)
        rate = self._rate(snapshot)
        speed = "" if not rate else f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
        measured = f"{snapshot.measured} programs measured" + (f" by {snapshot.readings:,} readings" if self._reads else "")
        parts = [measured, speed, self._remaining_text(snapshot), failed, snapshot.note]
        return ", ".join(part for part in parts if part)

    def line(self, snapshot: Snapshot) -> str:
        """Everything in one line."""
        best = "; ".join(f"{level} {_cycles(snapshot, level)}" for level in snapshot.best)
        return self._counts(snapshot) + (f"; best: {best}" if best else "")

    def table(self, snapshot: Snapshot) -> Table:
        """Everything as a table, a row per level."""
        table = Table(caption=self._counts(snapshot), caption_justify="left")
        for name in ("level", "best cycles", "baseline", "speed-up"):
            table.add_column(name, justify="left" if name == "level" else "right")
        for level, cycles in snapshot.best.items():
            base = snapshot.baseline.get(level)
            table.add_row(level, f"{cycles:,}", f"{base:,}" if base else "", speedup(base / cycles if base else None))
        return table


def _cycles(snapshot: Snapshot, level: str) -> str:
    cycles, base = snapshot.best[level], snapshot.baseline.get(level)
    return f"{cycles:,} cycles" + (f" ({speedup(base / cycles)})" if base else "")
