"""Finals as a race: programs are read in turns until noise no longer hides which is the fastest, or each has been read often enough.

All that are in question are read in every round, so a drift of the board is in all of them alike, and two programs are compared by their
differences within rounds.  Differences are of logarithms: noise is in parts of a time.  Where noise treats two programs alike, a difference
scatters symmetrically about the true one whatever the noise is, outliers and infinite variance included; so the comparison is Wilcoxon's
signed-rank test, and the estimate that of Hodges and Lehmann (1963), the value at which that test is balanced.  Neither needs to know
the noise, and where it is Gaussian they need 5% more readings than a mean.  A mean that a bound on the variance makes robust (Catoni;
Bubeck, Cesa-Bianchi and Lugosi 2013) would need that bound, and a median half as many readings again.

Who is told apart from a faster one leaves the race (successive elimination: Even-Dar, Mannor and Mansour 2006; by ranks, as tuners of
algorithms do: Birattari et al. 2002).  It is looked at rarely, at numbers of readings that grow by half, so that being right over all looks
and programs (`WRONG`, by the union bound) costs little: intervals for every number of readings (Jamieson and Nowak 2014) are wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WRONG = 0.05  # chance that the fastest program of a level leaves the race, at most
TOLERANCE = 0.005  # in parts of a time: what a simpler program may be behind, of those that are not told apart
ECHO = 2  # rounds after which a board that says the same twice, of all programs, is taken at its word
FIRST_LOOK = 16  # rounds, of which a signed-rank test can be that sure
GROWTH = 1.5
FAILED, SKIPPED = 0, -1  # in place of cycles


class Turn(NamedTuple):
    """A round at one level: numbers of programs, in the order in which they are read."""

    level: str
    programs: tuple[int, ...]


Measure = Callable[[Sequence[Turn]], Iterable[Sequence[int]]]
"""Cycles of every turn's programs, in their order; FAILED where there was no reading."""

Seen = Callable[[int, Mapping[str, int]], None]
"""After a look: rounds so far, and by level the finalists that are still read."""


@dataclass(frozen=True)
class Placing:
    """How a race ended at one level.

    cycles: int64 [rounds, programs], FAILED or SKIPPED where there is no reading.  left: finalists that are not told apart from the fastest
    one, which is the first of them; none where all failed.  near: those of them that are not further behind it than `TOLERANCE`.
    """

    cycles: NDArray[np.int64]
    left: tuple[int, ...]
    near: tuple[int, ...]


