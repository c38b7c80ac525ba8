"""Issue order: the queues of a core merged into the stream that its scalar unit issues.

The merge saves *marks*, int64 [.., 9]: after every `MARK_INTERVAL` instructions the last one of each queue so far (or -1), the rows so far,
the last key, and the instructions so far.  A merge resumes at the last mark in front of all changes.  At a mark of the previous merge with
the same instructions ahead, all with the same shift of their keys, the rest is adopted (`incremental_converge`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.hazards import RecordRows
from compiler.schedule.local_dependences import ENGINES
from compiler.schedule.segment_accesses import Bytes8, Ints

MARK_INTERVAL = 1 << 10  # instructions between two marks
ROWS, KEY, MERGED = ENGINES, ENGINES + 1, ENGINES + 2  # columns of a mark
MARK = ENGINES + 3  # columns of a mark

_FAR = np.iinfo(np.int64).max


class MergedStream(NamedTuple):
    """Merge of the previous program.  marks: its marks behind the resumed one; none if the programs have different ends.

    rows: rows of its stream; from row `begin` on they are in `stream`.  further: increase in the number of instructions.  since: from this
    instruction on rows are reused, with keys `shift` later.
    """

    marks: Ints
    rows: int
    stream: Bytes8
    begin: int
    further: int
    since: int
    shift: int


def count_valid_marks(marks: Ints, first: int, key: int, changed: Ints) -> int:
    """Number of valid marks, if instructions from `first` on differ and have keys of at least `key`.

    changed: int64 [6], first instruction of every queue whose SETs differ.
    """
    last_merged = marks[:, :ENGINES]
    return int(((last_merged < np.minimum(changed, first)).all(1) & (marks[:, KEY] <= key)).sum())


@njit(cache=True)
def merge_queues(
    queue_first: Ints, rows: RecordRows, marks: Ints, mark_count: int, stream: Bytes8, previous: MergedStream
) -> tuple[int, int, int, int]:
    """Merge by (key, number); each instruction has its WAITs before it and its SETs behind it.

    Fills stream, the engine of every row.  queue_first: int64 [6], first instruction of every queue, or -1.  mark_count: number of valid
    marks; later ones are written as long as there is room.  previous: number of rows in `stream`.  Returns the length of the stream, the
    number of unchanged rows at its beginning (its end counts as one), the number of reused rows at its end, and the number of valid marks.
    """
    done = np.full(ENGINES, -1, np.int64)
    front = queue_first.copy()
    front_key = np.full(ENGINES, _FAR, np.int64)
    length = open_queues = merged_count = k = tail_length = 0
    rows_before, next_meeting = previous.rows, _FAR
    if previous.marks.shape[0]:
        # instructions merged at the next mark of the previous merge
        next_meeting = previous.marks[0, MERGED] + previous.further
    if mark_count:
        length, merged_count = marks[mark_count - 1, ROWS], marks[mark_count - 1, MERGED]
        for e in range(ENGINES):
            done[e] = marks[mark_count - 1, e]
            if done[e] >= 0:
                front[e] = rows.after[done[e]]
    for e in range(ENGINES):
        if front[e] >= 0:
            front_key[e] = rows.key[front[e]]
            open_queues += 1
    until_mark, first_change = MARK_INTERVAL, -1
    while open_queues:
        queue = 0
        for e in range(1, ENGINES):
            if front_key[e] < front_key[queue] or (front_key[e] == front_key[queue] and front[e] < front[queue]):
                queue = e
        i = front[queue]
        begin = length
        length += rows.edge_start[i + 1] - rows.edge_start[i] + 1
        edge = rows.set_head[i]
        while edge >= 0:
            length += 1
            edge = rows.set_next[edge]
        if first_change < 0:
            for row in range(begin, length):
                if row == rows_before or stream[row] != queue:
                    first_change = row
                    break
        for row in range(begin, length):
            stream[row] = queue
        done[queue] = i
        until_mark -= 1
        merged_count += 1
        if until_mark == 0 and mark_count < marks.shape[0]:
            until_mark = MARK_INTERVAL
            for e in range(ENGINES):
                marks[mark_count, e] = done[e]
            marks[mark_count, ROWS], marks[mark_count, KEY], marks[mark_count, MERGED] = length, front_key[queue], merged_count
            mark_count += 1
        front[queue] = rows.after[i]
        if rows.after[i] >= 0:
            front_key[queue] = rows.key[rows.after[i]]
        else:
            front_key[queue] = _FAR
            open_queues -= 1
        while next_meeting < merged_count:
            k += 1
            next_meeting = previous.marks[k, MERGED] + previous.further if k < previous.marks.shape[0] else _FAR
        # converged: copy the previous tail, and its marks with their offsets
        if next_meeting == merged_count and _is_pending_equal(done, front, previous.marks[k], previous.since):
            row_shift, tail_length = length - previous.marks[k, ROWS], rows_before - previous.marks[k, ROWS]
            if row_shift:
                tail_rows = previous.stream[previous.marks[k, ROWS] - previous.begin :]
                row = length
                while first_change < 0 and row < length + tail_length:
                    if row >= rows_before or previous.stream[row - previous.begin] != tail_rows[row - length]:
                        first_change = row
                    row += 1
                stream[length : length + tail_length] = tail_rows
            length += tail_length
            for j in range(k, previous.marks.shape[0]):
                if mark_count < marks.shape[0]:
                    marks[mark_count] = previous.marks[j]
                    marks[mark_count, ROWS] += row_shift
                    marks[mark_count, KEY] += previous.shift
                    marks[mark_count, MERGED] += previous.further
                    mark_count += 1
            break
    if first_change < 0:
        first_change = length + 1 if length == rows_before else length
    return length, first_change, tail_length, mark_count


@njit(cache=True)
def _is_pending_equal(done: Ints, front: Ints, mark: Ints, since: int) -> bool:
    """Whether the same instructions are pending as at a mark of the previous merge.

    Their counts are equal, and all of this program's pending instructions are in the previous one, so it had no others there.
    """
    same = True
    for e in range(ENGINES):
        same &= done[e] == mark[e] and not 0 <= front[e] < since
    return same
