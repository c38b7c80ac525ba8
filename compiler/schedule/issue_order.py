"""Issue order: the queues of a core merged into the stream that its scalar unit issues.

The merge saves *marks*, int64 [.., 9]: after every `MARK_INTERVAL` instructions the last one of each queue so far (or -1), the rows so far,
the last key, and the instructions so far.  A *row* is a place in the stream: an instruction takes one, and so does each WAIT and SET.
A merge resumes at the last mark in front of all changes.  At a mark of the previous merge with the same instructions ahead, all with the
same shift of their keys, the rest is adopted (`incremental_converge`).
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
    last_merged = np.full(ENGINES, -1, np.int64)
    front = queue_first.copy()  # next instruction of every queue
    front_key = np.full(ENGINES, _FAR, np.int64)
    length = open_queues = merged_count = old_mark = tail_length = 0
    # next_old_mark: instructions merged at the next mark of the previous merge
    rows_before, next_old_mark = previous.rows, _FAR
    if previous.marks.shape[0]:
        next_old_mark = previous.marks[0, MERGED] + previous.further
    # resume at the last valid mark
    if mark_count:
        length, merged_count = marks[mark_count - 1, ROWS], marks[mark_count - 1, MERGED]
        for e in range(ENGINES):
            last_merged[e] = marks[mark_count - 1, e]
            if last_merged[e] >= 0:
                front[e] = rows.after[last_merged[e]]
    for e in range(ENGINES):
        if front[e] >= 0:
            front_key[e] = rows.key[front[e]]
            open_queues += 1
    until_mark, first_change = MARK_INTERVAL, -1
    while open_queues:
        # the front instruction with the smallest (key, number)
        queue = 0
        for e in range(1, ENGINES):
            if front_key[e] < front_key[queue] or (front_key[e] == front_key[queue] and front[e] < front[queue]):
                queue = e
        # its rows: WAITs, itself, SETs
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
        last_merged[queue] = i
        until_mark -= 1
        merged_count += 1
        if until_mark == 0 and mark_count < marks.shape[0]:
            until_mark = MARK_INTERVAL
            for e in range(ENGINES):
                marks[mark_count, e] = last_merged[e]
            marks[mark_count, ROWS], marks[mark_count, KEY], marks[mark_count, MERGED] = length, front_key[queue], merged_count
            mark_count += 1
        # the queue's next instruction
        front[queue] = rows.after[i]
        if rows.after[i] >= 0:
            front_key[queue] = rows.key[rows.after[i]]
        else:
            front_key[queue] = _FAR
            open_queues -= 1
        while next_old_mark < merged_count:
            old_mark += 1
            next_old_mark = previous.marks[old_mark, MERGED] + previous.further if old_mark < previous.marks.shape[0] else _FAR
        # converged: copy the previous tail, and its marks with their offsets
        if next_old_mark == merged_count and _is_pending_equal(last_merged, front, previous.marks[old_mark], previous.since):
            row_shift, tail_length = length - previous.marks[old_mark, ROWS], rows_before - previous.marks[old_mark, ROWS]
            if row_shift:
                tail_rows = previous.stream[previous.marks[old_mark, ROWS] - previous.begin :]
                row = length
                while first_change < 0 and row < length + tail_length:
                    if row >= rows_before or previous.stream[row - previous.begin] != tail_rows[row - length]:
                        first_change = row
                    row += 1
                stream[length : length + tail_length] = tail_rows
            length += tail_length
            for j in range(old_mark, previous.marks.shape[0]):
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
def _is_pending_equal(last_merged: Ints, front: Ints, mark: Ints, since: int) -> bool:
    """Whether the same instructions are pending as at a mark of the previous merge.

    Their counts are equal, and all of this program's pending instructions are in the previous one, so it had no others there.
    """
    same = True
    for e in range(ENGINES):
        same &= last_merged[e] == mark[e] and not 0 <= front[e] < since
    return same
