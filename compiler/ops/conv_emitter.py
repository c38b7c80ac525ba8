"""Emission of a convolution on one block: IM2COL and weight loads, MMAD, FIXPIPE, and copies of the result, tile by tile.

Loops, outermost first: groups, weight chunks along n, weight chunks along k, then (m, n) tiles in the tiling's order, then k tiles.
Tiles along m cover all images of a block, image by image (`segment.batch_tiles`); a tile has pixels of one image.
Tiles of L0A and L0B take the slots of their memory in turn.  A tile that is still in its slot is not loaded again; if all reused tiles have
slots (`ops.tile_counts.tiles_stay`), every tile is loaded once.  A tile that is multiplied only with zeros is not loaded.
If a chunk has only a part of k, every (m, n) tile of the chunk keeps its own place in L0C until the last chunk of k.
Else sums take all slots of L0C in turn (`target.capabilities.tile_slot`): with only two slots, CUBE or FIXPIPE waits after every tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof, types

from compiler.instructions.builders import (
    DDR,
    L0B,
    L1,
    MTE1,
    MTE2,
    MTE3,
    UB,
    Ints,
    TilePlace,
    advance,
    block_at,
    compile_once,
    copy,
    dense,
    fixpipe,
    fractal,
    im2col,
    mmad,
    move,
    side_by_side,
)
from compiler.instructions.node_context import (
    A_SLOT,
    B_SLOT,
    BIAS_SLOT,
    C_SLOT,
    OUT_SLOT,
    RES_SLOT,
    W_SLOT,
    Node,
    Work,
    count_operands,
    locate_operand,
    locate_result,
    read_table,
)
from compiler.ir.reach import demanded
from compiler.ops.tile_counts import tiles_stay
from compiler.ops.weight_expansion_emitter import ExpansionJob, expand, expand_all, load_overlaid
from compiler.target.capabilities import MAX_SLOTS
from compiler.target.zero_blocks import begins_sum, find_panel, mark_multiplied, pack_panels
from simulator.kernel_addresses import Reference, call_kernel, kernel_address, record_type
from simulator.npu.isa import MAX_WINDOW, PAD
from simulator.npu.program import Code


class ConvGeometry(NamedTuple):
    """Sizes of a convolution.  Planes and pitches are in blocks, n1 in 16 channels, k1 in blocks of C0.

    part_rows, part_columns: kernel rows and columns of one IM2COL (see `ir.im2col`).
    """

    in_w: int
    in_pitch: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pad_left: int
    part_rows: int
    part_columns: int
    lanes: int
    out_w: int
    groups: int
    c1: int
    k1: int
    n1: int
    fractal_rows: int
    fractal_lanes: int
    fractal_columns: int
    weight_blocks: int
    sum_blocks: int


class ConvOperands(NamedTuple):
    """Operands of the products.  dtype: data type of the left operand; right_type: data type of the right operand of integers.

    weights_at: DDR block of the weights; weights_k1: k1 of the weights in DDR.
    right: kind of the right operand: WEIGHTS, or a tensor whose pixels are the columns (PIXELS_N) or the rows (PIXELS_K) of the matrix.
    right_planes, right_pixels: planes per group and pixels of this tensor.  A resident tensor lies in L1; else L1 gets chunks from DDR.
    pad: pad value around the image, see IM2COL.  missing: value of pixels behind the last pixel of the right operand.
    left_less, left_less_1: bytes of `left_type` that add up to the negated zero point of the left operand, 0 for none.
    zeros: number of bytes of `zeros_type` that add up to the negated zero point of the right operand; L1 has a block of weights of each.
    """

    dtype: int
    weights_at: int
    weights_k1: int
    right: int
    right_planes: int
    right_pixels: int
    right_type: int = 0
    pad: int = -1
    missing: int = -1
    left_less: int = 0
    left_less_1: int = 0
    left_type: int = 0
    zeros: int = 0
    zeros_type: int = 0


class ConvEpilogue(NamedTuple):
    """FIXPIPE, and the path of the result.  act, limit: activation, and its limit.  to: `BY_UB` or `DIRECT`.

    result_lanes, residual_lanes: C0 of result and residual.  engine: engine of FIXPIPE.  added: data type of the residual.  sums: data type
    of integer sums, else 0.  scale_after, scale_at: blocks from a channel's bias to its scale in UB and in DDR; scale_at is 0 without
    scales.  zero, low, high: zero point and limits of the result.  sum_factor, residual_factor, fixed, last: words F_OWN to F_LAST of
    FIXPIPE for a residual of bytes.  alike: whether all groups have the same biases and scales.
    """

    act: int
    limit: int  # float32 bits
    to: int
    result_lanes: int
    residual_lanes: int
    engine: int
    added: int
    sums: int = 0
    scale_after: int = 0
    scale_at: int = 0
    zero: int = 0
    low: int = 0
    high: int = 0
    sum_factor: int = 0
    residual_factor: int = 0
    fixed: int = 0
    last: int = 0
    alike: int = 0


class ConvTiles(NamedTuple):
    """Tiling.  resident: whether all weights stay in L1.  chunk_n1, chunk_k1: n1 and blocks of k of a chunk of weights.

    tile_m, tile_n1, tile_k1: rows, n1 and blocks of k of a tile.  n_outer: whether the loop over n is outside the loop over m.
    bias_at: DDR block of streamed biases, else -1.  slot_a to room_c: blocks of one slot and of all slots, for L0A, L0B and L0C.
    """

    resident: int
    chunk_n1: int
    chunk_k1: int
    tile_m: int
    tile_n1: int
    tile_k1: int
    n_outer: int
    bias_at: int
    slot_a: int
    room_a: int
    slot_b: int
    room_b: int
    slot_c: int
    room_c: int


class ConvBuffers(NamedTuple):
    """Addresses.  weights_0, weights_1: L1 blocks of the resident weights, or of the two slots of chunks.

    bias, bias_1: UB blocks of the biases, -1 without biases; chunks alternate between them.  out_0, out_1, res_0, res_1: UB blocks of the
    slots of results and of residuals.  zeros_at: L1 block of the constants of `ConvOperands.zeros`.
    """

    weights_0: int = 0
    weights_1: int = 0
    bias: int = 0
    bias_1: int = 0
    out_0: int = 0
    out_1: int = 0
    res_0: int = 0
    res_1: int = 0
    zeros_at: int = 0


class ConvBlock(NamedTuple):
    """Block of rows, set by the kernel.

    in_base: L1 block of plane 0 and the first input row.  in_rows: existing input rows from the first one on.  in_plane: blocks per plane.
    in_ring: rows of a ring, 0 without a ring.  In a ring, in_base is the ring's row 0, and the first input row is the ring's row in_first.
    pad_top: padding rows above the first input row.  out_rows: rows of the result.
    right_base: block of plane 0 and pixel 0 of the right tensor, in L1 or DDR.  right_plane: blocks per plane of the right tensor.
    images: images that are computed together.  in_image, out_image, res_image: blocks from image to image of input, result and residual.
    """

    in_base: int = 0
    in_rows: int = 0
    in_plane: int = 0
    in_ring: int = 0
    in_first: int = 0
    pad_top: int = 0
    out_rows: int = 0
    right_base: int = 0
    right_plane: int = 0
    images: int = 1
    in_image: int = 0
    out_image: int = 0
    res_image: int = 0


class ConvJob(NamedTuple):
    """Parameters of a convolution on one block.  dtype: data type of the result."""

    dtype: int
    tag: int
    geometry: ConvGeometry
    operands: ConvOperands
    epilogue: ConvEpilogue
    tiles: ConvTiles
    buffers: ConvBuffers = ConvBuffers()
    expansion: ExpansionJob = ExpansionJob()
    block: ConvBlock = ConvBlock()


WEIGHTS, PIXELS_N, PIXELS_K = range(3)
BY_UB, DIRECT = range(2)  # whether results pass UB, or FIXPIPE writes them where they belong
WEIGHT_PIECE_BLOCKS = 2048  # 64 KiB per COPY of weights: the first tile and other loads do not wait for the last weight
_ROOM = 20  # upper bound of the records of a tile's product and of its result


@njit(cache=True)
def _next_slot(ends: Ints, slot_index: int, slot: int, room: int, busy_slot: int) -> Any:
    """Address of the next slot of an L0 memory, behind the last loaded tile of any operator.

    ends: end of the last tile of every memory; slot_index selects the memory.  slot, room: blocks of a slot and of all slots.
    busy_slot: address of a slot that is skipped, or -1.
    """
    address: Any = -(-ends[slot_index] // slot) * slot
    if address == busy_slot:
        address += slot
    if address >= room:
        address = np.int64(slot if busy_slot == 0 else 0)
    ends[slot_index] = address + slot
    return address


@njit(cache=True)
def emit_conv(out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, target: TilePlace, residual: TilePlace, parity: Ints) -> int:
    """Append the block's records from row `cursor` on; returns the next row, or -1 if `out` is too short.

    runs: int64 [n, 6], `Expansion.runs`.  needed: multiplied blocks of weights (`target.zero_blocks.mark_multiplied`); size 0 means all.
    target: place of output row 0 in DDR, L1 or UB.  residual: place of row 0 of the residual; its base is -1 without a residual.
    """
    geometry, operands, epilogue = job.geometry, job.operands, job.epilogue
    tiles, buffers, block = job.tiles, job.buffers, job.block
    pixels = block.out_rows * geometry.out_w
    tiles_of_image = -(-pixels // tiles.tile_m)
    tiles_m = block.images * tiles_of_image
    chunks_k = -(-geometry.k1 // tiles.chunk_k1)
    has_constants = operands.left_less > 0 or operands.zeros > 0  # constants of zero points take slots too
    slot_counts = (1, 1) if has_constants else (tiles.room_a // tiles.slot_a, tiles.room_b // tiles.slot_b)
    first_n, first_k = -(-tiles.chunk_n1 // tiles.tile_n1), -(-tiles.chunk_k1 // tiles.tile_k1)  # tiles of the first chunk
    stay_a, stay_b = tiles_stay(tiles_m, first_n, first_k, tiles.n_outer, slot_counts)
    tile_a, tile_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)  # last tile per slot
    slot_a, slot_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)  # address of this tile
    capacity = out.shape[0]
    places = pack_panels(needed, tiles.tile_n1, tiles.tile_k1) if job.expansion.packed else np.empty((0, 0), np.int64)
    size_of_group = places.max() + 1 if job.expansion.packed else geometry.n1 * geometry.k1
    parted = geometry.part_rows < geometry.kh or geometry.part_columns < geometry.kw or block.pad_top > MAX_WINDOW
    # groups, chunks of weights along n and along k, tiles (m, n) in the tiling's order, tiles of k
    for group in range(geometry.groups):
        base = block.in_base + group * geometry.c1 * block.in_plane
        columns = 0 if epilogue.alike else group * geometry.n1
        for n_start in range(0, geometry.n1, tiles.chunk_n1):
            n_size = min(tiles.chunk_n1, geometry.n1 - n_start)
            tiles_n = -(-n_size // tiles.tile_n1)
            bias, scale_after = buffers.bias, epilogue.scale_after
            if tiles.bias_at >= 0:  # biases of this chunk, then its scales
                if cursor >= capacity:
                    return -1
                bias_slot, first = buffers.bias_1 if parity[BIAS_SLOT] else buffers.bias, (columns + n_start) * geometry.sum_blocks
                parity[BIAS_SLOT] ^= 1
                run, vectors = n_size * geometry.sum_blocks, 2 if epilogue.scale_at else 1
                scale_after = run if epilogue.scale_at else 0
                cursor = copy(
                    out, cursor, job.dtype, job.tag, MTE2, DDR, UB, tiles.bias_at + first, bias_slot, run, vectors, epilogue.scale_at,
                    scale_after, 1, 0, 0,
                )  # fmt: skip
                bias = bias_slot - first
            for k_start in range(0, geometry.k1, tiles.chunk_k1):
                k_size = min(tiles.chunk_k1, geometry.k1 - k_start)
                right = dense(L1, block.right_base + group * operands.right_planes * block.right_plane, block.right_plane)
                right_pixels = operands.right_pixels
                # the right operand of the chunk: resident weights, expanded weights, copied weights, or pixels of a tensor
                if tiles.resident:
                    w_base = buffers.weights_0 + (group * size_of_group + n_start * geometry.k1 + k_start) * geometry.weight_blocks
                    w_row = geometry.k1 * geometry.weight_blocks
                else:
                    if cursor >= capacity:
                        return -1
                    w_base = buffers.weights_1 if parity[W_SLOT] else buffers.weights_0
                    parity[W_SLOT] ^= 1
                    w_row = k_size * geometry.weight_blocks
                    if job.expansion.overlaid > 0:
                        cursor = _expand_chunk(out, cursor, job, runs, needed, parity, group, k_start, k_size, n_start, n_size, w_base)
                        if cursor < 0:
                            return -1
                    elif operands.right == WEIGHTS:
                        source = (
                            operands.weights_at + ((group * geometry.n1 + n_start) * operands.weights_k1 + k_start) * geometry.weight_blocks
                        )
                        weights_pitch, n1_per_copy = operands.weights_k1 * geometry.weight_blocks, max(1, WEIGHT_PIECE_BLOCKS // w_row)
                        for n in range(0, n_size, n1_per_copy):
                            if cursor >= capacity:
                                return -1
                            cursor = copy(
                                out, cursor, operands.dtype, job.tag, MTE2, DDR, L1, source + n * weights_pitch, w_base + n * w_row, w_row,
                                min(n1_per_copy, n_size - n), weights_pitch, w_row, 1, 0, 0,
                            )  # fmt: skip
                    else:
                        if operands.right == PIXELS_N:
                            plane, planes, pixel, right_pixels = (
                                k_start, k_size, n_start * geometry.fractal_columns, n_size * geometry.fractal_columns,
                            )  # fmt: skip
                        else:
                            plane, planes = _planes(job, n_start, n_size, geometry.fractal_lanes)
                            pixel, right_pixels = k_start * geometry.fractal_lanes, k_size * geometry.fractal_lanes
                        right_pixels = min(right_pixels, operands.right_pixels - pixel)
                        source = right.base + plane * right.plane + pixel
                        right = dense(L1, w_base, right_pixels)
                        cursor = copy(
                            out, cursor, operands.dtype, job.tag, MTE2, DDR, L1, source, w_base, right_pixels, planes, block.right_plane,
                            right_pixels, 1, 0, 0,
                        )  # fmt: skip
                tile_a[:], tile_b[:] = -1, -1  # a new chunk: no tile in L0A or L0B can be used again
                tiles_k = -(-k_size // tiles.tile_k1)
                for tile in range(tiles_m * tiles_n):
                    if tiles.n_outer:
                        tm, tn = tile % tiles_m, tile // tiles_m
                    else:
                        tm, tn = tile // tiles_n, tile % tiles_n
                    image = tm // tiles_of_image
                    m_start = (tm - image * tiles_of_image) * tiles.tile_m
                    image_base = base + image * block.in_image
                    m = min(tiles.tile_m, pixels - m_start)
                    mpad = (m + geometry.fractal_rows - 1) // geometry.fractal_rows * geometry.fractal_rows
                    n_tile = tn * tiles.tile_n1
                    n = min(tiles.tile_n1, n_size - n_tile)
                    if chunks_k > 1:  # partial sums of every tile wait for the next chunk
                        l0c = (tm * n_size + n_tile) * tiles.tile_m * geometry.sum_blocks
                    else:
                        l0c = _next_slot(parity, C_SLOT, tiles.slot_c, tiles.room_c, -1)
                    for k_tile in range(0, k_size, tiles.tile_k1):
                        if cursor + _ROOM >= capacity:
                            return -1
                        k = min(tiles.tile_k1, k_size - k_tile)
                        first_n, first_k = n_start + n_tile, k_start + k_tile
                        # an n1 without weights still needs one block to set its sums (`target.weights.needed_blocks`)
                        if needed.size and not needed[first_n : first_n + n, first_k : first_k + k].any():
                            continue
                        k_index = k_tile // tiles.tile_k1
                        tile_key, entry_a = tm * 65536 + k_tile, (tm * tiles_k + k_index if tiles.n_outer else k_index) if stay_a else 0
                        l0a = slot_a[entry_a]
                        if tile_key != tile_a[entry_a]:
                            l0a = _next_slot(parity, A_SLOT, tiles.slot_a, tiles.room_a, -1)
                            tile_a[entry_a], slot_a[entry_a] = tile_key, l0a
                            if parted:
                                cursor = _left(out, cursor, job, image_base, l0a, m_start, m, mpad, k_start + k_tile, k)
                                if cursor < 0:
                                    return -1
                            else:
                                cursor = im2col(
                                    out, cursor, operands.dtype, job.tag, image_base, l0a, block.in_rows, geometry.in_w, geometry.in_pitch,
                                    block.in_plane, geometry.kh, geometry.kw, geometry.sh, geometry.sw, geometry.dh, geometry.dw,
                                    block.pad_top, geometry.pad_left, geometry.out_w, m_start, m, mpad, k_start + k_tile, k, geometry.lanes,
                                    block.in_ring, block.in_first, operands.pad,
                                )  # fmt: skip
                        tile_key, entry_b = tn * 65536 + k_tile, (k_index if tiles.n_outer else tn * tiles_k + k_index) if stay_b else 0
                        l0b = slot_b[entry_b]
                        if tile_key != tile_b[entry_b]:
                            l0b = _next_slot(parity, B_SLOT, tiles.slot_b, tiles.room_b, -1)
                            tile_b[entry_b], slot_b[entry_b] = tile_key, l0b
                            if needed.size:
                                source = w_base if job.expansion.packed else w_base + n_tile * w_row + k_tile * geometry.weight_blocks
                                cursor = _weights(out, cursor, job, needed, places, source, l0b, w_row, first_n, n, first_k, k)
                                if cursor < 0:
                                    return -1
                            elif operands.right == WEIGHTS:
                                source = w_base + n_tile * w_row + k_tile * geometry.weight_blocks
                                run = k * geometry.weight_blocks
                                cursor = copy(out, cursor, operands.dtype, job.tag, MTE1, L1, L0B, source, l0b, run, n, w_row, run, 1, 0, 0)
                            else:
                                cursor = _right(out, cursor, job, l0b, right, right_pixels, n_tile, n, k_tile, k)
                        if needed.size:
                            cursor = _products(out, cursor, job, needed, l0a, l0b, l0c, mpad, first_n, n, first_k, k)
                            if cursor < 0:
                                return -1
                            continue
                        cursor = mmad(
                            out, cursor, operands.dtype, job.tag, l0a, l0b, l0c, mpad, k, n, 0 if k_start + k_tile == 0 else 1,
                            operands.right_type,
                        )  # fmt: skip
                        if operands.left_less > 0 or operands.zeros > 0:
                            cursor = _zero_point_products(out, cursor, job, image_base, parity, l0a, l0b, l0c, m, mpad, k, n)
                    if k_start + k_size == geometry.k1:  # the sums are complete
                        if cursor + _ROOM >= capacity:
                            return -1
                        n_out = group * geometry.n1 + n_start + n_tile
                        n_column = columns + n_start + n_tile
                        to, added = advance(target, image * block.out_image), advance(residual, image * block.res_image)
                        cursor = _store(out, cursor, job, bias, scale_after, to, added, parity, l0c, m_start, m, mpad, n_out, n_column, n)
                        if cursor < 0:
                            return -1
    return cursor


@njit(cache=True)
def _weights(
    out: Code, cursor: int, job: ConvJob, needed: Ints, places: Ints, source: int, l0b: int, row: int, first_n: int, n: int, first_k: int,
    k: int,
) -> int:  # fmt: skip
    """Load a tile of weights panel by panel; -1 if `out` is too short.

    source: L1 block of the tile; for packed weights, L1 block of all weights.  row: blocks from n1 to n1."""
    geometry = job.geometry
    done = 0
    while done < n:
        if cursor + _ROOM >= out.shape[0]:
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
def _products(
    out: Code, cursor: int, job: ConvJob, needed: Ints, l0a: int, l0b: int, l0c: int, mpad: int, first_n: int, n: int, first_k: int, k: int
) -> int:
    """An MMAD for every panel that `_weights` has loaded."""
    done = 0
    while done < n:
        if cursor + _ROOM >= out.shape[0]:
            return -1
        wide, start, size = find_panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            adds = 0 if begins_sum(needed, first_n + done, start) else 1
            panel_a, sums = l0a + (start - first_k) * mpad, l0c + done * mpad * job.geometry.sum_blocks
            cursor = mmad(out, cursor, job.operands.dtype, job.tag, panel_a, l0b, sums, mpad, size, wide, adds, job.operands.right_type)
            l0b += wide * size * job.geometry.weight_blocks
        done += wide
    return cursor


@njit(cache=True)
def _expand_chunk(
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


@njit(cache=True)
def _zero_point_products(
    out: Code, cursor: int, job: ConvJob, base: int, parity: Ints, l0a: int, l0b: int, l0c: int, m: int, mpad: int, k: int, n: int
) -> int:
    """Products of zero points: each operand's tile, at l0a or l0b, times the negated zero point of the other operand.

    A constant of the left operand is an image of padding.  A constant of the right operand is a block of weights, copied to all places of
    its tile.  Constants take a slot other than that of the operand's tile.
    """
    geometry, operands, tiles = job.geometry, job.operands, job.tiles
    for part in range(2):
        byte = operands.left_less_1 if part else operands.left_less
        if byte > 0:
            slot = _next_slot(parity, A_SLOT, tiles.slot_a, tiles.room_a, l0a)
            cursor = im2col(
                out, cursor, operands.left_type, job.tag, base, slot, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, geometry.out_w, geometry.out_w, m,
                mpad, 0, k, geometry.lanes, 0, 0, byte,
            )  # fmt: skip
            cursor = mmad(out, cursor, operands.left_type, job.tag, slot, l0b, l0c, mpad, k, n, 1, operands.right_type)
    for part in range(operands.zeros):
        slot = _next_slot(parity, B_SLOT, tiles.slot_b, tiles.room_b, l0b)
        zeros, size = job.buffers.zeros_at + part * geometry.weight_blocks, geometry.weight_blocks
        cursor = copy(out, cursor, operands.dtype, job.tag, MTE1, L1, L0B, zeros, slot, size, n * k, 0, size, 1, 0, 0)
        cursor = mmad(out, cursor, operands.dtype, job.tag, l0a, slot, l0c, mpad, k, n, 1, operands.zeros_type)
    return cursor


@njit(cache=True)
def _left(out: Code, cursor: int, job: ConvJob, base: int, target: int, first: int, m: int, mpad: int, k_start: int, k: int) -> int:
    """Load blocks [k_start, k_start + k) of a tile of the left operand, part by part (`ir.im2col`); -1 if `out` is too short.

    If the padding above the image exceeds its field, kernel rows that cover only padding get a separate instruction.  If they cover only
    padding for the first pixels of the tile, these pixels are zeroed, and another instruction loads one block of k for the other pixels.
    The padding above the other pixels fits its field (`ir.im2col.MAX_PADDED_STRIDE`).
    """
    geometry = job.geometry
    row = first // geometry.out_w
    padding_rows = job.block.pad_top - row * geometry.sh  # rows between the image and the window of the tile's first pixel
    spread = ((first + m - 1) // geometry.out_w - row) * geometry.sh  # rows from the first window to the last one
    per_block = geometry.fractal_lanes // geometry.lanes
    by_columns = geometry.part_columns < geometry.kw
    plane_k = (geometry.kh * geometry.kw + per_block - 1) // per_block
    if geometry.part_rows == geometry.kh and not by_columns and padding_rows <= MAX_WINDOW:
        return _part(out, cursor, job, base, target, first, m, mpad, np.int64(0), np.int64(0), geometry.kh, geometry.kw, k_start, k)
    done = 0
    while done < k:
        if cursor + 2 + _ROOM >= out.shape[0]:
            return -1
        plane, inside = (k_start + done) // plane_k, (k_start + done) % plane_k
        ky, kx, kh, kw = 0, 0, 1, geometry.part_columns
        if by_columns:
            row_k, part_k = (geometry.kw + per_block - 1) // per_block, (geometry.part_columns + per_block - 1) // per_block
            ky, inside = inside // row_k, inside % row_k
            kx = inside // part_k * geometry.part_columns
            kw = min(kw, geometry.kw - kx)
        else:
            part_k = geometry.part_rows * geometry.kw // per_block if geometry.part_rows < geometry.kh else plane_k
            ky = inside // part_k * geometry.part_rows
            kh = min(geometry.part_rows, geometry.kh - ky)
        skip = inside % part_k
        size = min(k - done, (kh * kw + per_block - 1) // per_block - skip)
        plane_base, to = base + plane * job.block.in_plane, target + done * mpad
        if padding_rows - ky * geometry.dh > MAX_WINDOW and per_block == 1:
            whole_rows = skip // kw
            ky, kh, skip = ky + whole_rows, kh - whole_rows, skip - whole_rows * kw
            top = padding_rows - ky * geometry.dh
            if top > spread:
                kh = min(kh, (top - spread + geometry.dh - 1) // geometry.dh)
                size = min(size, kh * kw - skip)
            elif top > MAX_WINDOW:
                zeros = (
                    ((top + geometry.sh - 1) // geometry.sh * geometry.out_w - (first - row * geometry.out_w))
                    // geometry.fractal_rows
                    * geometry.fractal_rows
                )
                cursor = _part(out, cursor, job, plane_base, to, first, zeros, zeros, ky, kx, np.int64(1), kw, skip, np.int64(1))
                cursor = _part(
                    out, cursor, job, plane_base, to + zeros, first + zeros, m - zeros, mpad - zeros, ky, kx, np.int64(1), kw, skip,
                    np.int64(1),
                )  # fmt: skip
                done += 1
                continue
        cursor = _part(out, cursor, job, plane_base, to, first, m, mpad, ky, kx, kh, kw, skip, size)
        done += size
    return cursor


@njit(cache=True)
def _part(
    out: Code, cursor: int, job: ConvJob, base: int, target: int, first: int, m: int, mpad: int, ky: int, kx: int, kh: int, kw: int,
    koff: int, k: int,
) -> int:  # fmt: skip
    """IM2COL of a part of the kernel, rows [ky, ky + kh) and columns [kx, kx + kw): its blocks [koff, koff + k), pixels from `first` on.

    The image is cut to begin at the first pixel under the first window of this part.
    """
    geometry, operands, block = job.geometry, job.operands, job.block
    row = first // geometry.out_w
    spread = ((first + m - 1) // geometry.out_w - row) * geometry.sh
    pad_top, pad_left = block.pad_top - row * geometry.sh - ky * geometry.dh, geometry.pad_left - kx * geometry.dw
    height, width, begin, ring_first = block.in_rows, geometry.in_w, base, block.in_first
    if pad_top < 0:
        height += pad_top
        if block.in_ring > 0:
            ring_first = (ring_first - pad_top) % block.in_ring
        else:
            begin -= pad_top * geometry.in_pitch
        pad_top = 0
    if pad_left < 0:
        per_block = geometry.fractal_lanes // geometry.lanes
        blocks = -pad_left // per_block
        begin += blocks
        width -= blocks * per_block
        pad_left += blocks * per_block
    if height <= 0 or width <= 0 or pad_top > spread + (kh - 1) * geometry.dh:  # only padding: windows below an image of one pixel
        return im2col(
            out, cursor, operands.dtype, job.tag, base, target, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, geometry.out_w, geometry.out_w, m, mpad,
            0, k, geometry.lanes, 0, 0, operands.pad,
        )  # fmt: skip
    return im2col(
        out, cursor, operands.dtype, job.tag, begin, target, height, width, geometry.in_pitch, block.in_plane, kh, kw, geometry.sh,
        geometry.sw, geometry.dh if kh > 1 else 1, geometry.dw if kw > 1 else 1, pad_top, pad_left, geometry.out_w,
        first - row * geometry.out_w, m, mpad, koff, k, geometry.lanes, block.in_ring, ring_first, operands.pad,
    )  # fmt: skip


@njit(cache=True)
def _planes(job: ConvJob, n_start: int, n: int, lanes: int) -> tuple[int, int]:
    """(first plane, number of planes) of the columns of fractals [n_start, n_start + n); the last plane may be half full."""
    return n_start * job.geometry.fractal_columns // lanes, (n * job.geometry.fractal_columns + lanes - 1) // lanes


@njit(cache=True)
def _right(
    out: Code, cursor: int, job: ConvJob, target: int, right: TilePlace, pixels: int, n_start: int, n: int, k_start: int, k: int
) -> int:
    """Load a tile of a right operand that is a tensor.  right: place of its first pixel in L1.  pixels: pixels per plane in L1."""
    geometry, operands = job.geometry, job.operands
    if operands.right == PIXELS_N:
        pixel, plane = n_start * geometry.fractal_columns, k_start
    else:
        pixel, plane = k_start * geometry.fractal_lanes, _planes(job, n_start, n, geometry.fractal_lanes)[0]
    source = right.base + plane * right.plane + pixel
    cursor = fractal(
        out, cursor, operands.dtype, job.tag, source, target, right.plane, pixels - pixel, k, n, int(operands.right == PIXELS_K)
    )
    out[cursor - 1, PAD] = operands.missing
    return cursor


@njit(cache=True)
def _store(
    out: Code, cursor: int, job: ConvJob, bias: int, scale_after: int, target: TilePlace, residual: TilePlace, parity: Ints, l0c: int,
    m_start: int, m: int, mpad: int, n_out: int, n_column: int, n: int,
) -> int:  # fmt: skip
    """Load the residual, convert the sums by FIXPIPE, and copy the result to `target`; -1 if `out` is too short.

    bias: UB block of the bias of column 0; in a chunk of biases, this block may lie in front of the chunk."""
    epilogue, buffers = job.epilogue, job.buffers
    plane, planes = _planes(job, n_out, n, epilogue.result_lanes)
    bias = bias + n_column * job.geometry.sum_blocks if buffers.bias >= 0 else -1
    scale = bias + scale_after if epilogue.scale_at else -1 if epilogue.sums else 0
    added = -1
    if residual.base >= 0:
        added = buffers.res_1 if parity[RES_SLOT] else buffers.res_0
        parity[RES_SLOT] ^= 1
        engine = MTE2 if residual.memory == DDR else MTE1
        first, several = _planes(job, n_out, n, epilogue.residual_lanes)
        cursor = move(out, cursor, job.dtype, job.tag, engine, residual, m_start, dense(UB, added, m), 0, first, several, m)
    if epilogue.to == DIRECT or target.memory == UB:  # FIXPIPE writes the result itself, cut where rows or a ring end
        done = 0
        while done < m:
            if cursor >= out.shape[0]:
                return -1
            run = side_by_side(target, m_start + done, m - done)
            to = block_at(target, plane, m_start + done)
            residual_block = added + done if added >= 0 else -1
            sums_block = l0c + job.geometry.sum_blocks * done
            cursor = fixpipe(
                out, cursor, job.dtype, job.tag, target.memory, sums_block, to, bias, residual_block, run, mpad, n, target.plane, m, scale,
                epilogue,
            )  # fmt: skip
            done += run
        return cursor
    # through a slot of UB, and with a copy to DDR or L1
    slot = buffers.out_1 if parity[OUT_SLOT] else buffers.out_0
    parity[OUT_SLOT] ^= 1
    cursor = fixpipe(out, cursor, job.dtype, job.tag, UB, l0c, slot, bias, added, m, mpad, n, m, m, scale, epilogue)
    return move(out, cursor, job.dtype, job.tag, MTE3, dense(UB, slot, m), 0, target, m_start, plane, planes, m)


@compile_once
@njit(cache=True)
def conv_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records.  Images share weights, so the node of the first image computes all images; right operands that are tensors
    differ per image, so every image has its own records."""
    start, stop = work.computed[node.k, node.t]
    images = 1 if job.operands.right != WEIGHTS else work.together
    if images > 1 and node.member > 0:
        return cursor
    target = locate_result(work, node, start)
    return call_kernel(work.convolution[0], (out, cursor, work, node, job, np.int64(images), start, stop, target, parity))


