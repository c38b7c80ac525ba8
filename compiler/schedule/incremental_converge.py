"""Incremental scheduling: where the new pass reaches the state of the previous pass, up to a clock shift, the rest is reused.

Programs that are scheduled one after the other differ in a few parts and end with the same parts, under the same numbers of instructions
and edges (`instruction_numbers`).  Incremental timing (`simulator.incremental_timing`) does the same for runs of the simulator.

| term       | meaning                                                                                                       |
|------------|---------------------------------------------------------------------------------------------------------------|
| border     | the saved state of a pass in front of a part (`incremental_checkpoint`)                                         |
| snapshot   | the saved state of a timing run between two steps of its clock                                                |
| checkpoint | the border or snapshot from which a new pass or run resumes: the last one before the first difference         |
| tail       | the last parts or entries, which both programs have; here from part `tail` on                                   |
| converge   | to reach, in the tail, the state of a border or snapshot of the previous program, up to a shift                |
| shift      | by how many cycles the new pass or run is later than the previous one                                         |
| adopt      | to reuse results of the previous program after that border or snapshot, with cycles plus the shift              |
| drift      | by how much results of the tail differ from the previous ones, by engine (`hazards.EngineDrift`)                |
| active     | the engines that the next parts use, a bit for each                                                           |

An instruction that every active engine has already waited for no longer affects the state.  An engine that idles, as VECTOR does through
most of a network, has waited for next to nothing; its waits are checked where it works again.  So results are adopted from border to
border as long as the same engines are active.  From there the pass goes on with the state that it would have reached: active engines have
the state of the previous pass, idle ones keep theirs.  Accesses to memories are applied again, which takes little time.

Why that is exact.  An instruction of a later part reads the clock of its queue, its possible waits, their clocks and ends, counts that
could be full, and the cycle when its queue is free.  A possible wait is the last access to a memory, or the last instruction of a queue.
If the queue has waited for it already, it is left out in both programs.  Otherwise both must be equal, or nothing is adopted: the same
numbers, of instructions that both programs have and whose clocks were found equal, and cycles with one shift.  Counts are compared with
clocks, so entries before every such clock need not be equal.  Clocks only grow, so all of this stays true.

The page docs/incremental.md explains both, with the same terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from compiler.schedule.hazards import CoreStates, EngineDrift, Queues, RecordRows, queues_in, queues_of
from compiler.schedule.incremental_checkpoint import NEVER, PAST, Borders
from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Ints


@njit(cache=True)
def _of_border(borders: Borders, border: int, states: CoreStates) -> Queues:
    return queues_in(borders.numbers[border, 0], borders.ring[border, 0], states.ports, states.scratch)


@njit(cache=True)
def _is_same(number: int, engine: int, active_engines: int, tail_instruction: int, shift: int, drift: EngineDrift) -> bool:
    """Whether an instruction is in the tail, has the same clock as in the previous pass, and ends `shift` cycles later."""
    return (
        bool(active_engines >> engine & 1)
        and number >= tail_instruction
        and number > drift.clocks[engine]
        and number >= drift.since[engine]
        and drift.shift[engine] == shift
    )


@njit(cache=True)
def _same_memories(
    states: CoreStates, borders: Borders, border: int, base: Ints, active_engines: int, tail_instruction: int, shift: int,
    drift: EngineDrift, low: Ints,
) -> bool:  # fmt: skip
    """Whether the last accesses to on-chip memories are the same as in the previous pass.

    base: int64 [6], last instruction of every engine that all engines waited for.  low: int64 [6], lowered to the first possible wait.
    """
    row, pieces, pieces_then, past = states.slots[0], states.pieces[0], borders.pieces[border, 0], borders.positions[border, PAST]
    bound, last = states.bound[row], states.last[row]
    bound_then, last_then = borders.past[past : past + pieces_then + 1], borders.past[past + pieces_then + 1 : past + 1 + 9 * pieces_then]
    p = o = 0
    granule: Any = np.int64(NEVER)
    if pieces:
        granule = np.int64(bound[0])
    if pieces_then:
        granule = min(granule, np.int64(bound_then[0]))
    # walk over the pieces of both passes together, granule by granule between two borders
    while p < pieces or o < pieces_then:
        inside_now, inside_then = p < pieces and bound[p] <= granule, o < pieces_then and bound_then[o] <= granule
        for e in range(ENGINES + 1):
            access_now: Any = np.int64(last[p, e]) if inside_now else np.int64(-1)
            access_then: Any = np.int64(last_then[8 * o + e]) if inside_then else np.int64(-1)
            engine_now: Any = np.int64(e)
            engine_then: Any = np.int64(e)
            if e == WRITER:
                engine_now = np.int64(last[p, WRITER_ENGINE]) if access_now >= 0 else np.int64(0)
                engine_then = np.int64(last_then[8 * o + WRITER_ENGINE]) if access_then >= 0 else np.int64(0)
            if access_now > base[engine_now] or access_then > base[engine_then]:
                if (
                    access_now != access_then
                    or engine_now != engine_then
                    or not _is_same(access_now, engine_now, active_engines, tail_instruction, shift, drift)
                ):
                    return False
                low[engine_now] = min(low[engine_now], access_now)
        granule = np.int64(NEVER)  # the next border of a piece
        if p < pieces:
            granule = np.int64(bound[p + 1]) if inside_now else np.int64(bound[p])
        if o < pieces_then:
            granule = min(granule, np.int64(bound_then[o + 1]) if inside_then else np.int64(bound_then[o]))
        if p < pieces and bound[p + 1] <= granule:
            p += 1
        if o < pieces_then and bound_then[o + 1] <= granule:
            o += 1
    return True


@njit(cache=True)
def _same_counts(queues: Queues, prev: Queues, source: int, waiter: int, least: int, changed_from: int, tail_instruction: int) -> bool:
    """Whether the last waits of queue `waiter` for queue `source` are the same; waits up to instruction `least` do not count."""
    limit = queues.ring.shape[2]
    for j in range(limit):
        wait_now = np.int64(queues.ring[source, waiter, (queues.ring_at[source, waiter] + j) % limit])
        wait_then = np.int64(prev.ring[source, waiter, (prev.ring_at[source, waiter] + j) % limit])
        if (wait_now != wait_then or changed_from <= wait_now < tail_instruction) and (wait_now > least or wait_then > least):
            return False
    return True


@njit(cache=True)
def find_shift(
    states: CoreStates, borders: Borders, border: int, active_engines: int, transfer_engines: int, changed_from: int,
    tail_instruction: int, latency: int, rows: RecordRows, drift: EngineDrift,
) -> int:  # fmt: skip
    """Shift of the new pass if it converges with the previous one at border `border`, else `NEVER`.

    active_engines: those of the next parts, as bits.  transfer_engines: those with transfers in either program, as bits.
    changed_from .. tail_instruction: differing instructions.
    """
    queues, prev = queues_of(states, 0), _of_border(borders, border, states)
    shift: Any = np.int64(NEVER)
    for e in range(ENGINES):
        if queues.latest[e] != prev.latest[e] or changed_from <= queues.latest[e] < tail_instruction or queues.full[e] != prev.full[e]:
            return NEVER
        if active_engines >> e & 1:
            if shift == NEVER:
                shift = drift.shift[e]
            if not _is_same(queues.latest[e], e, active_engines, tail_instruction, shift, drift):
                return NEVER
            if (
                queues.free[e] != prev.free[e] + shift
                or queues.key[e] != prev.key[e] + shift
                or min(queues.free[e], prev.free[e]) < latency
            ):
                return NEVER
    # clocks of active engines must equal the previous ones; `base`: their minimum
    base, low = np.full(ENGINES, NEVER), queues.latest.copy()
    for waiter in range(ENGINES):
        if active_engines >> waiter & 1:
            for e in range(ENGINES):
                clock = queues.clock[waiter, e]
                if clock != prev.clock[waiter, e] or changed_from <= clock < tail_instruction:
                    return NEVER
                base[e] = min(base[e], clock)
    for e in range(ENGINES):
        # accesses to DDR by different parts: every active engine has waited for them
        if transfer_engines >> e & 1 and base[e] < tail_instruction:
            return NEVER
    if shift == NEVER or not _same_memories(states, borders, border, base, active_engines, tail_instruction, shift, drift, low):
        return NEVER
    # counts: an idle waiter must not be near the limit, since its ring is not adopted
    for source in range(ENGINES):
        for waiter in range(ENGINES):
            if active_engines >> source & 1:
                least = min(queues.clock[source, waiter], np.int64(rows.clocks[low[source], waiter]))
                if active_engines >> waiter & 1:
                    if not _same_counts(queues, prev, source, waiter, least, changed_from, tail_instruction):
                        return NEVER
                elif max(queues.oldest[source, waiter], prev.oldest[source, waiter]) > min(
                    queues.clock[source, waiter], prev.clock[source, waiter]
                ):
                    return NEVER
    return shift


@njit(cache=True)
def adopt_state(states: CoreStates, borders: Borders, border: int, active_engines: int, shift: int) -> None:
    """Adopt the state at a border, apart from memories, in a pass that converged at an earlier border."""
    queues, prev = queues_of(states, 0), _of_border(borders, border, states)
    for waiter in range(ENGINES):
        if active_engines >> waiter & 1:
            queues.latest[waiter], queues.full[waiter] = prev.latest[waiter], prev.full[waiter]
            queues.free[waiter], queues.key[waiter] = prev.free[waiter] + shift, prev.key[waiter] + shift
            queues.clock[waiter] = prev.clock[waiter]
            for source in range(ENGINES):
                if active_engines >> source & 1:
                    queues.ring[source, waiter] = prev.ring[source, waiter]
                    queues.ring_at[source, waiter], queues.oldest[source, waiter] = (
                        prev.ring_at[source, waiter],
                        prev.oldest[source, waiter],
                    )


@njit(cache=True)
def link_tail(states: CoreStates, borders: Borders, border: int, active_engines: int, rows: RecordRows) -> None:
    """Link every active queue to its first instruction behind a border."""
    queues = queues_of(states, 0)
    for e in range(ENGINES):
        if active_engines >> e & 1:
            rows.after[queues.latest[e]] = borders.following[border, e]


@njit(cache=True)
def adopt_instructions(first: int, count: int, edge: int, edges: int, tail_instruction: int, shift: int, rows: RecordRows) -> None:
    """Adopt a part's instructions with a shift, and its edges `edge` .. `edges` from instructions before `tail_instruction`."""
    for i in range(first, first + count):
        rows.end[i] += shift
        rows.key[i] += shift
    for k in range(edge, edges):
        i = rows.edge_from[k]
        if i < tail_instruction:
            rows.set_next[k] = -1
            if rows.set_head[i] < 0:
                rows.set_head[i] = k
            else:
                rows.set_next[rows.set_tail[i]] = k
            rows.set_tail[i] = k
