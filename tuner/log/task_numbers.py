"""Numbers of the measured tasks of a run: each task has one number, and its rows are published under it.

A number is not the position in the order of the search.  At its end a session also publishes tasks measured beyond the next commit, and
with a noisy runner a resumed search may measure other tasks than before.  So a resumed search looks up numbers by the names of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ranges = list[list[int]]
"""Ranges of numbers [first, past the last], in the order of assignment; JSON."""


def add(ranges: Ranges, numbers: NDArray[np.int64]) -> None:
    """Append numbers to the ranges."""
    if not len(numbers):
        return
    for part in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if ranges and ranges[-1][1] == part[0]:
            ranges[-1][1] = int(part[-1]) + 1
        else:
            ranges.append([int(part[0]), int(part[-1]) + 1])


def first(ranges: Ranges, count: int) -> NDArray[np.int64]:
    """First `count` numbers of the ranges, ascending."""
    numbers = [np.arange(start, stop) for start, stop in ranges]
    return np.sort(np.concatenate(numbers)[:count]) if numbers else np.zeros(0, np.int64)


def count(ranges: Ranges) -> int:
    """Count of the numbers in the ranges."""
    return sum(stop - first for first, stop in ranges)


class TaskNumbers:
    """Numbers.  published: int64, ascending, of tasks with rows of earlier sessions.  seqs, tasks: columns `seq` and `task` of the rows."""

    def __init__(self, seqs: pa.ChunkedArray, tasks: pa.ChunkedArray) -> None:
        self.published, first = np.unique(seqs.to_numpy(), return_index=True)
        self._names: list[str] = tasks.take(pa.array(first)).to_pylist()  # a part has all rows of its tasks
        self._number = dict(zip(self._names, self.published.tolist(), strict=True))
        self._next = 0

    def assign(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Numbers of tasks; each task is asked for once.  Published tasks keep their number, others get the smallest free ones."""
        numbers = np.fromiter((self._number.get(name, -1) for name in names), np.int64, len(names))
        unnumbered = numbers < 0
        numbers[unnumbered] = self._free(int(unnumbered.sum()))
        return numbers

    def _free(self, count: int) -> NDArray[np.int64]:
        published = self.published[np.searchsorted(self.published, self._next) :]
        free = np.setdiff1d(np.arange(self._next, self._next + count + len(published)), published, assume_unique=True)[:count]
        if count:
            self._next = int(free[-1]) + 1
        return free

    def missing(self, ranges: Ranges) -> int:
        """Count of the numbers that were not published."""
        edges = np.searchsorted(self.published, np.array(ranges, np.int64).reshape(-1, 2))
        return count(ranges) - int((edges[:, 1] - edges[:, 0]).sum())

    def names(self, ranges: Ranges) -> set[str]:
        """Names of the tasks published under these numbers."""
        return {self._names[index] for index in np.flatnonzero(self._in_ranges(ranges)).tolist()}

    def beyond(self, ranges: Ranges) -> dict[str, int]:
        """Tasks published under other numbers, and those numbers."""
        places = np.flatnonzero(~self._in_ranges(ranges)).tolist()
        return {self._names[index]: int(self.published[index]) for index in places}

    def _in_ranges(self, ranges: Ranges) -> NDArray[np.bool_]:
        """bool [published]."""
        edges = np.zeros(len(self.published) + 1, np.int64)
        for first, stop in np.searchsorted(self.published, np.array(ranges, np.int64).reshape(-1, 2)).tolist():
            edges[first] += 1
            edges[stop] -= 1
        inside: NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
        return inside
