"""Tiles of the right operand of a product: weights, whole or panel by panel, expanded weights, or pixels of a tensor."""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.instructions.builders import L0B, L1, MTE1, Ints, TilePlace, copy, fractal
from compiler.ops.conv_job import PIXELS_K, PIXELS_N, ROOM, ConvJob
from compiler.ops.weight_expansion_emitter import expand, load_overlaid
from compiler.target.zero_blocks import find_panel
from simulator.npu.isa import PAD
from simulator.npu.program import Code


@njit(cache=True)
def planes_of(job: ConvJob, n_start: int, n: int, lanes: int) -> tuple[int, int]:
    """(first plane, number of planes) of the columns of fractals [n_start, n_start + n); the last plane may be half full."""
    return n_start * job.geometry.fractal_columns // lanes, (n * job.geometry.fractal_columns + lanes - 1) // lanes


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
    out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, parity: Ints, group: int, k_start: int, k_size: int, n_start: int,
    n_size: int, target: int,
) -> int:  # fmt: skip
    """Expand a chunk of weights from overlaid blocks in UB or in DDR; -1 if `out` is too short."""
    first = (group * job.geometry.k1 + k_start) * job.expansion.overlaid
    place = job.expansion.overlaid_0 + first
    if job.expansion.resident_overlays == 0:
        cursor, place = load_overlaid(
            out, cursor, job.expansion, job.tag, parity, job.operands.weights_at + first, k_size * job.expansion.overlaid
        )
        if cursor < 0:
            return -1
    row = k_size * job.geometry.weight_blocks
    nowhere = np.empty((0, 0), np.int64)
    return expand(
        out, cursor, job.expansion, runs, needed, nowhere, job.tag, parity, place, 1, k_start, k_size, n_start, n_size, target, row, 0,
    )  # fmt: skip
