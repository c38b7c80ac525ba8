"""Where a schedule goes on from, when a program begins with the parts that the one before began with.

A *border* is the state of the pass in front of a part.  What earlier instructions were given stays where it is; of what later ones did to
it, the flags that they wait for are taken back.  What parts did to DDR is not kept but done again: they touch few of its rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Ints, Ints32
from compiler.schedule.hazards import Queues, RecordRows
from compiler.schedule.history import Intervals
from compiler.schedule.inside import ENGINES

BORDERS = 32  # of a program: none lies nearer to the one before than so many parts of its instructions
NEVER = np.iinfo(np.int64).max


class Core(NamedTuple):
    """Of a core: `Queues.numbers` and `Queues.ring`, and its memories on chip."""

    numbers: Ints
    ring: Ints32
    past: Intervals


class PartBorder(NamedTuple):
    """In front of part `part`, whose first instruction is `first`; edges to all before it: `edges`."""

    part: int
    first: int
    edges: int
    cores: tuple[Core, ...]

    @classmethod
    def of(cls, part: int, first: int, edges: int, queues: list[Queues], pasts: list[Intervals], pieces: list[int]) -> PartBorder:
        """Copies."""
        cores = [
            Core(q.numbers.copy(), q.ring.copy(), Intervals(past.bound[: count + 1].copy(), past.last[:count].copy()))
            for q, past, count in zip(queues, pasts, pieces, strict=False)
        ]
        return cls(part, first, edges, tuple(cores))


def next_key(q: Queues, last: Queues, r: RecordRows) -> int:
    """The smallest key of a core's instructions behind a border.

    q: its state there.  last: behind the whole program.
    """
    following = [int(r.after[latest]) if latest >= 0 else int(last.first[e]) for e, latest in enumerate(q.latest.tolist())]
    return min((int(r.key[i]) for i in following if i >= 0), default=NEVER)


@njit(cache=True)
def cut(first: int, edge: int, edges: int, r: RecordRows, changed: Ints) -> None:
    """Edges `edge` .. are none of those that instructions before `first` set; changed: see `mark_changed`."""
    mark_changed(first, edge, edges, r, changed)
    for k in range(edge, edges):
        i = r.edge_from[k]
        if i < first:
            at = r.set_head[i]
            if at >= edge:
                r.set_head[i] = -1
            elif at >= 0:
                while 0 <= r.set_next[at] < edge:
                    at = r.set_next[at]
                r.set_next[at] = -1
                r.set_tail[i] = at


@njit(cache=True)
def mark_changed(first: int, edge: int, edges: int, r: RecordRows, changed: Ints) -> None:
    """changed: int64 [cores * 6], of every queue the first instruction before `first` that sets an edge from `edge` on, or less."""
    for k in range(edge, edges):
        i = r.edge_from[k]
        if i < first:
            q = r.core[i] * ENGINES + r.engine[i]
            changed[q] = min(changed[q], i)
