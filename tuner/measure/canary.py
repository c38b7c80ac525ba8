"""Canary of a board: a program that it runs at the start and after a number of readings, to detect changes of the board."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from tuner.log.drift import NO_BOARD, BoardReading
from tuner.measure.runner_api import Bench, Encoded

EVERY = 100  # readings


@dataclass
class Canary:
    """Canary of one board, in the process that measures.  program: None without one.  readings: readings of one look; their median
    counts."""

    bench: Bench
    program: Encoded | None
    level: str
    readings: int = 5
    board: BoardReading = NO_BOARD
    _read: int = field(default=0, init=False)  # readings of other programs since the last look
    _looks: int = field(default=0, init=False)

    def look(self, readings: int) -> None:
        """Read the canary if it is due before `readings` further readings.  Raises `BadInputError` for an invalid name of the board."""
        if self._read >= self._looks * EVERY:
            self._looks = 1 + self._read // EVERY
            cycles = [] if self.program is None else [self.bench.once(self.program, self.level).cycles for _ in range(self.readings)]
            read = [reading for reading in cycles if reading is not None]
            self.board = BoardReading(*self.bench.identity(), round(median(read)) if read else None)
        self._read += readings
