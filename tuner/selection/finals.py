"""Finals on a board: a search's best programs are measured again side by side.

A champion measured once is partly the luckiest of many.  So the best few programs race (`tuner.selection.race`), and among programs that
noise does not separate the simplest plan wins.
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
from compiler.plan.plan import Plan, validate_plan
from simulator.npu.errors import TilefarmError
from simulator.timing import simulate_levels
from tuner.measure.encode_program import encoded
from tuner.measure.runner_api import Encoded
from tuner.selection.race import FAILED, SKIPPED, Measure, Placing, Seen, estimates, race, sound_programs
from tuner.selection.robust import most_robust

Standing = Literal["champion", "not told apart", "slower", "failed"]


class BoardFailedError(TilefarmError):
    """Error for finals without a usable reading."""


@dataclass(frozen=True)
class Contender:
    """Program of the finals.  simulated: simulated cycles by level, for levels that grant its needs."""

    plan: Plan
    program: Encoded
    instructions: int
    simulated: Mapping[str, int]

    @property
    def simplicity(self) -> tuple[int, int, str]:
        """Sort key; less is simpler."""
        return len(self.plan.segments), self.instructions, self.plan.digest


@dataclass(frozen=True)
class Finalist:
    """Readings of a contender.

    By level: cycles (None where half of the rounds failed, see `estimates`); relative spread of its readings; number of readings; standing,
    for no level of a baseline.
    """

    contender: Contender
    cycles: Mapping[str, int | None]
    spread: Mapping[str, float]
    readings: Mapping[str, int]
    standing: Mapping[str, Standing]


@dataclass(frozen=True)
class Verdict:
    """Outcome of the finals.  plans: winner of each level.  baselines: baseline of each group of equal grants."""

    plans: Mapping[str, Plan]
    finalists: tuple[Finalist, ...]
    baselines: tuple[Finalist, ...]

    @property
    def robust(self) -> Plan | None:
        """Robust plan among the finalists that ran at every level (`tuner.selection.robust`), by their readings; None without any."""
        read = [[finalist.cycles.get(level) for level in self.plans] for finalist in self.finalists]
        index = most_robust(np.array([[np.nan if cycles is None else cycles for cycles in row] for row in read], np.float64))
        return None if index is None else self.finalists[index].contender.plan

    def cycles(self, plan: Plan, level: str) -> int | None:
        """Cycles of a finalist or a baseline; None if it did not run."""
        read = [
            finalist.cycles.get(level) for finalist in (*self.finalists, *self.baselines) if finalist.contender.plan.digest == plan.digest
        ]
        return next((cycles for cycles in read if cycles is not None), None)

    @classmethod
    def of(cls, parts: Sequence[Verdict]) -> Verdict:
        """Join verdicts about levels with different grants."""
        plans = {level: plan for part in parts for level, plan in part.plans.items()}
        read: dict[str, list[Finalist]] = {}
        for entry in (finalist for part in parts for finalist in part.finalists):
            read.setdefault(entry.contender.plan.digest, []).append(entry)
        finalists = [
            Finalist(
                group[0].contender,
                {level: cycles for entry in group for level, cycles in entry.cycles.items()},
                {level: spread_value for entry in group for level, spread_value in entry.spread.items()},
                {level: count for entry in group for level, count in entry.readings.items()},
                {level: standing_value for entry in group for level, standing_value in entry.standing.items()},
            )
            for group in read.values()
        ]
        return cls(plans, tuple(finalists), tuple(baseline for part in parts for baseline in part.baselines))


def finalists(log: pd.DataFrame, tasks: pd.DataFrame, run: str, levels: Sequence[str], count: int) -> list[Plan]:
    """Best `count` measured programs of a search at each level, sorted by task digest.  log, tasks: rows of its run folder.

    Raises `BadInputError` for a plan of another version.
    """
    rows = log[(log["run"] == run) & (log["kind"] == "program") & (log["status"] == "ok")]
    plans: set[str] = set()
    for level in levels:
        plans.update(rows[rows["level"] == level].sort_values(["cycles", "task"])["task"].head(count))
    payloads = tasks.set_index("task").loc[sorted(plans), "payload"]
    return [validate_plan(json.loads(payload)["plan"], f"task {task}") for task, payload in payloads.items()]


def contenders(packed: Packed, plans: Sequence[Plan], levels: Sequence[str]) -> list[Contender]:
    """Contenders of plans, each for the levels that grant its needs."""
    compiler = Compiler(packed.target_graph)
    machine, entries = packed.target_graph.machine, []
    for plan in plans:
        program = compile_plan(compiler, plan)
        fits = [level for level in levels if program.needs.fits(machine.granted(level))]
        expected = {level: timing.cycles for level, timing in simulate_levels(program, machine, fits).items()}
        entries.append(Contender(plan, encoded(packed, "program", program, plan.segments, expected), program.instructions, expected))
    return entries


def decide_finals(
    entered: Sequence[Contender], baseline: Contender, levels: Sequence[str], budget: int, measure: Measure, report: Seen = lambda *_: None,
    limit: int | None = None,
) -> Verdict:  # fmt: skip
    """Race the contenders at all levels, which all of them fit.

    measure: reads programs; numbers are indices of `entered`, the baseline's comes after them.  budget: readings of a program at a level.
    limit: readings of all together.  A finalist with a failure at any level does not win, since variants are switched between all levels.
    Raises `BoardFailedError` if all of them fail, or the baseline.
    """
    placings = race(len(entered), levels, budget, measure, report, limit)
    able = np.logical_and.reduce([sound_programs(placing.cycles) for placing in placings.values()])
    undecided = all(placing.leaders for placing in placings.values())
    if not undecided or not able[-1]:
        subject = "the baseline" if undecided else "every finalist"
        raise BoardFailedError(f"{subject} failed in half of the rounds when it was measured again; --resume tries it again")
    winners = {level: min(placing.inseparable, key=lambda number: entered[number].simplicity) for level, placing in placings.items()}
    estimated = {level: estimates(placing.cycles, winners[level]) for level, placing in placings.items()}
    results = [
        Finalist(
            contender,
            {level: estimated[level][number] for level in levels},
            {level: _relative_spread(placings[level].cycles[:, number]) for level in levels},
            {level: int((placings[level].cycles[:, number] > SKIPPED).sum()) for level in levels},
            {
                level: _find_standing(placings[level], winners[level], number, bool(able[number]))
                for level in levels
                if number < len(entered)
            },
        )
        for number, contender in enumerate((*entered, baseline))
    ]
    return Verdict({level: entered[number].plan for level, number in winners.items()}, tuple(results[:-1]), (results[-1],))


def _find_standing(placing: Placing, winner: int, number: int, able: bool) -> Standing:
    """Standing of a finalist at a level.  able: it ran at every level."""
    if number == winner:
        return "champion"
    if number in placing.leaders:
        return "not told apart"
    return "slower" if able else "failed"


def _relative_spread(cycles: NDArray[np.int64]) -> float:
    """Relative spread by the median absolute deviation (x 1.4826, as for a normal distribution): boards have outliers.  0 if not sound."""
    readings = cycles[cycles > FAILED]
    if not sound_programs(cycles[:, None])[0]:
        return 0.0
    median = float(np.median(readings))
    return round(1.4826 * float(np.median(np.abs(readings - median))) / median, 6)
