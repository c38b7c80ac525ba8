"""Budget of measurements: readings, task x level x repeat, of the search, its canary and the finals.

If a board measures, the finals read the best programs again, and a canary is read regularly.  Both are part of the budget.  Their readings
are set aside before the search begins, by rules that depend only on the settings.  So the search ends at the same task on any workers and
after any number of interruptions.  Readings that the finals do not need are not spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.npu.errors import BadInputError
from tuner.config import BUILT_IN, TuneConfig
from tuner.farm.subgraph_searches import share_budget
from tuner.measure.canary import EVERY
from tuner.measure.reading_cost import repeat_count
from tuner.selection.race import ECHO, FIRST_LOOK

SHARE = 4  # the finals have at most 1 / SHARE of the budget


@dataclass(frozen=True)
class Spending:
    """Division of the budget.  measurements: readings of the whole run; None: another kind of budget.  task: readings of a task at all
    levels.

    finals: readings set aside, over all searches.  finalists: per level.  canary: readings of one look at it; 0 without a canary.
    """

    measurements: int | None
    levels: int
    task: int
    finals: int
    finalists: int
    canary: int

    @classmethod
    def of(cls, config: TuneConfig, levels: int, searches: int) -> Spending:
        """Division of the budget.  Raises `BadInputError` if a budget of measurements is too small for the finals."""
        runner, total = config.runner, config.budget.measurements
        task = levels * repeat_count(config)
        if runner.name == BUILT_IN:
            return cls(total, levels, task, 0, 0, 0)
        limit = _finals(runner.finalists, levels, runner.readings)
        if total is None:
            return cls(None, levels, task, limit, runner.finalists, runner.canary)
        reserved = min(limit, total // SHARE // searches)
        fewest = _finals(1, levels, ECHO)
        if reserved < fewest:
            minimum = SHARE * fewest * searches
            raise BadInputError(f"measurements {total}: too few, a {SHARE}th is for the finals; accepted: {minimum} or more")
        able = [count for count in range(1, runner.finalists + 1) if _finals(count, levels, min(FIRST_LOOK, runner.readings)) <= reserved]
        return cls(total, levels, task, reserved, max(able, default=1), runner.canary)

    def canaries(self, readings: int) -> int:
        """Canary readings besides `readings` search readings: one look at the start, and one every `EVERY` readings."""
        return self.canary * (1 + readings // EVERY)

    def limits(self, weights: Sequence[int], minimum: int) -> list[int]:
        """Limit of every search: below it, another task is measured.  weights: weights of the searches.  minimum: programs that each needs.

        Raises `BadInputError` if the budget is too small for the first programs.
        """
        assert self.measurements is not None
        readings_left = self.measurements - self.finals * len(weights)
        shares = [readings_left]
        if len(weights) > 1:
            sufficient = readings_left >= len(weights) * minimum * self.task
            shares = [self.task * count for count in share_budget(readings_left // self.task, weights, minimum)] if sufficient else [0]
        limits = [self._readings(share) - self.task + 1 for share in shares]
        if min(limits) <= (minimum - 1) * self.task:
            details = f"{readings_left} are left beside the finals, and a program at all levels takes {self.task}"
            raise BadInputError(f"measurements {self.measurements}: too few; {details}, with the canary's {self.canary}")
        return limits

    def _readings(self, share: int) -> int:
        """Most that leave room for their canaries."""
        if not self.canary:
            return share
        readings = max(0, (share - self.canary) * EVERY // (EVERY + self.canary))
        while readings + 1 + self.canaries(readings + 1) <= share:
            readings += 1
        return readings

    def line(self, searches: int) -> str:
        """Line about the budget, before the search begins."""
        assert self.measurements is not None
        text = f"budget: {self.measurements:,} measurements (task x level x repeat)"
        if not self.finals:
            return f"{text}, none set aside: the simulator needs no finals"
        per_search = f" of each of {searches} searches" if searches > 1 else ""
        reserved, rounds = self.finals * searches, self.finals // _finals(self.finalists, self.levels, 1)
        canary = f"the canary takes {self.canary} at the start and after every {EVERY}"
        contents = f"the best {self.finalists} of each of {self.levels} levels and the baseline, {rounds} times at least"
        return f"{text}; {reserved:,} are set aside for the finals{per_search} ({contents}); {canary}"


def _finals(finalists: int, levels: int, rounds: int) -> int:
    """Most readings of finals with `finalists` different finalists per level, and the baseline."""
    return (finalists * levels + 1) * levels * rounds
