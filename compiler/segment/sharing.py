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
from compiler.segment.buffers import Wish
from compiler.segment.lanes import lanes
from compiler.unit.unit import Unit

Matrix = NDArray[np.bool_]


def apart(unit: Unit, blocks: Blocks, wishes: Sequence[Wish], one_block: bool) -> Matrix:
    """bool [n, n]: pairs that must not overlap.  one_block: the window holds one block, so that edges order its nodes."""
    if not wishes:
        return np.zeros((0, 0), np.bool_)
    order = _order(unit, blocks.start, blocks.stop)
    # Python's own integers where there are more operators than an int64 has bits
    masks = np.array([wish.touched or -1 for wish in wishes], np.int64 if len(order.steps) < 64 else object)
    touched = (masks[:, None] >> order.steps & 1).astype(np.float32)
    # of everyone who touches the buffer; products of small numbers, exact in float32, which BLAS knows
    not_behind = touched @ (order.not_after if one_block else np.ones_like(order.not_after)) > 0
    precedes = not_behind.astype(np.float32) @ touched.T == 0
    alone = touched.sum(1) == 1
    owner = touched.argmax(1)
    lane_of = order.lanes[owner]
    taking_turns = alone[:, None] & alone & (owner[:, None] != owner) & (lane_of[:, None] == lane_of)
    found: Matrix = ~(precedes | precedes.T | taking_turns)
    return found


class _Order(NamedTuple):
    """Of a segment's operators: their places, the lane of each, and float32 [k, k'], 0 where k' comes after k along the edges."""

    steps: NDArray[np.int64]
    lanes: NDArray[np.int64]
    not_after: NDArray[np.float32]


@lru_cache(maxsize=4096)
def _order(unit: Unit, start: int, stop: int) -> _Order:
    return _Order(np.arange(stop - start), lanes(unit, start, stop), (~_descendants(unit, start, stop)).astype(np.float32))


def _descendants(unit: Unit, start: int, stop: int) -> Matrix:
    """bool [k, k']: whether operator k' comes after k along the edges of the graph."""
    count = stop - start
    after = np.zeros((count, count), np.bool_)
    for k in range(count - 1, -1, -1):
        for reader in unit.consumers[start + k]:
            if reader < stop:
                after[k] |= after[reader - start]
                after[k, reader - start] = True
    return after
