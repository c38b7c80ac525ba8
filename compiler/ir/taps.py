"""Resampling of one image axis: for each output place, its source places and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

Tap = tuple[int, float]  # source place, weight
MAX_PERIOD = 8  # longest distance between the places of a run


@njit(cache=True)
def input_rows(bounds: NDArray[np.int64], rows: int) -> int:
    """Maximum span of source places of `rows` neighbouring places, at least 1.  bounds: `Taps.bounds`."""
    places, max_span = bounds.shape[0], 1
    for first in range(max(1, places - rows + 1)):
        low, high = bounds[first, 0], bounds[first, 1]
        for i in range(first, min(first + rows, places)):
            low, high = min(low, bounds[i, 0]), max(high, bounds[i, 1])
        max_span = max(max_span, high - low)
    return max_span


@njit(cache=True)
def part_of_run(place: int, step: int, count: int, first: int, stop: int) -> tuple[int, int]:
    """Index range of a run's `count` places, `step` apart, that lie in [first, stop)."""
    return max(0, (first - place + step - 1) // step), min(count, (stop - 1 - place) // step + 1)


@njit(cache=True)
def source_columns(runs: NDArray[np.int64], first: int, stop: int) -> tuple[int, int]:
    """Source interval of places [first, stop), (0, 0) where they have no source.  runs: `Taps.runs`."""
    low, high = 1 << 31, 0
    for i in range(runs.shape[0]):
        skip, end = part_of_run(runs[i, 0], runs[i, 1], runs[i, 2], first, stop)
        if end > skip:
            low, high = min(low, runs[i, 3] + skip * runs[i, 4]), max(high, runs[i, 3] + (end - 1) * runs[i, 4] + 1)
    return (low, high) if high > low else (0, 0)


@njit(cache=True)
def input_columns(runs: NDArray[np.int64], columns: int, places: int) -> int:
    """Maximum span of source places of a tile, where `places` places are cut into tiles of `columns`; at least 1."""
    max_span = 1
    for first in range(0, places, columns):
        low, high = source_columns(runs, first, min(first + columns, places))
        max_span = max(max_span, high - low)
    return max_span


@dataclass(frozen=True)
class Taps:
    """taps[i]: sources and weights of output place i; empty for a fill value."""

    taps: tuple[tuple[Tap, ...], ...]

    def __len__(self) -> int:
        return len(self.taps)

    def is_identity(self, size: int) -> bool:
        return self == select_places(range(size))

    @property
    def has_empty(self) -> bool:
        return any(not taps for taps in self.taps)

    @cached_property
    def sums(self) -> tuple[float, ...]:
        """Distinct sums of the weights of a place, of places with taps."""
        return tuple(sorted({sum(weight for _, weight in taps) for taps in self.taps if taps}))

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """int64 [places, 2]: first source place and one past the last; (2^31, 0) for a place without taps."""
        none = (2**31, 0)
        return np.array([(min(s for s, _ in taps), max(s for s, _ in taps) + 1) if taps else none for taps in self.taps], np.int64)

    def matrix(self, size: int) -> NDArray[np.float32]:
        """Weights as float32 [places, size]."""
        out = np.zeros((len(self.taps), size), np.float32)
        for i, taps in enumerate(self.taps):
            for source, weight in taps:
                out[i, source] += np.float32(weight)
        return out

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Runs as int64 [r, 7]: place, step, count, source, source step, float32 bits of the weight, 1 where it adds to earlier runs.

        A run has places with a constant step, sources with a constant step, and one weight.  Its place is first written, then added to.
        """
        rows = []
        for depth in range(max((len(taps) for taps in self.taps), default=0)):
            level = [(i, *taps[depth]) for i, taps in enumerate(self.taps) if len(taps) > depth]
            by_period = [_runs_of(level, period) for period in range(1, MAX_PERIOD + 1)]
            rows += [(*run, int(depth > 0)) for run in min(by_period, key=len)]
        return np.array(rows, np.int64).reshape(len(rows), 7)


def _runs_of(level: Sequence[tuple[int, int, float]], period: int) -> list[tuple[int, int, int, int, int, int]]:
    """Runs of places `period` apart that cover each (place, source, weight) once; source steps are not negative."""
    out = []
    for phase in range(period):
        phase_taps = [tap for tap in level if tap[0] % period == phase]
        begin = 0
        while begin < len(phase_taps):
            place, source, weight = phase_taps[begin]
            end, step = begin + 1, 0
            while end < len(phase_taps) and phase_taps[end][0] == place + (end - begin) * period and phase_taps[end][2] == weight:
                if end == begin + 1:
                    step = phase_taps[end][1] - source
                if step < 0 or phase_taps[end][1] != source + (end - begin) * step:
                    break
                end += 1
            out.append((place, period, end - begin, source, max(0, step), int(np.float32(weight).view(np.int32))))
            begin = end
    return out


def select_places(sources: Iterable[int | None]) -> Taps:
    """Taps with one source place of weight 1 each, or none."""
    return Taps(tuple(() if source is None else ((source, 1.0),) for source in sources))


def merge_taps(rows: Iterable[Iterable[Tap]]) -> Taps:
    """Taps with equal sources merged and zero weights removed; a place whose weights are all zero keeps its first tap."""
    out = []
    for row in rows:
        total: dict[int, float] = {}
        for source, weight in row:
            total[source] = total.get(source, 0.0) + weight
        nonzero_taps = tuple((source, weight) for source, weight in total.items() if weight != 0)
        out.append(nonzero_taps or tuple(total.items())[:1])
    return Taps(tuple(out))
