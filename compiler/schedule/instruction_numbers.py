"""Numbers of instructions and edges of a program, with gaps.

Later instructions often name earlier ones by number.  A program that differs from the previous one in a few parts keeps the numbers of all
other parts, so their results stay in place.  A part gets more numbers than it needs; a replacement gets the numbers between its neighbours.

number: int64 [parts + 1, 2]: number of each part's first instruction (FIRST_INSTRUCTION), and end of the edge numbers of its instructions
(EDGE_END); these begin at `EDGES` times the first instruction.  Last row: first number of a further part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Ints
from compiler.schedule.segment_table import CELLS, RECORDS, TRANSFER_ENGINES

FIRST_INSTRUCTION, EDGE_END = range(2)  # columns of `number`
EDGES = 2  # edge numbers per instruction number; few parts need more
_ROOM, _LEAST = 2, 128  # numbers of a part at the end: `_ROOM` times its need, plus `_LEAST`


class Numbering(NamedTuple):
    """Numbers of a program, compared with the previous program.

    begin: number of equal parts at the beginning, on the same cores.  tail: first part of the equal end, with equal numbers; the number of
    parts if there is no such end, or if the differing parts need more numbers than there are before it.
    further: increase in the number of instructions.  transfer_engines: those with transfers in either program, as bits.
    instructions, cells: sizes of the largest parts.
    """

    number: Ints
    begin: int
    tail: int
    further: int
    transfer_engines: int
    instructions: int
    cells: int


def empty_numbers() -> Ints:
    """Numbers of a program without parts."""
    return np.zeros((1, 2), np.int64)


@njit(cache=True)
def _same(table: Ints, cores: Ints, part: int, table_then: Ints, cores_then: Ints, part_then: int) -> bool:
    if cores[part] != cores_then[part_then]:
        return False
    for column in range(table.shape[1]):  # noqa: SIM110  numba has no generators
        if table[part, column] != table_then[part_then, column]:
            return False
    return True


@njit(cache=True)
def number_parts(table: Ints, cores: Ints, table_then: Ints, cores_then: Ints, number_then: Ints, edges: int) -> Numbering:
    """Number the parts of a program; parts are the same if their arrays are identical.  number_then: numbers of the previous program.

    edges: room for edges per instruction.
    """
    count, count_then, begin, end = table.shape[0], table_then.shape[0], 0, 0
    common_limit = min(count, count_then)
    # parts at both ends that did not change
    while begin < common_limit and _same(table, cores, begin, table_then, cores_then, begin):
        begin += 1
    while end < common_limit - begin and _same(table, cores, count - 1 - end, table_then, cores_then, count_then - 1 - end):
        end += 1
    further = transfer_engines = instructions = cells = 0
    for p in range(count):
        further, transfer_engines = further + table[p, RECORDS], transfer_engines | table[p, TRANSFER_ENGINES]
        instructions, cells = max(instructions, table[p, RECORDS]), max(cells, table[p, CELLS])
    for p in range(count_then):
        further, transfer_engines = further - table_then[p, RECORDS], transfer_engines | table_then[p, TRANSFER_ENGINES]
    step, number, tail, next_number = (
        (edges + EDGES - 1) // EDGES,
        np.zeros((count + 1, 2), np.int64),
        count - end,
        number_then[begin, FIRST_INSTRUCTION],
    )
    number[:begin] = number_then[:begin]
    # spare numbers: those between the equal parts, minus the need of the differing parts
    spare = number_then[count_then - end, FIRST_INSTRUCTION] - next_number
    for p in range(begin, tail):
        spare -= step * table[p, RECORDS] + 1
    if not end or spare < 0:
        tail = count
        for p in range(begin, count):
            number[p, FIRST_INSTRUCTION] = next_number
            next_number += _ROOM * step * table[p, RECORDS] + _LEAST
        number[count, FIRST_INSTRUCTION] = next_number
    else:
        for p in range(begin, tail):
            number[p, FIRST_INSTRUCTION] = next_number
            next_number += step * table[p, RECORDS] + 1 + spare // (tail - begin)
        number[tail:] = number_then[count_then - end :]
    return Numbering(number, begin, tail, further, transfer_engines, instructions, cells)
