"""Addresses: buffers with lifetimes into one memory, first fit, largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@njit(cache=True)
def _place(size: NDArray[np.int64], apart: NDArray[np.bool_], at: NDArray[np.int64]) -> int:
    """Fill `at` with offsets of buffers of int64 [n] `size`, taken in their order; returns the blocks needed in all."""
    n = size.shape[0]
    by_offset = np.empty(n, np.int64)  # those placed so far, by offset
    peak = 0
    for i in range(n):
        offset = 0
        for p in range(i):
            j = by_offset[p]
            if not apart[i, j]:
                continue
            if offset + size[i] <= at[j]:
                break
            offset = max(offset, at[j] + size[j])
        at[i] = offset
        p = i
        while p > 0 and at[by_offset[p - 1]] > offset:
            by_offset[p] = by_offset[p - 1]
            p -= 1
        by_offset[p] = i
        peak = max(peak, offset + size[i])
    return peak


def together(wishes: Sequence[Wish], stretch: int = 0) -> NDArray[np.bool_]:
    """bool [n, n]: pairs whose lives, longer by `stretch` steps at both ends, overlap."""
    birth = np.array([wish.birth for wish in wishes], np.int64) - stretch
    death = np.array([wish.death for wish in wishes], np.int64) + stretch
    found: NDArray[np.bool_] = birth[:, None] <= death[None, :]
    return found & found.T


def allocate(wishes: Sequence[Wish]) -> tuple[dict[str, int], int]:
    """Offsets by name, and the blocks needed in all.  Ties by name, so the same wishes get the same places."""
    return fit(wishes, 0, 0)


def fit(wishes: Sequence[Wish], capacity: int, reach: int, apart: Apart | None = None) -> tuple[dict[str, int], int]:
    """`allocate`, with lifetimes stretched by `reach` steps where that still fits, so that neighbours in time can overlap.

    apart: says which of the ordered wishes must not share, where that does not follow from their lifetimes.
    """
    ordered = sorted(wishes, key=_order)
    size = np.array([wish.size for wish in ordered], np.int64)
    at = np.empty(len(ordered), np.int64)
    needed = together(ordered) if apart is None else apart(ordered)
    peak = 0
    for stretch in range(reach, -1, -1):
        peak = _place(size, needed | together(ordered, stretch) if stretch else needed, at)
        if peak <= capacity:
            break
    return {wish.name: offset for wish, offset in zip(ordered, at.tolist(), strict=True)}, peak


def _order(wish: Wish) -> tuple[int, int, str]:
    return -wish.size, wish.birth, wish.name


def fits(wishes: Sequence[Wish], capacity: int, apart: Apart | None = None) -> bool:
    """Whether `fit` stays within `capacity` blocks: mostly clear from sums."""
    if sum([wish.size for wish in wishes]) <= capacity:
        return True
    change = [0] * (max(wish.death for wish in wishes) + 2)
    for _, size, birth, death, _ in wishes:
        change[birth] += size
        change[death + 1] -= size
    if max(accumulate(change)) > capacity:
        return False
    return fit(wishes, capacity, 0, apart)[1] <= capacity
