"""Issue order: the queues of a core merged into the stream that its scalar unit hands out."""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.schedule.footprint import Ints
from compiler.schedule.hazards import RecordRows
from compiler.schedule.inside import ENGINES

_FAR = np.iinfo(np.int64).max


@njit(cache=True)
def order(queue_first: Ints, r: RecordRows) -> int:
    """Merge by (key, number), each instruction with its WAITs before and its SETs behind; fills r.place, returns the stream's length.

    queue_first: int64 [6], first instruction of every queue, or -1.
    """
    front = queue_first.copy()
    when = np.full(ENGINES, _FAR, np.int64)
    left = 0
    for e in range(ENGINES):
        if front[e] >= 0:
            when[e] = r.key[front[e]]
            left += 1
    at = 0
    while left:
        b = 0
        for e in range(1, ENGINES):
            if when[e] < when[b] or (when[e] == when[b] and front[e] < front[b]):
                b = e
        i = front[b]
        at += r.edge_start[i + 1] - r.edge_start[i]
        r.place[i] = at
        at += 1
        edge = r.set_head[i]
        while edge >= 0:
            at += 1
            edge = r.set_next[edge]
        front[b] = r.after[i]
        if r.after[i] >= 0:
            when[b] = r.key[r.after[i]]
        else:
            when[b] = _FAR
            left -= 1
    return at
