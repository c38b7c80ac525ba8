"""Addresses: buffers with lifetimes into one memory, first fit, largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Wish(NamedTuple):
    """A buffer of `size` blocks that is live from step `birth` to step `death`, both included.

    touched: the steps that write or read it, as bits; 0: all of them.
    """

    name: str
    size: int
    birth: int
    death: int
    touched: int = 0


Apart = Callable[[Sequence[Wish]], NDArray[np.bool_]]  # wishes -> bool [n, n], pairs that must not share


_NO_PAIRS = np.zeros((0, 0), np.bool_)


@njit(cache=True)
def _place(spans: NDArray[np.int64], pairs: NDArray[np.bool_], lives: bool, stretch: int, at: NDArray[np.int64]) -> int:
    """Fill `at` with offsets of buffers, int64 [n, 3] of (size, birth, death), taken in their order; returns the blocks needed in all.

    pairs: bool [n, n], those that must not share, or none.  lives: nor may those share whose lives, `stretch` steps longer at both ends,
    overlap.
    """
    n = spans.shape[0]
    by_offset = np.empty(n, np.int64)  # those placed so far, by offset
    peak = 0
    for i in range(n):
        offset, (size, birth, death) = 0, spans[i]
        for p in range(i):
            j = by_offset[p]
            apart = pairs.size > 0 and pairs[i, j]
            if lives and birth - stretch <= spans[j, 2] + stretch and spans[j, 1] - stretch <= death + stretch:
                apart = True
            if not apart:
                continue
            if offset + size <= at[j]:
                break
            offset = max(offset, at[j] + spans[j, 0])
        at[i] = offset
        p = i
        while p > 0 and at[by_offset[p - 1]] > offset:
            by_offset[p] = by_offset[p - 1]
            p -= 1
        by_offset[p] = i
        peak = max(peak, offset + size)
    return peak


def allocate(wishes: Sequence[Wish]) -> tuple[dict[str, int], int]:
    """Offsets by name, and the blocks needed in all.  Ties by name, so the same wishes get the same places."""
    return fit(wishes, 0, 0)


def fit(wishes: Sequence[Wish], capacity: int, reach: int, apart: Apart | None = None) -> tuple[dict[str, int], int]:
    """`allocate`, with lifetimes stretched by `reach` steps where that still fits, so that neighbours in time can overlap.

    apart: says which of the ordered wishes must not share, where that does not follow from their lifetimes.
    """
    ordered = sorted(wishes, key=_order)
    at, peak = _placed(ordered, capacity, reach, apart)
    return {wish.name: offset for wish, offset in zip(ordered, at.tolist(), strict=True)}, peak


def _order(wish: Wish) -> tuple[int, int, str]:
    return -wish[1], wish[2], wish[0]


def _placed(ordered: Sequence[Wish], capacity: int, reach: int, apart: Apart | None) -> tuple[NDArray[np.int64], int]:
    """Offsets, int64 [n], and the blocks needed in all."""
    spans = np.array([wish[1:4] for wish in ordered], np.int64).reshape(-1, 3)
    at = np.empty(len(ordered), np.int64)
    pairs = _NO_PAIRS if apart is None else apart(ordered)
    peak = 0
    for stretch in range(reach, -1, -1):
        peak = _place(spans, pairs, apart is None or stretch > 0, stretch, at)
        if peak <= capacity:
            break
    return at, peak


def live(wishes: Sequence[Wish], steps: int) -> list[int]:
    """Blocks that are live at each of the first `steps` steps, which are all that there are."""
    change = [0] * (steps + 1)
    for _, size, birth, death, _ in wishes:
        change[birth] += size
        change[death + 1] -= size
    return list(accumulate(change[:-1]))


def fits(wishes: tuple[Wish, ...], capacity: int, apart: Apart | None = None) -> bool:
    """Whether `fit` stays within `capacity` blocks: mostly clear from sums."""
    if sum([wish.size for wish in wishes]) <= capacity:
        return True
    if max(live(wishes, max(wish.death for wish in wishes) + 1)) > capacity:
        return False
    return packed(wishes, capacity, apart)


@lru_cache(maxsize=1 << 13)
def packed(wishes: tuple[Wish, ...], capacity: int, apart: Apart | None = None) -> bool:
    """`fits` where sums do not tell; remembered, as every second gene asks for buffers that another one asked for."""
    return _placed(sorted(wishes, key=_order), capacity, 0, apart)[1] <= capacity
