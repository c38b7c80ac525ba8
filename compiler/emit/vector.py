"""VECTOR kernels on one block: element-wise chains, pooling, pixels in another order.  Tile in, primitives on UB, tile out.

A tile is some planes by some rows of the block, [planes][rows * w] blocks in UB, in one of two slots; or, where not even one row fits, by
some columns of one row: pixels that lie side by side in either case.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from compiler.emit.records import DDR, FAR, MTE1, MTE2, MTE3, UB, Code, Ints, Place, copy, dense, flat, move, multiply_add, strided
from compiler.tile.whole_rows import pixelwise
from simulator.npu.isa import Op

_VFILL, _VCOPY, _VMULS, _VADD, _VMAX, _VMUL, _VMADD = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD, Op.VMAX, Op.VMUL, Op.VMADD))
_ITSELF = -2

UB_SLOT = 0  # the one parity these kernels keep


class VectorJob(NamedTuple):
    """An element-wise chain on `rows` rows of `width` blocks and `planes` planes.  slots: UB addresses; one tile after another within.

    consts: UB address of scale and shift vectors, [2 * step][planes]; where it fetches them itself, [2 * step][tile_planes].
    """

    dtype: int
    tag: int
    planes: int
    width: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    fetches: int
    keeps_input: int
    rows: int = 0


@njit(cache=True)
def load_tile(out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, first: int, size: int, planes: int, target: int) -> int:
    """`size` pixels from the block's `first` on of every plane into UB, from DDR or from L1."""
    engine = MTE2 if place.memory == DDR else MTE1
    return move(out, at, dtype, tag, engine, place, first, dense(UB, target, size), 0, plane, planes, size)


@njit(cache=True)
def load_box(
    out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, row: int, rows: int, width: int, first: int, columns: int,
    planes: int, target: int,
) -> int:  # fmt: skip
    """Columns [first, first + columns) of some rows of `width` blocks; tile: [planes][rows][columns]."""
    if columns == width:
        return load_tile(out, at, dtype, tag, place, plane, row * width, rows * width, planes, target)
    engine, size = MTE2 if place.memory == DDR else MTE1, rows * columns
    for i in range(rows):
        into = dense(UB, target + i * columns, size)
        at = move(out, at, dtype, tag, engine, place, (row + i) * width + first, into, 0, plane, planes, columns)
    return at


@njit(cache=True)
def store_tile(out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, first: int, size: int, planes: int, source: int) -> int:
    """One tile out of UB, to DDR or to L1."""
    return move(out, at, dtype, tag, MTE3, dense(UB, source, size), 0, place, first, plane, planes, size)


@njit(cache=True)
def tiles(rows: int, tile_rows: int, width: int, tile_columns: int) -> tuple[int, int, int]:
    """(tiles, those of a row, rows of a tile) of a block's pixels."""
    across = (width + tile_columns - 1) // tile_columns
    high = min(tile_rows, rows) if across == 1 else 1
    return (rows + high - 1) // high * across, across, high


