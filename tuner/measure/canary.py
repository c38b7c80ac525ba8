"""The canary of a board: one program that it runs at the start and every so many readings, to see whether the board is what it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from tuner.log.drift import NOTHING_SAID, BoardSaid
from tuner.measure.runner_api import Bench, Encoded

EVERY = 100  # readings


@dataclass
class Canary:
    """Of one board, in the process that asks it.  program: None where there is none.  readings: at a look, of which the median counts."""

    bench: Bench
    program: Encoded | None
    level: str
    readings: int = 5
    said: BoardSaid = NOTHING_SAID
    _read: int = field(default=0, init=False)  # of other programs
    _looks: int = field(default=0, init=False)

    def look(self, readings: int) -> None:
        """Before so many readings of something else.  Raises `BadInputError` where the runner does not say properly which board it has."""
        if self._read >= self._looks * EVERY:
            self._looks = 1 + self._read // EVERY
            cycles = [] if self.program is None else [self.bench.once(self.program, self.level).cycles for _ in range(self.readings)]
            read = [reading for reading in cycles if reading is not None]
            self.said = BoardSaid(*self.bench.identity(), round(median(read)) if read else None)
        self._read += readings
