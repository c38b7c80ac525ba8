"""Choice of the shipped program at each level: the fastest, unless a hardly slower one loses less on slightly different machines.

A variant's advantage is a few percent, no more than the accuracy of the machine's description.  So programs are timed under
`tuner.selection.out_of_sample.CONDITIONS`, the first of which is the described machine, and each level is judged separately.

| name  | dtype, shape                           | meaning                                                                    |
|-------|----------------------------------------|----------------------------------------------------------------------------|
| times | float64 [conditions, programs, levels] | cycles under each condition; NaN where a program does not fit              |
| cost  | float64 [programs]                     | at a level by the description: cycles over the fewest of any program there |
| loss  | float64 [conditions, members]          | at a level, of programs that could ship: cycles over the fewest of any     |
| worst | float64 [members]                      | the largest of them over the conditions                                    |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tuner.selection.robust import Floats, Serves, losses

TOLERANCE = 0.03  # largest loss out of sample of a shipped program; largest cost, by the description, of insurance against more


class DisplacedVariant(NamedTuple):
    """Replaced choice: `program` does not ship at `level`, although best by the description, since it loses `over` under `condition`."""

    level: int
    program: int
    condition: int
    over: float


class SettledVariants(NamedTuple):
    """Choice of programs.  serves: level -> shipped program.  displaced: level -> replaced program."""

    serves: Serves
    displaced: tuple[DisplacedVariant, ...]


def settle_variants(serves: Serves, times: Floats, limit: int, insure: float = TOLERANCE) -> SettledVariants:
    """Guard against programs that are fast only by the description: choose among programs that cost at most `insure` more.

    serves: choice by the description; it stays if its worst loss is within `TOLERANCE`.  Otherwise the program with the least sum of
    cost and worst loss ships, so insurance never costs more than it saves in the worst case.  limit: most shipped programs.
    """
    current, displaced = list(serves), list[DisplacedVariant]()
    for level, program in enumerate(serves):
        if program is None:
            continue
        cost = losses(times[0])[:, level]
        # programs that may ship here, the original choice first: they cost little, and do not exceed the limit of the other levels
        other_levels = {*current[:level], *current[level + 1 :]} - {None}
        cheap = [option for option in np.flatnonzero(cost <= 1 + insure).tolist() if len({*other_levels, option}) <= limit]
        members = [program, *(option for option in cheap if option != program)]
        loss = np.array([losses(row[members])[:, level] for row in times])
        worst_loss = loss.max(axis=0)
        safest = int((worst_loss + cost[members]).argmin())  # ties go to the original choice, then to the earlier one
        if worst_loss[0] > 1 + TOLERANCE and safest:
            current[level] = members[safest]
            condition = int(loss[:, 0].argmax())
            displaced.append(DisplacedVariant(level, program, condition, float(loss[condition, 0]) - 1))
    return SettledVariants(tuple(current), tuple(displaced))
