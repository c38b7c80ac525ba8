"""Convolution on one block: IM2COL and weight loads, MMAD, FIXPIPE and the way out, tile by tile.

Loops, outermost first: groups, weight chunks along n, weight chunks along k, then (m, n) tiles in the tiling's order, then k tiles.
Tiles along m are those of all images of a block, one image after the other (`segment.batch_tiles`): a tile is of one image.
An L0A or L0B tile that is still in place is not loaded again, and one that is multiplied with nothing but zeros not at all.  Tiles take
the slots of their memory in turn, so where all that come again have one (`ops.tile_counts.tiles_stay`), each of them is loaded once.
Where a chunk does not hold all of k, every (m, n) tile of the chunk keeps its own place in L0C until its last k.
Else sums take the slots of L0C in turn, as many as it has for tiles of their size (`target.capabilities.tile_slot`): with two, an
engine that is ahead of the next one waits for every tile of that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

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
from simulator.npu.isa import MAX_WINDOW, PAD
from simulator.npu.program import Code


class ConvJob(NamedTuple):
    """Parameters of a convolution on one block.

    Units: addresses, planes and pitches in blocks; n1 in 16 channels, k1 in blocks of C0; m, n, k of a tile: rows, n1, blocks of k.

    weights: L1 addresses of the resident weights, or of the two chunk slots; weights_at: their DDR address; weights_k1: k1 there.
    operands: type of what is multiplied; right_type: of the right operand where that may differ.  pad: around the image, see IM2COL.
    bias, bias_1: UB addresses of the bias, -1 without one; bias_at: its DDR address where it comes in chunks, by turns in either, else
    -1.
    sums: of FIXPIPE.  Where integers become others a scale for every channel lies behind the biases: scale_after blocks in UB, scale_at
    in DDR, which is 0 without one.
    zero, low, high: of the result.  added, sum_factor, residual_factor, fixed, last: of a residual, RTYPE and, of bytes, what follows it.
    alike: whether the columns of every group have the same biases and scales.
    left_less, left_less_1: bytes of `left_type` that are added to all of the left operand, 0 for none.  zeros: how many bytes of
    `zeros_type` are added to all of the right one; a block of weights of each lies in L1 from zeros_at on.  missing: a pixel that it lacks.
    slot_a to room_c: of L0A, L0B and L0C, blocks that a tile has for itself, and of all slots.
    overlaid to packed: see `ExpansionJob`.
    part_rows, part_columns: of the kernel, what one IM2COL takes (see `ir.im2col`).
    right: what the right operand is, WEIGHTS or a tensor whose PIXELS_N or PIXELS_K are its columns or rows: right_planes per group,
    right_pixels in all.  Resident, all of it lies in L1; else chunks of it come from DDR as weights would.

    Of a block: in_base, L1 block of (plane 0, row that output row 0 starts from); in_rows, rows from there that exist.  Where the input
    is a ring of `in_ring` rows, that row is its row `in_first`, and in_base the ring's row 0.  right_base: block of the right tensor's
    plane 0 and pixel 0, in L1 or DDR; right_plane: blocks per plane there.  images: that are made together; in_image, out_image, res_image:
    blocks from one to the next of the input, of the result and of a residual.
    """

    dtype: int
    operands: int
    right_type: int
    tag: int
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
    resident: int
    weights_0: int
    weights_1: int
    weights_at: int
    weights_k1: int
    chunk_n1: int
    chunk_k1: int
    tile_m: int
    tile_n1: int
    tile_k1: int
    n_outer: int
    bias: int
    bias_1: int
    bias_at: int
    act: int
    limit: int  # float32 bits
    to: int
    out_0: int
    out_1: int
    res_0: int
    res_1: int
    slot_a: int
    room_a: int
    slot_b: int
    room_b: int
    slot_c: int
    room_c: int
    fractal_rows: int
    fractal_lanes: int
    fractal_columns: int
    weight_blocks: int
    sum_blocks: int
    result_lanes: int
    residual_lanes: int
    fixpipe_engine: int
    pad: int
    sums: int
    scale_after: int
    scale_at: int
    zero: int
    low: int
    high: int
    added: int
    sum_factor: int
    residual_factor: int
    fixed: int
    last: int
    right: int
    right_planes: int
    right_pixels: int
    alike: int
    left_less: int
    left_less_1: int
    left_type: int
    zeros: int
    zeros_type: int
    zeros_at: int
    missing: int
    overlaid: int
    masks: int
    planes: int
    taps: int
    across: int
    masks_at: int
    overlaid_0: int
    overlaid_1: int
    expanded_0: int
    expanded_1: int
    room: int
    resident_overlays: int
    startup: int
    packed: int
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


WEIGHTS, PIXELS_N, PIXELS_K = range(3)
TO_DDR, TO_L1, TO_L1_BY_UB = range(3)  # where results go first
WEIGHT_PIECE_BLOCKS = 2048  # weights come in pieces of 64 KiB, so that the first tile need not wait for the last weight, nor other loads
_ROOM = 20  # records of a tile's product and its way out, at most


@njit(cache=True)
def _turn(ends: Ints, which: int, slot: int, room: int, busy_slot: int) -> Any:
    """The next slot of a memory, behind the tile that came last, be it of another operator.  kept: a slot that is passed over, or -1."""
    address: Any = -(-ends[which] // slot) * slot
    if address == busy_slot:
        address += slot
    if address >= room:
        address = np.int64(slot if busy_slot == 0 else 0)
    ends[which] = address + slot
    return address


@njit(cache=True)
def emit_conv(out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, target: TilePlace, residual: TilePlace, parity: Ints) -> int:
    """Append the block's records at row `at`; returns the next row, or -1 where `out` is too short.

    runs: int64 [n, 6], of `Expansion`.  needed: which blocks of weights are multiplied (`target.zero_blocks.mark_multiplied`), of no size:
    all. target: output row 0, in DDR, L1 or UB.  residual: the same for the residual operand; its base is -1 without one.
    """
    pixels = job.out_rows * job.out_w
    tiles_of_image = -(-pixels // job.tile_m)
    tiles_m = job.images * tiles_of_image
    chunks_k = -(-job.k1 // job.chunk_k1)
    shares_slots = job.left_less > 0 or job.zeros > 0  # what `_less` makes takes slots as well
    room = 1 if shares_slots else job.room_a // job.slot_a, 1 if shares_slots else job.room_b // job.slot_b
    stay_a, stay_b = tiles_stay(tiles_m, -(-job.chunk_n1 // job.tile_n1), -(-job.chunk_k1 // job.tile_k1), job.n_outer, room)
    tile_a, tile_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)  # which tile was the last of its slot
    slot_a, slot_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)  # and where that is
    capacity = out.shape[0]
    places = pack_panels(needed, job.tile_n1, job.tile_k1) if job.packed else np.empty((0, 0), np.int64)
    size_of_group = places.max() + 1 if job.packed else job.n1 * job.k1
    parted = job.part_rows < job.kh or job.part_columns < job.kw or job.pad_top > MAX_WINDOW
    # groups, chunks of weights along n and along k, tiles (m, n) in the tiling's order, tiles of k
    for group in range(job.groups):
        base = job.in_base + group * job.c1 * job.in_plane
        columns = 0 if job.alike else group * job.n1
        for n_start in range(0, job.n1, job.chunk_n1):
            n_size = min(job.chunk_n1, job.n1 - n_start)
            tiles_n = -(-n_size // job.tile_n1)
            bias, scale_after = job.bias, job.scale_after
            if job.bias_at >= 0:  # biases, and scales behind them, of this chunk
                if cursor >= capacity:
                    return -1
                bias_slot, first = job.bias_1 if parity[BIAS_SLOT] else job.bias, (columns + n_start) * job.sum_blocks
                parity[BIAS_SLOT] ^= 1
                run, vectors = n_size * job.sum_blocks, 2 if job.scale_at else 1
                scale_after = run if job.scale_at else 0
                cursor = copy(
                    out, cursor, job.dtype, job.tag, MTE2, DDR, UB, job.bias_at + first, bias_slot, run, vectors, job.scale_at, scale_after,
                    1, 0, 0,
                )  # fmt: skip
                bias = bias_slot - first
            for k_start in range(0, job.k1, job.chunk_k1):
                k_size = min(job.chunk_k1, job.k1 - k_start)
                right = dense(L1, job.right_base + group * job.right_planes * job.right_plane, job.right_plane)
                right_pixels = job.right_pixels
                # the right operand of the chunk: resident weights, expanded or copied ones, or pixels of a tensor
                if job.resident:
                    w_base = job.weights_0 + (group * size_of_group + n_start * job.k1 + k_start) * job.weight_blocks
                    w_row = job.k1 * job.weight_blocks
                else:
                    if cursor >= capacity:
                        return -1
                    w_base = job.weights_1 if parity[W_SLOT] else job.weights_0
                    parity[W_SLOT] ^= 1
                    w_row = k_size * job.weight_blocks
                    if job.overlaid > 0:
                        cursor = _chunk(out, cursor, job, runs, needed, parity, group, k_start, k_size, n_start, n_size, w_base)
                        if cursor < 0:
                            return -1
                    elif job.right == WEIGHTS:
                        source = job.weights_at + ((group * job.n1 + n_start) * job.weights_k1 + k_start) * job.weight_blocks
                        weights_pitch, some = job.weights_k1 * job.weight_blocks, max(1, WEIGHT_PIECE_BLOCKS // w_row)
                        for n in range(0, n_size, some):
                            if cursor >= capacity:
                                return -1
                            cursor = copy(
                                out, cursor, job.operands, job.tag, MTE2, DDR, L1, source + n * weights_pitch, w_base + n * w_row, w_row,
                                min(some, n_size - n), weights_pitch, w_row, 1, 0, 0,
                            )  # fmt: skip
                    else:
                        if job.right == PIXELS_N:
                            plane, planes, pixel, right_pixels = (
                                k_start, k_size, n_start * job.fractal_columns, n_size * job.fractal_columns,
                            )  # fmt: skip
                        else:
                            plane, planes = _planes(job, n_start, n_size, job.fractal_lanes)
                            pixel, right_pixels = k_start * job.fractal_lanes, k_size * job.fractal_lanes
                        right_pixels = min(right_pixels, job.right_pixels - pixel)
                        source = right.base + plane * right.plane + pixel
                        right = dense(L1, w_base, right_pixels)
                        cursor = copy(
                            out, cursor, job.operands, job.tag, MTE2, DDR, L1, source, w_base, right_pixels, planes, job.right_plane,
                            right_pixels, 1, 0, 0,
                        )  # fmt: skip
                tile_a[:], tile_b[:] = -1, -1  # a new chunk: no tile in L0A or L0B can be used again
                tiles_k = -(-k_size // job.tile_k1)
                for tile in range(tiles_m * tiles_n):
                    if job.n_outer:
                        tm, tn = tile % tiles_m, tile // tiles_m
                    else:
                        tm, tn = tile // tiles_n, tile % tiles_n
                    image = tm // tiles_of_image
                    m_start = (tm - image * tiles_of_image) * job.tile_m
                    image_base = base + image * job.in_image
                    m = min(job.tile_m, pixels - m_start)
                    mpad = (m + job.fractal_rows - 1) // job.fractal_rows * job.fractal_rows
                    n_tile = tn * job.tile_n1
                    n = min(job.tile_n1, n_size - n_tile)
                    if chunks_k > 1:  # partial sums of every tile wait for the next chunk
                        l0c = (tm * n_size + n_tile) * job.tile_m * job.sum_blocks
                    else:
                        l0c = _turn(parity, C_SLOT, job.slot_c, job.room_c, -1)
                    for k_tile in range(0, k_size, job.tile_k1):
                        if cursor + _ROOM >= capacity:
                            return -1
                        k = min(job.tile_k1, k_size - k_tile)
                        first_n, first_k = n_start + n_tile, k_start + k_tile
                        # an n1 without weights still needs one block, which sets its sums (`target.weights.needed_blocks`)
                        if needed.size and not needed[first_n : first_n + n, first_k : first_k + k].any():
                            continue
                        k_index = k_tile // job.tile_k1
                        want, entry_a = tm * 65536 + k_tile, (tm * tiles_k + k_index if job.n_outer else k_index) if stay_a else 0
                        l0a = slot_a[entry_a]
                        if want != tile_a[entry_a]:
                            l0a = _turn(parity, A_SLOT, job.slot_a, job.room_a, -1)
                            tile_a[entry_a], slot_a[entry_a] = want, l0a
                            if parted:
                                cursor = _left(out, cursor, job, image_base, l0a, m_start, m, mpad, k_start + k_tile, k)
                                if cursor < 0:
                                    return -1
                            else:
                                cursor = im2col(
                                    out, cursor, job.operands, job.tag, image_base, l0a, job.in_rows, job.in_w, job.in_pitch, job.in_plane,
                                    job.kh, job.kw, job.sh, job.sw, job.dh, job.dw, job.pad_top, job.pad_left, job.out_w, m_start, m, mpad,
                                    k_start + k_tile, k, job.lanes, job.in_ring, job.in_first, job.pad,
                                )  # fmt: skip
                        want, entry_b = tn * 65536 + k_tile, (k_index if job.n_outer else tn * tiles_k + k_index) if stay_b else 0
                        l0b = slot_b[entry_b]
                        if want != tile_b[entry_b]:
                            l0b = _turn(parity, B_SLOT, job.slot_b, job.room_b, -1)
                            tile_b[entry_b], slot_b[entry_b] = want, l0b
                            if needed.size:
                                source = w_base if job.packed else w_base + n_tile * w_row + k_tile * job.weight_blocks
                                cursor = _weights(out, cursor, job, needed, places, source, l0b, w_row, first_n, n, first_k, k)
                                if cursor < 0:
                                    return -1
                            elif job.right == WEIGHTS:
                                source = w_base + n_tile * w_row + k_tile * job.weight_blocks
                                run = k * job.weight_blocks
                                cursor = copy(out, cursor, job.operands, job.tag, MTE1, L1, L0B, source, l0b, run, n, w_row, run, 1, 0, 0)
                            else:
                                cursor = _right(out, cursor, job, l0b, right, right_pixels, n_tile, n, k_tile, k)
                        if needed.size:
                            cursor = _products(out, cursor, job, needed, l0a, l0b, l0c, mpad, first_n, n, first_k, k)
                            if cursor < 0:
                                return -1
                            continue
                        cursor = mmad(
                            out, cursor, job.operands, job.tag, l0a, l0b, l0c, mpad, k, n, 0 if k_start + k_tile == 0 else 1, job.right_type
                        )
                        if job.left_less > 0 or job.zeros > 0:
                            cursor = _less(out, cursor, job, image_base, parity, l0a, l0b, l0c, m, mpad, k, n)
                    if k_start + k_size == job.k1:  # the sums are complete
                        if cursor + _ROOM >= capacity:
                            return -1
                        n_out = group * job.n1 + n_start + n_tile
                        n_column = columns + n_start + n_tile
                        to, added = advance(target, image * job.out_image), advance(residual, image * job.res_image)
                        cursor = _way_out(out, cursor, job, bias, scale_after, to, added, parity, l0c, m_start, m, mpad, n_out, n_column, n)
    return cursor


@njit(cache=True)
def _weights(
    out: Code, cursor: int, job: ConvJob, needed: Ints, places: Ints, source: int, l0b: int, row: int, first_n: int, n: int, first_k: int,
    k: int,
) -> int:  # fmt: skip
    """A tile of weights, its panels one after the other; -1 where `out` is too short.

    source: where it begins in L1, row: blocks from an n1 to the next; of packed weights, where all of them begin."""
    done = 0
    while done < n:
        if cursor + _ROOM >= out.shape[0]:
            return -1
        wide, start, size = find_panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            run, block, pitch = size * job.weight_blocks, source + done * row + (start - first_k) * job.weight_blocks, row
            if places.size:
                block, pitch = source + places[first_n + done, start] * job.weight_blocks, run
            cursor = copy(out, cursor, job.operands, job.tag, MTE1, L1, L0B, block, l0b, run, wide, pitch, run, 1, 0, 0)
            l0b += wide * run
        done += wide
    return cursor


@njit(cache=True)
def _products(
    out: Code, cursor: int, job: ConvJob, needed: Ints, l0a: int, l0b: int, l0c: int, mpad: int, first_n: int, n: int, first_k: int, k: int
) -> int:
    """An MMAD for every panel that `_weights` brought."""
    done = 0
    while done < n:
        if cursor + _ROOM >= out.shape[0]:
            return -1
        wide, start, size = find_panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            adds = 0 if begins_sum(needed, first_n + done, start) else 1
            panel_a, sums = l0a + (start - first_k) * mpad, l0c + done * mpad * job.sum_blocks
            cursor = mmad(out, cursor, job.operands, job.tag, panel_a, l0b, sums, mpad, size, wide, adds, job.right_type)
            l0b += wide * size * job.weight_blocks
        done += wide
    return cursor


@njit(cache=True)
def expansion_of(job: ConvJob) -> ExpansionJob:
    return ExpansionJob(
        job.overlaid, job.masks, job.planes, job.taps, job.across, job.masks_at, job.overlaid_0, job.overlaid_1, job.expanded_0,
        job.expanded_1, job.room, job.resident_overlays, job.startup, job.packed, job.tile_n1, job.tile_k1,
    )  # fmt: skip


@njit(cache=True)
def _chunk(
    out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, parity: Ints, group: int, k_start: int, k_size: int, n_start: int,
    n_size: int, target: int,
) -> int:  # fmt: skip
    """Expand a chunk of weights that lie overlaid in UB, or in DDR; -1 if `out` is too short."""
    first = (group * job.k1 + k_start) * job.overlaid
    place = job.overlaid_0 + first
    if job.resident_overlays == 0:
        cursor, place = load_overlaid(out, cursor, expansion_of(job), job.tag, parity, job.weights_at + first, k_size * job.overlaid)
        if cursor < 0:
            return -1
    row = k_size * job.weight_blocks
    nowhere = np.empty((0, 0), np.int64)
    return expand(
        out, cursor, expansion_of(job), runs, needed, nowhere, job.tag, parity, place, 1, k_start, k_size, n_start, n_size, target, row, 0,
    )  # fmt: skip


@njit(cache=True)
def _less(
    out: Code, cursor: int, job: ConvJob, base: int, parity: Ints, l0a: int, l0b: int, l0c: int, m: int, mpad: int, k: int, n: int
) -> int:
    """Products of either operand's tile, at l0a and l0b, with the constants added to all of the other, which take another slot.

    The left one's is an image of padding, the right one's a block of weights that is copied to all places.
    """
    for part in range(2):
        byte = job.left_less_1 if part else job.left_less
        if byte > 0:
            slot = _turn(parity, A_SLOT, job.slot_a, job.room_a, l0a)
            cursor = im2col(
                out, cursor, job.left_type, job.tag, base, slot, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, job.out_w, job.out_w, m, mpad, 0, k,
                job.lanes, 0, 0, byte,
            )  # fmt: skip
            cursor = mmad(out, cursor, job.left_type, job.tag, slot, l0b, l0c, mpad, k, n, 1, job.right_type)
    for part in range(job.zeros):
        slot = _turn(parity, B_SLOT, job.slot_b, job.room_b, l0b)
        zeros, size = job.zeros_at + part * job.weight_blocks, job.weight_blocks
        cursor = copy(out, cursor, job.operands, job.tag, MTE1, L1, L0B, zeros, slot, size, n * k, 0, size, 1, 0, 0)
        cursor = mmad(out, cursor, job.operands, job.tag, l0a, slot, l0c, mpad, k, n, 1, job.zeros_type)
    return cursor


@njit(cache=True)
def _left(out: Code, cursor: int, job: ConvJob, base: int, target: int, first: int, m: int, mpad: int, k_start: int, k: int) -> int:
    """A tile of the left operand, blocks [k_start, k_start + k), part by part (`ir.im2col`); -1 where `out` is too short.

    Kernel rows that see nothing but padding above the image have an instruction of their own where a field cannot hold how far above they
    lie.  Where only the tile's first pixels see nothing else, these are zeroed and the others' instruction is a block of k of theirs: what
    is left of the padding above them fits (`ir.im2col.MAX_PADDED_STRIDE`).
    """
    row = first // job.out_w
    above = job.pad_top - row * job.sh  # rows between the image and the window of the tile's first pixel
    spread = ((first + m - 1) // job.out_w - row) * job.sh  # rows from the first window to the last one
    per_block = job.fractal_lanes // job.lanes
    by_columns = job.part_columns < job.kw
    plane_k = (job.kh * job.kw + per_block - 1) // per_block
    if job.part_rows == job.kh and not by_columns and above <= MAX_WINDOW:
        return _part(out, cursor, job, base, target, first, m, mpad, np.int64(0), np.int64(0), job.kh, job.kw, k_start, k)
    done = 0
    while done < k:
        if cursor + 2 + _ROOM >= out.shape[0]:
            return -1
        plane, inside = (k_start + done) // plane_k, (k_start + done) % plane_k
        ky, kx, kh, kw = 0, 0, 1, job.part_columns
        if by_columns:
            row_k, part_k = (job.kw + per_block - 1) // per_block, (job.part_columns + per_block - 1) // per_block
            ky, inside = inside // row_k, inside % row_k
            kx = inside // part_k * job.part_columns
            kw = min(kw, job.kw - kx)
        else:
            part_k = job.part_rows * job.kw // per_block if job.part_rows < job.kh else plane_k
            ky = inside // part_k * job.part_rows
            kh = min(job.part_rows, job.kh - ky)
        skip = inside % part_k
        size = min(k - done, (kh * kw + per_block - 1) // per_block - skip)
        plane_base, to = base + plane * job.in_plane, target + done * mpad
        if above - ky * job.dh > MAX_WINDOW and per_block == 1:
            whole_rows = skip // kw
            ky, kh, skip = ky + whole_rows, kh - whole_rows, skip - whole_rows * kw
            top = above - ky * job.dh
            if top > spread:
                kh = min(kh, (top - spread + job.dh - 1) // job.dh)
                size = min(size, kh * kw - skip)
            elif top > MAX_WINDOW:
                zeros = ((top + job.sh - 1) // job.sh * job.out_w - (first - row * job.out_w)) // job.fractal_rows * job.fractal_rows
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
    """IM2COL of blocks [koff, koff + k) of the window of kernel rows [ky, ky + kh) and columns [kx, kx + kw), of pixels from `first` on.

    The image begins at the first pixel that this window sees, so the padding in front is that of the first window.
    """
    row = first // job.out_w
    spread = ((first + m - 1) // job.out_w - row) * job.sh
    pad_top, pad_left = job.pad_top - row * job.sh - ky * job.dh, job.pad_left - kx * job.dw
    height, width, begin, ring_first = job.in_rows, job.in_w, base, job.in_first
    if pad_top < 0:
        height += pad_top
        if job.in_ring > 0:
            ring_first = (ring_first - pad_top) % job.in_ring
        else:
            begin -= pad_top * job.in_pitch
        pad_top = 0
    if pad_left < 0:
        per_block = job.fractal_lanes // job.lanes
        blocks = -pad_left // per_block
        begin += blocks
        width -= blocks * per_block
        pad_left += blocks * per_block
    if height <= 0 or width <= 0 or pad_top > spread + (kh - 1) * job.dh:  # nothing but padding: windows below an image of one pixel
        return im2col(
            out, cursor, job.operands, job.tag, base, target, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, job.out_w, job.out_w, m, mpad, 0, k,
            job.lanes, 0, 0, job.pad,
        )  # fmt: skip
    return im2col(
        out, cursor, job.operands, job.tag, begin, target, height, width, job.in_pitch, job.in_plane, kh, kw, job.sh, job.sw,
        job.dh if kh > 1 else 1, job.dw if kw > 1 else 1, pad_top, pad_left, job.out_w, first - row * job.out_w, m, mpad, koff, k,
        job.lanes, job.in_ring, ring_first, job.pad,
    )  # fmt: skip


@njit(cache=True)
def _planes(job: ConvJob, n_start: int, n: int, lanes: int) -> tuple[int, int]:
    """(first, how many) planes that hold [n_start, n_start + n) times a fractal's columns; the last one may be half full."""
    return n_start * job.fractal_columns // lanes, (n * job.fractal_columns + lanes - 1) // lanes