CONVOLUTION = np.zeros(1, np.int64)
"""Address of `conv_part` in this process, which `conv_rows` and fed pools call; 0 before a segment has a convolution."""


def load_convolution(out: Code, work: Work, node: Node, parity: Ints) -> None:
    """Compile or load `conv_part`, for arguments of these types."""
    if not CONVOLUTION[0]:
        job, place = record_type(ConvJob), typeof(TilePlace(*[0] * len(TilePlace._fields)))
        arguments = typeof(out), types.int64, Reference(typeof(work)), typeof(node), job, *[types.int64] * 3, place, typeof(parity)
        CONVOLUTION[0] = kernel_address(conv_part, arguments)


@njit(cache=True)
def conv_part(
    out: Code, cursor: int, work: Work, node: Node, job: Any, images: int, start: int, stop: int, target: TilePlace, parity: Ints
) -> int:
    """Rows [start, stop) of a node, for `images` images from the node's image on.  target: place of row `start` of the result."""
    geometry, tiles, block = job.geometry, job.tiles, job.block
    allocation = work.jobs.reads[work.jobs.read_start[node.k], 2]
    height = work.reach[node.k, 1]
    first_row, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    top = start * geometry.sh - work.reach[node.k, 5]
    if top >= height:  # every window lies in the padding below the image; equal padding above the image is encodable
        top = -((stop - start - 1) * geometry.sh + (geometry.kh - 1) * geometry.dh + 1)
    # geometry of this block: the input's ring and padding, then the second operand, then steps between images
    source = locate_operand(work, node, 0, first_row)
    block.in_ring = source.back // geometry.in_pitch
    block.in_first = block.in_ring - source.wrap // source.width if source.back else 0
    block.in_base = source.base - block.in_first * geometry.in_pitch
    block.in_rows = work.allocations.rows[allocation, node.t, 1] - first_row
    block.in_plane = source.plane
    block.pad_top = max(0, -top)
    block.out_rows = stop - start
    residual = dense(DDR, -1, 0)
    if job.operands.right != WEIGHTS:
        right = locate_operand(work, node, 1, 0)
        block.right_base, block.right_plane = right.base, right.plane
    elif count_operands(work, node) > 1:
        residual = locate_operand(work, node, 1, start)
    block.images, block.in_image, block.out_image, block.res_image = images, 0, 0, 0
    if images > 1:
        following = Node(node.k, node.t, node.image, node.iteration, False, node.member + 1)
        block.in_image = locate_operand(work, following, 0, first_row).base - source.base
        block.out_image = locate_result(work, following, start).base - target.base
        if residual.base >= 0:
            block.res_image = locate_operand(work, following, 1, start).base - residual.base
    runs, needed = read_table(work, node, 0, 6), mark_multiplied(read_table(work, node, 1, geometry.k1), tiles.chunk_k1, tiles.tile_k1)
    if node.begins and tiles.resident and job.expansion.overlaid > 0:
        cursor = expand_all(
            out, cursor, job.expansion, runs, needed, job.tag, parity, job.operands.weights_at, geometry.groups, geometry.k1, geometry.n1,
            job.buffers.weights_0,
        )  # fmt: skip
        if cursor < 0:
            return -1
    return emit_conv(out, cursor, job, runs, needed, target, residual, parity)
