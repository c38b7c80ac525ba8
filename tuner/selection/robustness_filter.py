"""What ships at each level: what is fastest there, unless a program that is hardly slower holds better were the machine a little different.

A variant's advantage over the others is a few percent, and its machine is known no better than that.  So programs are timed under
`tuner.selection.out_of_sample.CONDITIONS`, of which the first is the machine as described, and each level is judged by itself.

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

TOLERANCE = 0.03  # out of sample, what a program may lose and ship; by the description, what insurance against more may cost


class Displaced(NamedTuple):
    """`program` does not ship at `level`, as it would by the description: under `condition` it loses `over` there."""

    level: int
    program: int
    condition: int
    over: float


class Settled(NamedTuple):
    """serves: what ships at each level.  displaced: what therefore does not, by level."""

    serves: Serves
    displaced: tuple[Displaced, ...]


def settled(serves: Serves, times: Floats, most: int, insure: float = TOLERANCE) -> Settled:
    """The guard against what is fast by the description alone: at each level, of programs that cost at most `insure` more, one.

    serves: what would ship by the description; it does where its worst loss is within `TOLERANCE`.  Else the program with the least sum
    of cost and worst loss ships, so no insurance costs more than it takes off the worst loss.  most: programs that ship, at most.
    """
    now, displaced = list(serves), list[Displaced]()
    for level, program in enumerate(serves):
        if program is None:
            continue
        cost = losses(times[0])[:, level]
        rest = {*now[:level], *now[level + 1 :]} - {None}
        room = [other for other in np.flatnonzero(cost <= 1 + insure).tolist() if len({*rest, other}) <= most]
        members = [program, *(other for other in room if other != program)]
        loss = np.array([losses(each[members])[:, level] for each in times])
        worst = loss.max(axis=0)
        if worst[0] > 1 + TOLERANCE and (best := int((worst + cost[members]).argmin())):  # ties to what would ship, then to the earlier one
            now[level] = members[best]
            condition = int(loss[:, 0].argmax())
            displaced.append(Displaced(level, program, condition, float(loss[condition, 0]) - 1))
    return Settled(tuple(now), tuple(displaced))
