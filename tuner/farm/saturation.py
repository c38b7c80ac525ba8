"""Saturation of a search: it ends where twice its programs are expected to bring next to nothing.

The expectation comes from the search's own past: with twice the programs, improvements are rarer and smaller.  Only committed results
count, in their order, so it is the same for any number of workers and after any number of interruptions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.log.columns import from_bytes
from tuner.log.record import EPOCH
from tuner.measure.grants import NEVER

DOUBLINGS = 2  # last doublings of the programs, whose mean gain is expected again; with one, searches ended that would have gained more
FEWEST = 128  # a search with fewer programs does not end


class Saturation:
    """Course of a search over its epochs.  minimum_gain: gain expected of twice the programs below which the search ends; None: never."""

    def __init__(self, minimum_gain: float | None, levels: int) -> None:
        self.minimum_gain = minimum_gain
        self._best: NDArray[np.int64] = np.full(levels, NEVER, np.int64)
        # after each epoch with a champion at every level: programs so far, and mean over the levels of log(cycles)
        self._programs, self._logs = list[int](), list[float]()

    def epoch_done(self, programs: int, findings: Sequence[bytes]) -> None:
        """Note an epoch.  programs: measured until now.  findings: results of its jobs, columns of `EPOCH`."""
        fits = [from_bytes(job_findings, EPOCH)["fit_cycles"].reshape(-1, len(self._best)) for job_findings in findings]
        self.note(programs, np.concatenate(fits) if fits else self._best[None])

    def note(self, programs: int, cycles: NDArray[np.int64]) -> None:
        """Note new programs.  programs: measured until now.  cycles: int64 [new programs, levels], NEVER where one does not fit."""
        self._best = np.minimum(self._best, cycles.min(0, initial=NEVER))
        if (self._best < NEVER).all():
            self._programs.append(programs)
            self._logs.append(float(np.log(self._best).mean()))

    @property
    def gain(self) -> float:
        """Share of the cycles that the search saved since its first programs, a geometric mean over levels."""
        return 1 - math.exp(self._logs[-1] - self._logs[0]) if self._logs else 0.0

    @property
    def expected(self) -> float | None:
        """Share of the cycles that twice the programs are expected to save; None: too few programs to say."""
        if not self._programs or (programs := self._programs[-1]) < FEWEST:
            return None
        points = [self._logs[max(0, bisect_right(self._programs, programs / 2**k) - 1)] for k in range(DOUBLINGS + 1)]
        return 1 - math.exp((points[0] - points[-1]) / DOUBLINGS)

    @property
    def reached(self) -> bool:
        """Whether the search is saturated."""
        return self.minimum_gain is not None and (expected := self.expected) is not None and expected < self.minimum_gain
