"""Issue order: the queues of a core merged into the stream that its scalar unit hands out.

The merge leaves *marks*, int64 [.., 9]: after every `EVERY` instructions the last one of each queue so far (or -1), the rows so far, the
last key, and the instructions so far.  A merge goes on from a mark up to which nothing changed.  Where it comes to a mark of the merge
before with nothing ahead but what that had ahead, all of it with the same shift of its keys, the rest is there (`again`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.hazards import RecordRows
from compiler.schedule.local_dependences import ENGINES
from compiler.schedule.segment_accesses import Bytes8, Ints

EVERY = 1 << 10
ROWS, KEY, MERGED = ENGINES, ENGINES + 1, ENGINES + 2  # columns of a mark
MARK = ENGINES + 3

_FAR = np.iinfo(np.int64).max


class MergedStream(NamedTuple):
    """The merge of the program before.  marks: those that do not hold; none where this program has other parts to its end.

    rows: of its stream, which from row `begin` on is `stream`.  further: instructions that this program has more; since: from this one on
    their rows are those of the program before, and their keys `shift` later.
    """

    marks: Ints
    rows: int
    stream: Bytes8
    begin: int
    further: int
    since: int
    shift: int


def marks_before(marks: Ints, first: int, key: int, changed: Ints) -> int:
    """How many of some marks hold where instructions from `first` on are others, none of them with a key below `key`.

    changed: int64 [6], of every queue the first instruction whose SETs are others.
    """
    done = marks[:, :ENGINES]
    return int(((done < np.minimum(changed, first)).all(1) & (marks[:, KEY] <= key)).sum())


@njit(cache=True)
def order(queue_first: Ints, r: RecordRows, marks: Ints, known: int, stream: Bytes8, then: MergedStream) -> tuple[int, int, int, int]:
    """Merge by (key, number), each instruction with its WAITs before and its SETs behind.

    Fills stream, the engine of every row.  queue_first: int64 [6], first instruction of every queue, or -1.  known: how many marks hold;
    later ones are written, while there is room.  then: rows that lie in `stream`.  Returns the stream's length, of how many rows `stream`
    had the engine before, its end counted as one, how many of its last rows are the last ones of before, and how many marks hold.
    """
    done = np.full(ENGINES, -1, np.int64)
    front = queue_first.copy()
    when = np.full(ENGINES, _FAR, np.int64)
    at = left = merged = k = end = 0
    before, upcoming = then.rows, _FAR  # so many merged where the one before had a mark
    if then.marks.shape[0]:
        upcoming = then.marks[0, MERGED] + then.further
    if known:
        at, merged = marks[known - 1, ROWS], marks[known - 1, MERGED]
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
        at += r.edge_start[i + 1] - r.edge_start[i] + 1
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
        merged += 1
        if until_mark == 0 and known < marks.shape[0]:
            until_mark = EVERY
            for e in range(ENGINES):
                marks[known, e] = done[e]
            marks[known, ROWS], marks[known, KEY], marks[known, MERGED] = at, when[b], merged
            known += 1
        front[b] = r.after[i]
        if r.after[i] >= 0:
            when[b] = r.key[r.after[i]]
        else:
            when[b] = _FAR
            left -= 1
        while upcoming < merged:
            k += 1
            upcoming = then.marks[k, MERGED] + then.further if k < then.marks.shape[0] else _FAR
        if upcoming == merged and _met(done, front, then.marks[k], then.since):
            moved, end = at - then.marks[k, ROWS], before - then.marks[k, ROWS]
            if moved:
                rest = then.stream[then.marks[k, ROWS] - then.begin :]
                row = at
                while same < 0 and row < at + end:
                    if row >= before or then.stream[row - then.begin] != rest[row - at]:
                        same = row
                    row += 1
                stream[at : at + end] = rest
            at += end
            for j in range(k, then.marks.shape[0]):
                if known < marks.shape[0]:
                    marks[known] = then.marks[j]
                    marks[known, ROWS] += moved
                    marks[known, KEY] += then.shift
                    marks[known, MERGED] += then.further
                    known += 1
            break
    if same < 0:
        same = at + 1 if at == before else at
    return at, same, end, known


@njit(cache=True)
def _met(done: Ints, front: Ints, mark: Ints, since: int) -> bool:
    """Whether all that is left was left at a mark of the merge before.

    As many instructions are left, and those of this program are all in that one, so there it had no others.
    """
    same = True
    for e in range(ENGINES):
        same &= done[e] == mark[e] and not 0 <= front[e] < since
    return same