@njit(cache=True)
def _right(
    out: Code, cursor: int, job: ConvJob, target: int, right: TilePlace, pixels: int, n_start: int, n: int, k_start: int, k: int
) -> int:
    """A tile of a right operand that is a tensor: `right` is where the `pixels` pixels of it that are in L1 begin."""
    if job.right == PIXELS_N:
        pixel, plane = n_start * job.fractal_columns, k_start
    else:
        pixel, plane = k_start * job.fractal_lanes, _planes(job, n_start, n, job.fractal_lanes)[0]
    source = right.base + plane * right.plane + pixel
    cursor = fractal(out, cursor, job.operands, job.tag, source, target, right.plane, pixels - pixel, k, n, int(job.right == PIXELS_K))
    out[cursor - 1, PAD] = job.missing
    return cursor


@njit(cache=True)
def _way_out(
    out: Code, cursor: int, job: ConvJob, bias: int, scale_after: int, target: TilePlace, residual: TilePlace, parity: Ints, l0c: int,
    m_start: int, m: int, mpad: int, n_out: int, n_column: int, n: int,
) -> int:  # fmt: skip
    """Load the residual, FIXPIPE, and copy the result to its place.  bias: address of that of column 0, in the chunk or in front of it."""
    plane, planes = _planes(job, n_out, n, job.result_lanes)
    bias = bias + n_column * job.sum_blocks if job.bias >= 0 else -1
    scale = bias + scale_after if job.scale_at else -1 if job.sums else 0
    added = -1
    if residual.base >= 0:
        added = job.res_1 if parity[RES_SLOT] else job.res_0
        parity[RES_SLOT] ^= 1
        engine = MTE2 if residual.memory == DDR else MTE1
        first, several = _planes(job, n_out, n, job.residual_lanes)
        cursor = move(out, cursor, job.dtype, job.tag, engine, residual, m_start, dense(UB, added, m), 0, first, several, m)
    if job.to == TO_L1 or target.memory == UB:  # FIXPIPE writes the result itself, cut where a ring ends
        done = 0
        while done < m:
            run = side_by_side(target, m_start + done, m - done)
            to = block_at(target, plane, m_start + done)
            residual_block = added + done if added >= 0 else -1
            sums_block = l0c + job.sum_blocks * done
            cursor = fixpipe(
                out, cursor, job.dtype, job.tag, job.fixpipe_engine, target.memory, sums_block, to, bias, residual_block, run, mpad, n,
                target.plane, m, job.act, job.limit, job.sums, scale, job.zero, job.low, job.high, job.added, job.sum_factor,
                job.residual_factor, job.fixed, job.last,
            )  # fmt: skip
            done += run
        return cursor
    # through a slot of UB, and with a copy to DDR or L1
    slot = job.out_1 if parity[OUT_SLOT] else job.out_0
    parity[OUT_SLOT] ^= 1
    cursor = fixpipe(
        out, cursor, job.dtype, job.tag, job.fixpipe_engine, UB, l0c, slot, bias, added, m, mpad, n, m, m, job.act, job.limit, job.sums,
        scale, job.zero, job.low, job.high, job.added, job.sum_factor, job.residual_factor, job.fixed, job.last,
    )  # fmt: skip
    return move(out, cursor, job.dtype, job.tag, MTE3, dense(UB, slot, m), 0, target, m_start, plane, planes, m)


