"""What ships at each level: of the champions and the robust program those that still hold, were the machine a little different.

A variant's advantage over the others is a few percent, and its machine is known no better than that: what is fastest by the description
must not be clearly slower under `tuner.measure.out_of_sample.CONDITIONS`, of which the first is the machine as described.

| name   | dtype, shape                                     | meaning                                                        |
|--------|--------------------------------------------------|----------------------------------------------------------------|
| times  | float64 [conditions, programs, levels]           | cycles under each condition; NaN where a program does not fit  |
| behind | float64 [conditions, programs, programs, levels] | by what fraction the first is slower than the second           |
"""

from __future__ import annotations

from itertools import chain, combinations, islice
from typing import NamedTuple

import numpy as np

from tuner.measure.robust import Floats, Serves, losses

TOLERANCE = 0.03  # how much slower at its own level a shipped variant may be than another shipped one
_MOST_SETS = 10_000  # of programs that are looked at, small ones first: all of those of 13 programs


class Displaced(NamedTuple):
    """`program` does not ship at `level`, as it would by the description.

    over: by what fraction, and where (a level, a condition), one program was slower than another.  Where `where` is the level itself,
    `program` was the slower one; else what ships at `where` was slower there than `program`.
    """

    level: int
    program: int
    where: int
    condition: int
    over: float


class Settled(NamedTuple):
    """serves: what ships at each level.  displaced: what therefore does not, by level."""

    serves: Serves
    displaced: tuple[Displaced, ...]


def settled(serves: Serves, robust: int | None, times: Floats) -> Settled:
    """Levels to programs such that, under every condition, none is more than `TOLERANCE` slower at its level than another that ships.

    serves: what would ship by the description; where that holds already, it does.  Else of all sets of its programs and the robust one,
    no larger than before, the one whose largest loss by the description is the least: each level runs the fastest of those that are not
    clearly slower there than another of the set.  One program alone is slower than none, so the robust program bounds that loss; where
    there is none and no set will do, nothing changes.
    """
    levels = [level for level, program in enumerate(serves) if program is not None]
    named = {program for program in serves if program is not None}
    with np.errstate(invalid="ignore"):
        behind = times[:, :, None] / times[:, None] - 1
    behind = np.where(np.isnan(behind), -np.inf, behind)
    clear = behind.max(axis=0, initial=-np.inf) > TOLERANCE
    if not any(clear[serves[level], other, level] for level in levels for other in named):
        return Settled(serves, ())
    candidates = sorted(named | ({robust} if robust is not None else set()))
    behind[:, :, np.setdiff1d(np.arange(behind.shape[2]), candidates)] = -np.inf
    sets = chain.from_iterable(combinations(candidates, size) for size in range(1, len(named) + 1))
    loss = np.nan_to_num(losses(times[0]), nan=np.inf)
    best: tuple[tuple[float, float, int], Serves] | None = None
    for members in islice(sets, _MOST_SETS):
        at = np.array(members)
        allowed = np.where(clear[at[:, None], at].any(axis=1), np.inf, loss[at])  # [members, levels]
        least = allowed[:, levels].min(axis=0)
        if not np.isfinite(least).all():
            continue
        found = list(serves)
        for level in levels:
            equal = {int(program) for program in at[allowed[:, level] == allowed[:, level].min()]}
            found[level] = serves[level] if serves[level] in equal else min(equal)
        key = float(least.max()), float(least.sum()), sum(found[level] != serves[level] for level in levels)
        if best is None or key < best[0]:
            best = key, tuple(found)
    if best is None:
        return Settled(serves, ())
    now = best[1]
    return Settled(now, tuple(_displaced(level, serves, now, behind) for level in levels if now[level] != serves[level]))


def _displaced(level: int, serves: Serves, now: Serves, behind: Floats) -> Displaced:
    """Why what `serves` says does not hold: it is slower there than another program, else it beats what has to run elsewhere."""
    program = serves[level]
    assert program is not None
    worst = behind[:, program, :, level].max(axis=1)
    condition = int(worst.argmax())
    if worst[condition] > TOLERANCE:
        return Displaced(level, program, level, condition, float(worst[condition]))
    rest = [(at, each) for at, each in enumerate(now) if each is not None and at != level]
    over, at, condition = max((float(behind[c, each, program, at]), at, c) for at, each in rest for c in range(len(behind)))
    return Displaced(level, program, at, condition, over)
