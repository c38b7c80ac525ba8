"""Where a schedule goes on from, when a program begins with the parts that the one before began with.

A *border* is the state of the pass in front of a part.  What earlier instructions were given stays where it is; of what later ones did to
it, the flags that they wait for are taken back.  What parts did to DDR is not kept but done again: they touch few of its rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.hazards import FIRST_OF, LATEST, NUMBERS, CoreStates, RecordRows
from compiler.schedule.instruction_numbers import EDGES
from compiler.schedule.local_dependences import ENGINES
from compiler.schedule.segment_accesses import Ints, Ints32
from simulator.addresses import by_reference

BORDERS = 32  # of a program: none lies nearer to the one before than so many parts of its instructions
NEVER = np.iinfo(np.int64).max

PART, FIRST, PAST = range(3)  # columns of `Borders.at`
COUNT, USED, SHORT = range(3)  # of `Borders.used`


class Borders(NamedTuple):
    """Of the last program, one behind the other; room for twice as many as a program leaves.

    at: int64 [room, 3], of each the part behind it, the first instruction of that, and where `past` has what the memories on chip are: of
    every core the items of its `Intervals`.  numbers, ring, pieces: of `CoreStates` [room, cores, ..].
    used: int64 [3], how many borders there are, how much of `past`, and 1 where that was too short.
    following: int32 [room, 6], of those that were set aside the next instruction of every queue of the first core, or -1.
    """

    at: Ints
    numbers: Ints
    ring: Ints32
    pieces: Ints
    past: Ints32
    used: Ints
    following: Ints32

    @property
    def last(self) -> tuple[int, int]:
        """Part and instruction behind the last one, or a program's first."""
        count = int(self.used[COUNT])
        return (int(self.at[count - 1, PART]), int(self.at[count - 1, FIRST])) if count else (0, 0)

    def forget_behind(self, part: int) -> None:
        """Those behind a part."""
        count = int(np.searchsorted(self.at[: self.used[COUNT], PART], part, side="right"))
        if count < self.used[COUNT]:
            self.used[COUNT], self.used[USED] = count, self.at[count, PAST]

    def with_room(self) -> Borders:
        """The same, with more room for pasts where that was too short."""
        if not self.used[SHORT]:
            return self
        past = np.empty(2 * len(self.past), np.int32)
        past[: self.used[USED]] = self.past[: self.used[USED]]
        self.used[SHORT] = 0
        return self._replace(past=past)


def no_borders(cores: int, limit: int) -> Borders:
    """limit: of the count of a flag."""
    room = 2 * BORDERS
    ring = np.empty((room, cores, ENGINES, ENGINES, limit), np.int32)
    numbers, pieces = np.empty((room, cores, NUMBERS), np.int64), np.empty((room, cores), np.int64)
    at, following = np.empty((room, 3), np.int64), np.empty((room, ENGINES), np.int32)
    return Borders(at, numbers, ring, pieces, np.empty(1 << 14, np.int32), np.zeros(3, np.int64), following)


@njit(cache=True)
def leave_border(b: Borders, s: CoreStates, part: int, first: int) -> None:
    """The state in front of a part; none where there is no room."""
    k, at, cores = b.used[COUNT], b.used[USED], b.pieces.shape[1]
    if k == b.at.shape[0]:
        return
    if at + cores + 9 * s.pieces[:cores].sum() > b.past.shape[0]:
        b.used[SHORT] = 1
        return
    b.at[k, PART], b.at[k, FIRST], b.at[k, PAST] = part, first, at
    for core in range(cores):
        b.numbers[k, core] = s.numbers[core]
        b.ring[k, core] = s.ring[core]
        b.pieces[k, core] = pieces = s.pieces[core]
        row = s.at[core]
        b.past[at : at + pieces + 1] = s.bound[row, : pieces + 1]
        at += pieces + 1
        b.past[at : at + 8 * pieces] = s.last[row, :pieces].reshape(8 * pieces)
        at += 8 * pieces
    b.used[COUNT], b.used[USED] = k + 1, at


