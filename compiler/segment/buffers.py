"""Addresses: buffers with lifetimes into one memory, first fit, largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

BufferKind = Literal["arriving", "constants", "expanded", "out", "overlaid", "residual", "tensor", "weights"]


class Buffer(NamedTuple):
    """A buffer by what it is for.  of: the storage of a tensor, else the place of an operator in its segment, or -1.
    slot: which of several.

    constants: bias, scales, masks, counts.  out: the tile that an operator works on or hands out.  residual: the tile that it adds.
    overlaid, arriving, expanded: weights on their way to L1 (`unit.expansion`).
    """

    kind: BufferKind
    of: int
    slot: int = 0


class BufferRequest(NamedTuple):
    """A buffer of `size` blocks that is live from step `birth` to step `death`, both included.

    touched: the steps that write or read it, as bits; 0: all of them.
    """

    buffer: Buffer
    size: int
    birth: int
    death: int
    touched: int = 0


Apart = Callable[[Sequence[BufferRequest]], NDArray[np.bool_]]  # requests -> bool [n, n], pairs that must not share


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


def allocate(requests: Sequence[BufferRequest]) -> tuple[dict[Buffer, int], int]:
    """Offsets, and the blocks needed in all.  Of equal sizes the earlier, then by buffer, so the same requests get the same places."""
    return fit(requests, 0, 0)


def fit(requests: Sequence[BufferRequest], capacity: int, reach: int, apart: Apart | None = None) -> tuple[dict[Buffer, int], int]:
    """`allocate`, with lifetimes stretched by `reach` steps where that still fits, so that neighbours in time can overlap.

    apart: says which of the ordered requests must not share, where that does not follow from their lifetimes.
    """
    ordered = sorted(requests, key=_order)
    at, peak = _placed(ordered, capacity, reach, apart)
    return {request.buffer: offset for request, offset in zip(ordered, at.tolist(), strict=True)}, peak


def _order(request: BufferRequest) -> tuple[int, int, str, str, str]:
    (kind, of, slot), size, birth, _, _ = request
    return -size, birth, kind, str(of), str(slot)  # numbers as they are spelt: plans that are there keep their addresses


def _placed(ordered: Sequence[BufferRequest], capacity: int, reach: int, apart: Apart | None) -> tuple[NDArray[np.int64], int]:
    """Offsets, int64 [n], and the blocks needed in all."""
    spans = np.array([request[1:4] for request in ordered], np.int64).reshape(-1, 3)
    at = np.empty(len(ordered), np.int64)
    pairs = _NO_PAIRS if apart is None else apart(ordered)
    peak = 0
    for stretch in range(reach, -1, -1):
        peak = _place(spans, pairs, apart is None or stretch > 0, stretch, at)
        if peak <= capacity:
            break
    return at, peak


def live(requests: Sequence[BufferRequest], steps: int) -> list[int]:
    """Blocks that are live at each of the first `steps` steps, which are all that there are."""
    change = [0] * (steps + 1)
    for _, size, birth, death, _ in requests:
        change[birth] += size
        change[death + 1] -= size
    return list(accumulate(change[:-1]))


def fits(requests: tuple[BufferRequest, ...], capacity: int, apart: Apart | None = None) -> bool:
    """Whether `fit` stays within `capacity` blocks: mostly clear from sums."""
    if sum([request.size for request in requests]) <= capacity:
        return True
    if max(live(requests, max(request.death for request in requests) + 1)) > capacity:
        return False
    return packed(requests, capacity, apart)


@lru_cache(maxsize=1 << 13)
def packed(requests: tuple[BufferRequest, ...], capacity: int, apart: Apart | None = None) -> bool:
    """`fits` where sums do not tell; remembered, as every second gene asks for buffers that another one asked for."""
    return _placed(sorted(requests, key=_order), capacity, 0, apart)[1] <= capacity
