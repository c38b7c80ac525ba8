"""The pass over a program's parts: back to a border of the program before, and on to the end.

In kernels that take all parts, as a program has some tens of them and one is done in a few microseconds (see `part`).
"""

from __future__ import annotations

from numba import njit

from compiler.schedule.footprint import Ints, Ints32
from compiler.schedule.hazards import CoreStates, RecordRows, Remote, advance, begin, queues_of
from compiler.schedule.history import Intervals, leave_again, wipe
from compiler.schedule.part import part_of
from compiler.schedule.remote import CrossCore, forget, waits
from compiler.schedule.resume import BORDERS, COUNT, EDGES, FIRST, PART, Borders, at_border, cut, leave_border, mark_changed, next_keys


@njit(cache=True)
def rewind(
    before: Ints, cores_before: Ints, parts: Ints, cores: Ints, limit: int, edges: int, s: CoreStates, c: CrossCore, remote: Remote,
    r: RecordRows, b: Borders, changed: Ints, keys: Ints,
) -> None:  # fmt: skip
    """From the end of the program before, to the last border of `b`, or to no instruction yet where there is none.

    before, parts: tables of both programs (`part`), the cores of their parts beside them.  edges: of the one before.  remote: room.
    changed, keys: see `mark_changed` and `next_keys`, of what the one before had behind the border.
    """
    k = b.used[COUNT] - 1
    if k >= 0:
        next_keys(b, k, s, r, keys)
        mark_changed(b.at[k, FIRST], b.at[k, EDGES], edges, r, changed)
        cut(b.at[k, FIRST], b.at[k, EDGES], edges, r)
    kept = b.at[k, PART] if k >= 0 else 0
    for p in range(kept, before.shape[0]):
        part, core = part_of(before[p]), cores_before[p]
        wipe(part.bound, part.touched, s.ddr[core], s.wiped[core])
    if c.last.shape[0]:
        forget(c)
    first = 0
    for p in range(kept):
        part, core = part_of(parts[p]), cores[p]
        leave_again(part.bound, part.touched, part.inside.last, first, s.ddr[core], s.wiped[core])
        if c.last.shape[0]:
            waits(part.engine, part.span, part.start, part.bound, core, first, limit, c, remote.source, remote.target)
        first += part.engine.shape[0]
    s.wiped[:] = 0
    if k < 0:
        begin(s)
    else:
        at_border(b, s, r)


@njit(cache=True)
def sweep(
    parts: Ints, cores: Ints, part_from: int, stop: int, first: int, every: int, latency: int, limit: int, s: CoreStates, c: CrossCore,
    cell: Ints32, remote: Remote, r: RecordRows, b: Borders,
) -> int:  # fmt: skip
    """Parts `part_from` .. `stop`, of which the first begins with instruction `first`; returns the one behind them.

    every: instructions of the program, of which borders are left; 0: none are.  remote: room for the edges of a part.
    """
    last_border = first
    for p in range(part_from, stop):
        part, core = part_of(parts[p]), cores[p]
        if every and (first - last_border) * BORDERS > every:
            last_border = first
            leave_border(b, s, p, first, r.edge_start[first])
        edges = 0
        if c.last.shape[0]:
            edges = waits(part.engine, part.span, part.start, part.bound, core, first, limit, c, remote.source, remote.target)
        mine, free = s.at[core], s.at[s.at.shape[0] - 1]
        past, out = Intervals(s.bound[mine], s.last[mine]), Intervals(s.bound[free], s.last[free])
        afar = Remote(remote.source, remote.target, edges, remote.latency)
        s.pieces[core] = advance(part, latency, core, first, queues_of(s, core), s.ddr[core], past, s.pieces[core], out, cell, afar, r)
        s.at[core], s.at[s.at.shape[0] - 1] = free, mine
        first += part.engine.shape[0]
    return first


@njit(cache=True)
def tell_changes(edges: int, s: CoreStates, r: RecordRows, b: Borders, at: int, changed: Ints, keys: Ints) -> None:
    """changed, keys: as `rewind` filled them, and now of what this program has behind border `at` as well."""
    next_keys(b, at, s, r, keys)
    mark_changed(b.at[at, FIRST], b.at[at, EDGES], edges, r, changed)