@njit(cache=True)
def emit_vector(out: Code, at: int, j: VectorJob, sources: Ints, target: Place, steps: Ints, parity: Ints) -> int:
    """`sources`: int64 [inputs, 8] of Place fields and 1 for an input that is one pixel; `steps`: int64 [s, 6] (see VectorSpec).

    Returns the next row or -1.
    """
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    inputs = sources.shape[0]
    tile_blocks = j.tile_planes * tile_rows * j.tile_columns
    deep = j.tile_planes if j.fetches else j.planes
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        if at + 2 * steps.shape[0] >= out.shape[0]:
            return -1
        for s in range(steps.shape[0] if j.fetches else 0):
            if steps[s, 0] == _VMADD:
                for side in range(2):
                    here, source = j.consts + (2 * s + side) * deep, steps[s, 3 + side] + p
                    at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, source, here, planes, 1, 0, 0, 1, 0, 0)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.width - c)
            if at + (2 * inputs + 4 + (steps.shape[0] + 1) * (planes * 2 + tile_blocks // 2040 + 2)) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            size = rows * columns
            for i in range(inputs):
                of = sources[i]
                place = Place(of[0], of[1], of[2], of[3], of[4], of[5], of[6])
                first, pixels = (0, 1) if of[7] else (r * j.width + c, size)
                at = load_tile(out, at, j.dtype, j.tag, place, p, first, pixels, planes, slot + i * tile_blocks)
            v = slot
            if j.keeps_input:
                v = slot + inputs * tile_blocks
                at = flat(out, at, _VCOPY, j.dtype, j.tag, v, slot, -1, -1, 0, 0, planes * size, 0)
            for s in range(steps.shape[0]):
                op, imm, operand = steps[s, 0], steps[s, 1], steps[s, 2]
                if operand >= 0 and operand < inputs and sources[operand, 7]:
                    for plane in range(planes):
                        begin, pixel = v + plane * size, slot + operand * tile_blocks + plane
                        at = flat(out, at, op, j.dtype, j.tag, begin, begin, pixel, -1, 0, 0, size, imm)
                    continue
                if op == _VMADD:
                    scale = j.consts + 2 * s * deep + (0 if j.fetches else p)
                    at = multiply_add(out, at, op, j.dtype, j.tag, v, scale, scale + deep, planes, size)
                    continue
                target_at, first, other, step = v, v, -1, 0
                if operand >= 0:
                    other, step = slot + operand * tile_blocks, 1
                    if op == _VCOPY:
                        if steps[s, 5]:
                            target_at, other = other, -1
                        else:
                            first, other = other, -1
                    elif steps[s, 5]:
                        first, other = other, v
                elif operand == _ITSELF:
                    other, step = v, 1
                at = flat(out, at, op, j.dtype, j.tag, target_at, first, other, -1, step, 0, planes * size, imm)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, v)
    return at


class PoolJob(NamedTuple):
    """Pooling of `rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`."""

    dtype: int
    tag: int
    planes: int
    out_w: int
    in_h: int
    in_w: int
    kh: int
    kw: int
    sh: int
    sw: int
    pad_top: int
    pad_left: int
    is_max: int
    fill: int  # float32 bits that the accumulator starts from
    scale: int  # float32 bits of the factor before the sum, or 0 where counts are used
    counts_at: int  # DDR blocks [out_h][out_w], or -1
    counts_pitch: int  # from row to row of them
    counts: int  # UB address for a tile's rows of them
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def _over_pixels(
    out: Code, at: int, op: int, dtype: int, tag: int, d: int, dplane: int, x: int, plane: int, planes: int, pixels: int, apart: bool
) -> int:
    """d op= all pixels of x, in every plane; apart: the first eight pixels of x may be overwritten."""
    first, rest = pixels, 0
    if apart and pixelwise(planes, pixels):
        for i in range(planes):
            begin = x + i * plane
            at = strided(out, at, op, dtype, tag, begin, begin, begin + 8, 8, pixels // 8 - 1, 1, 0, 1, 0, 1, 8, 0)
        first, rest = 8, pixels % 8
    at = strided(out, at, op, dtype, tag, d, d, x, planes, first, dplane, 0, dplane, 0, plane, 1, 0)
    if rest > 0:
        at = strided(out, at, op, dtype, tag, d, d, x + pixels - rest, planes, rest, dplane, 0, dplane, 0, plane, 1, 0)
    return at


@njit(cache=True)
def emit_pool(out: Code, at: int, j: PoolJob, source: Place, target: Place, parity: Ints) -> int:
    """Every kernel position is one strided VMAX or VADD over the outputs for which it lies inside the image; padding costs nothing.

    Windows of whole rows of the image, one beside the other, are pooled by repeats (`compiler.tile.whole_rows`).
    """
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    in_rows_max = (tile_rows - 1) * j.sh + j.kh
    in_columns_max = j.in_w if across == 1 else min(j.in_w, (j.tile_columns - 1) * j.sw + j.kw)
    in_blocks = j.tile_planes * in_rows_max * in_columns_max
    op = _VMAX if j.is_max else _VADD
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.out_w - c)
            oy = j.first_row + r
            y0 = max(0, oy * j.sh - j.pad_top)
            y1 = min(j.in_h, (oy + rows - 1) * j.sh - j.pad_top + j.kh)
            x0, x1 = 0, j.in_w
            if across > 1:
                x0 = min(j.in_w - 1, max(0, c * j.sw - j.pad_left))
                x1 = max(x0 + 1, min(j.in_w, (c + columns - 1) * j.sw - j.pad_left + j.kw))
            in_rows, wide = y1 - y0, x1 - x0
            size_in, size_out = in_rows * wide, rows * columns
            by_rows = planes * ((rows + 254) // 255)
            by_planes = rows * ((planes + 254) // 255)
            column = wide == 1 and columns == 1  # of a signal: its rows lie side by side as columns do
            strips = (rows + 7) // 8 * ((planes + 254) // 255) if column else (columns + 7) // 8 * min(by_rows, by_planes)
            left = c * j.sw - j.pad_left
            whole = columns == 1 and left <= x0 and left + j.kw >= x1 and (rows == 1 or not column)
            pooling = rows * (planes + 7) * (3 + j.kh * wide // 255) if whole else j.kh * j.kw * strips
            worst = pooling + 64 + planes * 2 + 2 * in_rows
            if at + worst + (planes * (size_in + size_out)) // 1024 >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            acc = slot + in_blocks
            at = load_box(out, at, j.dtype, j.tag, source, p, y0 - j.in_first, in_rows, j.in_w, x0, wide, planes, slot)
            if j.scale != 0:
                at = flat(out, at, _VMULS, j.dtype, j.tag, slot, slot, -1, -1, 0, 0, planes * size_in, j.scale)
            at = flat(out, at, _VFILL, j.dtype, j.tag, acc, -1, -1, -1, 0, 0, planes * size_out, j.fill)
            for row in range(rows if whole else 0):
                top = (oy + row) * j.sh - j.pad_top
                above, below = max(y0, top), min(y1, top + j.kh)
                x, pixels = slot + (above - y0) * wide, (below - above) * wide
                at = _over_pixels(out, at, op, j.dtype, j.tag, acc + row, size_out, x, size_in, planes, pixels, rows == 1 or j.sh >= j.kh)
            for ky in range(0 if whole else j.kh):
                # output rows whose tap ky lies inside [y0, y1)
                top = j.pad_top - ky + y0 - oy * j.sh
                r0 = max(0, (top + j.sh - 1) // j.sh)
                r1 = min(rows, (y1 - 1 + j.pad_top - ky) // j.sh - oy + 1)
                if r1 <= r0:
                    continue
                for kx in range(j.kw):
                    c0 = max(0, (j.pad_left - kx + j.sw - 1) // j.sw - c)
                    c1 = min(columns, (j.in_w - 1 + j.pad_left - kx) // j.sw + 1 - c)
                    if c1 <= c0:
                        continue
                    src = slot + ((oy + r0) * j.sh - j.pad_top + ky - y0) * wide + (c + c0) * j.sw - j.pad_left + kx - x0
                    dst = acc + r0 * columns + c0
                    if column:
                        at = strided(
                            out, at, op, j.dtype, j.tag, dst, dst, src, r1 - r0, planes, 1, size_out, 1, size_out, j.sh, size_in, 0,
                        )  # fmt: skip
                    elif by_rows <= by_planes:
                        for plane in range(planes):
                            d, s = dst + plane * size_out, src + plane * size_in
                            at = strided(
                                out, at, op, j.dtype, j.tag, d, d, s, c1 - c0, r1 - r0, 1, columns, 1, columns, j.sw, j.sh * wide, 0,
                            )  # fmt: skip
                    else:
                        for row in range(r1 - r0):
                            d, s = dst + row * columns, src + row * j.sh * wide
                            at = strided(out, at, op, j.dtype, j.tag, d, d, s, c1 - c0, planes, 1, size_out, 1, size_out, j.sw, size_in, 0)
            if j.counts_at >= 0:
                first = j.counts_at + oy * j.counts_pitch + c
                here, there = Place(DDR, first, 0, FAR, 0, columns, j.counts_pitch - columns), dense(UB, j.counts, 0)
                at = move(out, at, j.dtype, j.tag, MTE2, here, 0, there, 0, 0, 1, size_out)
                for plane in range(planes):
                    d = acc + plane * size_out
                    at = flat(out, at, _VMUL, j.dtype, j.tag, d, d, j.counts, -1, 1, 0, size_out, 0)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.out_w + c, size_out, planes, acc)
    return at


class ReflowJob(NamedTuple):
    """`rows` rows of `width` pixels from row `first_row` on, of an image that is the `pixels` pixels of another after `before` zeros.

    in_first: the pixel of the other that lies at `source.base`.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    before: int
    pixels: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_reflow(out: Code, at: int, j: ReflowJob, source: Place, target: Place, parity: Ints) -> int:
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            if at + 8 + 2 * planes * (size // 2040 + 2) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            first = (j.first_row + r) * j.width + c - j.before  # the other's pixel that belongs at the tile's first place
            start, stop = max(0, first), min(j.pixels, first + size)
            if start >= stop:
                at = flat(out, at, _VFILL, j.dtype, j.tag, slot, -1, -1, -1, 0, 0, planes * size, 0)
            else:
                begin, left = start - first, first + size - stop
                for plane in range(planes if begin + left > 0 else 0):
                    d = slot + plane * size
                    if begin > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d, -1, -1, -1, 0, 0, begin, 0)
                    if left > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d + size - left, -1, -1, -1, 0, 0, left, 0)
                engine = MTE2 if source.memory == DDR else MTE1
                inside = dense(UB, slot + begin, size)
                at = move(out, at, j.dtype, j.tag, engine, source, start - j.in_first, inside, 0, p, planes, stop - start)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, slot)
    return at
