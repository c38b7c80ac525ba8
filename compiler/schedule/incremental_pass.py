"""Incremental scheduling pass: resume from a border of the previous program, schedule the differing parts, reuse the rest.

1. `rewind_pass` restores the last border that both programs have in common.
2. `schedule_parts` schedules the parts behind it, one after the other.
3. In the tail, at a border of the previous program with an equal state, `_adopt_parts` reuses that program's results.

Terms (border, tail, shift, adopt, drift, active engines): `incremental_converge`.  Kernels take all parts in one call: a program has some
tens of them, and a part takes a few microseconds (see `segment_table`).
"""

from __future__ import annotations

from numba import njit

from compiler.schedule.access_history import Intervals, record_part, reset_ddr_rows, restore_ddr
from compiler.schedule.cross_core import CrossCore, find_cross_core_waits, reset_cross_core
from compiler.schedule.hazards import (
    ADOPTED,
    KEY_SHIFT,
    KEY_SHIFT_SINCE,
    LAST_EDGE_CHANGE,
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
from compiler.schedule.instruction_numbers import EDGE_END, EDGES, FIRST_INSTRUCTION
from compiler.schedule.segment_accesses import Ints, Ints32
from compiler.schedule.segment_table import RECORDS, USED_ENGINES, part_of
from simulator.kernel_addresses import by_reference


@njit(cache=True)
def rewind_pass(
    parts_before: Ints, cores_before: Ints, number_before: Ints, parts: Ints, cores: Ints, number: Ints, count_limit: int,
    states: CoreStates, cross: CrossCore, remote: Remote, rows: RecordRows, borders: Borders, changed: Ints, keys: Ints,
) -> None:  # fmt: skip
    """Restore, from the end of the previous program, the state at the last border that both programs have; without one, the empty state.

    parts_before, parts: tables of both programs (`segment_table`), with the cores and the numbers of their parts.
    count_limit: largest count of a flag.  remote: scratch.
    changed, keys: see `mark_changed` and `lower_keys`, for the previous program behind the border.
    """
    states, cross, rows, borders = by_reference(states), by_reference(cross), by_reference(rows), by_reference(borders)
    several_cores = cross.last.shape[0] > 0
    border = borders.used[COUNT] - 1
    border_part = borders.positions[border, PART] if border >= 0 else 0
    if border >= 0:
        lower_keys(borders, border, states, rows, keys)
    # remove the later parts' edges and DDR accesses
    first_reset_row = states.ddr.shape[1]
    for p in range(border_part, parts_before.shape[0]):
        part, core = part_of(parts_before[p]), cores_before[p]
        if border >= 0:
            border_instruction, edge = borders.positions[border, FIRST], EDGES * number_before[p, FIRST_INSTRUCTION]
            mark_changed(border_instruction, edge, number_before[p, EDGE_END], rows, changed)
            cut_edges(border_instruction, edge, number_before[p, EDGE_END], rows)
        first_reset_row = min(first_reset_row, reset_ddr_rows(part.bound, part.touched, states.ddr[core], states.wiped[core]))
    if several_cores:
        reset_cross_core(cross)
    # apply the accesses of earlier parts again: a border has neither the history of DDR nor that between cores
    for p in range(border_part):
        part, core, first = part_of(parts[p]), cores[p], number[p, FIRST_INSTRUCTION]
        restore_ddr(part.bound, part.touched, part.inside.last, first, states.ddr[core], states.wiped[core], first_reset_row)
        if several_cores:
            find_cross_core_waits(
                part.engine, part.span, part.start, part.bound, core, first, count_limit, cross, remote.source, remote.target
            )
    states.wiped[:] = 0
    if border < 0:
        reset_states(states)
    else:
        restore_border(borders, states, rows)


@njit(cache=True)
def schedule_parts(
    parts: Ints, cores: Ints, number: Ints, part_from: int, stop: int, program_size: int, latency: int, count_limit: int,
    states: CoreStates, cross: CrossCore, piece: Ints32, remote: Remote, rows: RecordRows, borders: Borders, tail_part: int,
    changed_from: int, transfer_engines: int, previous_borders: Borders, drift: EngineDrift,
) -> bool:  # fmt: skip
    """Schedule parts `part_from` .. `stop`.  False: a part needs more edge numbers than it has, and the program must be numbered again.

    program_size: instructions of the program; a border is saved about every `program_size` / BORDERS of them; 0: none are saved.
    latency: cycles of a DDR transfer before its data.  count_limit: largest count of a flag.
    piece: scratch (`access_history`).  remote: room for the edges of a part.
    tail_part: first part of the common suffix with the same numbers in both programs.  previous_borders: borders of the previous program
    in that suffix.
    changed_from: first differing instruction.  transfer_engines: engines with transfers in either program, as bits.
    """
    states, cross, rows, borders = by_reference(states), by_reference(cross), by_reference(rows), by_reference(borders)
    previous_borders, drift = by_reference(previous_borders), by_reference(drift)
    several_cores = cross.last.shape[0] > 0
    p, old_border, last_saved_instruction = part_from, 0, number[part_from, FIRST_INSTRUCTION]
    while p < stop:
        first = number[p, FIRST_INSTRUCTION]
        # in the tail, at a border of the previous program: try to adopt its results
        while old_border < previous_borders.used[COUNT] and previous_borders.positions[old_border, PART] < p:
            old_border += 1
        if p >= tail_part and old_border < previous_borders.used[COUNT] and previous_borders.positions[old_border, PART] == p:
            next_part = _adopt_parts(
                parts, number, p, stop, states, rows, borders, old_border, previous_borders, changed_from,
                number[tail_part, FIRST_INSTRUCTION], transfer_engines, latency, drift,
            )  # fmt: skip
            if next_part > p:
                p, last_saved_instruction = next_part, number[next_part, FIRST_INSTRUCTION]
                continue
        part, core = part_of(parts[p]), cores[p]
        if program_size and (first - last_saved_instruction) * BORDERS > program_size:
            last_saved_instruction = first
            save_border(borders, states, p, first)
        cross_edge_count = 0
        if several_cores:
            cross_edge_count = find_cross_core_waits(
                part.engine, part.span, part.start, part.bound, core, first, count_limit, cross, remote.source, remote.target
            )
        # the new history goes to the free slot, which is then swapped with the core's
        slot, free_slot = states.slots[core], states.slots[states.slots.shape[0] - 1]
        history = Intervals(states.bound[slot], states.last[slot])
        new_history = Intervals(states.bound[free_slot], states.last[free_slot])
        cross_edges = Remote(remote.source, remote.target, cross_edge_count, remote.latency)
        rows.edge_start[first] = EDGES * first
        states.pieces[core] = advance_part(
            part, latency, core, first, queues_of(states, core), states.ddr[core], history, states.pieces[core], new_history, piece,
            cross_edges, rows, drift, p >= tail_part,
        )  # fmt: skip
        states.slots[core], states.slots[states.slots.shape[0] - 1] = free_slot, slot
        edge_end = rows.edge_start[first + part.engine.shape[0]]
        if edge_end > EDGES * number[p + 1, FIRST_INSTRUCTION]:
            return False
        if p >= tail_part and edge_end != number[p, EDGE_END]:
            drift.all[LAST_EDGE_CHANGE] = first + part.engine.shape[0] - 1
        number[p, EDGE_END] = edge_end
        p += 1
    return True


@njit(cache=True)
def _next_border(parts: Ints, first_part: int, stop: int, border: int, previous_borders: Borders) -> tuple[int, int]:
    """(active engines of the parts from `first_part`, which is at `border`, to the next border; the part at the next border)."""
    end = previous_borders.positions[border + 1, PART] if border + 1 < previous_borders.used[COUNT] else stop
    active_engines = 0
    for part in range(first_part, end):
        active_engines |= parts[part, USED_ENGINES]
    return active_engines, end


@njit(cache=True)
def _adopt_parts(
    parts: Ints, number: Ints, first_part: int, stop: int, states: CoreStates, rows: RecordRows, borders: Borders, border: int,
    previous_borders: Borders, changed_from: int, tail_instruction: int, transfer_engines: int, latency: int, drift: EngineDrift,
) -> int:  # fmt: skip
    """Adopt parts from `first_part` on, which is at border `border`; returns the first part that was not adopted.

    The borders in front of adopted parts are saved.  tail_instruction: the first instruction of the tail.  Only programs on one core.
    """
    active_engines, end = _next_border(parts, first_part, stop, border, previous_borders)
    shift = find_shift(
        states, previous_borders, border, active_engines, transfer_engines, changed_from, tail_instruction, latency, rows, drift
    )
    if shift == NEVER:
        return first_part
    # converged: adopt border by border, as long as no other engine becomes active
    link_tail(states, previous_borders, border, active_engines, rows)
    first = number[first_part, FIRST_INSTRUCTION]
    if shift != drift.all[KEY_SHIFT]:
        drift.all[KEY_SHIFT], drift.all[KEY_SHIFT_SINCE] = shift, first
    save_border(borders, states, first_part, first)
    while True:
        for p in range(first_part, end):
            part, instruction = part_of(parts[p]), number[p, FIRST_INSTRUCTION]
            drift.all[ADOPTED] += parts[p, RECORDS]
            adopt_instructions(instruction, parts[p, RECORDS], EDGES * instruction, number[p, EDGE_END], first, shift, rows)
            # accesses are applied again, to the free slot of the history (as in `schedule_parts`)
            slot, free_slot = states.slots[0], states.slots[states.slots.shape[0] - 1]
            history = Intervals(states.bound[slot], states.last[slot])
            new_history = Intervals(states.bound[free_slot], states.last[free_slot])
            states.pieces[0] = record_part(
                part.bound, part.touched, part.inside.last, instruction, states.ddr[0], history, states.pieces[0], new_history
            )
            states.slots[0], states.slots[states.slots.shape[0] - 1] = free_slot, slot
        if end == stop:
            return end
        border += 1
        adopt_state(states, previous_borders, border, active_engines, shift)
        save_border(borders, states, end, number[end, FIRST_INSTRUCTION])
        next_active, next_end = _next_border(parts, end, stop, border, previous_borders)
        if next_active & ~active_engines:  # the waits of an engine that was idle have not been compared
            break
        first_part, end = end, next_end
    # edges to parts that were not adopted are created later
    for p in range(end, stop):
        cut_edges(number[end, FIRST_INSTRUCTION], EDGES * number[p, FIRST_INSTRUCTION], number[p, EDGE_END], rows)
    return end


@njit(cache=True)
def extend_changes(
    parts: Ints, number: Ints, states: CoreStates, rows: RecordRows, borders: Borders, border: int, changed: Ints, keys: Ints
) -> None:
    """Extend `changed` and `keys`, as `rewind_pass` filled them, by this program's parts behind a border."""
    states, rows, borders = by_reference(states), by_reference(rows), by_reference(borders)
    lower_keys(borders, border, states, rows, keys)
    for p in range(borders.positions[border, PART], parts.shape[0]):
        mark_changed(borders.positions[border, FIRST], EDGES * number[p, FIRST_INSTRUCTION], number[p, EDGE_END], rows, changed)
