"""Which buffers of a segment may share addresses when its nodes do not run one after the other (`schedule.window`).

In a sequence that is a question of intervals: a buffer lives from the first operator that touches it to the last.  In a sliding window two
buffers may share only where the order that the window keeps says so:

* the window is one block, and everyone who touches the one comes before everyone who touches the other, along the edges of the graph; or
* each is the scratch of one operator, and both operators are of one lane, whose nodes never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.schedule.blocks import Blocks
from compiler.schedule.buffers import Wish
from compiler.schedule.window import lanes
from compiler.tile.spec import Unit

Matrix = NDArray[np.bool_]


def apart(unit: Unit, blocks: Blocks, wishes: Sequence[Wish], one_block: bool) -> Matrix:
    """bool [n, n]: pairs that must not overlap.  one_block: the window holds one block, so that edges order its nodes."""
    count = blocks.stop - blocks.start
    touched = np.array([[not w.touched or bool(w.touched >> k & 1) for k in range(count)] for w in wishes], np.int64).reshape(-1, count)
    after = _descendants(unit, blocks) if one_block else np.zeros((count, count), np.bool_)
    not_behind = touched @ ~after > 0  # of everyone who touches the buffer
    precedes = not_behind.astype(np.int64) @ touched.T == 0
    alone = touched.sum(1) == 1
    owner = touched.argmax(1)
    lane_of = lanes(unit, blocks)[owner]
    taking_turns = alone[:, None] & alone & (owner[:, None] != owner) & (lane_of[:, None] == lane_of)
    found: Matrix = ~(precedes | precedes.T | taking_turns)
    return found


def _descendants(unit: Unit, blocks: Blocks) -> Matrix:
    """bool [k, k']: whether operator k' comes after k along the edges of the graph."""
    count = blocks.stop - blocks.start
    after = np.zeros((count, count), np.bool_)
    for k in range(count - 1, -1, -1):
        for reader in unit.consumers[blocks.start + k]:
            if reader < blocks.stop:
                after[k] |= after[reader - blocks.start]
                after[k, reader - blocks.start] = True
    return after
