"""Results of other runs, from the store.

A stored result equals a measurement, so the search continues as if it had measured: the result counts in the budget and has a row.  Three
kinds of requests are always measured:

- one in a hundred, by digest, to check the store;
- programs that would be the best at a level among all programs measured here: a champion is never taken unchecked;
- programs of single operators, one of which is the baseline.

If a second measurement differs, the pack is not used again here, and the driver is informed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.log.columns import from_bytes
from tuner.log.drift import BoardReading
from tuner.log.record import BOARD, RESULTS
from tuner.measure.grants import NEVER
from tuner.measure.request import CYCLES, Request, with_never
from tuner.store.pack_store import STORED

CHECK_INTERVAL = 100  # one of so many results is measured again
NOISE = 0.1  # relative difference allowed between two readings of a runner
WORKER = "store/"  # prefix of the log's column `worker`, before the beginning of the pack's name
NAMED = 12  # hex digits of the pack's name in the column `worker`


def is_always_measured(task: str) -> bool:
    """Whether every run measures the task, to check the store."""
    return int(task[:8], 16) % CHECK_INTERVAL == 0


class Hit(NamedTuple):
    """Stored result.  values: int64 [levels, len(RESULTS)], a copy.  pack: name of the pack."""

    values: NDArray[np.int64]
    pack: str


class Memo:
    """Stored results.  packed: columns of `STORED`.

    exact: whether repeated measurements are equal, as with the simulator; else boards must match.  refused_packs: packs that are not used.
    """

    def __init__(self, packed: bytes, levels: int, exact: bool) -> None:
        columns = from_bytes(packed, STORED)
        tasks = columns["task"].reshape(-1, 2)
        self._first_words, self._second_words = np.ascontiguousarray(tasks[:, 0]), tasks[:, 1]
        self._values = columns["values"].reshape(-1, levels, len(RESULTS))
        self._pack, self._packs, self._exact = columns["pack"], columns.texts("packs"), exact
        self._boards = None if exact else list(zip(*map(columns.texts, BOARD), strict=True))
        self._best = [(NEVER, "")] * levels  # best program measured here: cycles and task, as champions are compared
        self.refused_packs: set[str] = set()
        self.differing: list[tuple[str, str]] = []  # reports: pack and task of a result that differs from the measurement here

    def find(self, task: str, board: BoardReading) -> Hit | None:
        """Stored result of a task.  board: board that measures here."""
        first, second = int(task[:16], 16), int(task[16:], 16)
        index = int(np.searchsorted(self._first_words, np.uint64(first)))
        while index < len(self._first_words) and self._first_words[index] == first:
            if self._second_words[index] == second and (self._boards is None or self._is_from_board(index, board)):
                pack = self._packs[self._pack[index]]
                return None if pack in self.refused_packs else Hit(self._values[index].copy(), pack)
            index += 1
        return None

    def _is_from_board(self, index: int, board: BoardReading) -> bool:
        assert self._boards is not None
        return board.board is not None and self._boards[index] == tuple(getattr(board, name) for name in BOARD)

    def must_measure(self, request: Request, task: str, values: NDArray[np.int64]) -> bool:
        """Whether a request is measured although a result is stored."""
        if is_always_measured(task):
            return True
        if request.kind != "program":
            return False
        if all(gene.stop - gene.start == 1 for gene in request.genome):
            return True
        return any((cycles, task) < best for cycles, best in zip(with_never(values[:, CYCLES]).tolist(), self._best, strict=True))

    def measured(self, request: Request, task: str, values: NDArray[np.int64] | None, hit: Hit | None) -> None:
        """Note a measurement made here; None if it failed.  hit: stored result of the task."""
        if request.kind == "program" and values is not None:
            ranks = [(cycles, task) for cycles in with_never(values[:, CYCLES]).tolist()]
            self._best = list(map(min, self._best, ranks))
        if hit is not None and not self._is_equal(values, hit.values):
            self.refused_packs.add(hit.pack)
            self.differing.append((hit.pack, task))

    def _is_equal(self, values: NDArray[np.int64] | None, stored_values: NDArray[np.int64]) -> bool:
        if values is None:
            return not self._exact  # a board may be away
        if self._exact:
            return np.array_equal(values, stored_values)
        return bool((np.abs(values[:, CYCLES] - stored_values[:, CYCLES]) <= NOISE * stored_values[:, CYCLES]).all())

    def take_reports(self) -> tuple[tuple[str, str], ...]:
        """Packs whose results differ from measurements made here, with the task, each once."""
        reports, self.differing = tuple(self.differing), []
        return reports
