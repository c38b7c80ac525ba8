"""Messages about the boards that measure a run: a board that is new, a board that drifts."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from tuner.log.drift import DRIFTED, UNNAMED, Drift, drifted
from tuner.log.wire_format import LOG_ROWS
from tuner.log.writer import OpenedBatch, RunLog


class BoardWatch:
    """Drift of the boards of one search.  say: prints a line."""

    def __init__(self, log: RunLog, say: Callable[[str], None]) -> None:
        self._say = say
        self._drift = Drift(log.boards)
        self._earlier = {board for board, _ in log.boards if board is not None}
        self._boards = set(self._earlier)
        self._drifted: set[str] = set()  # boards that drifted when they were last heard of

    def note_start(self, boards: Collection[str]) -> None:
        """Note the boards of the measurements that the search begins with."""
        self._earlier |= set(boards)
        self._boards |= self._earlier

    def check_rows(self, batch: OpenedBatch, tasks: NDArray[np.intp]) -> None:
        """Note that these tasks of a batch get rows.  Raises `BadInputError` for a board that the run did not begin with."""
        rows, levels = LOG_ROWS.from_bytes(batch.batch.rows), batch.batch.levels
        boards, canaries = (rows.column(name).to_pylist()[::levels] for name in ("board", "canary_cycles"))
        for index in tasks.tolist():
            if boards[index] is not None:
                self._note_board(boards[index])
            self._note_canary(boards[index] or UNNAMED, canaries[index])

    def _note_board(self, board: str) -> None:
        if board in self._boards:
            return
        if self._earlier:
            raise BadInputError(f"board {board}: this run has measurements of {_and(self._earlier)}; go on there, or give another --out")
        self._boards.add(board)
        if len(self._boards) > 1:
            self._say(f"boards {_and(self._boards)} measure; the search compares their cycles, the finals use one of them")

    def _note_canary(self, board: str, canary_cycles: int | None) -> None:
        drift = self._drift.drift(board, canary_cycles)
        if drift is None or drifted(drift) == (board in self._drifted):
            return
        self._drifted ^= {board}
        name = f"board {board}" if board else "the board"
        drift_text = f"{name}: its canary takes {canary_cycles:,} cycles, {drift:+.1%} against its first reading"
        self._say(f"{drift_text}; rows are flagged (drifted)" if drifted(drift) else f"{drift_text}; within {DRIFTED:.0%} again")


def _and(boards: Collection[str]) -> str:
    return ", ".join(sorted(boards))
