"""Emission of a convolution on one block: IM2COL and weight loads, MMAD, FIXPIPE, and copies of the result, tile by tile.

Loops, outermost first: groups, weight chunks along n, weight chunks along k, then (m, n) tiles in the tiling's order, then k tiles.
Tiles along m cover all images of a block, image by image (`segment.batch_tiles`); a tile has pixels of one image.
Tiles of L0A and L0B take the slots of their memory in turn.  A tile that is still in its slot is not loaded again; if all reused tiles have
slots (`ops.tile_counts.tiles_stay`), every tile is loaded once.  A tile that is multiplied only with zeros is not loaded.
If a chunk has only a part of k, every (m, n) tile of the chunk keeps its own place in L0C until the last chunk of k.
Else sums take all slots of L0C in turn (`target.capabilities.tile_slot`): with only two slots, CUBE or FIXPIPE waits after every tile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, typeof, types

from compiler.instructions.addressing import STOP
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
    im2col,
    mmad,
    move,
    side_by_side,
)
from compiler.instructions.node_context import (
    A_SLOT,
    ALLOCATION,
    B_SLOT,
    BIAS_SLOT,
    C_SLOT,
    OUT_SLOT,
    RES_SLOT,
    Node,
    Work,
    count_operands,
    locate_operand,
    locate_result,
    read_table,
)
from compiler.ir.reach import HEIGHT, PAD, demanded
from compiler.ops.conv_job import DIRECT, ROOM, WEIGHTS, ConvJob
from compiler.ops.left_tile_emitter import load_left
from compiler.ops.right_tile_emitter import load_panels, load_pixels, load_right_chunk, planes_of
from compiler.ops.tile_counts import tiles_stay
from compiler.ops.weight_expansion_emitter import expand_all
from compiler.target.capabilities import MAX_SLOTS
from compiler.target.weight_expansion import RUN_WORDS
from compiler.target.zero_blocks import begins_sum, find_panel, mark_multiplied, pack_panels
from simulator.kernel_addresses import Reference, call_kernel, kernel_address, record_type
from simulator.npu.isa import MAX_WINDOW
from simulator.npu.program import Code

_KEY_RADIX = 1 << 16  # more than the blocks of k of a chunk: (tile of m or n, block of k) as one number


@njit(cache=True)
def _next_slot(ends: Ints, slot_index: int, slot: int, room: int, busy_slot: int) -> Any:
    """Address of the next slot of an L0 memory, behind the last loaded tile of any operator.

    ends: `slot_state`, which has the end of the last tile at slot_index.  slot, room: blocks of a slot and of all slots.
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
def emit_conv(
    out: Code, cursor: int, job: ConvJob, runs: Ints, needed: Ints, target: TilePlace, residual: TilePlace, slot_state: Ints
) -> int:
    """Append the block's records from row `cursor` on; returns the next row, or -1 if `out` is too short.

    job: parameters, with the geometry of the block.  runs: `Expansion.runs`, a row per `Run`.  slot_state: see `node_context`.
    needed: multiplied blocks of weights (`target.zero_blocks.mark_multiplied`); size 0 means all.
    target: place of output row 0 in DDR, L1 or UB.  residual: place of row 0 of the residual; its base is -1 without a residual.
    """
    geometry, operands, epilogue = job.geometry, job.operands, job.epilogue
    tiles, buffers, block = job.tiles, job.buffers, job.block
    pixels = block.out_rows * geometry.out_w
    tiles_of_image = -(-pixels // tiles.tile_m)
    tiles_m = block.images * tiles_of_image
    chunks_k = -(-geometry.k1 // tiles.chunk_k1)
    # which tiles stay in L0: the last tile of every slot (a key), and the address of this tile
    has_constants = operands.left_less > 0 or operands.zeros > 0  # constants of zero points take slots too
    slot_counts = (1, 1) if has_constants else (tiles.room_a // tiles.slot_a, tiles.room_b // tiles.slot_b)
    chunk_tiles_n, chunk_tiles_k = -(-tiles.chunk_n1 // tiles.tile_n1), -(-tiles.chunk_k1 // tiles.tile_k1)
    stay_a, stay_b = tiles_stay(tiles_m, chunk_tiles_n, chunk_tiles_k, tiles.n_outer, slot_counts)
    loaded_a, loaded_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)
    address_a, address_b = np.empty(MAX_SLOTS, np.int64), np.empty(MAX_SLOTS, np.int64)
    capacity = out.shape[0]
    panel_places = pack_panels(needed, tiles.tile_n1, tiles.tile_k1) if job.expansion.packed else np.empty((0, 0), np.int64)
    group_fractals = panel_places.max() + 1 if job.expansion.packed else geometry.n1 * geometry.k1
    # one IM2COL cannot encode the window or the padding above it (`ir.im2col`)
    several_im2cols = geometry.part_rows < geometry.kh or geometry.part_columns < geometry.kw or block.pad_top > MAX_WINDOW
    for group in range(geometry.groups):
        base = block.in_base + group * geometry.c1 * block.in_plane
        bias_n1 = 0 if epilogue.groups_share_bias else group * geometry.n1
        for n_start in range(0, geometry.n1, tiles.chunk_n1):  # chunks of weights along n
            n_size = min(tiles.chunk_n1, geometry.n1 - n_start)
            tiles_n = -(-n_size // tiles.tile_n1)
            bias, scale_after = buffers.bias, epilogue.scale_after
            if tiles.bias_at >= 0:  # streamed: biases of this chunk, then its scales
                if cursor >= capacity:
                    return -1
                bias_slot, first = buffers.bias_1 if slot_state[BIAS_SLOT] else buffers.bias, (bias_n1 + n_start) * geometry.sum_blocks
                slot_state[BIAS_SLOT] ^= 1
                run, vectors = n_size * geometry.sum_blocks, 2 if epilogue.scale_at else 1
                scale_after = run if epilogue.scale_at else 0
                cursor = copy(
                    out, cursor, job.dtype, job.tag, MTE2, DDR, UB, tiles.bias_at + first, bias_slot, run, vectors, epilogue.scale_at,
                    scale_after, 1, 0, 0,
                )  # fmt: skip
                bias = bias_slot - first  # where column 0 would be, so that all chunks count columns from 0
            for k_start in range(0, geometry.k1, tiles.chunk_k1):  # chunks of weights along k
                k_size = min(tiles.chunk_k1, geometry.k1 - k_start)
                cursor, w_base, w_row, right, right_pixels = load_right_chunk(
                    out, cursor, job, runs, needed, slot_state, group, group_fractals, k_start, k_size, n_start, n_size
                )
                if cursor < 0:
                    return -1
                loaded_a[:], loaded_b[:] = -1, -1  # a new chunk: no tile in L0A or L0B can be used again
                tiles_k = -(-k_size // tiles.tile_k1)
                for tile in range(tiles_m * tiles_n):  # tiles of m and n, in the tiling's order
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
                        l0c = _next_slot(slot_state, C_SLOT, tiles.slot_c, tiles.room_c, -1)
                    for k_tile in range(0, k_size, tiles.tile_k1):  # tiles of k
                        if cursor + ROOM >= capacity:
                            return -1
                        k = min(tiles.tile_k1, k_size - k_tile)
                        first_n, first_k = n_start + n_tile, k_start + k_tile
                        # an n1 without weights still needs one block to set its sums (`target.weights.needed_blocks`)
                        if needed.size and not needed[first_n : first_n + n, first_k : first_k + k].any():
                            continue
                        # left tile, into L0A
                        k_index = k_tile // tiles.tile_k1
                        key, entry_a = tm * _KEY_RADIX + k_tile, (tm * tiles_k + k_index if tiles.n_outer else k_index) if stay_a else 0
                        l0a = address_a[entry_a]
                        if key != loaded_a[entry_a]:
                            l0a = _next_slot(slot_state, A_SLOT, tiles.slot_a, tiles.room_a, -1)
                            loaded_a[entry_a], address_a[entry_a] = key, l0a
                            if several_im2cols:
                                cursor = load_left(out, cursor, job, image_base, l0a, m_start, m, mpad, first_k, k)
                                if cursor < 0:
                                    return -1
                            else:
                                cursor = im2col(
                                    out, cursor, operands.dtype, job.tag, image_base, l0a, block.in_rows, geometry.in_w, geometry.in_pitch,
                                    block.in_plane, geometry.kh, geometry.kw, geometry.sh, geometry.sw, geometry.dh, geometry.dw,
                                    block.pad_top, geometry.pad_left, geometry.out_w, m_start, m, mpad, first_k, k, geometry.lanes,
                                    block.in_ring, block.in_first, operands.pad,
                                )  # fmt: skip
                        # right tile, into L0B
                        key, entry_b = tn * _KEY_RADIX + k_tile, (k_index if tiles.n_outer else tn * tiles_k + k_index) if stay_b else 0
                        l0b = address_b[entry_b]
                        if key != loaded_b[entry_b]:
                            l0b = _next_slot(slot_state, B_SLOT, tiles.slot_b, tiles.room_b, -1)
                            loaded_b[entry_b], address_b[entry_b] = key, l0b
                            if needed.size:
                                source = w_base if job.expansion.packed else w_base + n_tile * w_row + k_tile * geometry.weight_blocks
                                cursor = load_panels(out, cursor, job, needed, panel_places, source, l0b, w_row, first_n, n, first_k, k)
                                if cursor < 0:
                                    return -1
                            elif operands.right == WEIGHTS:
                                source = w_base + n_tile * w_row + k_tile * geometry.weight_blocks
                                run = k * geometry.weight_blocks
                                cursor = copy(out, cursor, operands.dtype, job.tag, MTE1, L1, L0B, source, l0b, run, n, w_row, run, 1, 0, 0)
                            else:
                                cursor = load_pixels(out, cursor, job, l0b, right, right_pixels, n_tile, n, k_tile, k)
                        # products
                        if needed.size:
                            cursor = _products(out, cursor, job, needed, l0a, l0b, l0c, mpad, first_n, n, first_k, k)
                            if cursor < 0:
                                return -1
                            continue
                        cursor = mmad(
                            out, cursor, operands.dtype, job.tag, l0a, l0b, l0c, mpad, k, n, 0 if first_k == 0 else 1, operands.right_type
                        )
                        if has_constants:
                            cursor = _zero_point_products(out, cursor, job, image_base, slot_state, l0a, l0b, l0c, m, mpad, k, n)
                    if k_start + k_size == geometry.k1:  # the sums are complete
                        if cursor + ROOM >= capacity:
                            return -1
                        n_out = group * geometry.n1 + n_start + n_tile
                        cursor = _store(
                            out, cursor, job, bias, scale_after, advance(target, image * block.out_image),
                            advance(residual, image * block.res_image), slot_state, l0c, m_start, m, mpad, n_out,
                            bias_n1 + n_start + n_tile, n,
                        )  # fmt: skip
                        if cursor < 0:
                            return -1
    return cursor


@njit(cache=True)
def _products(
    out: Code, cursor: int, job: ConvJob, needed: Ints, l0a: int, l0b: int, l0c: int, mpad: int, first_n: int, n: int, first_k: int, k: int
) -> int:
    """An MMAD for every panel that `load_panels` has loaded."""
    done = 0
    while done < n:
        if cursor + ROOM >= out.shape[0]:
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
def _zero_point_products(
    out: Code, cursor: int, job: ConvJob, base: int, slot_state: Ints, l0a: int, l0b: int, l0c: int, m: int, mpad: int, k: int, n: int
) -> int:
    """Products of zero points: each operand's tile, at l0a or l0b, times the negated zero point of the other operand.

    A constant of the left operand is an image of padding.  A constant of the right operand is a block of weights, copied to all places of
    its tile.  Constants take a slot other than that of the operand's tile.
    """
    geometry, operands, tiles = job.geometry, job.operands, job.tiles
    for part in range(2):
        byte = operands.left_less_1 if part else operands.left_less
        if byte > 0:
            slot = _next_slot(slot_state, A_SLOT, tiles.slot_a, tiles.room_a, l0a)
            cursor = im2col(
                out, cursor, operands.left_type, job.tag, base, slot, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, geometry.out_w, geometry.out_w, m,
                mpad, 0, k, geometry.lanes, 0, 0, byte,
            )  # fmt: skip
            cursor = mmad(out, cursor, operands.left_type, job.tag, slot, l0b, l0c, mpad, k, n, 1, operands.right_type)
    for part in range(operands.zeros):
        slot = _next_slot(slot_state, B_SLOT, tiles.slot_b, tiles.room_b, l0b)
        zeros, size = job.buffers.zeros_at + part * geometry.weight_blocks, geometry.weight_blocks
        cursor = copy(out, cursor, operands.dtype, job.tag, MTE1, L1, L0B, zeros, slot, size, n * k, 0, size, 1, 0, 0)
        cursor = mmad(out, cursor, operands.dtype, job.tag, l0a, slot, l0c, mpad, k, n, 1, operands.zeros_type)
    return cursor


@njit(cache=True)
def _store(
    out: Code, cursor: int, job: ConvJob, bias: int, scale_after: int, target: TilePlace, residual: TilePlace, slot_state: Ints, l0c: int,
    m_start: int, m: int, mpad: int, n_out: int, n_column: int, n: int,
) -> int:  # fmt: skip
    """Load the residual, convert the sums by FIXPIPE, and copy the result to `target`; -1 if `out` is too short.

    bias: UB block of the bias of column 0; in a chunk of biases, this block may lie in front of the chunk."""
    epilogue, buffers = job.epilogue, job.buffers
    plane, planes = planes_of(job, n_out, n, epilogue.result_lanes)
    bias = bias + n_column * job.geometry.sum_blocks if buffers.bias >= 0 else -1
    scale = bias + scale_after if epilogue.scale_at else -1 if epilogue.sums else 0
    added = -1
    if residual.base >= 0:
        added = buffers.res_1 if slot_state[RES_SLOT] else buffers.res_0
        slot_state[RES_SLOT] ^= 1
        engine = MTE2 if residual.memory == DDR else MTE1
        first, several = planes_of(job, n_out, n, epilogue.residual_lanes)
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
    slot = buffers.out_1 if slot_state[OUT_SLOT] else buffers.out_0
    slot_state[OUT_SLOT] ^= 1
    cursor = fixpipe(out, cursor, job.dtype, job.tag, UB, l0c, slot, bias, added, m, mpad, n, m, m, scale, epilogue)
    return move(out, cursor, job.dtype, job.tag, MTE3, dense(UB, slot, m), 0, target, m_start, plane, planes, m)


@compile_once
@njit(cache=True)
def conv_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records.  Images share weights, so the node of the first image computes all images; right operands that are tensors
    differ per image, so every image has its own records."""
    start, stop = work.computed[node.k, node.t]
    images = 1 if job.operands.right != WEIGHTS else work.together
    if images > 1 and node.member > 0:
        return cursor
    target = locate_result(work, node, start)
    return call_kernel(work.convolution[0], (out, cursor, work, node, job, np.int64(images), start, stop, target, slot_state))


CONVOLUTION = np.zeros(1, np.int64)
"""Address of `conv_part` in this process, which `conv_rows` and fed pools call; 0 before a segment has a convolution."""


def load_convolution(out: Code, work: Work, node: Node, slot_state: Ints) -> None:
    """Compile or load `conv_part`, for arguments of these types."""
    if not CONVOLUTION[0]:
        job, place = record_type(ConvJob), typeof(TilePlace(*[0] * len(TilePlace._fields)))
        arguments = typeof(out), types.int64, Reference(typeof(work)), typeof(node), job, *[types.int64] * 3, place, typeof(slot_state)
        CONVOLUTION[0] = kernel_address(conv_part, arguments)


@njit(cache=True)
def conv_part(
    out: Code, cursor: int, work: Work, node: Node, job: Any, images: int, start: int, stop: int, target: TilePlace, slot_state: Ints
) -> int:
    """Rows [start, stop) of a node, for `images` images from the node's image on.  target: place of row `start` of the result."""
    geometry, tiles, block = job.geometry, job.tiles, job.block
    allocation = work.jobs.reads[work.jobs.read_start[node.k], ALLOCATION]
    height = work.reach[node.k, HEIGHT]
    first_row, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    top = start * geometry.sh - work.reach[node.k, PAD]
    if top >= height:  # every window lies in the padding below the image; equal padding above the image is encodable
        top = -((stop - start - 1) * geometry.sh + (geometry.kh - 1) * geometry.dh + 1)
    # geometry of this block: the input's ring and padding, then the second operand, then steps between images
    source = locate_operand(work, node, 0, first_row)
    block.in_ring = source.back // geometry.in_pitch
    block.in_first = block.in_ring - source.wrap // source.width if source.back else 0
    block.in_base = source.base - block.in_first * geometry.in_pitch
    block.in_rows = work.allocations.rows[allocation, node.t, STOP] - first_row
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
    runs, needed = (
        read_table(work, node, 0, RUN_WORDS),
        mark_multiplied(read_table(work, node, 1, geometry.k1), tiles.chunk_k1, tiles.tile_k1),
    )
    if node.begins and tiles.resident and job.expansion.overlaid > 0:
        cursor = expand_all(
            out, cursor, job.expansion, runs, needed, job.tag, slot_state, job.operands.weights_at, geometry.groups, geometry.k1,
            geometry.n1, job.buffers.weights_0,
        )  # fmt: skip
        if cursor < 0:
            return -1
    return emit_conv(out, cursor, job, runs, needed, target, residual, slot_state)
