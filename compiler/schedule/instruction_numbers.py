"""What instructions and edges of a program are called: numbers with gaps.

Later instructions name earlier ones by number, and hold several of these.  A program that differs from the one before in a few parts keeps
the numbers of all others, so that what is known of them stays where it is: a part has room for more than it needs, and one that takes its
place has what lies between its neighbours.

number: int64 [parts + 1, 2], the number of each part's first instruction, and where the numbers of edges to its instructions end, which
begin at `EDGES` times that; of the last row, where a further part would begin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Ints
from compiler.schedule.segment_table import CELLS, MOVING, RECORDS

EDGES = 2  # numbers of edges for each of an instruction; few parts have more
_ROOM, _LEAST = 2, 128  # for so many times the instructions that a part has, and so many more


class Numbered(NamedTuple):
    """A program beside the one before: it begins with `begin` parts of that, on the same cores, and from part `tail` on it has its last
    ones, with their numbers; behind all where it has none of them, or where what is new has no place in front of them.

    further: how many instructions it has more.  moving: engines with transfers, a bit for each, of both.  instructions, cells: of its
    longest parts.
    """

    number: Ints
    begin: int
    tail: int
    further: int
    moving: int
    instructions: int
    cells: int


def no_numbers() -> Ints:
    """Of a program without parts."""
    return np.zeros((1, 2), np.int64)


@njit(cache=True)
def _same(table: Ints, cores: Ints, p: int, table_then: Ints, cores_then: Ints, o: int) -> bool:
    return cores[p] == cores_then[o] and bool((table[p] == table_then[o]).all())


@njit(cache=True)
def numbered(table: Ints, cores: Ints, table_then: Ints, cores_then: Ints, then: Ints, edges: int) -> Numbered:
    """Parts are the same where their arrays are.  then: numbers of the program before.  edges: room for so many to each instruction."""
    count, count_then, begin, end = table.shape[0], table_then.shape[0], 0, 0
    most = min(count, count_then)
    while begin < most and _same(table, cores, begin, table_then, cores_then, begin):
        begin += 1
    while end < most - begin and _same(table, cores, count - 1 - end, table_then, cores_then, count_then - 1 - end):
        end += 1
    further = moving = instructions = cells = 0
    for p in range(count):
        further, moving = further + table[p, RECORDS], moving | table[p, MOVING]
        instructions, cells = max(instructions, table[p, RECORDS]), max(cells, table[p, CELLS])
    for p in range(count_then):
        further, moving = further - table_then[p, RECORDS], moving | table_then[p, MOVING]
    least, number, tail, at = (edges + EDGES - 1) // EDGES, np.zeros((count + 1, 2), np.int64), count - end, then[begin, 0]
    number[:begin] = then[:begin]
    spare = then[count_then - end, 0] - at
    for p in range(begin, tail):
        spare -= least * table[p, RECORDS] + 1
    if not end or spare < 0:
        tail = count
        for p in range(begin, count):
            number[p, 0] = at
            at += _ROOM * least * table[p, RECORDS] + _LEAST
        number[count, 0] = at
    else:
        for p in range(begin, tail):
            number[p, 0] = at
            at += least * table[p, RECORDS] + 1 + spare // (tail - begin)
        number[tail:] = then[count_then - end :]
    return Numbered(number, begin, tail, further, moving, instructions, cells)