@njit(cache=True)
def set_aside(b: Borders, later: Borders, part: int, further: int, s: CoreStates, r: RecordRows) -> None:
    """Borders in front of a part and behind it, of a program on one core, into `later`, with their parts so much further behind.

    s, r: as they are behind the whole program.
    """
    b, later, s, r = by_reference(b), by_reference(later), by_reference(s), by_reference(r)
    later.used[COUNT] = later.used[USED] = 0
    for k in range(b.used[COUNT]):
        if b.at[k, PART] < part:
            continue
        n, to, at, items = later.used[COUNT], later.used[USED], b.at[k, PAST], 1 + 9 * b.pieces[k, 0]
        if to + items > later.past.shape[0]:
            later.used[SHORT] = 1
            break
        later.at[n, PART], later.at[n, FIRST], later.at[n, PAST] = b.at[k, PART] + further, b.at[k, FIRST], to
        later.numbers[n], later.ring[n], later.pieces[n] = b.numbers[k], b.ring[k], b.pieces[k]
        later.past[to : to + items] = b.past[at : at + items]
        for e in range(ENGINES):
            latest = b.numbers[k, 0, LATEST + e]
            later.following[n, e] = r.after[latest] if latest >= 0 else s.numbers[0, FIRST_OF + e]
        later.used[COUNT], later.used[USED] = n + 1, to + items


@njit(cache=True)
def at_border(b: Borders, s: CoreStates, r: RecordRows) -> None:
    """The state is that of the last border, apart from DDR."""
    k = b.used[COUNT] - 1
    at = b.at[k, PAST]
    for core in range(b.pieces.shape[1]):
        s.numbers[core] = b.numbers[k, core]
        s.ring[core] = b.ring[k, core]
        s.pieces[core] = pieces = b.pieces[k, core]
        row = s.at[core]
        s.bound[row, : pieces + 1] = b.past[at : at + pieces + 1]
        at += pieces + 1
        s.last[row, :pieces] = b.past[at : at + 8 * pieces].reshape((pieces, 8))
        at += 8 * pieces
        for e in range(ENGINES):
            latest = s.numbers[core, LATEST + e]
            if latest >= 0:
                r.after[latest] = -1


@njit(cache=True)
def next_keys(b: Borders, k: int, s: CoreStates, r: RecordRows, keys: Ints) -> None:
    """keys: int64 [cores], lowered to the smallest key of a core's instructions behind border k.  s: as it is behind the whole program."""
    for core in range(b.pieces.shape[1]):
        for e in range(ENGINES):
            latest = b.numbers[k, core, LATEST + e]
            following = np.int64(r.after[latest]) if latest >= 0 else s.numbers[core, FIRST_OF + e]
            if following >= 0:
                keys[core] = min(keys[core], r.key[following])


@njit(cache=True)
def cut(first: int, edge: int, stop: int, r: RecordRows) -> None:
    """Edges `edge` .. `stop` are none of those that instructions before `first` set, to which those of later ones belong neither."""
    least = EDGES * first
    for k in range(edge, stop):
        i = r.edge_from[k]
        if i < first:
            at = r.set_head[i]
            if at >= least:
                r.set_head[i] = -1
            elif at >= 0:
                while 0 <= r.set_next[at] < least:
                    at = r.set_next[at]
                r.set_next[at] = -1
                r.set_tail[i] = at


@njit(cache=True)
def mark_changed(first: int, edge: int, stop: int, r: RecordRows, changed: Ints) -> None:
    """changed: int64 [cores * 6], of every queue the first instruction before `first` that sets one of edges `edge` .. `stop`, or less."""
    for k in range(edge, stop):
        i = r.edge_from[k]
        if i < first:
            q = r.core[i] * ENGINES + r.engine[i]
            changed[q] = min(changed[q], i)
