"""Allocator: addresses of buffers with lifetimes in one memory.

The allocator has two strategies.  First fit, largest buffer first, needs the smallest memory.  `spread` lets loads start earliest: a load
into a buffer waits for the last user of the buffer's addresses, so every buffer, in the order of births, takes the addresses that have been
free for the longest time.  Tensors are placed first, and close together: their producers wait for operands anyway, and the remaining room
stays in one part.
"""

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
    """Buffer by its purpose.  of: the storage of a tensor, else the index of an operator in its segment, or -1.  slot: index of the slot.

    Kinds of buffers: constants, the bias, scales, masks and counts; out, the tile that an operator computes or stores; residual, the tile
    that an operator adds; overlaid, arriving and expanded, weights between DDR and L1 (`target.weight_expansion`).
    """

    kind: BufferKind
    of: int
    slot: int = 0


class BufferRequest(NamedTuple):
    """Request for a buffer of `size` blocks that is live from step `birth` to step `death`, both included.

    touched: the steps that write or read the buffer, as bits; 0 for all steps.
    """

    buffer: Buffer
    size: int
    birth: int
    death: int
    touched: int = 0


Conflicts = Callable[[Sequence[BufferRequest]], NDArray[np.bool_]]  # requests -> bool [n, n], pairs that must not share addresses


_NO_PAIRS = np.zeros((0, 0), np.bool_)


@njit(cache=True)
def first_fit(spans: NDArray[np.int64], pairs: NDArray[np.bool_], lives: bool, offsets: NDArray[np.int64]) -> int:
    """Fill `offsets`, int64 [n] in blocks, for buffers in their order; returns the size of the memory in blocks.

    spans: int64 [n, 3], (size, birth, death) of every buffer.  pairs: bool [n, n], buffers that must not share addresses; [0, 0] for none.
    lives: whether buffers with overlapping lives must not share addresses either.
    """
    n = spans.shape[0]
    by_offset = np.empty(n, np.int64)  # buffers placed so far, by offset
    peak = 0
    for i in range(n):
        offset, (size, birth, death) = 0, spans[i]
        for p in range(i):
            j = by_offset[p]
            conflict = pairs.size > 0 and pairs[i, j]
            if lives and birth <= spans[j, 2] and spans[j, 1] <= death:
                conflict = True
            if not conflict:
                continue
            if offset + size <= offsets[j]:
                break
            offset = max(offset, offsets[j] + spans[j, 0])
        offsets[i] = offset
        p = i
        while p > 0 and offsets[by_offset[p - 1]] > offset:
            by_offset[p] = by_offset[p - 1]
            p -= 1
        by_offset[p] = i
        peak = max(peak, offset + size)
    return peak


@njit(cache=True)
def _spread(spans: NDArray[np.int64], pairs: NDArray[np.bool_], tensors: int, capacity: int, offsets: NDArray[np.int64]) -> bool:
    """Fill `offsets` within `capacity` blocks so that loads run ahead; returns whether the buffers fit.

    spans, pairs: see `first_fit`.  tensors: number of buffers at the beginning that take the lowest free offset.  Every later buffer takes
    the free offset with the earliest last user, and of several such offsets the lowest.

    Free offsets are 0 and the ends of buffers, in ascending order: blocked ranges of a buffer are merged once, so only offsets outside
    them are compared with the buffers placed so far.
    """
    n = spans.shape[0]
    by_offset, by_end = np.empty(n, np.int64), np.empty(n, np.int64)  # buffers placed so far
    blocked = np.empty((n + 1, 2), np.int64)  # ranges in which buffers conflict with the next one, ascending and disjoint
    for i in range(n):
        size, birth, death = spans[i]
        ranges = 0
        for p in range(i):
            j = by_offset[p]
            if not ((birth <= spans[j, 2] and spans[j, 1] <= death) or (pairs.size > 0 and pairs[i, j])):
                continue
            if ranges and offsets[j] <= blocked[ranges - 1, 1]:
                blocked[ranges - 1, 1] = max(blocked[ranges - 1, 1], offsets[j] + spans[j, 0])
            else:
                blocked[ranges, 0], blocked[ranges, 1] = offsets[j], offsets[j] + spans[j, 0]
                ranges += 1
        best, since, r, tried = np.int64(-1), np.int64(0), 0, np.int64(-1)
        for c in range(-1, i):  # offset 0, or the end of a buffer that is placed
            offset = offsets[by_end[c]] + spans[by_end[c], 0] if c >= 0 else np.int64(0)
            if offset + size > capacity:
                break
            while r < ranges and blocked[r, 1] <= offset:
                r += 1
            if offset == tried or (r < ranges and blocked[r, 0] < offset + size):
                continue
            tried, last = offset, np.int64(-1)
            for p in range(i if i >= tensors else 0):
                j = by_offset[p]
                if offsets[j] >= offset + size or (best >= 0 and last >= since):
                    break
                if offset < offsets[j] + spans[j, 0] and spans[j, 1] < birth:
                    last = max(last, spans[j, 2])
            if best < 0 or last < since:
                best, since = offset, last
            if since < 0:
                break
        if best < 0:
            return False
        offsets[i] = best
        p = i
        while p > 0 and offsets[by_offset[p - 1]] > best:
            by_offset[p] = by_offset[p - 1]
            p -= 1
        by_offset[p] = i
        p = i
        while p > 0 and offsets[by_end[p - 1]] + spans[by_end[p - 1], 0] > best + size:
            by_end[p] = by_end[p - 1]
            p -= 1
        by_end[p] = i
    return True


