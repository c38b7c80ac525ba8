"""The last word on a noisy board: finalists are measured again, in turns, and what noise alone sets apart goes to the simpler plan.

A champion that was measured once is partly the luckiest of many.  So the best few programs are measured again, round by round, all in every
round: a drift of the board is then in all of them alike, and differences are taken within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.runners.find import RunnerSpec
from tuner.runners.reading import Bench, Encoded, Reading

SURE = 2.0  # standard errors that two medians must be apart


class Final(NamedTuple):
    """Programs to be measured in turns at one level, so many rounds."""

    programs: tuple[Encoded, ...]
    level: str
    rounds: int


@dataclass(frozen=True)
class FinalsSpec:
    """Makes a worker of a farm that measures finals."""

    runner: RunnerSpec

    def __call__(self) -> FinalsWorker:
        bench = self.runner()
        assert bench is not None, "the simulator needs no finals: it says the same every time"
        return FinalsWorker(bench)


@dataclass(frozen=True)
class FinalsWorker:
    """A farm's worker: int64 [rounds, programs] cycles per final, 0 where a program failed."""

    bench: Bench

    def run(self, batch: list[Final]) -> list[NDArray[np.int64]]:
        return [self._run(final) for final in batch]

    def _run(self, final: Final) -> NDArray[np.int64]:
        cycles = np.zeros((final.rounds, len(final.programs)), np.int64)
        for at in range(final.rounds):
            order = range(len(final.programs)) if at % 2 == 0 else reversed(range(len(final.programs)))  # nobody is always first
            for program in order:
                reading: Reading = self.bench.once(final.programs[program], final.level)
                cycles[at, program] = reading.cycles or 0
        return cycles


def sound(cycles: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [programs]: those that came to their end in more than half of the rounds.  cycles: int64 [rounds, programs]."""
    return np.asarray((cycles > 0).sum(0) * 2 > len(cycles))


def middle(readings: NDArray[np.int64]) -> float:
    """Median of the rounds that did not fail; readings: int64 [rounds]."""
    return float(np.median(readings[readings > 0]))


def apart(a: NDArray[np.int64], b: NDArray[np.int64]) -> tuple[float, float]:
    """Median of a - b, round by round, and two standard errors of it; a, b: int64 [rounds], 0 where one failed.

    By the median absolute deviation (x 1.4826, that of a normal distribution), since boards have outliers; a median's error is 1.2533 times
    a mean's.
    """
    difference = (a - b)[(a > 0) & (b > 0)].astype(np.float64)
    median = float(np.median(difference))
    spread = 1.4826 * float(np.median(np.abs(difference - median)))
    return median, SURE * 1.2533 * spread / float(np.sqrt(len(difference)))


def winner(cycles: NDArray[np.int64], simplicity: Sequence[tuple[int, int, str]]) -> int:
    """The simplest of the programs that noise alone sets apart from the best one.

    cycles: int64 [rounds, programs], 0 where one failed; a program that is not `sound` does not win.  simplicity: per program (segments,
    instructions, digest), less is simpler.  Raises ValueError where none is left.
    """
    left = [int(at) for at in np.flatnonzero(sound(cycles))]
    if not left:
        raise ValueError("every finalist failed in half of the rounds")
    best = min(left, key=lambda at: (middle(cycles[:, at]), simplicity[at]))

    def tied(at: int) -> bool:
        behind, noise = apart(cycles[:, at], cycles[:, best])
        return behind <= noise

    return min(filter(tied, left), key=lambda at: simplicity[at])
