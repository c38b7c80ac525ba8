"""Which buffers of a segment may share addresses when its nodes do not run one after the other (`schedule.window`).

In a sequence that is a question of intervals: a buffer lives from the first operator that touches it to the last.  In a sliding window two
buffers may share only where the order that the window keeps says so:

* the window is one block, and everyone who touches the one comes before everyone who touches the other, along the edges of the graph; or
* each is the scratch of one operator, and both operators are of one lane, whose nodes never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.segment.blocks import Blocks
from compiler.segment.buffers import BufferRequest
from compiler.segment.lanes import lanes
from compiler.unit.unit import Unit

Matrix = NDArray[np.bool_]


def apart(unit: Unit, blocks: Blocks, requests: Sequence[BufferRequest], one_block: bool) -> Matrix:
    """bool [n, n]: pairs that must not overlap.  one_block: the window holds one block, so that edges order its nodes."""
    return _apart(unit, blocks.start, blocks.stop, tuple([request.touched for request in requests]), one_block)


@lru_cache(maxsize=1 << 10)  # a gene asks whether its buffers fit, and then a segment for their places
def _apart(unit: Unit, start: int, stop: int, steps: tuple[int, ...], one_block: bool) -> Matrix:
    """steps: see `BufferRequest.touched`."""
    if not steps:
        return np.zeros((0, 0), np.bool_)
    order, count = _order(unit, start, stop), stop - start
    masks = _words([mask or (1 << count) - 1 for mask in steps], count)
    touched = np.unpackbits(masks.view(np.uint8), axis=1, count=count, bitorder="little")
    precedes: Matrix = np.zeros((len(steps), len(steps)), np.bool_)
    if one_block:  # of everyone who touches the buffer; by words: products of matrices so small cost more in threads of BLAS
        of, step = np.nonzero(touched)
        not_behind = np.bitwise_or.reduceat(order.not_after[step], np.searchsorted(of, np.arange(len(steps))), axis=0)
        precedes = np.bitwise_or.reduce(not_behind[:, None] & masks, axis=2) == 0
    alone = touched.sum(1) == 1
    owner = touched.argmax(1)
    lane_of = order.lanes[owner]
    taking_turns = alone[:, None] & alone & (owner[:, None] != owner) & (lane_of[:, None] == lane_of)
    found: Matrix = ~(precedes | precedes.T | taking_turns)
    found.flags.writeable = False
    return found


def _words(masks: Sequence[int], count: int) -> NDArray[np.uint64]:
    """uint64 [n, words]: masks of so many bits, the lowest first; operators may be more than one word has bits."""
    wide = -(-count // 64) * 8
    return np.frombuffer(b"".join([mask.to_bytes(wide, "little") for mask in masks]), np.uint64).reshape(len(masks), wide // 8)


class _Order(NamedTuple):
    """Of a segment's operators: the lane of each; and of each, as bits of uint64 [k, words], which do not come after it along the edges."""

    lanes: NDArray[np.int64]
    not_after: NDArray[np.uint64]


@lru_cache(maxsize=4096)
def _order(unit: Unit, start: int, stop: int) -> _Order:
    count, after = stop - start, _descendants(unit, start, stop)
    return _Order(lanes(unit, start, stop), _words([(1 << count) - 1 & ~mask for mask in after], count))


def _descendants(unit: Unit, start: int, stop: int) -> list[int]:
    """Of every operator those that come after it along the edges of the graph, as bits."""
    after = [0] * (stop - start)
    for k in range(stop - start - 1, -1, -1):
        for reader in unit.consumers[start + k]:
            if reader < stop:
                after[k] |= after[reader - start] | 1 << reader - start
    return after
