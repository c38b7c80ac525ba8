"""Issue order: the queues of a core merged into the stream that its scalar unit hands out.

The merge leaves *marks*, int64 [.., 8]: after every `EVERY` instructions the last one of each queue so far (or -1), the rows so far, and
the last key.  A merge goes on from a mark up to which nothing changed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints
from compiler.schedule.hazards import RecordRows
from compiler.schedule.inside import ENGINES

EVERY = 1 << 10
ROWS, KEY = ENGINES, ENGINES + 1  # columns of a mark
MARK = ENGINES + 2

_FAR = np.iinfo(np.int64).max


def marks_before(marks: Ints, first: int, key: int, changed: Ints) -> int:
    """How many of some marks hold where instructions from `first` on are others, none of them with a key below `key`.

    changed: int64 [6], of every queue the first instruction whose SETs are others.
    """
    done = marks[:, :ENGINES]
    return int(((done < np.minimum(changed, first)).all(1) & (marks[:, KEY] <= key)).sum())


@njit(cache=True)
def order(queue_first: Ints, r: RecordRows, marks: Ints, known: int, stream: Bytes8, before: int) -> tuple[int, int, int]:
    """Merge by (key, number), each instruction with its WAITs before and its SETs behind.

    Fills r.place, and stream, the engine of every row.  queue_first: int64 [6], first instruction of every queue, or -1.  known: how many
    marks hold; later ones are written.  before: rows of what lies in `stream`.  Returns the stream's length, of how many rows `stream` had
    the engine before, its end counted as one, and how many marks hold.
    """
    done = np.full(ENGINES, -1, np.int64)
    front = queue_first.copy()
    when = np.full(ENGINES, _FAR, np.int64)
    at = left = 0
    if known:
        at = marks[known - 1, ROWS]
        for e in range(ENGINES):
            done[e] = marks[known - 1, e]
            if done[e] >= 0:
                front[e] = r.after[done[e]]
    for e in range(ENGINES):
        if front[e] >= 0:
            when[e] = r.key[front[e]]
            left += 1
    until_mark, same = EVERY, -1
    while left:
        b = 0
        for e in range(1, ENGINES):
            if when[e] < when[b] or (when[e] == when[b] and front[e] < front[b]):
                b = e
        i = front[b]
        begin = at
        at += r.edge_start[i + 1] - r.edge_start[i]
        r.place[i] = at
        at += 1
        edge = r.set_head[i]
        while edge >= 0:
            at += 1
            edge = r.set_next[edge]
        if same < 0:
            for row in range(begin, at):
                if row == before or stream[row] != b:
                    same = row
                    break
        for row in range(begin, at):
            stream[row] = b
        done[b] = i
        until_mark -= 1
        if until_mark == 0:
            until_mark = EVERY
            for e in range(ENGINES):
                marks[known, e] = done[e]
            marks[known, ROWS], marks[known, KEY] = at, when[b]
            known += 1
        front[b] = r.after[i]
        if r.after[i] >= 0:
            when[b] = r.key[r.after[i]]
        else:
            when[b] = _FAR
            left -= 1
    if same < 0:
        same = at + 1 if at == before else at
    return at, same, known
