"""Emission of pooling: sliding windows, first over their rows and then over their columns, and windows of whole rows.

The maximum of a window is the maximum of its columns' maxima; sums are alike.  The first pass takes kh - 1 operations on all covered
columns, the second pass kw - 1 operations on the results.  Padding costs nothing: an operation skips results whose input is padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, FAR, MTE2, RECORD_BLOCKS, UB, Ints, TilePlace, compile_once, dense, flat, move, strided
from compiler.instructions.node_context import MADE_BY_READER, UB_SLOT, Node, Work, locate_operand, locate_result
from compiler.instructions.repeats import pools_pixelwise
from compiler.instructions.tiles import UbTiles, load_box, next_tile, store_tile
from compiler.instructions.vector_grid import Axes, grid, max_instructions
from compiler.ir.reach import demanded
from simulator.kernel_addresses import call_kernel, pointer_to
from simulator.npu.isa import Op, float_bits
from simulator.npu.program import Code

_VFILL, _VCOPY, _VMULS, _VADD, _VMAX, _VMUL = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD, Op.VMAX, Op.VMUL))
_VMADD, _ONE = int(Op.VMADD), float_bits(1.0)

ROWS, COLUMNS, BOTH = 1, 2, 3  # values of `PoolSpec.passes`
_ROOM = 16  # upper bound of the records that store a tile
GRANULE = 8  # blocks of UB per unit of hazard detection (`schedule.segment_accesses`)


class PoolJob(NamedTuple):
    """Pooling of a node's rows."""

    dtype: int
    tag: int
    tiles: UbTiles
    in_h: int
    in_w: int
    kh: int
    kw: int
    sh: int
    sw: int
    pad_top: int
    pad_left: int
    is_max: int
    passes: int  # `PoolSpec.passes`
    fill: int  # float32 bits of the initial value of results
    scale: int  # float32 bits of the factor before the sum, or 0 if counts are used
    after: int  # float32 bits of the remaining factor, applied after the sum of whole rows; else 0
    counts_at: int  # DDR block of the counts [out_h][out_w], or -1
    counts_pitch: int  # blocks from row to row of the counts in DDR
    counts: int  # UB address of a tile's counts; in a fed pool, of the values between two passes


