"""Pass over a program's parts: back to a checkpoint of the previous program, forward to convergence, and to the end.

Kernels take all parts in one call: a program has some tens of them, and a part takes a few microseconds (see `segment_table`).
"""

from __future__ import annotations

from numba import njit

from compiler.schedule.access_history import Intervals, record_part, reset_ddr_rows, restore_ddr
from compiler.schedule.cross_core import CrossCore, find_cross_core_waits, reset_cross_core
from compiler.schedule.hazards import (
    FLAGS,
    KEYS,
    KEYS_SINCE,
    TAKEN,
    CoreStates,
    EngineDrift,
    RecordRows,
    Remote,
    advance_part,
    queues_of,
    reset_states,
)
from compiler.schedule.incremental_checkpoint import (
    BORDERS,
    COUNT,
    FIRST,
    NEVER,
    PART,
    Borders,
    cut_edges,
    lower_keys,
    mark_changed,
    restore_border,
    save_border,
)
from compiler.schedule.incremental_converge import adopt_instructions, adopt_state, find_shift, link_tail
from compiler.schedule.instruction_numbers import EDGES
from compiler.schedule.segment_accesses import Ints, Ints32
from compiler.schedule.segment_table import RECORDS, USED, part_of
from simulator.kernel_addresses import by_reference


@njit(cache=True)
def rewind_pass(
    parts_before: Ints, cores_before: Ints, number_before: Ints, parts: Ints, cores: Ints, number: Ints, limit: int,
    states: CoreStates, cross: CrossCore, remote: Remote, rows: RecordRows, borders: Borders, changed: Ints, keys: Ints,
) -> None:  # fmt: skip
    """Go back from the end of the previous program to the last border that both programs have, or to the first instruction.

    parts_before, parts: tables of both programs (`segment_table`), with the cores and the numbers of their parts.  remote: scratch.
    changed, keys: see `mark_changed` and `lower_keys`, for the previous program behind the border.
    """
    states, cross, rows, borders = by_reference(states), by_reference(cross), by_reference(rows), by_reference(borders)
    k = borders.used[COUNT] - 1
    border_part = borders.positions[k, PART] if k >= 0 else 0
    least = states.ddr.shape[1]
    if k >= 0:
        lower_keys(borders, k, states, rows, keys)
    # remove the later parts' edges and DDR accesses
    for p in range(border_part, parts_before.shape[0]):
        part, core = part_of(parts_before[p]), cores_before[p]
        if k >= 0:
            mark_changed(borders.positions[k, FIRST], EDGES * number_before[p, 0], number_before[p, 1], rows, changed)
            cut_edges(borders.positions[k, FIRST], EDGES * number_before[p, 0], number_before[p, 1], rows)
        least = min(least, reset_ddr_rows(part.bound, part.touched, states.ddr[core], states.wiped[core]))
    if cross.last.shape[0]:
        reset_cross_core(cross)
    # apply the accesses of earlier parts again: a border has neither the history of DDR nor that between cores
    for p in range(border_part):
        part, core, first = part_of(parts[p]), cores[p], number[p, 0]
        restore_ddr(part.bound, part.touched, part.inside.last, first, states.ddr[core], states.wiped[core], least)
        if cross.last.shape[0]:
            find_cross_core_waits(part.engine, part.span, part.start, part.bound, core, first, limit, cross, remote.source, remote.target)
    states.wiped[:] = 0
    if k < 0:
        reset_states(states)
    else:
        restore_border(borders, states, rows)


