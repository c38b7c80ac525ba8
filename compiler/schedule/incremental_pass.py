"""The pass over a program's parts: back to a border of the program before, on to where that is met again, and to the end.

In kernels that take all parts, as a program has some tens of them and one is done in a few microseconds (see `part`).
"""

from __future__ import annotations

from numba import njit

from compiler.schedule.access_history import Intervals, leave, leave_again, wipe
from compiler.schedule.cross_core import CrossCore, forget, waits
from compiler.schedule.hazards import FLAGS, KEYS, KEYS_SINCE, TAKEN, CoreStates, EngineDrift, RecordRows, Remote, advance, begin, queues_of
from compiler.schedule.incremental_checkpoint import (
    BORDERS,
    COUNT,
    FIRST,
    NEVER,
    PART,
    Borders,
    at_border,
    cut,
    leave_border,
    mark_changed,
    next_keys,
)
from compiler.schedule.incremental_converge import adopt, converges, follow, go_on_as
from compiler.schedule.instruction_numbers import EDGES
from compiler.schedule.segment_accesses import Ints, Ints32
from compiler.schedule.segment_table import RECORDS, USED, part_of
from simulator.addresses import by_reference


@njit(cache=True)
def rewind(
    before: Ints, cores_before: Ints, number_before: Ints, parts: Ints, cores: Ints, number: Ints, limit: int, s: CoreStates, c: CrossCore,
    remote: Remote, r: RecordRows, b: Borders, changed: Ints, keys: Ints,
) -> None:  # fmt: skip
    """From the end of the program before, to the last border of `b`, or to no instruction yet where there is none.

    before, parts: tables of both programs (`part`), the cores of their parts and their numbers beside them.  remote: room.
    changed, keys: see `mark_changed` and `next_keys`, of what the one before had behind the border.
    """
    s, c, r, b = by_reference(s), by_reference(c), by_reference(r), by_reference(b)
    k = b.used[COUNT] - 1
    kept = b.at[k, PART] if k >= 0 else 0
    least = s.ddr.shape[1]
    if k >= 0:
        next_keys(b, k, s, r, keys)
    for p in range(kept, before.shape[0]):
        part, core = part_of(before[p]), cores_before[p]
        if k >= 0:
            mark_changed(b.at[k, FIRST], EDGES * number_before[p, 0], number_before[p, 1], r, changed)
            cut(b.at[k, FIRST], EDGES * number_before[p, 0], number_before[p, 1], r)
        least = min(least, wipe(part.bound, part.touched, s.ddr[core], s.wiped[core]))
    if c.last.shape[0]:
        forget(c)
    for p in range(kept):
        part, core, first = part_of(parts[p]), cores[p], number[p, 0]
        leave_again(part.bound, part.touched, part.inside.last, first, s.ddr[core], s.wiped[core], least)
        if c.last.shape[0]:
            waits(part.engine, part.span, part.start, part.bound, core, first, limit, c, remote.source, remote.target)
    s.wiped[:] = 0
    if k < 0:
        begin(s)
    else:
        at_border(b, s, r)