@njit(cache=True)
def _over_pixels(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, dplane: int, source: int, plane: int, planes: int, pixels: int,
    in_place: bool, factor: int, scale: int,
) -> int:  # fmt: skip
    """target op= all pixels of source, in every plane.  in_place: whether the first eight pixels of source may be overwritten.

    factor: UB address of a block with the pixels' factor, or -1.  scale: the same factor as an immediate, float32 bits.
    """
    first, remainder = pixels, 0
    if in_place and pools_pixelwise(planes, pixels):
        if factor >= 0:
            cursor = strided(
                out, cursor, _VMULS, dtype, tag, source, source, -1, -1, 8, planes, (1, plane), (1, plane), (0, 0), (0, 0), scale
            )
        for i in range(planes):
            begin = source + i * plane
            cursor = _into(out, cursor, op, dtype, tag, begin, begin + 8, 8, pixels // 8 - 1, 1, 1, 8, factor)
        first, remainder = 8, pixels % 8
        cursor = _into(out, cursor, op, dtype, tag, target, source, planes, first, dplane, plane, 1, -1)
    else:
        cursor = _into(out, cursor, op, dtype, tag, target, source, planes, first, dplane, plane, 1, factor)
    if remainder > 0:
        cursor = _into(out, cursor, op, dtype, tag, target, source + pixels - remainder, planes, remainder, dplane, plane, 1, factor)
    return cursor


@compile_once
@njit(cache=True)
def _into(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, source: int, columns: int, times: int, dcol: int, col: int,
    row: int, factor: int,
) -> int:  # fmt: skip
    """target op= source, or target += source * factor: `times` repeats of `columns` blocks.  factor: UB address of a block, or -1."""
    if factor < 0:
        return strided(out, cursor, op, dtype, tag, target, target, source, -1, columns, times, (dcol, 0), (dcol, 0), (col, row), (0, 0), 0)
    return strided(
        out, cursor, _VMADD, dtype, tag, target, source, factor, target, columns, times, (dcol, 0), (col, row), (0, 0), (dcol, 0), 0
    )


class Fold(NamedTuple):
    """Windows along `axis` of a grid: result i covers inputs origin + i * stride + tap, 0 <= tap < taps.  length: number of inputs."""

    axis: int
    taps: int
    origin: int
    stride: int
    length: int
    pitch: int  # blocks from an input to the next


@njit(cache=True)
def _reach(fold: Fold, tap: int, results: int) -> tuple[int, int]:
    """Results [first, end) whose input at `tap` lies inside the image."""
    position = fold.origin + tap
    first = min(results, max(0, -(position // fold.stride)))
    return first, max(first, min(results, (fold.length - 1 - position) // fold.stride + 1))


@compile_once
@njit(cache=True)
def _put(
    out: Code, cursor: int, op: int, dtype: int, tag: int, fold: Fold, shape: Axes, target: int, ds: Axes, source: int, ss: Axes, tap: int,
    base: int, first: int, end: int,
) -> int:  # fmt: skip
    """Results [first, end) = op(input at tap `base`, input at `tap`).  base -1: results op= input at `tap`.  base == tap: a copy."""
    if end <= first:
        return cursor
    shape = (end - first, shape[1], shape[2]) if fold.axis == 0 else (shape[0], end - first, shape[2])
    target += first * ds[fold.axis]
    source += (fold.origin + first * fold.stride) * fold.pitch
    if base == tap:
        return grid(out, cursor, _VCOPY, dtype, tag, shape, target, ds, source + tap * fold.pitch, ss, -1, ss, 0)
    if base < 0:
        return grid(out, cursor, op, dtype, tag, shape, target, ds, target, ds, source + tap * fold.pitch, ss, 0)
    return grid(out, cursor, op, dtype, tag, shape, target, ds, source + base * fold.pitch, ss, source + tap * fold.pitch, ss, 0)


@njit(cache=True)
def _fold(
    out: Code, cursor: int, op: int, dtype: int, tag: int, fill: int, fold: Fold, shape: Axes, target: int, ds: Axes, source: int, ss: Axes
) -> int:
    """Dense target from source.  The first operation combines two taps, one of them inside the image for all results.  Without such a
    tap, the target is filled with `fill` first."""
    results = shape[fold.axis]
    base, partner, widest = -1, -1, 0
    for tap in range(fold.taps):
        first, end = _reach(fold, tap, results)
        if base < 0 and end - first == results:
            base = tap
        elif end - first > widest:
            partner, widest = tap, end - first
    if base < 0:
        partner = -1
        cursor = flat(out, cursor, _VFILL, dtype, tag, target, -1, -1, -1, 0, 0, shape[0] * shape[1] * shape[2], fill)
    else:
        first, end = _reach(fold, partner, results) if partner >= 0 else (results, results)
        cursor = _put(out, cursor, op, dtype, tag, fold, shape, target, ds, source, ss, base, base, 0, first)
        cursor = _put(out, cursor, op, dtype, tag, fold, shape, target, ds, source, ss, partner, base, first, end)
        cursor = _put(out, cursor, op, dtype, tag, fold, shape, target, ds, source, ss, base, base, end, results)
    for tap in range(fold.taps):
        if tap != base and tap != partner:
            first, end = _reach(fold, tap, results)
            cursor = _put(out, cursor, op, dtype, tag, fold, shape, target, ds, source, ss, tap, -1, first, end)
    return cursor


@njit(cache=True)
def _max_fold_instructions(taps: int, inner: int, middle: int, outer: int) -> int:
    """Upper bound of the instructions of a fold."""
    return (taps + 3) * max_instructions(inner, middle, outer) + inner * middle * outer // RECORD_BLOCKS + 2


@njit(cache=True)
def _slide(
    out: Code, cursor: int, job: PoolJob, oy: int, rows: int, first_column: int, columns: int, y0: int, in_rows: int, wide: int,
    planes: int, slot: int, in_plane: int, first_pass: int, acc: int,
) -> int:  # fmt: skip
    """Results [planes][rows][columns] at `acc`, from result row `oy` on.

    slot: address of the input [planes][in_rows][wide] from row y0 on.  in_plane: blocks from plane to plane of the input.  first_column:
    column of the first window in the slot.  first_pass: address of the values between two passes.
    """
    op, size_out = _VMAX if job.is_max else _VADD, rows * columns
    source, plane = slot, in_plane
    if job.passes & ROWS:
        fold = Fold(1, job.kh, oy * job.sh - job.pad_top - y0, job.sh, in_rows, wide)
        shape, source, plane = (wide, rows, planes), first_pass, rows * wide
        cursor = _fold(
            out, cursor, op, job.dtype, job.tag, job.fill, fold, shape, source, (1, wide, plane), slot, (1, job.sh * wide, in_plane)
        )
    if job.passes & COLUMNS:
        fold = Fold(0, job.kw, first_column, job.sw, wide, 1)
        shape = (columns, rows, planes)
        cursor = _fold(
            out, cursor, op, job.dtype, job.tag, job.fill, fold, shape, acc, (1, columns, size_out), source, (job.sw, wide, plane)
        )
    return cursor


@njit(cache=True)
def emit_pool(out: Code, cursor: int, job: PoolJob, source: TilePlace, target: TilePlace, slot_state: Ints) -> int:
    """Emit all tiles.  Windows of whole rows are pooled by repeats (`compiler.instructions.repeats`).  Returns the next row or -1.

    A slot of UB holds the pixels under the windows of a tile, then the values between two passes.  Results of the second pass overwrite the
    pixels.  Results of a single pass lie behind the pixels.
    """
    tiles = job.tiles
    has_rows = tiles.tile_columns >= tiles.width  # whether tiles have all columns
    in_rows_max = (min(tiles.tile_rows, tiles.rows) - 1) * job.sh + job.kh
    in_columns_max = job.in_w if has_rows else min(job.in_w, (tiles.tile_columns - 1) * job.sw + job.kw)
    in_blocks = tiles.tile_planes * in_rows_max * (max(in_columns_max, tiles.tile_columns) if job.passes == BOTH else in_columns_max)
    op = _VMAX if job.is_max else _VADD
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        p, planes, rows, c, columns, slot = tile.plane, tile.planes, tile.rows, tile.column, tile.columns, tile.slot
        oy = tiles.first_row + tile.row
        y0 = max(0, oy * job.sh - job.pad_top)
        y1 = min(job.in_h, (oy + rows - 1) * job.sh - job.pad_top + job.kh)
        x0, x1 = 0, job.in_w
        if not has_rows:
            x0 = min(job.in_w - 1, max(0, c * job.sw - job.pad_left))
            x1 = max(x0 + 1, min(job.in_w, (c + columns - 1) * job.sw - job.pad_left + job.kw))
        # upper bound of the records of the tile
        in_rows, wide = y1 - y0, x1 - x0
        size_in, size_out = in_rows * wide, tile.size
        origin_x = c * job.sw - job.pad_left
        whole_rows = columns == 1 and origin_x <= x0 and origin_x + job.kw >= x1 and (rows == 1 or wide > 1)
        pooling = rows * (planes + 7) * (3 + job.kh * wide // 255)
        if not whole_rows:
            pooling = _max_fold_instructions(job.kh, wide, rows, planes) + _max_fold_instructions(job.kw, columns, rows, planes)
        worst = pooling + 64 + planes * 3 + 2 * in_rows
        if cursor + worst + (planes * (size_in + size_out)) // 1024 >= out.shape[0]:
            return -1
        scratch = slot + in_blocks
        acc = slot if job.passes == BOTH and not whole_rows else scratch
        cursor = load_box(out, cursor, job.dtype, job.tag, source, p, y0 - tiles.in_first, in_rows, job.in_w, x0, wide, planes, slot)
        # factor before the sum, windows, factor after the sum or counts of pixels
        added = whole_rows and job.after != 0
        if job.scale != 0 and not added:
            cursor = flat(out, cursor, _VMULS, job.dtype, job.tag, slot, slot, -1, -1, 0, 0, planes * size_in, job.scale)
        if whole_rows:
            cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, acc, -1, -1, -1, 0, 0, planes * size_out, job.fill)
            factor = -1
            if added:
                factor = acc + planes * size_out
                cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, factor, -1, -1, -1, 0, 0, 1, job.scale)
            for row in range(rows):
                top = (oy + row) * job.sh - job.pad_top
                first_row, stop_row = max(y0, top), min(y1, top + job.kh)
                x, pixels = slot + (first_row - y0) * wide, (stop_row - first_row) * wide
                in_place = rows == 1 or job.sh >= job.kh
                cursor = _over_pixels(
                    out, cursor, op, job.dtype, job.tag, acc + row, size_out, x, size_in, planes, pixels, in_place, factor, job.scale
                )
            if added and job.after != _ONE:
                cursor = flat(out, cursor, _VMULS, job.dtype, job.tag, acc, acc, -1, -1, 0, 0, planes * size_out, job.after)
        else:
            cursor = _slide(out, cursor, job, oy, rows, origin_x - x0, columns, y0, in_rows, wide, planes, slot, size_in, scratch, acc)
        if job.counts_at >= 0:
            first = job.counts_at + oy * job.counts_pitch + c
            ddr_counts, ub_counts = TilePlace(DDR, first, 0, FAR, 0, columns, job.counts_pitch - columns), dense(UB, job.counts, 0)
            cursor = move(out, cursor, job.dtype, job.tag, MTE2, ddr_counts, 0, ub_counts, 0, 0, 1, size_out)
            for plane in range(planes):
                d = acc + plane * size_out
                cursor = flat(out, cursor, _VMUL, job.dtype, job.tag, d, d, job.counts, -1, 1, 0, size_out, 0)
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, tile.first, size_out, planes, acc)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def pool_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first
    return emit_pool(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), slot_state)


@njit(cache=True)
def fed_plane(rows: int, columns: int) -> int:
    """Blocks from plane to plane of a fed slot with `rows` rows; the first new row begins a granule."""
    return (rows * columns + 2 * GRANULE - 1) // GRANULE * GRANULE


@compile_once
@njit(cache=True)
def fed_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """Records of a fed pool on a node, and of the convolutions that feed it (`segment.pool_fusion`).

    A slot holds the pixels under the windows of a tile, and the tile's results.  Values between two passes have a separate buffer, so that
    FIXPIPE does not wait for the second pass.  FIXPIPE's first block of a plane begins a new granule behind the copied rows, so that
    FIXPIPE and VECTOR do not wait for each other.
    """
    start, stop = work.computed[node.k, node.t]
    tiles = job.tiles
    storage, plane, _, _, _, _ = work.jobs.reads[work.jobs.read_start[node.k]]
    target = locate_result(work, node, start)
    in_plane = fed_plane((tiles.tile_rows - 1) * job.sh + job.kh, max(job.in_w, tiles.width))
    ready_rows = last = np.int64(0)  # input rows in UB so far, and the block of plane 0 behind them
    for oy in range(start, stop, tiles.tile_rows):
        rows = min(tiles.tile_rows, stop - oy)
        y0, y1 = max(0, oy * job.sh - job.pad_top), min(job.in_h, (oy + rows - 1) * job.sh - job.pad_top + job.kh)
        size_out = rows * tiles.width
        slot = tiles.slot_1 if slot_state[UB_SLOT] else tiles.slot_0
        slot_state[UB_SLOT] ^= 1
        pooling = (
            _max_fold_instructions(job.kh, job.in_w, rows, tiles.planes)
            + _max_fold_instructions(job.kw, tiles.width, rows, tiles.planes)
            + max_instructions(job.in_w * (y1 - y0), 1, tiles.planes)
        )
        if cursor + pooling + _ROOM >= out.shape[0]:
            return -1
        # rows of the previous tile are copied; the convolutions compute the other rows
        old = max(0, ready_rows - y0) * job.in_w
        to = slot + -old % GRANULE
        if old > 0:
            strides = (1, 0, in_plane)
            cursor = grid(out, cursor, _VCOPY, job.dtype, job.tag, (old, 1, tiles.planes), to, strides, last - old, strides, -1, strides, 0)
        first = max(y0, ready_rows)
        for producer in range(node.k):
            feeds = work.jobs.writes[producer, 0] == storage and plane <= work.jobs.writes[producer, 1] < plane + tiles.planes
            if y1 > first and feeds and work.jobs.pool_roles[producer] == MADE_BY_READER:
                into = to + old + (work.jobs.writes[producer, 1] - plane) * in_plane
                conv_job = pointer_to(work.jobs.records, work.jobs.kind[producer, 1])
                conv_node, place = Node(producer, node.t, node.image, node.iteration, False, node.member), dense(UB, into, in_plane)
                cursor = call_kernel(
                    work.convolution[0], (out, cursor, work, conv_node, conv_job, np.int64(1), first, y1, place, slot_state)
                )
                if cursor < 0:
                    return -1
        if cursor + pooling + _ROOM >= out.shape[0]:
            return -1
        ready_rows, last = y1, to + (y1 - y0) * job.in_w
        acc = slot + tiles.planes * in_plane
        first_pass = job.counts if job.passes == BOTH else acc
        if job.scale != 0:
            n_new, strides = ((y1 - y0) * job.in_w, 1, tiles.planes), (1, 0, in_plane)
            cursor = grid(out, cursor, _VMULS, job.dtype, job.tag, n_new, to, strides, to, strides, -1, strides, job.scale)
        cursor = _slide(
            out, cursor, job, oy, rows, -job.pad_left, tiles.width, y0, y1 - y0, job.in_w, tiles.planes, to, in_plane, first_pass, acc
        )
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, 0, (oy - start) * tiles.width, size_out, tiles.planes, acc)
    return cursor
