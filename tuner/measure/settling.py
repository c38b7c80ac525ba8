"""What ships at each level: a variant that would be slower at its own level than another one, were the machine a little different,
gives way to the robust program.

A variant's advantage over the others is a few percent, and its machine is known no better than that: what is fastest by the description
must not be clearly slower under `tuner.measure.out_of_sample.CONDITIONS`.

| name  | dtype, shape                           | meaning                                                              |
|-------|----------------------------------------|----------------------------------------------------------------------|
| times | float64 [conditions, programs, levels] | cycles under each condition; NaN where a program does not fit        |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.measure.robust import Serves

TOLERANCE = 0.03  # how much slower at its own level a shipped variant may be than another shipped one


class Displaced(NamedTuple):
    """The robust program ships at `level` in the place of `program`.

    over: by what fraction, and where (a level, a condition), one of two shipped programs was slower than the other.  Where `where` is the
    level itself, `program` was the slower one; else the robust program was slower at `where` than `program`, which therefore ships nowhere.
    """

    level: int
    program: int
    where: int
    condition: int
    over: float


class Settled(NamedTuple):
    """serves: what ships at each level.  displaced: what does not, in the order in which it was decided."""

    serves: Serves
    displaced: tuple[Displaced, ...]


def settled(serves: Serves, robust: int | None, times: NDArray[np.float64]) -> Settled:
    """Levels to programs such that, under every condition, none is more than `TOLERANCE` slower at its level than another that ships.

    The worst case is decided first, and what is left is looked at again: the others may have been slower than what ships no more.  It
    ends, since every step has one more level run the robust program, and one program alone is slower than none.  Without a robust program
    nothing changes.
    """
    now, displaced = list(serves), list[Displaced]()
    while robust is not None:
        over, level, other, condition = _worst(tuple(now), times)
        if not over > TOLERANCE:
            break
        # the robust one gives way to nobody: what beats it where it has to run would have to be shipped for that level, too
        gone = [level] if now[level] != robust else [at for at, program in enumerate(now) if program == other]
        for at in gone:
            program = now[at]
            assert program is not None
            displaced.append(Displaced(at, program, level, condition, over))
            now[at] = robust
    return Settled(tuple(now), tuple(displaced))


def _worst(serves: Serves, times: NDArray[np.float64]) -> tuple[float, int, int, int]:
    """(fraction, level, the faster program, condition) where what ships is furthest behind another that ships; the first of equals."""
    shipped = sorted({program for program in serves if program is not None})
    levels = [level for level, program in enumerate(serves) if program is not None]
    if not levels:
        return 0.0, 0, 0, 0
    mine = np.stack([times[:, serves[level], level] for level in levels])  # [levels, conditions]
    theirs = times[:, shipped][:, :, levels].transpose(2, 1, 0)  # [levels, shipped, conditions]
    over = mine[:, None, :] / theirs - 1
    at, other, condition = np.unravel_index(int(np.argmax(np.where(np.isnan(over), -np.inf, over))), over.shape)
    return float(over[at, other, condition]), levels[at], shipped[other], int(condition)