@njit(cache=True)
def sweep(
    parts: Ints, cores: Ints, number: Ints, part_from: int, stop: int, every: int, latency: int, limit: int, s: CoreStates, c: CrossCore,
    piece: Ints32, remote: Remote, r: RecordRows, b: Borders, tail: int, middle: int, moving: int, later: Borders, seen: EngineDrift,
) -> bool:  # fmt: skip
    """Parts `part_from` .. `stop`; returns whether there were numbers for all edges.

    every: borders are left, BORDERS for so many numbers; 0: none are.  remote: room for the edges of a part.
    tail: the first of the last parts that the program before has as well, with the same numbers; later: its borders there (`resume`).
    middle: the first instruction that it has not; moving: engines with transfers, a bit for each, of both programs (see `again`).
    """
    s, c, r, b = by_reference(s), by_reference(c), by_reference(r), by_reference(b)
    later, seen = by_reference(later), by_reference(seen)
    p, k, last_border = part_from, 0, number[part_from, 0]
    while p < stop:
        first = number[p, 0]
        while k < later.used[COUNT] and later.at[k, PART] < p:
            k += 1
        if p >= tail and k < later.used[COUNT] and later.at[k, PART] == p:
            q = _ahead(parts, number, p, stop, s, r, b, k, later, middle, number[tail, 0], moving, latency, seen)
            if q > p:
                p, last_border = q, number[q, 0]
                continue
        part, core = part_of(parts[p]), cores[p]
        if every and (first - last_border) * BORDERS > every:
            last_border = first
            leave_border(b, s, p, first)
        afar = 0
        if c.last.shape[0]:
            afar = waits(part.engine, part.span, part.start, part.bound, core, first, limit, c, remote.source, remote.target)
        mine, free = s.at[core], s.at[s.at.shape[0] - 1]
        past, out = Intervals(s.bound[mine], s.last[mine]), Intervals(s.bound[free], s.last[free])
        others = Remote(remote.source, remote.target, afar, remote.latency)
        r.edge_start[first] = EDGES * first
        s.pieces[core] = advance(
            part, latency, core, first, queues_of(s, core), s.ddr[core], past, s.pieces[core], out, piece, others, r, seen, p >= tail
        )
        s.at[core], s.at[s.at.shape[0] - 1] = free, mine
        edges = r.edge_start[first + part.engine.shape[0]]
        if edges > EDGES * number[p + 1, 0]:
            return False
        if p >= tail and edges != number[p, 1]:
            seen.all[FLAGS] = first + part.engine.shape[0] - 1
        number[p, 1] = edges
        p += 1
    return True


@njit(cache=True)
def _stretch(parts: Ints, p: int, stop: int, k: int, later: Borders) -> tuple[int, int]:
    """Engines of the parts from p, in front of which border k is, up to the next border, and that part."""
    end = later.at[k + 1, PART] if k + 1 < later.used[COUNT] else stop
    used = 0
    for part in range(p, end):
        used |= parts[part, USED]
    return used, end


@njit(cache=True)
def _ahead(
    parts: Ints, number: Ints, p: int, stop: int, s: CoreStates, r: RecordRows, b: Borders, k: int, later: Borders, middle: int, tail: int,
    moving: int, latency: int, seen: EngineDrift,
) -> int:  # fmt: skip
    """The part behind those, from `p` on, of which all is known that the program before found; border k is in front of it.  Its borders are
    left.  tail: the first instruction behind those that are others."""
    used, end = _stretch(parts, p, stop, k, later)
    shift = converges(s, later, k, used, moving, middle, tail, latency, r, seen)
    if shift == NEVER:
        return p
    follow(s, later, k, used, r)
    first = number[p, 0]
    if shift != seen.all[KEYS]:
        seen.all[KEYS], seen.all[KEYS_SINCE] = shift, first
    leave_border(b, s, p, first)
    while True:
        for t in range(p, end):
            part, at = part_of(parts[t]), number[t, 0]
            seen.all[TAKEN] += parts[t, RECORDS]
            adopt(at, parts[t, RECORDS], EDGES * at, number[t, 1], first, shift, r)
            mine, free = s.at[0], s.at[s.at.shape[0] - 1]
            past, out = Intervals(s.bound[mine], s.last[mine]), Intervals(s.bound[free], s.last[free])
            s.pieces[0] = leave(part.bound, part.touched, part.inside.last, at, s.ddr[0], past, s.pieces[0], out)
            s.at[0], s.at[s.at.shape[0] - 1] = free, mine
        if end == stop:
            return end
        k += 1
        go_on_as(s, later, k, used, shift)
        leave_border(b, s, end, number[end, 0])
        ahead, next_end = _stretch(parts, end, stop, k, later)
        if ahead & ~used:
            break
        p, end = end, next_end
    for t in range(end, stop):
        cut(number[end, 0], EDGES * number[t, 0], number[t, 1], r)
    return end


@njit(cache=True)
def tell_changes(parts: Ints, number: Ints, s: CoreStates, r: RecordRows, b: Borders, at: int, changed: Ints, keys: Ints) -> None:
    """changed, keys: as `rewind` filled them, and now of what this program has behind border `at` as well."""
    s, r, b = by_reference(s), by_reference(r), by_reference(b)
    next_keys(b, at, s, r, keys)
    for p in range(b.at[at, PART], parts.shape[0]):
        mark_changed(b.at[at, FIRST], EDGES * number[p, 0], number[p, 1], r, changed)
