"""Choice of a compiled model's program at each level, and the cost of one program for all.

The candidates are the champion of every level and the robust program.  Shipped are the champions, or at most the given number of variants;
with the simulator as the clock, each level gets a hardly slower program that loses less out of sample, if any (`robustness_filter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compiler.build import MeasuredModel
from compiler.model import LoweredModel
from tuner.config import BUILT_IN, NPU
from tuner.selection.out_of_sample import CONDITIONS, out_of_sample
from tuner.selection.robust import Floats, Serves, best_variants, losses, served_loss
from tuner.selection.robustness_filter import TOLERANCE, DisplacedVariant, settle_variants
from tuner.summary import DisplacedSummary, RobustSummary

PAYS = 0.02  # least loss of one program at some level that justifies a second stream and a controller
Cycles = Mapping[str, Mapping[str, int]]
"""Digest of a plan -> level that it fits -> cycles, by the final clock."""


class Candidates(NamedTuple):
    """Programs to choose from.  champions: level -> its own.  robust: None if no program fits every level."""

    champions: Mapping[str, MeasuredModel]
    robust: MeasuredModel | None

    @property
    def simulated(self) -> Cycles:
        models = [*self.champions.values(), *([self.robust] if self.robust is not None else [])]
        return {m.plan.digest: {level: m.timings[level].cycles for level in self.champions if level in m.timings} for m in models}


@dataclass(frozen=True, eq=False)
class ShippedVariants:
    """Shipped programs.  variants: level -> program.  robust: cost of one program for all; None if none fits every level."""

    variants: dict[str, MeasuredModel]
    robust: RobustSummary | None


def choose_variants(
    lowered: LoweredModel, candidates: Candidates, count: int | None = None, cycles: Cycles | None = None, not_judged: str | None = None,
    insure: float | None = None,
) -> ShippedVariants:  # fmt: skip
    """Choose the shipped variants.  count: limit of variants; None for the champion of every level.  cycles: None for the simulator's.

    not_judged: the reason, if the simulator is not the clock.  insure: see `settle_variants`; None for `TOLERANCE`.
    Raises `BadInputError` for a count below 1.
    """
    best, robust = candidates
    levels, reported = tuple(best), candidates.simulated if cycles is None else cycles
    models = list({m.plan.digest: m for m in (*best.values(), *([robust] if robust is not None else []))}.values())
    number = {m.plan.digest: index for index, m in enumerate(models)}
    table = np.array([[reported[m.plan.digest].get(level, np.nan) for level in levels] for m in models], np.float64)
    champions: Serves = tuple(number[best[level].plan.digest] for level in levels)
    serves, displaced = champions if count is None else best_variants(table, count), tuple[DisplacedVariant, ...]()
    robust_index = None if robust is None else number[robust.plan.digest]
    limit = len(levels) if count is None else count
    if not_judged is None and robust_index is not None and min(limit, len(models)) > 1:
        fewest = {level: min(m.timings[level].cycles for m in models if level in m.timings) for level in levels}
        times = out_of_sample([m.programs for m in models], lowered.machine, fewest)
        times[:, np.isnan(table)] = np.nan  # a program never runs at a level that it does not fit
        serves, displaced = settle_variants(serves, times, limit, TOLERANCE if insure is None else insure)
    variants = {level: models[program] for level, program in zip(levels, serves, strict=True) if program is not None}
    if robust is None or robust_index is None:
        return ShippedVariants(variants, None)
    pays, text = _verdict(f"{lowered.name} on {lowered.machine.name}", levels, table, robust_index, serves, bool(displaced))
    # sorted by cycles: a level may have more bandwidth and a longer latency
    lightest = levels[int(np.argmin([table[program, k] for k, program in enumerate(champions)]))]
    lightest_row = table[number[best[lightest].plan.digest]]
    summary = RobustSummary(
        plan=robust.plan.digest,
        cycles={level: int(table[robust_index, k]) for k, level in enumerate(levels)},
        loss={level: float(losses(table)[robust_index, k]) for k, level in enumerate(levels)},
        own_plan={level: best[level].plan.digest for level in levels},
        own_cycles={level: int(table[champions[k], k]) for k, level in enumerate(levels)},
        one_level=lightest,
        one_level_cycles={level: None if np.isnan(value) else int(value) for level, value in zip(levels, lightest_row, strict=True)},
        not_judged=not_judged,
        displaced=tuple(
            DisplacedSummary(
                level=levels[entry.level],
                plan=models[entry.program].plan.digest,
                condition=CONDITIONS[entry.condition],
                over=round(entry.over, 6),
            )
            for entry in displaced
        ),
        pays=pays,
        says=text,
    )
    return ShippedVariants(variants, summary)


def unjudged_reason(runner: str, target: str) -> str | None:
    """Reason for skipping out-of-sample times, from the names of runner and target; None if the simulator is the clock."""
    if runner == BUILT_IN and target == NPU:
        return None
    clock = f"runner {runner}" if runner != BUILT_IN else f"target {target}"
    return f"{clock} is the clock: what ships was not timed out of sample, where only the simulator can be another machine"


def _verdict(subject: str, levels: tuple[str, ...], cycles: Floats, robust: int, serves: Serves, displaced: bool) -> tuple[bool, str]:
    """Sentence on whether variants pay.  subject: the model.  serves: shipped programs.  displaced: whether some were replaced."""
    loss = losses(cycles)[robust] - 1
    gain = losses(cycles)[robust] / served_loss(cycles, serves) - 1
    gain_level, loss_level = int(np.nanargmax(gain)), int(np.nanargmax(loss))
    if gain[gain_level] >= PAYS:
        two = float(np.nanmax(served_loss(cycles, best_variants(cycles, 2)))) - 1
        reason = (
            f"one program for all levels takes up to {gain[gain_level]:.1%} longer (at {levels[gain_level]}), the best two up to {two:.1%}"
        )
        return True, f"Variants pay for {subject}: {reason}."
    reason = f"one program for all levels takes at most {loss[loss_level]:.1%} longer (at {levels[loss_level]})"
    if not loss[loss_level]:
        reason = "one program is the fastest at every level"
    elif loss[loss_level] >= PAYS and displaced:
        reason += ", and the variant that is faster there is not so out of sample"
    return False, f"Variants do not pay for {subject}: {reason}."
