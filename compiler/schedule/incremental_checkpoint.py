"""Checkpoints of incremental scheduling: states from which a pass resumes behind the common first parts of two programs.

A *border* is the state of the pass in front of a part (terms: `incremental_converge`).  Results of earlier instructions stay in place;
only edges from them to later instructions are removed.  A border has no history of DDR: parts touch few of its rows, and their accesses
are applied again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.hazards import FIRST_OF, LATEST, NUMBERS, CoreStates, RecordRows
from compiler.schedule.instruction_numbers import EDGES
from compiler.schedule.local_dependences import ENGINES
from compiler.schedule.segment_accesses import Ints, Ints32
from simulator.kernel_addresses import by_reference

BORDERS = 32  # most borders of a program: two are at least 1/32 of its instructions apart
NEVER = np.iinfo(np.int64).max

PART, FIRST, PAST = range(3)  # columns of `Borders.positions`
COUNT, USED, SHORT = range(3)  # columns of `Borders.used`


class Borders(NamedTuple):
    """Borders of the previous program in order; the arrays have room for twice as many as a program has.

    positions: int64 [room, 3]: part behind the border, its first instruction, its offset in `past`.  past: `Intervals` of every core.
    numbers, ring, pieces: as in `CoreStates`, for each border: [room, cores, ..].
    used: int64 [3]: number of borders, used length of `past`, 1 if `past` was too short.
    following: int32 [room, 6], only for copied borders (`copy_tail_borders`): next instruction of every queue of the first core, or -1.
    """

    positions: Ints
    numbers: Ints
    ring: Ints32
    pieces: Ints
    past: Ints32
    used: Ints
    following: Ints32

    @property
    def last(self) -> tuple[int, int]:
        """Part and instruction behind the last border; (0, 0) without one."""
        count = int(self.used[COUNT])
        return (int(self.positions[count - 1, PART]), int(self.positions[count - 1, FIRST])) if count else (0, 0)

    def forget_behind(self, part: int) -> None:
        """Drop the borders behind a part."""
        count = int(np.searchsorted(self.positions[: self.used[COUNT], PART], part, side="right"))
        if count < self.used[COUNT]:
            self.used[COUNT], self.used[USED] = count, self.positions[count, PAST]

    def with_room(self) -> Borders:
        """Borders with more room for pasts if that was too short."""
        if not self.used[SHORT]:
            return self
        past = np.empty(2 * len(self.past), np.int32)
        past[: self.used[USED]] = self.past[: self.used[USED]]
        self.used[SHORT] = 0
        return self._replace(past=past)


def new_borders(cores: int, limit: int) -> Borders:
    """Empty arrays.  limit: largest count of a flag."""
    room = 2 * BORDERS
    ring = np.empty((room, cores, ENGINES, ENGINES, limit), np.int32)
    numbers, pieces = np.empty((room, cores, NUMBERS), np.int64), np.empty((room, cores), np.int64)
    positions, following = np.empty((room, 3), np.int64), np.empty((room, ENGINES), np.int32)
    return Borders(positions, numbers, ring, pieces, np.empty(1 << 14, np.int32), np.zeros(3, np.int64), following)


@njit(cache=True)
def save_border(borders: Borders, states: CoreStates, part: int, first: int) -> None:
    """Save the state in front of a part, if there is room."""
    k, offset, cores = borders.used[COUNT], borders.used[USED], borders.pieces.shape[1]
    if k == borders.positions.shape[0]:
        return
    if offset + cores + 9 * states.pieces[:cores].sum() > borders.past.shape[0]:
        borders.used[SHORT] = 1
        return
    borders.positions[k, PART], borders.positions[k, FIRST], borders.positions[k, PAST] = part, first, offset
    for core in range(cores):
        borders.numbers[k, core] = states.numbers[core]
        borders.ring[k, core] = states.ring[core]
        borders.pieces[k, core] = pieces = states.pieces[core]
        row = states.slots[core]
        borders.past[offset : offset + pieces + 1] = states.bound[row, : pieces + 1]
        offset += pieces + 1
        borders.past[offset : offset + 8 * pieces] = states.last[row, :pieces].reshape(8 * pieces)
        offset += 8 * pieces
    borders.used[COUNT], borders.used[USED] = k + 1, offset


@njit(cache=True)
def copy_tail_borders(borders: Borders, later: Borders, part: int, part_offset: int, states: CoreStates, rows: RecordRows) -> None:
    """Copy the borders from before a part to the end, of a program on one core, into `later`.  part_offset: increase of part numbers.

    states, rows: state at the end of the program.
    """
    borders, later, states, rows = by_reference(borders), by_reference(later), by_reference(states), by_reference(rows)
    later.used[COUNT] = later.used[USED] = 0
    for k in range(borders.used[COUNT]):
        if borders.positions[k, PART] < part:
            continue
        n, new_offset, offset, items = later.used[COUNT], later.used[USED], borders.positions[k, PAST], 1 + 9 * borders.pieces[k, 0]
        if new_offset + items > later.past.shape[0]:
            later.used[SHORT] = 1
            break
        later.positions[n, PART], later.positions[n, FIRST], later.positions[n, PAST] = (
            borders.positions[k, PART] + part_offset,
            borders.positions[k, FIRST],
            new_offset,
        )
        later.numbers[n], later.ring[n], later.pieces[n] = borders.numbers[k], borders.ring[k], borders.pieces[k]
        later.past[new_offset : new_offset + items] = borders.past[offset : offset + items]
        for e in range(ENGINES):
            latest = borders.numbers[k, 0, LATEST + e]
            later.following[n, e] = rows.after[latest] if latest >= 0 else states.numbers[0, FIRST_OF + e]
        later.used[COUNT], later.used[USED] = n + 1, new_offset + items


@njit(cache=True)
def restore_border(borders: Borders, states: CoreStates, rows: RecordRows) -> None:
    """Restore the state of the last border, apart from DDR."""
    k = borders.used[COUNT] - 1
    offset = borders.positions[k, PAST]
    for core in range(borders.pieces.shape[1]):
        states.numbers[core] = borders.numbers[k, core]
        states.ring[core] = borders.ring[k, core]
        states.pieces[core] = pieces = borders.pieces[k, core]
        row = states.slots[core]
        states.bound[row, : pieces + 1] = borders.past[offset : offset + pieces + 1]
        offset += pieces + 1
        states.last[row, :pieces] = borders.past[offset : offset + 8 * pieces].reshape((pieces, 8))
        offset += 8 * pieces
        for e in range(ENGINES):
            latest = states.numbers[core, LATEST + e]
            if latest >= 0:
                rows.after[latest] = -1


@njit(cache=True)
def lower_keys(borders: Borders, border: int, states: CoreStates, rows: RecordRows, keys: Ints) -> None:
    """Lower `keys`, int64 [cores], to the smallest key of a core's instructions behind a border.  states: behind the whole program."""
    for core in range(borders.pieces.shape[1]):
        for e in range(ENGINES):
            latest = borders.numbers[border, core, LATEST + e]
            following = np.int64(rows.after[latest]) if latest >= 0 else states.numbers[core, FIRST_OF + e]
            if following >= 0:
                keys[core] = min(keys[core], rows.key[following])


@njit(cache=True)
def cut_edges(first: int, edge: int, stop: int, rows: RecordRows) -> None:
    """Remove edges `edge` .. `stop` from the lists of instructions before `first`.

    A list ends with its edges to later instructions, so it is cut at the first such edge.
    """
    least = EDGES * first
    for k in range(edge, stop):
        i = rows.edge_from[k]
        if i < first:
            cursor = rows.set_head[i]
            if cursor >= least:
                rows.set_head[i] = -1
            elif cursor >= 0:
                while 0 <= rows.set_next[cursor] < least:
                    cursor = rows.set_next[cursor]
                rows.set_next[cursor] = -1
                rows.set_tail[i] = cursor


@njit(cache=True)
def mark_changed(first: int, edge: int, stop: int, rows: RecordRows, changed: Ints) -> None:
    """Lower `changed`, int64 [cores * 6], to the first setter, before `first`, of edges `edge` .. `stop` in every queue."""
    for k in range(edge, stop):
        i = rows.edge_from[k]
        if i < first:
            queue = rows.core[i] * ENGINES + rows.engine[i]
            changed[queue] = min(changed[queue], i)
