"""Finals as a race: programs are read in turns until the fastest is separated from noise, or each has been read often enough.

All undecided programs are read in every round, so drift of the board affects all alike, and two programs are compared by their differences
within rounds.  Differences are of logarithms: noise is relative to a time.  If noise affects two programs alike, a difference scatters
symmetrically around the true one for any noise, also with outliers and infinite variance; so the comparison is Wilcoxon's signed-rank test,
and the estimate that of Hodges and Lehmann (1963), the value that balances the test.  Neither needs a model of the noise, and for Gaussian
noise they need 5% more readings than a mean.  A mean made robust by a bound on the variance (Catoni; Bubeck, Cesa-Bianchi and Lugosi 2013)
would need that bound, and a median half as many readings again.

A program significantly slower than another leaves the race (successive elimination: Even-Dar, Mannor and Mansour 2006; by ranks, as in
algorithm configuration: Birattari et al. 2002).  Tests are rare, at numbers of readings that grow by half, so that a joint confidence over
all tests and programs (`WRONG`, by the union bound) costs little: intervals for every number of readings (Jamieson and Nowak 2014) are
wider.

A fixed number of rounds was not chosen: under strong noise nearly all finalists would tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WRONG = 0.05  # largest chance that the fastest program of a level leaves the race
TOLERANCE = 0.005  # largest relative lag of a simpler program that wins among undecided ones
ECHO = 2  # rounds after which a board with equal readings for all programs counts as exact
FIRST_LOOK = 16  # rounds that suffice for significance in a signed-rank test
GROWTH = 1.5  # ratio of rounds between two tests
FAILED, SKIPPED = 0, -1  # values in place of cycles


class Turn(NamedTuple):
    """Round at one level: numbers of programs, in reading order."""

    level: str
    programs: tuple[int, ...]


Measure = Callable[[Sequence[Turn]], Iterable[Sequence[int]]]
"""Cycles of every turn's programs, in their order; FAILED where there was no reading."""

Seen = Callable[[int, Mapping[str, int]], None]
"""Called after a test: rounds so far, and by level the number of finalists still read."""


@dataclass(frozen=True)
class Placing:
    """Outcome of a race at one level.

    cycles: int64 [rounds, programs], FAILED or SKIPPED without a reading.  leaders: the fastest finalist, then those not separated from it;
    empty if all failed.  inseparable: leaders within `TOLERANCE` of it.
    """

    cycles: NDArray[np.int64]
    leaders: tuple[int, ...]
    inseparable: tuple[int, ...]


