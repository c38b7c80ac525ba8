"""Which of a search's best programs a board likes best, when they are measured again side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from compiler.derive.plan import Plan
from compiler.pipeline import Compiler
from compiler.tile.unit import Packed
from simulator.npu.errors import TilefarmError
from simulator.timing import simulate_levels
from tuner.build import compile_plan
from tuner.farm.backend import Backend
from tuner.runners.encode import encoded
from tuner.runners.finals import Final, middle, sound, winner
from tuner.runners.reading import Encoded


@dataclass(frozen=True)
class Finalist:
    """One program and what was read of it.

    By level: cycles, the median (None where half of the rounds failed); spread, of the rounds, in parts of it; simulated, by the simulator.
    """

    plan: Plan
    instructions: int
    cycles: Mapping[str, int | None]
    spread: Mapping[str, float]
    simulated: Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """plans: the winner's per level.  baseline: as `finalists`, and not one of them."""

    plans: Mapping[str, Plan]
    finalists: tuple[Finalist, ...]
    baseline: Finalist

    def cycles(self, plan: Plan, level: str) -> int:
        """Median of a winner or the baseline, which ran at every level."""
        found = next(each for each in (*self.finalists, self.baseline) if each.plan.digest == plan.digest).cycles[level]
        assert found is not None
        return found


def finalists(log: pd.DataFrame, tasks: pd.DataFrame, run: str, levels: Sequence[str], count: int) -> list[Plan]:
    """The best `count` measured programs of a search at each level, by task digest.  log, tasks: of its run folder."""
    rows = log[(log["run"] == run) & (log["kind"] == "program") & (log["status"] == "ok")]
    chosen: set[str] = set()
    for level in levels:
        chosen.update(rows[rows["level"] == level].sort_values(["cycles", "task"])["task"].head(count))
    payloads = tasks.set_index("task").loc[sorted(chosen), "payload"]
    return [Plan.model_validate(json.loads(payload)["plan"]) for payload in payloads]


def decide(
    packed: Packed, plans: Sequence[Plan], baseline: Plan, levels: Sequence[str], rounds: int, farm: Backend[Final, NDArray[np.int64]]
) -> Verdict:
    """Measure plans and baseline again at every level, in turns.

    A finalist that fails at any level does not win.  Raises `TilefarmError` where all of them do, or the baseline.
    """
    compiler = Compiler(packed.unit)
    shown = [_shown(compiler, packed, plan, levels) for plan in (*plans, baseline)]
    simplicity = [(len(plan.segments), instructions, plan.digest) for plan, (_, instructions, _) in zip(plans, shown, strict=False)]
    farm.submit([Final(tuple(program for program, _, _ in shown), level, rounds) for level in levels])
    read: dict[str, NDArray[np.int64]] = {}
    for level, outcome in zip(levels, farm.collect(len(levels)), strict=True):
        if outcome.value is None:
            raise TilefarmError(f"level {level}: finalists could not be measured again: {outcome.error}; --resume tries it again")
        read[level] = outcome.value
    # a variant is switched to and from at any level, so it must run at all of them
    everywhere = np.logical_and.reduce([sound(cycles) for cycles in read.values()])
    if not everywhere[:-1].any() or not everywhere[-1]:
        what = "the baseline" if everywhere[:-1].any() else "every finalist"
        raise TilefarmError(f"{what} failed in half of the rounds when it was measured again; --resume tries it again")
    best = {level: plans[winner(np.where(everywhere, cycles, 0)[:, :-1], simplicity)] for level, cycles in read.items()}
    results = [
        _finalist(plan, instructions, expected, {level: read[level][:, at] for level in levels})
        for at, (plan, (_, instructions, expected)) in enumerate(zip((*plans, baseline), shown, strict=True))
    ]
    return Verdict(best, tuple(results[:-1]), results[-1])


def _shown(compiler: Compiler, packed: Packed, plan: Plan, levels: Sequence[str]) -> tuple[Encoded, int, dict[str, int]]:
    """(bytes, instructions, simulated cycles)."""
    program = compile_plan(compiler, plan)
    timings = simulate_levels(program, compiler.unit.machine, levels)
    expected = {level: timings[level].cycles for level in levels}
    return encoded(packed, "program", program, plan.segments, expected), program.instructions, expected


def _finalist(plan: Plan, instructions: int, expected: Mapping[str, int], read: Mapping[str, NDArray[np.int64]]) -> Finalist:
    cycles: dict[str, int | None] = {}
    spread: dict[str, float] = {}
    for level, readings in read.items():
        cycles[level], spread[level] = None, 0.0
        if sound(readings[:, None])[0]:
            median, good = middle(readings), readings[readings > 0]
            cycles[level] = round(median)
            spread[level] = round(1.4826 * float(np.median(np.abs(good - median))) / median, 6)
    return Finalist(plan, instructions, cycles, spread, expected)
