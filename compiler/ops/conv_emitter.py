"""Convolution on one block: IM2COL and weight loads, MMAD, FIXPIPE and the way out, tile by tile.

Loops, outermost first: groups, weight chunks along n, weight chunks along k, then (m, n) tiles in the tiling's order, then k tiles.
Tiles along m are those of all images of a block, one image after the other (`segment.batch_tiles`): a tile is of one image.
An L0A or L0B tile that is still in place is not loaded again, and one that is multiplied with nothing but zeros not at all.  Tiles take
the slots of their memory in turn, so where all that come again have one (`ops.tile_counts.staying`), each of them is loaded once.
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
    behind,
    block_at,
    copy,
    dense,
    fixpipe,
    fractal,
    general,
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
    operand,
    operands,
    result,
    table,
)
from compiler.ir.reach import demanded
from compiler.ops.tile_counts import staying
from compiler.ops.weight_expansion_emitter import ExpansionJob, expand, expand_all, load_overlaid
from compiler.target.capabilities import MOST_SLOTS
from compiler.target.zero_blocks import begin, multiplied, packed, panel
from simulator.npu.isa import MAX_WINDOW, PAD
from simulator.npu.program import Code


class ConvJob(NamedTuple):
    """One convolution on one block.  Addresses, planes and pitches in blocks; n1 in 16 channels, k1 in blocks of C0.

    weights: L1 addresses of the resident weights, or of the two chunk slots; weights_at: their DDR address; weights_k1: k1 there.
    operands: type of what is multiplied; right_type: of the right operand where that may differ.  pad: around the image, see IM2COL.
    bias, bias_1: UB addresses of the bias, -1 without one; bias_at: its DDR address where it comes in chunks, by turns in either, else
    -1.
    sums: of FIXPIPE.  Where integers become others a scale for every channel lies behind the biases: scale_after blocks in UB, scale_at
    in DDR, which is 0 without one.
    zero, low, high: of the result.  added, own, other, fixed, last: of a residual, RTYPE and, of bytes, what follows it.
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
    own: int
    other: int
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
    kept: int
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
def _turn(ends: Ints, which: int, slot: int, room: int, kept: int) -> Any:
    """The next slot of a memory, behind the tile that came last, be it of another operator.  kept: a slot that is passed over, or -1."""
    at: Any = -(-ends[which] // slot) * slot
    if at == kept:
        at += slot
    if at >= room:
        at = np.int64(slot if kept == 0 else 0)
    ends[which] = at + slot
    return at


@njit(cache=True)
def emit_conv(out: Code, at: int, j: ConvJob, runs: Ints, needed: Ints, target: TilePlace, residual: TilePlace, parity: Ints) -> int:
    """Append the block's records at row `at`; returns the next row, or -1 where `out` is too short.

    runs: int64 [n, 6], of `Expansion`.  needed: which blocks of weights are multiplied (`target.zero_blocks.multiplied`), of no size: all.
    target: output row 0, in DDR, L1 or UB.  residual: the same for the residual operand; its base is -1 without one.
    """
    pixels = j.out_rows * j.out_w
    tiles_of_image = -(-pixels // j.tile_m)
    tiles_m = j.images * tiles_of_image
    chunks_k = -(-j.k1 // j.chunk_k1)
    alone = j.left_less > 0 or j.zeros > 0  # what `_less` makes takes slots as well
    room = 1 if alone else j.room_a // j.slot_a, 1 if alone else j.room_b // j.slot_b
    stay_a, stay_b = staying(tiles_m, -(-j.chunk_n1 // j.tile_n1), -(-j.chunk_k1 // j.tile_k1), j.n_outer, room)
    tile_a, tile_b = np.empty(MOST_SLOTS, np.int64), np.empty(MOST_SLOTS, np.int64)  # which tile was the last of its slot
    slot_a, slot_b = np.empty(MOST_SLOTS, np.int64), np.empty(MOST_SLOTS, np.int64)  # and where that is
    capacity = out.shape[0]
    places = packed(needed, j.tile_n1, j.tile_k1) if j.packed else np.empty((0, 0), np.int64)
    size_of_group = places.max() + 1 if j.packed else j.n1 * j.k1
    parted = j.part_rows < j.kh or j.part_columns < j.kw or j.pad_top > MAX_WINDOW
    for group in range(j.groups):
        base = j.in_base + group * j.c1 * j.in_plane
        columns = 0 if j.alike else group * j.n1
        for n_start in range(0, j.n1, j.chunk_n1):
            n_size = min(j.chunk_n1, j.n1 - n_start)
            tiles_n = -(-n_size // j.tile_n1)
            bias, scale_after = j.bias, j.scale_after
            if j.bias_at >= 0:
                if at >= capacity:
                    return -1
                here, first = j.bias_1 if parity[BIAS_SLOT] else j.bias, (columns + n_start) * j.sum_blocks
                parity[BIAS_SLOT] ^= 1
                run, vectors = n_size * j.sum_blocks, 2 if j.scale_at else 1
                scale_after = run if j.scale_at else 0
                at = copy(
                    out, at, j.dtype, j.tag, MTE2, DDR, UB, j.bias_at + first, here, run, vectors, j.scale_at, scale_after, 1, 0, 0,
                )  # fmt: skip
                bias = here - first
            for k_start in range(0, j.k1, j.chunk_k1):
                k_size = min(j.chunk_k1, j.k1 - k_start)
                right = dense(L1, j.right_base + group * j.right_planes * j.right_plane, j.right_plane)
                right_pixels = j.right_pixels
                if j.resident:
                    w_base = j.weights_0 + (group * size_of_group + n_start * j.k1 + k_start) * j.weight_blocks
                    w_row = j.k1 * j.weight_blocks
                else:
                    if at >= capacity:
                        return -1
                    w_base = j.weights_1 if parity[W_SLOT] else j.weights_0
                    parity[W_SLOT] ^= 1
                    w_row = k_size * j.weight_blocks
                    if j.overlaid > 0:
                        at = _chunk(out, at, j, runs, needed, parity, group, k_start, k_size, n_start, n_size, w_base)
                        if at < 0:
                            return -1
                    elif j.right == WEIGHTS:
                        source = j.weights_at + ((group * j.n1 + n_start) * j.weights_k1 + k_start) * j.weight_blocks
                        apart, some = j.weights_k1 * j.weight_blocks, max(1, WEIGHT_PIECE_BLOCKS // w_row)
                        for n in range(0, n_size, some):
                            if at >= capacity:
                                return -1
                            at = copy(
                                out, at, j.operands, j.tag, MTE2, DDR, L1, source + n * apart, w_base + n * w_row, w_row,
                                min(some, n_size - n), apart, w_row, 1, 0, 0,
                            )  # fmt: skip
                    else:
                        if j.right == PIXELS_N:
                            plane, planes, pixel, right_pixels = k_start, k_size, n_start * j.fractal_columns, n_size * j.fractal_columns
                        else:
                            plane, planes = _planes(j, n_start, n_size, j.fractal_lanes)
                            pixel, right_pixels = k_start * j.fractal_lanes, k_size * j.fractal_lanes
                        right_pixels = min(right_pixels, j.right_pixels - pixel)
                        source = right.base + plane * right.plane + pixel
                        right = dense(L1, w_base, right_pixels)
                        at = copy(
                            out, at, j.operands, j.tag, MTE2, DDR, L1, source, w_base, right_pixels, planes, j.right_plane, right_pixels,
                            1, 0, 0,
                        )  # fmt: skip
                tile_a[:], tile_b[:] = -1, -1
                tiles_k = -(-k_size // j.tile_k1)
                for tile in range(tiles_m * tiles_n):
                    if j.n_outer:
                        tm, tn = tile % tiles_m, tile // tiles_m
                    else:
                        tm, tn = tile // tiles_n, tile % tiles_n
                    image = tm // tiles_of_image
                    m_start = (tm - image * tiles_of_image) * j.tile_m
                    x = base + image * j.in_image
                    m = min(j.tile_m, pixels - m_start)
                    mpad = (m + j.fractal_rows - 1) // j.fractal_rows * j.fractal_rows
                    n_tile = tn * j.tile_n1
                    n = min(j.tile_n1, n_size - n_tile)
                    if chunks_k > 1:
                        c = (tm * n_size + n_tile) * j.tile_m * j.sum_blocks
                    else:
                        c = _turn(parity, C_SLOT, j.slot_c, j.room_c, -1)
                    for k_tile in range(0, k_size, j.tile_k1):
                        if at + _ROOM >= capacity:
                            return -1
                        k = min(j.tile_k1, k_size - k_tile)
                        first_n, first_k = n_start + n_tile, k_start + k_tile
                        if needed.size and not needed[first_n : first_n + n, first_k : first_k + k].any():
                            continue
                        of_k = k_tile // j.tile_k1
                        want, at_a = tm * 65536 + k_tile, (tm * tiles_k + of_k if j.n_outer else of_k) if stay_a else 0
                        a = slot_a[at_a]
                        if want != tile_a[at_a]:
                            a = _turn(parity, A_SLOT, j.slot_a, j.room_a, -1)
                            tile_a[at_a], slot_a[at_a] = want, a
                            if parted:
                                at = _left(out, at, j, x, a, m_start, m, mpad, k_start + k_tile, k)
                                if at < 0:
                                    return -1
                            else:
                                at = im2col(
                                    out, at, j.operands, j.tag, x, a, j.in_rows, j.in_w, j.in_pitch, j.in_plane,
                                    j.kh, j.kw, j.sh, j.sw, j.dh, j.dw, j.pad_top, j.pad_left, j.out_w, m_start, m, mpad,
                                    k_start + k_tile, k, j.lanes, j.in_ring, j.in_first, j.pad,
                                )  # fmt: skip
                        want, at_b = tn * 65536 + k_tile, (of_k if j.n_outer else tn * tiles_k + of_k) if stay_b else 0
                        b = slot_b[at_b]
                        if want != tile_b[at_b]:
                            b = _turn(parity, B_SLOT, j.slot_b, j.room_b, -1)
                            tile_b[at_b], slot_b[at_b] = want, b
                            if needed.size:
                                source = w_base if j.packed else w_base + n_tile * w_row + k_tile * j.weight_blocks
                                at = _weights(out, at, j, needed, places, source, b, w_row, first_n, n, first_k, k)
                                if at < 0:
                                    return -1
                            elif j.right == WEIGHTS:
                                source = w_base + n_tile * w_row + k_tile * j.weight_blocks
                                run = k * j.weight_blocks
                                at = copy(out, at, j.operands, j.tag, MTE1, L1, L0B, source, b, run, n, w_row, run, 1, 0, 0)
                            else:
                                at = _right(out, at, j, b, right, right_pixels, n_tile, n, k_tile, k)
                        if needed.size:
                            at = _products(out, at, j, needed, a, b, c, mpad, first_n, n, first_k, k)
                            if at < 0:
                                return -1
                            continue
                        at = mmad(out, at, j.operands, j.tag, a, b, c, mpad, k, n, 0 if k_start + k_tile == 0 else 1, j.right_type)
                        if j.left_less > 0 or j.zeros > 0:
                            at = _less(out, at, j, x, parity, a, b, c, m, mpad, k, n)
                    if k_start + k_size == j.k1:
                        if at + _ROOM >= capacity:
                            return -1
                        n_out = group * j.n1 + n_start + n_tile
                        n_column = columns + n_start + n_tile
                        to, added = behind(target, image * j.out_image), behind(residual, image * j.res_image)
                        at = _way_out(out, at, j, bias, scale_after, to, added, parity, c, m_start, m, mpad, n_out, n_column, n)
    return at


@njit(cache=True)
def _weights(
    out: Code, at: int, j: ConvJob, needed: Ints, places: Ints, source: int, b: int, row: int, first_n: int, n: int, first_k: int, k: int
) -> int:  # fmt: skip
    """A tile of weights, its panels one after the other; -1 where `out` is too short.

    source: where it begins in L1, row: blocks from an n1 to the next; where places are of some size, that all of them begin at."""
    done = 0
    while done < n:
        if at + _ROOM >= out.shape[0]:
            return -1
        wide, start, size = panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            run, here, pitch = size * j.weight_blocks, source + done * row + (start - first_k) * j.weight_blocks, row
            if places.size:
                here, pitch = source + places[first_n + done, start] * j.weight_blocks, run
            at = copy(out, at, j.operands, j.tag, MTE1, L1, L0B, here, b, run, wide, pitch, run, 1, 0, 0)
            b += wide * run
        done += wide
    return at


@njit(cache=True)
def _products(
    out: Code, at: int, j: ConvJob, needed: Ints, a: int, b: int, c: int, mpad: int, first_n: int, n: int, first_k: int, k: int
) -> int:  # fmt: skip
    """An MMAD for every panel that `_weights` brought."""
    done = 0
    while done < n:
        if at + _ROOM >= out.shape[0]:
            return -1
        wide, start, size = panel(needed, first_n + done, first_n + n, first_k, first_k + k)
        if size > 0:
            adds = 0 if begin(needed, first_n + done, start) else 1
            left, sums = a + (start - first_k) * mpad, c + done * mpad * j.sum_blocks
            at = mmad(out, at, j.operands, j.tag, left, b, sums, mpad, size, wide, adds, j.right_type)
            b += wide * size * j.weight_blocks
        done += wide
    return at


@njit(cache=True)
def expansion_of(j: ConvJob) -> ExpansionJob:
    return ExpansionJob(
        j.overlaid, j.masks, j.planes, j.taps, j.across, j.masks_at, j.overlaid_0, j.overlaid_1, j.expanded_0, j.expanded_1, j.room, j.kept,
        j.startup, j.packed, j.tile_n1, j.tile_k1,
    )  # fmt: skip


@njit(cache=True)
def _chunk(
    out: Code, at: int, j: ConvJob, runs: Ints, needed: Ints, parity: Ints, group: int, k_start: int, k_size: int, n_start: int,
    n_size: int, target: int,
) -> int:  # fmt: skip
    """A chunk of weights that lie overlaid in UB, or in DDR; -1 where `out` is too short."""
    first = (group * j.k1 + k_start) * j.overlaid
    place = j.overlaid_0 + first
    if j.kept == 0:
        at, place = load_overlaid(out, at, expansion_of(j), j.tag, parity, j.weights_at + first, k_size * j.overlaid)
        if at < 0:
            return -1
    row = k_size * j.weight_blocks
    nowhere = np.empty((0, 0), np.int64)
    return expand(
        out, at, expansion_of(j), runs, needed, nowhere, j.tag, parity, place, 1, k_start, k_size, n_start, n_size, target, row, 0,
    )  # fmt: skip


@njit(cache=True)
def _less(
    out: Code, at: int, j: ConvJob, base: int, parity: Ints, a: int, b: int, c: int, m: int, mpad: int, k: int, n: int
) -> int:  # fmt: skip
    """Products of either operand's tile, at a and b, with what is added to all of the other: that is made in another slot.

    The left one's is an image of padding, the right one's a block of weights that is copied to all places.
    """
    for part in range(2):
        byte = j.left_less_1 if part else j.left_less
        if byte > 0:
            d = _turn(parity, A_SLOT, j.slot_a, j.room_a, a)
            at = im2col(
                out, at, j.left_type, j.tag, base, d, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, j.out_w, j.out_w, m, mpad, 0, k, j.lanes, 0, 0,
                byte,
            )  # fmt: skip
            at = mmad(out, at, j.left_type, j.tag, d, b, c, mpad, k, n, 1, j.right_type)
    for part in range(j.zeros):
        d = _turn(parity, B_SLOT, j.slot_b, j.room_b, b)
        zeros, size = j.zeros_at + part * j.weight_blocks, j.weight_blocks
        at = copy(out, at, j.operands, j.tag, MTE1, L1, L0B, zeros, d, size, n * k, 0, size, 1, 0, 0)
        at = mmad(out, at, j.operands, j.tag, a, d, c, mpad, k, n, 1, j.zeros_type)
    return at


@njit(cache=True)
def _left(out: Code, at: int, j: ConvJob, base: int, d: int, first: int, m: int, mpad: int, k_start: int, k: int) -> int:
    """A tile of the left operand, blocks [k_start, k_start + k), part by part (`ir.im2col`); -1 where `out` is too short.

    Kernel rows that see nothing but padding above the image have an instruction of their own where a field cannot hold how far above they
    lie.  Where only the tile's first pixels see nothing else, these are zeroed and the others' instruction is a block of k of theirs: what
    is left of the padding above them fits (`ir.im2col.MAX_PADDED_STRIDE`).
    """
    row = first // j.out_w
    above = j.pad_top - row * j.sh  # rows between the image and the window of the tile's first pixel
    spread = ((first + m - 1) // j.out_w - row) * j.sh  # rows from the first window to the last one
    four = j.fractal_lanes // j.lanes
    by_columns = j.part_columns < j.kw
    plane_k = (j.kh * j.kw + four - 1) // four
    if j.part_rows == j.kh and not by_columns and above <= MAX_WINDOW:
        return _part(out, at, j, base, d, first, m, mpad, np.int64(0), np.int64(0), j.kh, j.kw, k_start, k)
    done = 0
    while done < k:
        if at + 2 + _ROOM >= out.shape[0]:
            return -1
        plane, inside = (k_start + done) // plane_k, (k_start + done) % plane_k
        ky, kx, kh, kw = 0, 0, 1, j.part_columns
        if by_columns:
            row_k, part_k = (j.kw + four - 1) // four, (j.part_columns + four - 1) // four
            ky, inside = inside // row_k, inside % row_k
            kx = inside // part_k * j.part_columns
            kw = min(kw, j.kw - kx)
        else:
            part_k = j.part_rows * j.kw // four if j.part_rows < j.kh else plane_k
            ky = inside // part_k * j.part_rows
            kh = min(j.part_rows, j.kh - ky)
        skip = inside % part_k
        size = min(k - done, (kh * kw + four - 1) // four - skip)
        here, to = base + plane * j.in_plane, d + done * mpad
        if above - ky * j.dh > MAX_WINDOW and four == 1:
            gone = skip // kw
            ky, kh, skip = ky + gone, kh - gone, skip - gone * kw
            top = above - ky * j.dh
            if top > spread:
                kh = min(kh, (top - spread + j.dh - 1) // j.dh)
                size = min(size, kh * kw - skip)
            elif top > MAX_WINDOW:
                zeros = ((top + j.sh - 1) // j.sh * j.out_w - (first - row * j.out_w)) // j.fractal_rows * j.fractal_rows
                at = _part(out, at, j, here, to, first, zeros, zeros, ky, kx, np.int64(1), kw, skip, np.int64(1))
                at = _part(out, at, j, here, to + zeros, first + zeros, m - zeros, mpad - zeros, ky, kx, np.int64(1), kw, skip, np.int64(1))
                done += 1
                continue
        at = _part(out, at, j, here, to, first, m, mpad, ky, kx, kh, kw, skip, size)
        done += size
    return at


@njit(cache=True)
def _part(
    out: Code, at: int, j: ConvJob, base: int, d: int, first: int, m: int, mpad: int, ky: int, kx: int, kh: int, kw: int, koff: int, k: int
) -> int:  # fmt: skip
    """Blocks [koff, koff + k) of the window that is kernel rows [ky, ky + kh) and columns [kx, kx + kw), of pixels from `first` on.

    The image begins where this window's first pixel sees it: in front of that there is nothing left to say.
    """
    row = first // j.out_w
    spread = ((first + m - 1) // j.out_w - row) * j.sh
    top, left = j.pad_top - row * j.sh - ky * j.dh, j.pad_left - kx * j.dw
    height, width, begin, ring_first = j.in_rows, j.in_w, base, j.in_first
    if top < 0:
        height += top
        if j.in_ring > 0:
            ring_first = (ring_first - top) % j.in_ring
        else:
            begin -= top * j.in_pitch
        top = 0
    if left < 0:
        per_block = j.fractal_lanes // j.lanes
        blocks = -left // per_block
        begin += blocks
        width -= blocks * per_block
        left += blocks * per_block
    if height <= 0 or width <= 0 or top > spread + (kh - 1) * j.dh:  # nothing but padding: windows below an image of one pixel
        return im2col(
            out, at, j.operands, j.tag, base, d, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, j.out_w, j.out_w, m, mpad, 0, k, j.lanes, 0, 0, j.pad,
        )  # fmt: skip
    return im2col(
        out, at, j.operands, j.tag, begin, d, height, width, j.in_pitch, j.in_plane, kh, kw, j.sh, j.sw, j.dh if kh > 1 else 1,
        j.dw if kw > 1 else 1, top, left, j.out_w, first - row * j.out_w, m, mpad, koff, k, j.lanes, j.in_ring, ring_first,
        j.pad,
    )  # fmt: skip


@njit(cache=True)
def _planes(j: ConvJob, n_start: int, n: int, lanes: int) -> tuple[int, int]:
    """(first, how many) planes that hold [n_start, n_start + n) times a fractal's columns; the last one may be half full."""
    return n_start * j.fractal_columns // lanes, (n * j.fractal_columns + lanes - 1) // lanes


@njit(cache=True)
def _right(out: Code, at: int, j: ConvJob, d: int, right: TilePlace, pixels: int, n_start: int, n: int, k_start: int, k: int) -> int:
    """A tile of a right operand that is a tensor: `right` is where the `pixels` pixels of it that are in L1 begin."""
    if j.right == PIXELS_N:
        pixel, plane = n_start * j.fractal_columns, k_start
    else:
        pixel, plane = k_start * j.fractal_lanes, _planes(j, n_start, n, j.fractal_lanes)[0]
    source = right.base + plane * right.plane + pixel
    at = fractal(out, at, j.operands, j.tag, source, d, right.plane, pixels - pixel, k, n, int(j.right == PIXELS_K))
    out[at - 1, PAD] = j.missing
    return at


@njit(cache=True)
def _way_out(
    out: Code,
    at: int,
    j: ConvJob,
    bias: int,
    scale_after: int,
    target: TilePlace,
    residual: TilePlace,
    parity: Ints,
    c: int,
    m_start: int,
    m: int,
    mpad: int,
    n_out: int,
    n_column: int,
    n: int,
) -> int:
    """Residual in, FIXPIPE, and the copy to where the result belongs.  bias: where that of column 0 lies, or would."""
    plane, planes = _planes(j, n_out, n, j.result_lanes)
    bias = bias + n_column * j.sum_blocks if j.bias >= 0 else -1
    scale = bias + scale_after if j.scale_at else -1 if j.sums else 0
    added = -1
    if residual.base >= 0:
        added = j.res_1 if parity[RES_SLOT] else j.res_0
        parity[RES_SLOT] ^= 1
        engine = MTE2 if residual.memory == DDR else MTE1
        first, several = _planes(j, n_out, n, j.residual_lanes)
        at = move(out, at, j.dtype, j.tag, engine, residual, m_start, dense(UB, added, m), 0, first, several, m)
    if j.to == TO_L1 or target.memory == UB:
        done = 0
        while done < m:
            run = side_by_side(target, m_start + done, m - done)
            to = block_at(target, plane, m_start + done)
            other = added + done if added >= 0 else -1
            s = c + j.sum_blocks * done
            at = fixpipe(
                out, at, j.dtype, j.tag, j.fixpipe_engine, target.memory, s, to, bias, other, run, mpad, n, target.plane, m, j.act, j.limit,
                j.sums, scale, j.zero, j.low, j.high, j.added, j.own, j.other, j.fixed, j.last,
            )  # fmt: skip
            done += run
        return at
    slot = j.out_1 if parity[OUT_SLOT] else j.out_0
    parity[OUT_SLOT] ^= 1
    at = fixpipe(
        out, at, j.dtype, j.tag, j.fixpipe_engine, UB, c, slot, bias, added, m, mpad, n, m, m, j.act, j.limit, j.sums, scale, j.zero, j.low,
        j.high, j.added, j.own, j.other, j.fixed, j.last,
    )  # fmt: skip
    return move(out, at, j.dtype, j.tag, MTE3, dense(UB, slot, m), 0, target, m_start, plane, planes, m)


@general
@njit(cache=True)
def conv_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records: those of all images with that of the first, as weights are the same for all; a right operand is not."""
    start, stop = w.computed[n.k, n.t]
    if j.right != WEIGHTS or w.together == 1:
        return conv_part(out, at, w, n, j, 1, start, stop, result(w, n, start), parity)
    if n.member > 0:
        return at
    return conv_part(out, at, w, n, j, w.together, start, stop, result(w, n, start), parity)


@general
@njit(cache=True)
def conv_part(
    out: Code, at: int, w: Work, n: Node, j: Any, images: int, start: int, stop: int, target: TilePlace, parity: Ints
) -> int:  # fmt: skip
    """Rows [start, stop) of a node, of which a tensor's first one goes to `target`; of so many images from the node's on."""
    allocation = w.jobs.reads[w.jobs.read_start[n.k], 2]
    height = w.reach[n.k, 1]
    first_row, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    top = start * j.sh - w.reach[n.k, 5]
    if top >= height:  # every window lies in the padding below the image; above it is the same, and can be said
        top = -((stop - start - 1) * j.sh + (j.kh - 1) * j.dh + 1)
    source = operand(w, n, 0, first_row)
    j.in_ring = source.back // j.in_pitch
    j.in_first = j.in_ring - source.wrap // source.width if source.back else 0
    j.in_base = source.base - j.in_first * j.in_pitch
    j.in_rows = w.allocations.rows[allocation, n.t, 1] - first_row
    j.in_plane = source.plane
    j.pad_top = max(0, -top)
    j.out_rows = stop - start
    residual = dense(DDR, -1, 0)
    if j.right != WEIGHTS:
        right = operand(w, n, 1, 0)
        j.right_base, j.right_plane = right.base, right.plane
    elif operands(w, n) > 1:
        residual = operand(w, n, 1, start)
    j.images, j.in_image, j.out_image, j.res_image = images, 0, 0, 0
    if images > 1:
        following = Node(n.k, n.t, n.image, n.iteration, False, n.member + 1)
        j.in_image = operand(w, following, 0, first_row).base - source.base
        j.out_image = result(w, following, start).base - target.base
        if residual.base >= 0:
            j.res_image = operand(w, following, 1, start).base - residual.base
    runs, needed = table(w, n, 0, 6), multiplied(table(w, n, 1, j.k1), j.chunk_k1, j.tile_k1)
    if n.begins and j.resident and j.overlaid > 0:
        at = expand_all(out, at, expansion_of(j), runs, needed, j.tag, parity, j.weights_at, j.groups, j.k1, j.n1, j.weights_0)
        if at < 0:
            return -1
    return emit_conv(out, at, j, runs, needed, target, residual, parity)
