"""Which program a compiled model runs at each level, and what it costs to have one for all of them.

The candidates are the champion of every level and the robust program.  Shipped are the champions, or as few variants as are asked for;
and where the simulator is the clock, at each level one of those that is hardly slower and loses less out of sample (`settling`).
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
from tuner.selection.robustness_filter import TOLERANCE, Displaced, settled
from tuner.summary import DisplacedSummary, RobustSummary

PAYS = 0.02  # what one program for all levels has to lose somewhere for a second stream and a controller to be worth their trouble
Cycles = Mapping[str, Mapping[str, int]]
"""Digest of a plan -> level that it fits -> cycles, by whoever has the last word."""


class Candidates(NamedTuple):
    """own: level -> its champion.  robust: None where no program fits every level."""

    own: Mapping[str, MeasuredModel]
    robust: MeasuredModel | None

    @property
    def simulated(self) -> Cycles:
        models = [*self.own.values(), *([self.robust] if self.robust is not None else [])]
        return {m.plan.digest: {level: m.timings[level].cycles for level in self.own if level in m.timings} for m in models}


@dataclass(frozen=True, eq=False)
class ShippedVariants:
    """variants: level -> what ships there.  robust: what it costs to have one for all; None where no program fits every level."""

    variants: dict[str, MeasuredModel]
    robust: RobustSummary | None


def shipment(
    opened: LoweredModel, candidates: Candidates, count: int | None = None, cycles: Cycles | None = None, not_judged: str | None = None,
    insure: float | None = None,
) -> ShippedVariants:  # fmt: skip
    """count: of variants at most; None for the champion of every level.  cycles: None for the simulator's.

    not_judged: why the simulator is not the clock, where it is not.  insure: see `settled`; None for `TOLERANCE`.
    Raises `BadInputError` for a count below 1.
    """
    own, robust = candidates
    levels, said = tuple(own), candidates.simulated if cycles is None else cycles
    models = list({m.plan.digest: m for m in (*own.values(), *([robust] if robust is not None else []))}.values())
    number = {m.plan.digest: at for at, m in enumerate(models)}
    table = np.array([[said[m.plan.digest].get(level, np.nan) for level in levels] for m in models], np.float64)
    champions: Serves = tuple(number[own[level].plan.digest] for level in levels)
    serves, displaced = champions if count is None else best_variants(table, count), tuple[Displaced, ...]()
    at = None if robust is None else number[robust.plan.digest]
    most = len(levels) if count is None else count
    if not_judged is None and at is not None and min(most, len(models)) > 1:
        fewest = {level: min(m.timings[level].cycles for m in models if level in m.timings) for level in levels}
        times = out_of_sample([m.programs for m in models], opened.machine, fewest)
        times[:, np.isnan(table)] = np.nan  # what does not fit a level never runs there
        serves, displaced = settled(serves, times, most, TOLERANCE if insure is None else insure)
    variants = {level: models[program] for level, program in zip(levels, serves, strict=True) if program is not None}
    if robust is None or at is None:
        return ShippedVariants(variants, None)
    pays, says = _verdict(f"{opened.name} on {opened.machine.name}", levels, table, at, serves, bool(displaced))
    # by what they cost: a level may leave more of the bandwidth and answer later
    lightest = levels[int(np.argmin([table[program, k] for k, program in enumerate(champions)]))]
    one = table[number[own[lightest].plan.digest]]
    summary = RobustSummary(
        plan=robust.plan.digest,
        cycles={level: int(table[at, k]) for k, level in enumerate(levels)},
        loss={level: float(losses(table)[at, k]) for k, level in enumerate(levels)},
        own_plan={level: own[level].plan.digest for level in levels},
        own_cycles={level: int(table[champions[k], k]) for k, level in enumerate(levels)},
        one_level=lightest,
        one_level_cycles={level: None if np.isnan(each) else int(each) for level, each in zip(levels, one, strict=True)},
        not_judged=not_judged,
        displaced=tuple(
            DisplacedSummary(
                level=levels[each.level],
                plan=models[each.program].plan.digest,
                condition=CONDITIONS[each.condition],
                over=round(each.over, 6),
            )
            for each in displaced
        ),
        pays=pays,
        says=says,
    )
    return ShippedVariants(variants, summary)


def not_judged(runner: str, target: str) -> str | None:
    """Why nothing is timed out of sample: names of what measures and what times plans; None where the simulator is the clock."""
    if runner == BUILT_IN and target == NPU:
        return None
    clock = f"runner {runner}" if runner != BUILT_IN else f"target {target}"
    return f"{clock} is the clock: what ships was not timed out of sample, where only the simulator can be another machine"


def _verdict(what: str, levels: tuple[str, ...], cycles: Floats, robust: int, serves: Serves, displaced: bool) -> tuple[bool, str]:
    """Whether variants pay, and why, in one sentence.  what: of what.  serves: what ships.  displaced: in the place of another."""
    over = losses(cycles)[robust] - 1
    gain = losses(cycles)[robust] / served_loss(cycles, serves) - 1
    at, most = int(np.nanargmax(gain)), int(np.nanargmax(over))
    if gain[at] >= PAYS:
        two = float(np.nanmax(served_loss(cycles, best_variants(cycles, 2)))) - 1
        why = f"one program for all levels takes up to {gain[at]:.1%} longer (at {levels[at]}), the best two up to {two:.1%}"
        return True, f"Variants pay for {what}: {why}."
    why = f"one program for all levels takes at most {over[most]:.1%} longer (at {levels[most]})"
    if not over[most]:
        why = "one program is the fastest at every level"
    elif over[most] >= PAYS and displaced:
        why += ", and the variant that is faster there is not so out of sample"
    return False, f"Variants do not pay for {what}: {why}."