def allocate(requests: Sequence[BufferRequest]) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers, and the size of the memory, in blocks; equal requests get equal offsets (`size_order`)."""
    return place_buffers(requests, 0, False)


def place_buffers(
    requests: Sequence[BufferRequest], capacity: int, spread: bool, conflicts: Conflicts | None = None
) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers, and the size of the memory, in blocks.

    spread: whether loads should run ahead; if the offsets for this do not fit `capacity`, offsets are those of `allocate`.
    conflicts: pairs of the ordered requests that must not share addresses, if lifetimes do not decide this.
    """
    ordered = sorted(requests, key=size_order)
    offsets, peak = _placed(ordered, capacity, spread, conflicts)
    return dict(zip([request.buffer for request in ordered], offsets, strict=True)), peak


def capacity_test(requests: Sequence[BufferRequest], spread: bool, conflicts: Conflicts | None = None) -> Callable[[int], bool]:
    """Test whether `place_buffers` stays within a capacity in blocks; work that all capacities have in common is done once."""
    ordered = sorted(requests, key=size_order)
    pairs = _NO_PAIRS if conflicts is None else conflicts(ordered)
    peak = first_fit(_spans(ordered), pairs, conflicts is None, np.empty(len(ordered), np.int64))
    return lambda capacity: peak <= capacity or (spread and _spread_out(ordered, pairs, capacity) is not None)


def size_order(request: BufferRequest) -> tuple[int, int, str, str, str]:
    """Sort key of allocation: largest buffer first, then earliest birth, then the buffer itself."""
    (kind, of, slot), size, birth, _, _ = request
    return -size, birth, kind, str(of), str(slot)  # numbers as text: existing plans keep their addresses


def _placed(ordered: Sequence[BufferRequest], capacity: int, spread: bool, conflicts: Conflicts | None) -> tuple[list[int], int]:
    """Offsets in the order of requests, and the size of the memory, in blocks."""
    if conflicts is None and ordered and max([request.birth for request in ordered]) <= min([request.death for request in ordered]):
        return _stacked(ordered, capacity, spread)
    pairs = _NO_PAIRS if conflicts is None else conflicts(ordered)
    if spread and (spread_offsets := _spread_out(ordered, pairs, capacity)) is not None:
        return spread_offsets, max([offsets + request.size for offsets, request in zip(spread_offsets, ordered, strict=True)])
    offsets = np.empty(len(ordered), np.int64)
    peak = first_fit(_spans(ordered), pairs, conflicts is None, offsets)
    return offsets.tolist(), peak


def _stacked(ordered: Sequence[BufferRequest], capacity: int, spread: bool) -> tuple[list[int], int]:
    """Stack buffers that are all live at once, such as the buffers of a single operator."""
    offsets, need = [0] * len(ordered), sum([request.size for request in ordered])
    end = 0
    for i in _in_turn(ordered)[0] if spread and need <= capacity else range(len(ordered)):
        offsets[i] = end
        end += ordered[i].size
    return offsets, need


def _in_turn(ordered: Sequence[BufferRequest]) -> tuple[list[int], int]:
    """Order of allocation in which loads run ahead, and the number of tensors at its beginning."""
    tensors, by_birth = list[int](), list[int]()
    for i, ((kind, _, _), *_) in enumerate(ordered):
        (tensors if kind == "tensor" else by_birth).append(i)
    by_birth.sort(key=lambda i: ordered[i].birth)
    return tensors + by_birth, len(tensors)


def _spans(ordered: Sequence[BufferRequest]) -> NDArray[np.int64]:
    """int64 [n, 3]: size, birth, death."""
    return np.array([request[1:4] for request in ordered], np.int64).reshape(-1, 3)


def _spread_out(ordered: Sequence[BufferRequest], pairs: NDArray[np.bool_], capacity: int) -> list[int] | None:
    """Offsets with which loads run ahead; None if the buffers do not fit, or without requests."""
    if not ordered:
        return None
    order, tensors = _in_turn(ordered)
    ordered_pairs = pairs[np.ix_(order, order)] if pairs.size else pairs
    spread_offsets = np.empty(len(order), np.int64)
    if not _spread(_spans([ordered[i] for i in order]), ordered_pairs, tensors, capacity, spread_offsets):
        return None
    offsets = [0] * len(order)
    for i, offset in zip(order, spread_offsets.tolist(), strict=True):
        offsets[i] = offset
    return offsets


def live_blocks(requests: Sequence[BufferRequest], steps: int) -> list[int]:
    """Number of live blocks at every step.  steps: number of steps of all requests."""
    change = [0] * (steps + 1)
    for _, size, birth, death, _ in requests:
        change[birth] += size
        change[death + 1] -= size
    return list(accumulate(change[:-1]))


def fits(requests: tuple[BufferRequest, ...], capacity: int, conflicts: Conflicts | None = None) -> bool:
    """Whether `place_buffers` stays within `capacity` blocks; sums of sizes mostly decide it."""
    if sum([request.size for request in requests]) <= capacity:
        return True
    if max(live_blocks(requests, max(request.death for request in requests) + 1)) > capacity:
        return False
    return packs_within(requests, capacity, conflicts)


@lru_cache(maxsize=1 << 13)
def packs_within(requests: tuple[BufferRequest, ...], capacity: int, conflicts: Conflicts | None = None) -> bool:
    """`fits` for requests that sums cannot decide; cached, because every second gene repeats the requests of another gene."""
    return _placed(sorted(requests, key=size_order), capacity, False, conflicts)[1] <= capacity
