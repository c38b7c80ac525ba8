"""Drift of a board, by a canary: the untuned program, which the board runs at the start and regularly.

A board warms up, is throttled, or has other users.  A slower canary means that about everything is slower, so rows measured then are
flagged; values are not corrected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

DRIFTED = 0.03  # relative change in either direction
UNNAMED = ""  # board whose runner does not name it


class BoardReading(NamedTuple):
    """Board of a measurement.  board, firmware: None if the runner does not name them.  canary_cycles: None if the canary failed."""

    board: str | None = None
    firmware: str | None = None
    canary_cycles: int | None = None


NO_BOARD = BoardReading()


class Drift:
    """Drift of the boards of one run.  first: board -> cycles of its first canary."""

    def __init__(self, earlier: Iterable[tuple[str | None, int | None]] = ()) -> None:
        self.first: dict[str, int] = {}
        for board, cycles in earlier:
            self.drift(board, cycles)

    def drift(self, board: str | None, canary_cycles: int | None) -> float | None:
        """Relative change of a canary to the board's first canary; None where the canary was not read."""
        if canary_cycles is None:
            return None
        return canary_cycles / self.first.setdefault(board or UNNAMED, canary_cycles) - 1


def drifted(drift: float | None) -> bool:
    """Whether rows with this drift are flagged."""
    return drift is not None and abs(drift) > DRIFTED


def board_names(table: pa.Table) -> tuple[str, ...]:
    """Boards that measured, with their firmware: `B (firmware F)`.  table: rows of a log."""
    boards = set[tuple[str | None, str | None]]()
    for part in table.select(["board", "firmware"]).to_batches():
        board, firmware = part.columns
        if board.null_count < len(board):  # no board is named if the simulator measures
            boards.update(zip(board.to_pylist(), firmware.to_pylist(), strict=True))
    return tuple(sorted(f"{board} (firmware {firmware})" for board, firmware in boards if board is not None))