@njit(cache=True)
def schedule_parts(
    parts: Ints, cores: Ints, number: Ints, part_from: int, stop: int, every: int, latency: int, limit: int, states: CoreStates,
    cross: CrossCore, piece: Ints32, remote: Remote, rows: RecordRows, borders: Borders, tail: int, changed_from: int, moving: int,
    later: Borders, drift: EngineDrift,
) -> bool:  # fmt: skip
    """Schedule parts `part_from` .. `stop`; returns whether the part's range of edge numbers sufficed.

    every: instructions of the program; a border is saved about every `every` / BORDERS instructions; 0: none.  remote: room for the edges
    of a part.
    tail: first part of the common suffix with the same numbers in both programs.  later: the previous program's borders in that suffix.
    changed_from: first differing instruction.  moving: engines with transfers in either program, as bits.
    """
    states, cross, rows, borders = by_reference(states), by_reference(cross), by_reference(rows), by_reference(borders)
    later, drift = by_reference(later), by_reference(drift)
    p, k, last_border = part_from, 0, number[part_from, 0]
    while p < stop:
        first = number[p, 0]
        # in the tail, at a border of the previous program: try to adopt its results
        while k < later.used[COUNT] and later.positions[k, PART] < p:
            k += 1
        if p >= tail and k < later.used[COUNT] and later.positions[k, PART] == p:
            q = _adopt_parts(parts, number, p, stop, states, rows, borders, k, later, changed_from, number[tail, 0], moving, latency, drift)
            if q > p:
                p, last_border = q, number[q, 0]
                continue
        part, core = part_of(parts[p]), cores[p]
        if every and (first - last_border) * BORDERS > every:
            last_border = first
            save_border(borders, states, p, first)
        edge_count = 0
        if cross.last.shape[0]:
            edge_count = find_cross_core_waits(
                part.engine, part.span, part.start, part.bound, core, first, limit, cross, remote.source, remote.target
            )
        # the new history goes to the free slot, which is then swapped with the core's
        slot, free_slot = states.slots[core], states.slots[states.slots.shape[0] - 1]
        past, out = Intervals(states.bound[slot], states.last[slot]), Intervals(states.bound[free_slot], states.last[free_slot])
        cross_edges = Remote(remote.source, remote.target, edge_count, remote.latency)
        rows.edge_start[first] = EDGES * first
        states.pieces[core] = advance_part(
            part, latency, core, first, queues_of(states, core), states.ddr[core], past, states.pieces[core], out, piece, cross_edges,
            rows, drift, p >= tail,
        )  # fmt: skip
        states.slots[core], states.slots[states.slots.shape[0] - 1] = free_slot, slot
        edges = rows.edge_start[first + part.engine.shape[0]]
        if edges > EDGES * number[p + 1, 0]:
            return False
        if p >= tail and edges != number[p, 1]:
            drift.all[FLAGS] = first + part.engine.shape[0] - 1
        number[p, 1] = edges
        p += 1
    return True


@njit(cache=True)
def _next_border(parts: Ints, first_part: int, stop: int, border: int, later: Borders) -> tuple[int, int]:
    """Engines active in the parts from `first_part` (at border `border`) to the next border, and the part at the next border."""
    end = later.positions[border + 1, PART] if border + 1 < later.used[COUNT] else stop
    active = 0
    for part in range(first_part, end):
        active |= parts[part, USED]
    return active, end


@njit(cache=True)
def _adopt_parts(
    parts: Ints, number: Ints, first_part: int, stop: int, states: CoreStates, rows: RecordRows, borders: Borders, border: int,
    later: Borders, changed_from: int, tail: int, moving: int, latency: int, drift: EngineDrift,
) -> int:  # fmt: skip
    """Adopt parts from `first_part` on, which is at border `border`; returns the first part that was not adopted.

    The borders in front of adopted parts are saved.  tail: the first instruction of the tail.
    """
    active, end = _next_border(parts, first_part, stop, border, later)
    shift = find_shift(states, later, border, active, moving, changed_from, tail, latency, rows, drift)
    if shift == NEVER:
        return first_part
    # converged: adopt border by border, as long as no other engine becomes active
    link_tail(states, later, border, active, rows)
    first = number[first_part, 0]
    if shift != drift.all[KEYS]:
        drift.all[KEYS], drift.all[KEYS_SINCE] = shift, first
    save_border(borders, states, first_part, first)
    while True:
        for t in range(first_part, end):
            part, instruction = part_of(parts[t]), number[t, 0]
            drift.all[TAKEN] += parts[t, RECORDS]
            adopt_instructions(instruction, parts[t, RECORDS], EDGES * instruction, number[t, 1], first, shift, rows)
            slot, free_slot = states.slots[0], states.slots[states.slots.shape[0] - 1]
            past, out = Intervals(states.bound[slot], states.last[slot]), Intervals(states.bound[free_slot], states.last[free_slot])
            states.pieces[0] = record_part(
                part.bound, part.touched, part.inside.last, instruction, states.ddr[0], past, states.pieces[0], out
            )
            states.slots[0], states.slots[states.slots.shape[0] - 1] = free_slot, slot
        if end == stop:
            return end
        border += 1
        adopt_state(states, later, border, active, shift)
        save_border(borders, states, end, number[end, 0])
        next_active, next_end = _next_border(parts, end, stop, border, later)
        if next_active & ~active:
            break
        first_part, end = end, next_end
    # edges to parts that were not adopted are created later
    for t in range(end, stop):
        cut_edges(number[end, 0], EDGES * number[t, 0], number[t, 1], rows)
    return end


@njit(cache=True)
def extend_changes(
    parts: Ints, number: Ints, states: CoreStates, rows: RecordRows, borders: Borders, border: int, changed: Ints, keys: Ints
) -> None:
    """Extend `changed` and `keys`, as `rewind_pass` filled them, by this program's parts behind a border."""
    states, rows, borders = by_reference(states), by_reference(rows), by_reference(borders)
    lower_keys(borders, border, states, rows, keys)
    for p in range(borders.positions[border, PART], parts.shape[0]):
        mark_changed(borders.positions[border, FIRST], EDGES * number[p, 0], number[p, 1], rows, changed)
