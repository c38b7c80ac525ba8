"""What ships, once it is timed out of sample: nothing that costs more by the description than was asked for, or than it insures."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tuner.selection.robust import Floats, Serves
from tuner.selection.robustness_filter import TOLERANCE, DisplacedVariant, SettledVariants, settle_variants

CONDITIONS, PROGRAMS, LEVELS = 3, 4, 3


class Case(NamedTuple):
    """What is drawn.  serves: the champions, ties to the earlier program; None at a level that no program fits."""

    times: Floats
    serves: Serves
    insure: float

    def settled(self, most: int = LEVELS) -> SettledVariants:
        return settle_variants(self.serves, self.times, most, self.insure)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    times = draw(arrays(np.float64, (CONDITIONS, PROGRAMS, LEVELS), elements=st.integers(90, 115).map(float)))
    times[:, draw(arrays(bool, (PROGRAMS, LEVELS), elements=st.sampled_from((False, False, False, True))))] = math.nan
    fits = ~np.isnan(times[0])
    serves = tuple(int(np.nanargmin(times[0, :, level])) if fits[:, level].any() else None for level in range(LEVELS))
    return Case(times, serves, draw(st.sampled_from((0.0, TOLERANCE, 0.1, 1.0))))


def cost(times: Floats, program: int, level: int) -> float:
    """By the description, over the champion."""
    return float(times[0, program, level] / np.nanmin(times[0, :, level]))


def worst(case: Case, program: int, level: int) -> float:
    """Loss against any program whose cost is within what was asked for."""
    rivals = [other for other in range(PROGRAMS) if cost(case.times, other, level) <= 1 + case.insure]
    return max(case.times[c, program, level] / case.times[c, other, level] for c in range(CONDITIONS) for other in rivals)


@given(cases())
def test_guard_costs_at_most_limit_and_insurance(case: Case) -> None:
    ships = case.settled()
    changed = [level for level in range(LEVELS) if ships.serves[level] != case.serves[level]]
    assert [each.level for each in ships.displaced] == changed
    for level, program in enumerate(ships.serves):
        champion = case.serves[level]
        if program is None or champion is None:
            assert program is champion
            continue
        assert cost(case.times, program, level) <= 1 + case.insure
        rivals = [other for other in range(PROGRAMS) if cost(case.times, other, level) <= 1 + case.insure]
        sums = {other: cost(case.times, other, level) + worst(case, other, level) for other in rivals}
        if level in changed:
            assert worst(case, champion, level) > 1 + TOLERANCE
            assert cost(case.times, program, level) - 1 < worst(case, champion, level) - worst(case, program, level)
            assert sums[program] == min(sums.values())
        else:
            assert worst(case, champion, level) <= 1 + TOLERANCE or sums[champion] <= min(sums.values())
    for each in ships.displaced:
        assert each.program == case.serves[each.level]
        assert each.over == worst(case, each.program, each.level) - 1


@given(cases(), st.integers(0, LEVELS - 1))
def test_a_level_is_judged_by_itself(case: Case, level: int) -> None:
    times = case.times.copy()
    times[1:, :, np.arange(LEVELS) != level] *= 2 + np.arange(PROGRAMS)[:, None]
    assert case._replace(times=times).settled().serves[level] == case.settled().serves[level]


@given(cases(), st.integers(1, LEVELS))
def test_no_more_programs_than_were_asked_for(case: Case, most: int) -> None:
    named = {program for program in case.serves if program is not None}
    assert len({program for program in case.settled(most).serves if program is not None}) <= max(most, len(named))


@given(cases())
def test_champion_without_insurance_yields_to_equals_alone(case: Case) -> None:
    for level, program in enumerate(case._replace(insure=0.0).settled().serves):
        assert program is None or case.times[0, program, level] == np.nanmin(case.times[0, :, level])


# --- by hand ----------------------------------------------------------------------------------------------------------------------


def test_variant_losing_more_than_its_replacement_yields() -> None:
    described, other = [[100, 104], [120, 100], [105, 102]], [[100, 102], [120, 110], [105, 100]]
    times = np.array([described, other], float)
    assert settle_variants((0, 1), times, 2) == ((0, 2), (DisplacedVariant(1, 1, 1, 110 / 100 - 1),))


def test_what_costs_half_as_much_again_insures_nothing() -> None:
    """The champion of the second level loses 17% under another condition, and the program that would not is 46% slower at the first one."""
    described, other = [[100, 104], [146, 101], [120, 100]], [[100, 104], [146, 100], [120, 117]]
    times = np.array([described, other], float)
    assert settle_variants((0, 2), times, 2) == ((0, 1), (DisplacedVariant(1, 2, 1, 117 / 100 - 1),))
    assert settle_variants((0, 2), times, 2, insure=0.0) == ((0, 2), ())


def test_what_does_not_fit_is_compared_with_nothing() -> None:
    times = np.array([[[100.0, math.nan, 50], [math.nan, 100, 60], [200, 200, 55]]])
    assert settle_variants((0, 1, None), times, 3) == ((0, 1, None), ())
    assert settle_variants((None, None, None), times, 3) == ((None, None, None), ())
