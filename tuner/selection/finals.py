"""Which of a search's best programs a board likes best, when they are measured again side by side.

A champion that was measured once is partly the luckiest of many.  So the best few programs race (`tuner.selection.race`), and what noise
alone sets apart goes to the simpler plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compiler.build import compile_plan
from compiler.ops.lower_graph import Packed
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from simulator.npu.errors import TilefarmError
from simulator.timing import simulate_levels
from tuner.measure.encode import encoded
from tuner.measure.runner_api import Encoded
from tuner.selection.race import FAILED, SKIPPED, Measure, Placing, Seen, estimates, race, sound
from tuner.selection.robust import robust

Standing = Literal["champion", "not told apart", "slower", "failed"]


class BoardFailedError(TilefarmError):
    """No reading decided anything."""


@dataclass(frozen=True)
class Contender:
    """A program that is to be measured again.  simulated: cycles by level that grants what it needs, by the simulator."""

    plan: Plan
    program: Encoded
    instructions: int
    simulated: Mapping[str, int]

    @property
    def simplicity(self) -> tuple[int, int, str]:
        """Less is simpler."""
        return len(self.plan.segments), self.instructions, self.plan.digest


@dataclass(frozen=True)
class Finalist:
    """What was read of a contender.

    By level that it was read at: cycles (None where half of the rounds failed, see `estimates`); spread, of its readings, in parts of them;
    readings; standing, of no level for a baseline.
    """

    contender: Contender
    cycles: Mapping[str, int | None]
    spread: Mapping[str, float]
    readings: Mapping[str, int]
    standing: Mapping[str, Standing]


@dataclass(frozen=True)
class Verdict:
    """plans: the winner's per level.  baselines: as `finalists`, and none of them; one for everything that levels grant."""

    plans: Mapping[str, Plan]
    finalists: tuple[Finalist, ...]
    baselines: tuple[Finalist, ...]

    @property
    def robust(self) -> Plan | None:
        """Of the finalists that ran at every level: the robust one (`tuner.selection.robust`), by their readings; None where none did."""
        read = [[each.cycles.get(level) for level in self.plans] for each in self.finalists]
        at = robust(np.array([[np.nan if cycles is None else cycles for cycles in row] for row in read], np.float64))
        return None if at is None else self.finalists[at].contender.plan

    def cycles(self, plan: Plan, level: str) -> int | None:
        """Of a finalist or a baseline; None where it did not run."""
        read = [each.cycles.get(level) for each in (*self.finalists, *self.baselines) if each.contender.plan.digest == plan.digest]
        return next((cycles for cycles in read if cycles is not None), None)

    @classmethod
    def of(cls, parts: Sequence[Verdict]) -> Verdict:
        """One of several, about levels that grant different things."""
        plans = {level: plan for part in parts for level, plan in part.plans.items()}
        read: dict[str, list[Finalist]] = {}
        for each in (finalist for part in parts for finalist in part.finalists):
            read.setdefault(each.contender.plan.digest, []).append(each)
        finalists = [
            Finalist(
                some[0].contender,
                {level: cycles for each in some for level, cycles in each.cycles.items()},
                {level: spread for each in some for level, spread in each.spread.items()},
                {level: count for each in some for level, count in each.readings.items()},
                {level: standing for each in some for level, standing in each.standing.items()},
            )
            for some in read.values()
        ]
        return cls(plans, tuple(finalists), tuple(baseline for part in parts for baseline in part.baselines))


def finalists(log: pd.DataFrame, tasks: pd.DataFrame, run: str, levels: Sequence[str], count: int) -> list[Plan]:
    """The best `count` measured programs of a search at each level, by task digest.  log, tasks: of its run folder."""
    rows = log[(log["run"] == run) & (log["kind"] == "program") & (log["status"] == "ok")]
    chosen: set[str] = set()
    for level in levels:
        chosen.update(rows[rows["level"] == level].sort_values(["cycles", "task"])["task"].head(count))
    payloads = tasks.set_index("task").loc[sorted(chosen), "payload"]
    return [Plan.model_validate(json.loads(payload)["plan"]) for payload in payloads]


def contenders(packed: Packed, plans: Sequence[Plan], levels: Sequence[str]) -> list[Contender]:
    """Plans as what a board is given, each for the levels that grant what it needs."""
    compiler = Compiler(packed.target_graph)
    machine, found = packed.target_graph.machine, []
    for plan in plans:
        program = compile_plan(compiler, plan)
        fits = [level for level in levels if program.needs.fits(machine.granted(level))]
        expected = {level: timing.cycles for level, timing in simulate_levels(program, machine, fits).items()}
        found.append(Contender(plan, encoded(packed, "program", program, plan.segments, expected), program.instructions, expected))
    return found


def decide(
    entered: Sequence[Contender], baseline: Contender, levels: Sequence[str], budget: int, measure: Measure, seen: Seen = lambda *_: None,
    most: int | None = None,
) -> Verdict:  # fmt: skip
    """Let them race at every one of the levels, which all of them fit.

    measure: numbers are places in `entered`, the baseline's is behind them.  budget: readings of each at a level; most: of all together.
    A finalist that fails at any level does not win, since a variant is switched to and from at any.  Raises `BoardFailedError` where all
    of them do, or the baseline.
    """
    placings = race(len(entered), levels, budget, measure, seen, most)
    able = np.logical_and.reduce([sound(placing.cycles) for placing in placings.values()])
    left = all(placing.left for placing in placings.values())
    if not left or not able[-1]:
        what = "the baseline" if left else "every finalist"
        raise BoardFailedError(f"{what} failed in half of the rounds when it was measured again; --resume tries it again")
    winners = {level: min(placing.near, key=lambda at: entered[at].simplicity) for level, placing in placings.items()}
    told = {level: estimates(placing.cycles, winners[level]) for level, placing in placings.items()}
    found = [
        Finalist(
            contender,
            {level: told[level][at] for level in levels},
            {level: _spread(placings[level].cycles[:, at]) for level in levels},
            {level: int((placings[level].cycles[:, at] > SKIPPED).sum()) for level in levels},
            {level: _standing(placings[level], winners[level], at, bool(able[at])) for level in levels if at < len(entered)},
        )
        for at, contender in enumerate((*entered, baseline))
    ]
    return Verdict({level: entered[at].plan for level, at in winners.items()}, tuple(found[:-1]), (found[-1],))


def _standing(placing: Placing, winner: int, at: int, able: bool) -> Standing:
    """able: it ran at every level."""
    if at == winner:
        return "champion"
    if at in placing.left:
        return "not told apart"
    return "slower" if able else "failed"


def _spread(cycles: NDArray[np.int64]) -> float:
    """By the median absolute deviation (x 1.4826, that of a normal distribution): boards have outliers.  0 of one that is not sound."""
    good = cycles[cycles > FAILED]
    if not sound(cycles[:, None])[0]:
        return 0.0
    median = float(np.median(good))
    return round(1.4826 * float(np.median(np.abs(good - median))) / median, 6)