@compile_once
@njit(cache=True)
def conv_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records: those of all images with that of the first, as weights are the same for all; a right operand is not."""
    start, stop = work.computed[node.k, node.t]
    if job.right != WEIGHTS or work.together == 1:
        return conv_part(out, cursor, work, node, job, 1, start, stop, locate_result(work, node, start), parity)
    if node.member > 0:
        return cursor
    return conv_part(out, cursor, work, node, job, work.together, start, stop, locate_result(work, node, start), parity)


@compile_once
@njit(cache=True)
def conv_part(
    out: Code, cursor: int, work: Work, node: Node, job: Any, images: int, start: int, stop: int, target: TilePlace, parity: Ints
) -> int:
    """Rows [start, stop) of a node, of which a tensor's first one goes to `target`; of so many images from the node's on."""
    allocation = work.jobs.reads[work.jobs.read_start[node.k], 2]
    height = work.reach[node.k, 1]
    first_row, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    top = start * job.sh - work.reach[node.k, 5]
    if top >= height:  # every window lies in the padding below the image; above it is the same, and can be said
        top = -((stop - start - 1) * job.sh + (job.kh - 1) * job.dh + 1)
    # geometry of this block: the input's ring and padding, then the second operand, then steps between images
    source = locate_operand(work, node, 0, first_row)
    job.in_ring = source.back // job.in_pitch
    job.in_first = job.in_ring - source.wrap // source.width if source.back else 0
    job.in_base = source.base - job.in_first * job.in_pitch
    job.in_rows = work.allocations.rows[allocation, node.t, 1] - first_row
    job.in_plane = source.plane
    job.pad_top = max(0, -top)
    job.out_rows = stop - start
    residual = dense(DDR, -1, 0)
    if job.right != WEIGHTS:
        right = locate_operand(work, node, 1, 0)
        job.right_base, job.right_plane = right.base, right.plane
    elif count_operands(work, node) > 1:
        residual = locate_operand(work, node, 1, start)
    job.images, job.in_image, job.out_image, job.res_image = images, 0, 0, 0
    if images > 1:
        following = Node(node.k, node.t, node.image, node.iteration, False, node.member + 1)
        job.in_image = locate_operand(work, following, 0, first_row).base - source.base
        job.out_image = locate_result(work, following, start).base - target.base
        if residual.base >= 0:
            job.res_image = locate_operand(work, following, 1, start).base - residual.base
    runs, needed = read_table(work, node, 0, 6), mark_multiplied(read_table(work, node, 1, job.k1), job.chunk_k1, job.tile_k1)
    if node.begins and job.resident and job.overlaid > 0:
        cursor = expand_all(
            out, cursor, expansion_of(job), runs, needed, job.tag, parity, job.weights_at, job.groups, job.k1, job.n1, job.weights_0
        )
        if cursor < 0:
            return -1
    return emit_conv(out, cursor, job, runs, needed, target, residual, parity)
