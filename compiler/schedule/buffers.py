"""Addresses: buffers with lifetimes into one memory, first fit, largest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit


class Wish(NamedTuple):
    """A buffer of `size` blocks that is live from step `birth` to step `death`, both included."""

    name: str
    size: int
    birth: int
    death: int


@njit(cache=True)
def _place(life, stretch, at):  # type: ignore[no-untyped-def]
    """Fill `at` with offsets of buffers (int64 [n, 3] of size, birth, death), taken in their order; returns the blocks needed in all."""
    n = life.shape[0]
    by_offset = np.empty(n, np.int64)  # those placed so far, by offset
    peak = 0
    for i in range(n):
        size, birth, death = life[i, 0], life[i, 1] - stretch, life[i, 2] + stretch
        offset = 0
        for p in range(i):
            j = by_offset[p]
            if life[j, 1] - stretch > death or birth > life[j, 2] + stretch:
                continue
            if offset + size <= at[j]:
                break
            offset = max(offset, at[j] + life[j, 0])
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


def fit(wishes: Sequence[Wish], capacity: int, reach: int) -> tuple[dict[str, int], int]:
    """`allocate`, with lifetimes stretched by `reach` steps where that still fits, so that neighbours in time can overlap."""
    ordered = sorted(wishes, key=_order)
    life = np.array([wish[1:] for wish in ordered], np.int64).reshape(len(ordered), 3)
    at = np.empty(len(ordered), np.int64)
    peak = 0
    for stretch in range(reach, -1, -1):
        peak = _place(life, stretch, at)
        if peak <= capacity:
            break
    return {wish.name: offset for wish, offset in zip(ordered, at.tolist(), strict=True)}, peak


def _order(wish: Wish) -> tuple[int, int, str]:
    return -wish.size, wish.birth, wish.name


def fits(wishes: Sequence[Wish], capacity: int) -> bool:
    """Whether `allocate` stays within `capacity` blocks: mostly clear from sums."""
    if sum(wish.size for wish in wishes) <= capacity:
        return True
    change: dict[int, int] = {}
    for _, size, birth, death in wishes:
        change[birth] = change.get(birth, 0) + size
        change[death + 1] = change.get(death + 1, 0) - size
    live = 0
    for step in sorted(change):
        live += change[step]
        if live > capacity:
            return False
    return allocate(wishes)[1] <= capacity
