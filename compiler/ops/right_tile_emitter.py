"""Right operand of a product: its chunks in L1, and its tiles in L0B.

It is weights, whole or panel by panel, expanded weights, or pixels of a tensor.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, L0B, L1, MTE1, MTE2, Ints, TilePlace, copy, dense, fractal
from compiler.instructions.node_context import W_SLOT
from compiler.ops.conv_job import PIXELS_K, PIXELS_N, ROOM, WEIGHT_PIECE_BLOCKS, WEIGHTS, ConvJob
from compiler.ops.weight_expansion_emitter import expand, load_overlaid
from compiler.target.zero_blocks import find_panel
from simulator.npu.isa import PAD
from simulator.npu.program import Code


@njit(cache=True)
def planes_of(job: ConvJob, n_start: int, n: int, lanes: int) -> tuple[int, int]:
    """(first plane, number of planes) of the columns of fractals [n_start, n_start + n); the last plane may be half full."""
    return n_start * job.geometry.fractal_columns // lanes, (n * job.geometry.fractal_columns + lanes - 1) // lanes


@njit(cache=True)
def load_right_chunk(
    out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, slot_state: Ints, group: int, group_fractals: int, k_start: int,
    k_size: int, n_start: int, n_size: int,
) -> tuple[int, int, int, TilePlace, int]:  # fmt: skip
    """Load a chunk of the right operand into L1, unless it is resident.  runs, needed: see `emit_conv`.

    group_fractals: fractals of resident weights per group.  Returns (next row, or -1 if `out` is too short; L1 block of the chunk; blocks
    from n1 to n1; of a tensor: the place of its first pixel in L1, and the pixels per plane there).
    """
    geometry, operands, buffers, block = job.geometry, job.operands, job.buffers, job.block
    right = dense(L1, block.right_base + group * operands.right_planes * block.right_plane, block.right_plane)
    right_pixels = operands.right_pixels
    if job.tiles.resident:
        w_base = buffers.weights_0 + (group * group_fractals + n_start * geometry.k1 + k_start) * geometry.weight_blocks
        return cursor, w_base, geometry.k1 * geometry.weight_blocks, right, right_pixels
    w_base = buffers.weights_1 if slot_state[W_SLOT] else buffers.weights_0
    w_row = k_size * geometry.weight_blocks
    if cursor >= out.shape[0]:
        return -1, w_base, w_row, right, right_pixels
    slot_state[W_SLOT] ^= 1
    if job.expansion.overlaid > 0:
        cursor = expand_chunk(out, cursor, job, runs, needed, slot_state, group, k_start, k_size, n_start, n_size, w_base)
    elif operands.right == WEIGHTS:
        source = operands.weights_at + ((group * geometry.n1 + n_start) * operands.weights_k1 + k_start) * geometry.weight_blocks
        weights_pitch, n1_per_copy = operands.weights_k1 * geometry.weight_blocks, max(1, WEIGHT_PIECE_BLOCKS // w_row)
        for n in range(0, n_size, n1_per_copy):
            if cursor >= out.shape[0]:
                return -1, w_base, w_row, right, right_pixels
            cursor = copy(
                out, cursor, operands.dtype, job.tag, MTE2, DDR, L1, source + n * weights_pitch, w_base + n * w_row, w_row,
                min(n1_per_copy, n_size - n), weights_pitch, w_row, 1, 0, 0,
            )  # fmt: skip
    else:
        if operands.right == PIXELS_N:
            plane, planes = k_start, k_size
            pixel, right_pixels = n_start * geometry.fractal_columns, n_size * geometry.fractal_columns
        else:
            plane, planes = planes_of(job, n_start, n_size, geometry.fractal_lanes)
            pixel, right_pixels = k_start * geometry.fractal_lanes, k_size * geometry.fractal_lanes
        right_pixels = min(right_pixels, operands.right_pixels - pixel)
        source = right.base + plane * right.plane + pixel
        right = dense(L1, w_base, right_pixels)
        cursor = copy(
            out, cursor, operands.dtype, job.tag, MTE2, DDR, L1, source, w_base, right_pixels, planes, block.right_plane, right_pixels, 1,
            0, 0,
        )  # fmt: skip
    return cursor, w_base, w_row, right, right_pixels


@njit(cache=True)
def load_panels(
    out: Code, cursor: int, job: ConvJob, needed: Ints, places: Ints, source: int, l0b: int, row: int, first_n: int, n: int, first_k: int,
    k: int,
) -> int:  # fmt: skip
    """Load a tile of weights panel by panel; -1 if `out` is too short.

    source: L1 block of the tile; for packed weights, L1 block of all weights.  row: blocks from n1 to n1."""
    geometry = job.geometry
    done = 0
    while done < n:
        if cursor + ROOM >= out.shape[0]:
            return -1
        wide, start, size = find_panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            run, block, pitch = size * geometry.weight_blocks, source + done * row + (start - first_k) * geometry.weight_blocks, row
            if places.size:
                block, pitch = source + places[first_n + done, start] * geometry.weight_blocks, run
            cursor = copy(out, cursor, job.operands.dtype, job.tag, MTE1, L1, L0B, block, l0b, run, wide, pitch, run, 1, 0, 0)
            l0b += wide * run
        done += wide
    return cursor


@njit(cache=True)
def load_pixels(
    out: Code, cursor: int, job: ConvJob, target: int, right: TilePlace, pixels: int, n_start: int, n: int, k_start: int, k: int
) -> int:
    """Load a tile of a right operand that is a tensor.  right: place of its first pixel in L1.  pixels: pixels per plane in L1."""
    geometry, operands = job.geometry, job.operands
    if operands.right == PIXELS_N:
        pixel, plane = n_start * geometry.fractal_columns, k_start
    else:
        pixel, plane = k_start * geometry.fractal_lanes, planes_of(job, n_start, n, geometry.fractal_lanes)[0]
    source = right.base + plane * right.plane + pixel
    cursor = fractal(
        out, cursor, operands.dtype, job.tag, source, target, right.plane, pixels - pixel, k, n, int(operands.right == PIXELS_K)
    )
    out[cursor - 1, PAD] = operands.missing
    return cursor


@njit(cache=True)
def expand_chunk(
    out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, slot_state: Ints, group: int, k_start: int, k_size: int, n_start: int,
    n_size: int, target: int,
) -> int:  # fmt: skip
    """Expand a chunk of weights from overlaid blocks in UB or in DDR; -1 if `out` is too short."""
    first = (group * job.geometry.k1 + k_start) * job.expansion.overlaid
    place = job.expansion.overlaid_0 + first
    if job.expansion.resident_overlays == 0:
        cursor, place = load_overlaid(
            out, cursor, job.expansion, job.tag, slot_state, job.operands.weights_at + first, k_size * job.expansion.overlaid
        )
        if cursor < 0:
            return -1
    row = k_size * job.geometry.weight_blocks
    nowhere = np.empty((0, 0), np.int64)
    return expand(
        out, cursor, job.expansion, runs, needed, nowhere, job.tag, slot_state, place, 1, k_start, k_size, n_start, n_size, target, row, 0,
    )  # fmt: skip
