"""Expansion of overlaid weights (`target.weight_expansion`): VECTOR writes fractals to UB, MTE3 copies them to L1, piece by piece.

A piece is some n1 by some *steps*; a step is a block of k of one group.  A slot of UB holds a piece as [steps][n1][16].  Every run of
columns has separate records.  If a group has few columns in a fractal, a repeat takes up to 8 columns, and repeats run over steps.  Else a
repeat takes up to 8 steps, and repeats run over columns.  If VECTOR is faster with repeats of 8 columns of one step, records take these.

L1 holds a piece in the layout of dense weights, or packed (`target.zero_blocks`) with one copy per panel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, L1, MTE2, MTE3, UB, Ints, compile_once, copy, vector
from compiler.instructions.node_context import EXPANDED_SLOT, OVERLAID_SLOT
from compiler.target.zero_blocks import find_panel, pack_panels
from simulator.npu.fractal_sizes import COLUMNS
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

OVERLAID_BLOCKS = 1152  # blocks per load, if all weights are expanded at once
_MIN, _BYTES = int(Op.VMIN), int(DataType.uint8)


class ExpansionJob(NamedTuple):
    """Parameters of the expansion of an operator's weights; `overlaid` is 0 without an expansion.

    overlaid, masks, planes, taps, startup: see `Expansion`.  across: whether a repeat takes several columns, else several steps.
    masks_at: UB block of the masks.  overlaid_0 to expanded_1: UB blocks of two slots of overlaid blocks and two slots of expanded blocks.
    room: blocks of a slot of expanded blocks.  resident_overlays: whether overlaid blocks of streamed weights stay in UB.
    packed: whether weights in L1 are packed, by tiles of tile_n1 by tile_k1.
    """

    overlaid: int = 0
    masks: int = 0
    planes: int = 1
    taps: int = 1
    across: int = 0
    masks_at: int = 0
    overlaid_0: int = 0
    overlaid_1: int = 0
    expanded_0: int = 0
    expanded_1: int = 0
    room: int = 0
    resident_overlays: int = 0
    startup: int = 0
    packed: int = 0
    tile_n1: int = 1
    tile_k1: int = 1


@njit(cache=True)
def overlaid_steps(overlaid: int, k1: int) -> int:
    """Steps per load of overlaid blocks, if all weights are expanded at once: steps of whole groups, or of a part of a group."""
    max_steps = max(1, OVERLAID_BLOCKS // overlaid)
    if max_steps >= k1:
        return max_steps // k1 * k1
    return max_steps // REPEAT_BLOCKS * REPEAT_BLOCKS if max_steps > REPEAT_BLOCKS else max_steps


@compile_once
@njit(cache=True)
def load_overlaid(out: Code, cursor: int, job: ExpansionJob, tag: int, slot_state: Ints, source: int, blocks: int) -> tuple[int, int]:
    """Load overlaid blocks from DDR; returns (next row, or -1 if `out` is too short; UB block of the overlaid blocks)."""
    if cursor >= out.shape[0]:
        return -1, 0
    place = job.overlaid_1 if slot_state[OVERLAID_SLOT] else job.overlaid_0
    slot_state[OVERLAID_SLOT] ^= 1
    return copy(out, cursor, _BYTES, tag, MTE2, DDR, UB, source, place, blocks, 1, 0, 0, 1, 0, 0), place


@compile_once
@njit(cache=True)
def expand_all(
    out: Code, cursor: int, job: ExpansionJob, runs: Ints, needed: Ints, tag: int, slot_state: Ints, source: int, groups: int, k1: int,
    n1: int, target: int,
) -> int:  # fmt: skip
    """Expand all weights, from DDR to L1.  Returns the next row, or -1 if `out` is too short."""
    steps = overlaid_steps(job.overlaid, k1)
    some = max(1, steps // k1)
    places = pack_panels(needed, job.tile_n1, job.tile_k1) if job.packed else np.empty((0, 0), np.int64)
    size_of_group = (places.max() + 1 if job.packed else n1 * k1) * COLUMNS
    for group in range(0, groups, some):
        together = min(some, groups - group)
        for k in range(0, k1, steps):
            size = min(steps, k1 - k)
            cursor, place = load_overlaid(
                out, cursor, job, tag, slot_state, source + (group * k1 + k) * job.overlaid, together * size * job.overlaid
            )
            if cursor < 0:
                return -1
            to = target + group * size_of_group + (0 if job.packed else k * COLUMNS)
            cursor = expand(
                out, cursor, job, runs, needed, places, tag, slot_state, place, together, k, size, 0, n1, to, k1 * COLUMNS, size_of_group
            )
            if cursor < 0:
                return -1
    return cursor


@compile_once
@njit(cache=True)
def expand(
    out: Code, cursor: int, job: ExpansionJob, runs: Ints, needed: Ints, places: Ints, tag: int, slot_state: Ints, overlaid: int,
    groups: int, k_start: int, k_size: int, n_start: int, n_size: int, target: int, row: int, group_pitch: int,
) -> int:  # fmt: skip
    """Expand n_size n1 and k_size steps of consecutive groups (one group unless `across`) to L1.

    overlaid: UB block of the first step.  row, group_pitch: L1 blocks from n1 to n1, and from group to group.  needed: see `emit_conv`;
    unless `across`, steps without needed blocks are skipped.  places: `pack_panels` of packed weights, else of size 0.
    """
    deep = 1 if job.across else min(REPEAT_BLOCKS, k_size)
    wide = min(n_size, max(1, job.room // (deep * COLUMNS)))
    if job.across:
        deep = job.room // (wide * COLUMNS)
    for n in range(0, n_size, wide):
        columns = min(wide, n_size - n)
        group, k = 0, 0
        while group < groups:
            stop = k_size
            if needed.size and not job.across:
                k, stop = _next_needed(needed, n_start + n, columns, k_start, k, k_size, deep)
                if k == stop:
                    break
            together = max(1, min(deep // k_size, groups - group)) if job.across and k == 0 else 1
            size, first = min(deep, stop - k), overlaid + (group * k_size + k) * job.overlaid
            cursor = _piece(
                out, cursor, job, runs, needed, places, tag, slot_state, first, together, k_start + k, size, n_start + n, columns,
                target + group * group_pitch + (0 if places.size else n * row + k * COLUMNS), row, group_pitch,
            )  # fmt: skip
            if cursor < 0:
                return -1
            k += size
            if k == k_size:
                group, k = group + together, 0
    return cursor


@njit(cache=True)
def _next_needed(needed: Ints, n: int, columns: int, k_start: int, k: int, k_size: int, deep: int) -> tuple[int, int]:
    """Next needed steps [first, stop) from k on, at most `deep`, for any n1 in [n, n + columns); empty without further needed steps."""
    stop = k_size
    while k < k_size and not needed[n : n + columns, k_start + k].any():
        k += 1
    if k < k_size:
        stop = min(k + deep, k_size)
        while not needed[n : n + columns, k_start + stop - 1].any():
            stop -= 1
    return k, stop


@compile_once
@njit(cache=True)
def _piece(
    out: Code, cursor: int, job: ExpansionJob, runs: Ints, needed: Ints, places: Ints, tag: int, slot_state: Ints, overlaid: int,
    groups: int, k: int, size: int, n1: int, columns: int, target: int, row: int, group_pitch: int,
) -> int:  # fmt: skip
    """Expand steps [k, k + size) of each group; several groups are expanded with all their steps."""
    place = job.expanded_1 if slot_state[EXPANDED_SLOT] else job.expanded_0
    slot_state[EXPANDED_SLOT] ^= 1
    pitch, begin, steps = columns * COLUMNS, n1 * COLUMNS, groups * size
    # overlaid blocks and masks of a run of columns have constant strides, so a record covers several of them
    for r in range(runs.shape[0]):
        first, count, s, s_step, m, m_step = runs[r]
        a, b = max(first, begin), min(first + count, begin + pitch)
        d = place + a - begin
        s, m = overlaid + s + (a - first) * s_step, job.masks_at + m + (a - first) * m_step
        for c in range(0, b - a, REPEAT_BLOCKS if job.across else MAX_REPEATS):
            t = 0
            while t < steps:
                if cursor + 2 + columns >= out.shape[0]:
                    return -1
                plane, tap = (k + t % size) // job.taps, (k + t % size) % job.taps
                mask, mask_next, alike = (
                    m + plane * job.masks + c * m_step,
                    0,
                    min(job.taps - tap, steps - t),
                )  # alike: steps whose masks have a constant stride
                if job.planes == 1:
                    alike = steps - t
                elif job.taps == 1:
                    alike, mask_next = size - t % size, job.masks
                to, from_ = d + c + t * pitch, s + c * s_step + t * job.overlaid
                if job.across:
                    some, wide = min(MAX_REPEATS, alike), min(REPEAT_BLOCKS, b - a - c)
                    cursor = vector(
                        out, cursor, _MIN, _BYTES, tag, to, from_, mask, -1, wide, some, 1, pitch, s_step, job.overlaid, m_step, mask_next,
                        0, 0, 0,
                    )  # fmt: skip
                else:
                    some, wide = min(REPEAT_BLOCKS, alike), min(MAX_REPEATS, b - a - c)
                    full, remainder = wide // REPEAT_BLOCKS, wide % REPEAT_BLOCKS
                    # a repeat takes columns or steps, whichever needs less time on VECTOR
                    if some * (full + (remainder > 0) + job.startup * ((full > 0) + (remainder > 0))) < wide + job.startup:
                        some = 1
                        if full:
                            cursor = vector(
                                out, cursor, _MIN, _BYTES, tag, to, from_, mask, -1, REPEAT_BLOCKS, full, 1, REPEAT_BLOCKS, s_step,
                                REPEAT_BLOCKS * s_step, m_step, REPEAT_BLOCKS * m_step, 0, 0, 0,
                            )  # fmt: skip
                        if remainder:
                            done = full * REPEAT_BLOCKS
                            cursor = vector(
                                out, cursor, _MIN, _BYTES, tag, to + done, from_ + done * s_step, mask + done * m_step, -1, remainder, 1, 1,
                                0, s_step, 0, m_step, 0, 0, 0, 0,
                            )  # fmt: skip
                    else:
                        cursor = vector(
                            out, cursor, _MIN, _BYTES, tag, to, from_, mask, -1, some, wide, pitch, 1, job.overlaid, s_step, mask_next,
                            m_step, 0, 0, 0,
                        )  # fmt: skip
                t += some
    # from UB to L1: by panels, or with the pitch of dense weights
    if places.size:
        return _packed_piece(out, cursor, job, needed, places, tag, place, k, size, n1, columns, target)
    if groups == 1:
        return copy(out, cursor, _BYTES, tag, MTE3, UB, L1, place, target, COLUMNS, columns, COLUMNS, row, size, pitch, COLUMNS)
    for n in range(columns):
        cursor = copy(
            out, cursor, _BYTES, tag, MTE3, UB, L1, place + n * COLUMNS, target + n * row, COLUMNS, size, pitch, COLUMNS, groups,
            size * pitch, group_pitch,
        )  # fmt: skip
    return cursor


@njit(cache=True)
def _packed_piece(
    out: Code, cursor: int, job: ExpansionJob, needed: Ints, places: Ints, tag: int, place: int, k: int, size: int, n1: int, columns: int,
    target: int,
) -> int:  # fmt: skip
    """Copy the multiplied blocks of a piece, from step k on, to their packed places, panel by panel; -1 if `out` is too short."""
    for k_start in range(k // job.tile_k1 * job.tile_k1, k + size, job.tile_k1):
        n = n1
        while n < n1 + columns:
            if cursor >= out.shape[0]:
                return -1
            n_stop = min((n // job.tile_n1 + 1) * job.tile_n1, n1 + columns)
            wide, start, length = find_panel(needed, n, n_stop, k_start, min(k_start + job.tile_k1, needed.shape[1]))
            first, stop = max(start, k), min(start + length, k + size)
            if first < stop:
                source, to = place + ((first - k) * columns + n - n1) * COLUMNS, target + places[n, first] * COLUMNS
                cursor = copy(
                    out, cursor, _BYTES, tag, MTE3, UB, L1, source, to, COLUMNS, wide, COLUMNS, length * COLUMNS, stop - first,
                    columns * COLUMNS, COLUMNS,
                )  # fmt: skip
            n += wide
    return cursor