def race(
    finalists: int, levels: Sequence[str], budget: int, measure: Measure, seen: Seen = lambda *_: None, most: int | None = None
) -> dict[str, Placing]:
    """Programs 0, 1, ... race at every level; number `finalists`, the baseline, is read beside them until the first look.

    budget: rounds, which is readings of a program at a level.  most: readings of all of them together; enough for `ECHO` rounds.
    A program that fails in half of its rounds at any level is in no race.
    """
    stops = stages(budget)
    sure = NormalDist().inv_cdf(1 - WRONG / (max(1, finalists - 1) * max(1, len(stops) - 1)))
    contests = {level: _Contest(finalists, sure) for level in levels}
    done = taken = 0
    for goal in stops:
        stop = goal
        if most is not None:  # who is out leaves more for the others
            a_round = sum(len(contest.order(done)) for contest in contests.values() if contest.asks(done))
            stop = min(goal, done + (most - taken) // max(1, a_round))
        turns = [Turn(level, contest.order(at)) for at in range(done, stop) for level, contest in contests.items() if contest.asks(at)]
        taken += sum(len(turn.programs) for turn in turns)
        for turn, cycles in zip(turns, measure(turns), strict=True):
            contests[turn.level].add(turn.programs, cycles)
        done = stop
        for contest in contests.values():
            contest.listen()
        ended = stop == budget or stop < goal  # nobody can be read any more
        if stop > ECHO or ended or all(contest.echoes for contest in contests.values()):
            able = np.logical_and.reduce([sound(contest.cycles) for contest in contests.values()])
            for contest in contests.values():
                contest.look(able)
            seen(done, {level: len(contest.reads) for level, contest in contests.items()})
            if ended or not any(contest.reads for contest in contests.values()):
                break
    return {level: contest.placing() for level, contest in contests.items()}


def stages(budget: int) -> list[int]:
    """Rounds after which the race is looked at, the first time for an echo."""
    stops = [ECHO, FIRST_LOOK]
    while stops[-1] < budget:
        stops.append(int(stops[-1] * GROWTH))
    return [*(stop for stop in stops if stop < budget), budget]


def sound(cycles: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [programs]: those that came to their end in more than half of the rounds in which they were read."""
    return np.asarray((cycles > FAILED).sum(0) * 2 > (cycles > SKIPPED).sum(0))


def score(differences: NDArray[np.float64]) -> float:
    """Wilcoxon's signed-rank statistic in its standard deviations: 0 where differences are as much above 0 as below.

    As the number of pairs (with itself, too) whose mean is above 0, those at 0 by half, which says what is to be done about ties.  The
    normal approximation is on the safe side where it matters, far out.
    """
    n = len(differences)
    if not n:
        return 0.0
    ascending = np.sort(differences)
    above, at_least = (n - np.searchsorted(ascending, -ascending, side).astype(np.int64) for side in ("right", "left"))
    pairs = (above + at_least).sum() / 2  # ordered ones
    single = (ascending > 0).sum() + (ascending == 0).sum() / 2
    return float(((pairs + single) / 2 - n * (n + 1) / 4) / np.sqrt(n * (n + 1) * (2 * n + 1) / 24))


def centre(differences: NDArray[np.float64]) -> float:
    """Hodges' and Lehmann's estimate, the median of the means of pairs, to the last bit or so.

    By halving: the pairs of a large budget would fill the memory.
    """
    low, high = float(differences.min()), float(differences.max())
    for _ in range(60):
        middle = (low + high) / 2
        if score(differences - middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def estimates(cycles: NDArray[np.int64], reference: int) -> list[int | None]:
    """Cycles of every program, None of one that is not sound.

    What is told of the reference is the median of its readings; of the others how much they differ from it in the rounds that they shared:
    some were read for longer than others, and a board that drifts was another one then.
    """
    own = float(np.median(cycles[cycles[:, reference] > FAILED, reference]))
    found: list[int | None] = []
    for at, is_sound in enumerate(sound(cycles)):
        if not is_sound:
            found.append(None)
            continue
        apart = _differences(cycles, at, reference)
        alone = float(np.median(cycles[cycles[:, at] > FAILED, at]))
        found.append(round(own * float(np.exp(centre(apart))) if len(apart) else alone))
    return found


def _differences(cycles: NDArray[np.int64], a: int, b: int) -> NDArray[np.float64]:
    """log a - log b, of the rounds in which neither failed."""
    both = cycles[(cycles[:, a] > FAILED) & (cycles[:, b] > FAILED)]
    return np.log(both[:, a]) - np.log(both[:, b])


class _Contest:
    """The race at one level.  sure: standard deviations at which two programs are told apart.

    reads: finalists that are read in the next rounds.  beaten: finalist -> the faster one that it was told apart from; where that
    turns out not to be sound, at whatever level, the other is in question again.
    """

    def __init__(self, finalists: int, sure: float) -> None:
        self.finalists, self._sure = finalists, sure
        self.reads: tuple[int, ...] = ()
        self.echoes = False
        self._rows: list[NDArray[np.int64]] = []
        self._beaten: dict[int, int] = {}
        self._left: tuple[int, ...] = ()

    def asks(self, at: int) -> bool:
        """Whether anybody is read in round `at`."""
        return (at < FIRST_LOOK and not self.echoes) or bool(self.reads)

    @property
    def cycles(self) -> NDArray[np.int64]:
        return np.array(self._rows, np.int64).reshape(len(self._rows), self.finalists + 1)

    def order(self, at: int) -> tuple[int, ...]:
        """Of round `at`: forwards and backwards in turn, so that nobody is always first."""
        programs = self.reads if at >= FIRST_LOOK else tuple(range(self.finalists + 1))
        return programs if at % 2 == 0 else programs[::-1]

    def add(self, programs: Sequence[int], cycles: Sequence[int]) -> None:
        row = np.full(self.finalists + 1, SKIPPED, np.int64)
        row[list(programs)] = cycles
        self._rows.append(row)

    def listen(self) -> None:
        """Whether the board repeats itself."""
        if len(self._rows) == ECHO:
            self.echoes = bool((self._rows[0] == self._rows[1]).all())

    def look(self, able: NDArray[np.bool_]) -> None:
        """Who is out, and who is to be read on.  able: bool [programs], those that run at all levels."""
        cycles = self.cycles
        live = [at for at in range(self.finalists) if able[at] and not (at in self._beaten and able[self._beaten[at]])]
        if not live:
            self._left = self.reads = ()
            return
        fastest = self._fastest(cycles, live)
        for at in live:
            if at != fastest and self._behind(cycles, at, fastest) > self._sure:
                self._beaten[at] = fastest
        self._left = (fastest, *(at for at in live if at != fastest and self._beaten.get(at) != fastest))
        # who is as good for sure is not read any further
        open_ones = [at for at in self._left[1:] if self._behind(cycles, at, fastest, TOLERANCE) >= -self._sure]
        self.reads = tuple(sorted((fastest, *open_ones))) if open_ones and not self.echoes else ()

    def placing(self) -> Placing:
        cycles = self.cycles
        return Placing(cycles, self._left, tuple(at for at in self._left if self._behind(cycles, at, self._left[0], TOLERANCE) <= 0))

    def _fastest(self, cycles: NDArray[np.int64], live: Sequence[int]) -> int:
        """Begins with the smallest median and goes on to who is faster in pairs, if anybody is."""
        fastest = min(live, key=lambda at: float(np.median(cycles[cycles[:, at] > FAILED, at])))
        for _ in live:
            behind = {at: self._behind(cycles, at, fastest) for at in live}
            faster = min(live, key=lambda at: behind[at])
            if behind[faster] >= 0:
                break
            fastest = faster
        return fastest

    def _behind(self, cycles: NDArray[np.int64], at: int, other: int, by: float = 0.0) -> float:
        """How sure it is that a program takes more than `by` (of a time) longer than another one, in standard deviations."""
        differences = _differences(cycles, at, other) - by
        return float(np.inf * np.sign(differences[0])) if self.echoes and differences[0] else score(differences)
