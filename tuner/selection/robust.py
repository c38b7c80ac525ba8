"""Robust program for all levels, and the best few of several: the least largest loss.

The loss of a program at a level is its cycles over the fewest measured there.  The robust program has the least largest loss
(minimax relative regret; Kouvelis & Yu, Robust Discrete Optimization, 1997, ch. 1).  Weights of levels have no influence: a program must
not be bad at a rare level either.

| name   | dtype, shape                | meaning                                                                             |
|--------|-----------------------------|-------------------------------------------------------------------------------------|
| cycles | float64 [programs, levels]  | measured; NaN where a program does not fit a level.  Programs in their sequence     |
| loss   | float64 [programs, levels]  | 1 or more; NaN where a program does not fit, and at a level that no program fits    |
| serves | level -> program or None    | program of each level; None where none of them fits                      |
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError

Floats = NDArray[np.float64]
Serves = tuple[int | None, ...]
_MOST_CHOICES = 1_000_000  # sets of programs that are evaluated


def losses(cycles: Floats) -> Floats:
    """Losses: see `loss` in the table at the top."""
    fewest = np.where(np.isnan(cycles), np.inf, cycles).min(axis=0, initial=np.inf)
    return cycles / np.where(np.isinf(fewest), np.nan, fewest)


def most_robust(cycles: Floats) -> int | None:
    """Program with the least largest loss; ties go to the smaller sum of losses, then to the earlier one.

    Levels that no program fits are ignored.  None if no program fits all other levels, or without programs.
    """
    loss = losses(cycles)
    loss = loss[:, ~np.isnan(loss).all(axis=0)]
    if not loss.size:
        return None
    first = int(np.lexsort((loss.sum(axis=1), loss.max(axis=1)))[0])  # stable, and NaN comes last
    return None if np.isnan(loss[first]).any() else first


def best_variants(cycles: Floats, count: int) -> Serves:
    """At most `count` programs with the least largest loss, each level served by the fastest of them.

    Uncovered levels are minimised first.  Ties go to the smaller sum of losses, to fewer programs, then to earlier ones.  Every set is
    evaluated: covering all levels within a loss by few programs is set cover, and there are hardly more programs than levels.  Raises
    `BadInputError` for too many sets, or for less than one program.
    """
    programs = len(cycles)
    sizes = range(1, min(count, programs) + 1)
    if count < 1 or sum(math.comb(programs, size) for size in sizes) > _MOST_CHOICES:
        raise BadInputError(f"{count} variants of {programs} programs: accepted: 1 or more, and at most {_MOST_CHOICES:,} ways to choose")
    loss = losses(cycles)
    finite_loss = np.where(np.isnan(loss), np.inf, loss)
    best: tuple[tuple[float, ...], tuple[int, ...]] | None = None
    for size in sizes:
        combinations_of_programs = np.array(list(combinations(range(programs), size)), np.int64)
        lowest_loss = finite_loss[combinations_of_programs].min(axis=1)
        fits = np.isfinite(lowest_loss)
        covered_loss = np.where(fits, lowest_loss, 1.0)
        keys = ((~fits).sum(axis=1), covered_loss.max(axis=1, initial=1.0), covered_loss.sum(axis=1))
        index = int(np.lexsort(keys[::-1])[0])
        merit = tuple(float(key[index]) for key in keys)
        if best is None or merit < best[0]:
            best = merit, tuple(combinations_of_programs[index].tolist())
    members = () if best is None else best[1]
    return tuple(_fastest(finite_loss[:, level], members) for level in range(cycles.shape[1]))


def _fastest(loss: Floats, members: tuple[int, ...]) -> int | None:
    best = min(members, key=lambda program: float(loss[program]), default=None)
    return None if best is None or np.isinf(loss[best]) else best


def served_loss(cycles: Floats, serves: Serves) -> Floats:
    """Loss of each level's program against the fewest cycles of all programs, float64 [levels]; NaN without a program."""
    loss = losses(cycles)
    return np.array([math.nan if program is None else loss[program, level] for level, program in enumerate(serves)])