def race(
    finalists: int, levels: Sequence[str], budget: int, measure: Measure, report: Seen = lambda *_: None, limit: int | None = None
) -> dict[str, Placing]:
    """Race programs 0, 1, ... at every level; number `finalists`, the baseline, is read beside them until the first test.

    budget: rounds, so readings of a program at a level.  limit: readings of all programs together; enough for `ECHO` rounds.
    A program that fails in half of its rounds at any level is out.
    """
    stops = list_looks(budget)
    threshold = NormalDist().inv_cdf(1 - WRONG / (max(1, finalists - 1) * max(1, len(stops) - 1)))
    contests = {level: _Contest(finalists, threshold) for level in levels}
    rounds_done = readings = 0
    for goal in stops:
        stop = goal
        if limit is not None:  # readings of eliminated programs go to the others
            a_round = sum(len(contest.order(rounds_done)) for contest in contests.values() if contest.needs_turn(rounds_done))
            stop = min(goal, rounds_done + (limit - readings) // max(1, a_round))
        turns = [
            Turn(level, contest.order(number))
            for number in range(rounds_done, stop)
            for level, contest in contests.items()
            if contest.needs_turn(number)
        ]
        readings += sum(len(turn.programs) for turn in turns)
        for turn, cycles in zip(turns, measure(turns), strict=True):
            contests[turn.level].add(turn.programs, cycles)
        rounds_done = stop
        for contest in contests.values():
            contest.listen()
        is_over = stop == budget or stop < goal  # no readings remain
        if stop > ECHO or is_over or all(contest.echoes for contest in contests.values()):
            able = np.logical_and.reduce([sound_programs(contest.cycles) for contest in contests.values()])
            for contest in contests.values():
                contest.look(able)
            report(rounds_done, {level: len(contest.reads) for level, contest in contests.items()})
            if is_over or not any(contest.reads for contest in contests.values()):
                break
    return {level: contest.placing() for level, contest in contests.items()}


def list_looks(budget: int) -> list[int]:
    """Rounds after which the race is tested, the first time for an echo."""
    stops = [ECHO, FIRST_LOOK]
    while stops[-1] < budget:
        stops.append(int(stops[-1] * GROWTH))
    return [*(stop for stop in stops if stop < budget), budget]


def sound_programs(cycles: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Programs, bool [programs], with readings in more than half of their rounds."""
    return np.asarray((cycles > FAILED).sum(0) * 2 > (cycles > SKIPPED).sum(0))


def score(differences: NDArray[np.float64]) -> float:
    """Wilcoxon's signed-rank statistic in standard deviations: 0 for differences balanced around 0.

    Computed as the number of pairs (with itself, too) with a mean above 0, those at 0 by half, which also handles ties.  The normal
    approximation is conservative in the tails, where it matters.
    """
    count = len(differences)
    if not count:
        return 0.0
    ascending = np.sort(differences)
    above, not_below = (count - np.searchsorted(ascending, -ascending, side).astype(np.int64) for side in ("right", "left"))
    pairs = (above + not_below).sum() / 2  # ordered pairs
    single = (ascending > 0).sum() + (ascending == 0).sum() / 2
    return float(((pairs + single) / 2 - count * (count + 1) / 4) / np.sqrt(count * (count + 1) * (2 * count + 1) / 24))


def centre(differences: NDArray[np.float64]) -> float:
    """Hodges-Lehmann estimate, the median of the means of pairs, to about the last bit.

    By bisection: the pairs of a large budget would fill the memory.
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
    """Cycles of every program, None if it is not sound.

    The estimate of the reference is the median of its readings; of the others, their difference from it in common rounds: some were read
    longer than others, and a drifting board was different then.
    """
    reference_median = float(np.median(cycles[cycles[:, reference] > FAILED, reference]))
    results: list[int | None] = []
    for program, is_sound in enumerate(sound_programs(cycles)):
        if not is_sound:
            results.append(None)
            continue
        differences = _differences(cycles, program, reference)
        median = float(np.median(cycles[cycles[:, program] > FAILED, program]))
        results.append(round(reference_median * float(np.exp(centre(differences))) if len(differences) else median))
    return results


def _differences(cycles: NDArray[np.int64], first: int, second: int) -> NDArray[np.float64]:
    """Differences log first - log second, of the rounds without a failure of either."""
    valid = cycles[(cycles[:, first] > FAILED) & (cycles[:, second] > FAILED)]
    return np.log(valid[:, first]) - np.log(valid[:, second])


class _Contest:
    """Race at one level.  sure: standard deviations of a significant difference.

    reads: finalists of the next rounds.  A finalist that was eliminated returns if the faster one that eliminated it proves not sound at
    any level.
    """

    def __init__(self, finalists: int, sure: float) -> None:
        self.finalists, self._sure = finalists, sure
        self.reads: tuple[int, ...] = ()
        self.echoes = False
        self._rows: list[NDArray[np.int64]] = []
        self._beaten: dict[int, int] = {}
        self._undecided: tuple[int, ...] = ()

    def needs_turn(self, number: int) -> bool:
        """Whether round `number` has readings."""
        return (number < FIRST_LOOK and not self.echoes) or bool(self.reads)

    @property
    def cycles(self) -> NDArray[np.int64]:
        return np.array(self._rows, np.int64).reshape(len(self._rows), self.finalists + 1)

    def order(self, number: int) -> tuple[int, ...]:
        """Order of round `number`: forwards and backwards in turn, so that no program is always first."""
        programs = self.reads if number >= FIRST_LOOK else tuple(range(self.finalists + 1))
        return programs if number % 2 == 0 else programs[::-1]

    def add(self, programs: Sequence[int], cycles: Sequence[int]) -> None:
        row = np.full(self.finalists + 1, SKIPPED, np.int64)
        row[list(programs)] = cycles
        self._rows.append(row)

    def listen(self) -> None:
        """Test whether the board repeats its readings exactly."""
        if len(self._rows) == ECHO:
            self.echoes = bool((self._rows[0] == self._rows[1]).all())

    def look(self, able: NDArray[np.bool_]) -> None:
        """Eliminate programs, and select those to read further.  able: bool [programs], programs that run at all levels."""
        cycles = self.cycles
        contenders = [index for index in range(self.finalists) if able[index] and not (index in self._beaten and able[self._beaten[index]])]
        if not contenders:
            self._undecided = self.reads = ()
            return
        fastest = self._fastest(cycles, contenders)
        for index in contenders:
            if index != fastest and self._significance(cycles, index, fastest) > self._sure:
                self._beaten[index] = fastest
        self._undecided = (fastest, *(index for index in contenders if index != fastest and self._beaten.get(index) != fastest))
        # programs certainly within the tolerance are not read any further
        open_ones = [index for index in self._undecided[1:] if self._significance(cycles, index, fastest, TOLERANCE) >= -self._sure]
        self.reads = tuple(sorted((fastest, *open_ones))) if open_ones and not self.echoes else ()

    def placing(self) -> Placing:
        cycles = self.cycles
        return Placing(
            cycles,
            self._undecided,
            tuple(index for index in self._undecided if self._significance(cycles, index, self._undecided[0], TOLERANCE) <= 0),
        )

    def _fastest(self, cycles: NDArray[np.int64], contenders: Sequence[int]) -> int:
        """Start with the smallest median and move to a program that is faster in pairs, while there is one."""
        fastest = min(contenders, key=lambda index: float(np.median(cycles[cycles[:, index] > FAILED, index])))
        for _ in contenders:
            lags = {index: self._significance(cycles, index, fastest) for index in contenders}
            quickest = min(contenders, key=lambda index: lags[index])
            if lags[quickest] >= 0:
                break
            fastest = quickest
        return fastest

    def _significance(self, cycles: NDArray[np.int64], index: int, rival: int, margin: float = 0.0) -> float:
        """Significance, in standard deviations, that a program takes more than `margin` (relative) longer than another."""
        differences = _differences(cycles, index, rival) - margin
        return float(np.inf * np.sign(differences[0])) if self.echoes and differences[0] else score(differences)
