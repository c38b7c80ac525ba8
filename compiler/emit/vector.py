"""VECTOR kernels on one block: element-wise chains, pooling, pixels in another order.  Tile in, primitives on UB, tile out.

A tile is some planes by some rows of the block, whole rows: [planes][rows * w] blocks in UB, in one of two slots.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from compiler.emit.records import DDR, FAR, MTE1, MTE2, MTE3, UB, Code, Ints, Place, copy, flat, move, multiply_add, strided
from simulator.npu.isa import Op

_VFILL, _VCOPY, _VMULS, _VADD, _VMAX, _VMUL, _VMADD = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD, Op.VMAX, Op.VMUL, Op.VMADD))
_ITSELF = -2

UB_SLOT = 0  # the one parity these kernels keep


class VectorJob(NamedTuple):
    """An element-wise chain on `rows` rows of `width` blocks and `planes` planes.  slots: UB addresses; one tile after another within."""

    dtype: int
    tag: int
    planes: int
    width: int
    tile_planes: int
    tile_rows: int
    slot_0: int
    slot_1: int
    consts: int  # UB address of scale and shift vectors: [2 * step][planes]
    keeps_input: int
    rows: int = 0


@njit(cache=True)
def load_tile(
    out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, row: int, width: int, planes: int, rows: int, target: int
) -> int:
    """One tile into UB, from DDR or from L1."""
    engine = MTE2 if place.memory == DDR else MTE1
    size = rows * width
    return move(out, at, dtype, tag, engine, place, row * width, Place(UB, target, size, FAR, 0), 0, plane, planes, size)


@njit(cache=True)
def store_tile(
    out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, row: int, width: int, planes: int, rows: int, source: int
) -> int:
    """One tile out of UB, to DDR or to L1."""
    size = rows * width
    return move(out, at, dtype, tag, MTE3, Place(UB, source, size, FAR, 0), 0, place, row * width, plane, planes, size)


@njit(cache=True)
def emit_vector(out: Code, at: int, j: VectorJob, sources: Ints, target: Place, steps: Ints, parity: Ints) -> int:
    """`sources`: int64 [inputs, 6] of Place fields and 1 for an input that is one pixel; `steps`: int64 [s, 6] (see VectorSpec).

    Returns the next row or -1.
    """
    tile_rows = min(j.tile_rows, j.rows)
    inputs = sources.shape[0]
    tile_blocks = j.tile_planes * tile_rows * j.width
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for r in range(0, j.rows, tile_rows):
            rows = min(tile_rows, j.rows - r)
            if at + (2 * inputs + 4 + (steps.shape[0] + 1) * (planes * 2 + tile_blocks // 2040 + 2)) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            for i in range(inputs):
                place = Place(sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3], sources[i, 4])
                width, first, count = (1, 0, 1) if sources[i, 5] else (j.width, r, rows)
                at = load_tile(out, at, j.dtype, j.tag, place, p, first, width, planes, count, slot + i * tile_blocks)
            size = rows * j.width
            v = slot
            if j.keeps_input:
                v = slot + inputs * tile_blocks
                at = flat(out, at, _VCOPY, j.dtype, j.tag, v, slot, -1, -1, 0, 0, planes * size, 0)
            for s in range(steps.shape[0]):
                op, imm, operand = steps[s, 0], steps[s, 1], steps[s, 2]
                if operand >= 0 and operand < inputs and sources[operand, 5]:
                    for plane in range(planes):
                        begin, pixel = v + plane * size, slot + operand * tile_blocks + plane
                        at = flat(out, at, op, j.dtype, j.tag, begin, begin, pixel, -1, 0, 0, size, imm)
                    continue
                if op == _VMADD:
                    scale = j.consts + 2 * s * j.planes + p
                    at = multiply_add(out, at, op, j.dtype, j.tag, v, scale, scale + j.planes, planes, size)
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
            at = store_tile(out, at, j.dtype, j.tag, target, p, r, j.width, planes, rows, v)
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
    counts: int  # UB address for a tile's rows of them
    tile_planes: int
    tile_rows: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_pool(out: Code, at: int, j: PoolJob, source: Place, target: Place, parity: Ints) -> int:
    """Every kernel position is one strided VMAX or VADD over the outputs for which it lies inside the image; padding costs nothing."""
    tile_rows = min(j.tile_rows, j.rows)
    in_rows_max = (tile_rows - 1) * j.sh + j.kh
    in_blocks = j.tile_planes * in_rows_max * j.in_w
    op = _VMAX if j.is_max else _VADD
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for r in range(0, j.rows, tile_rows):
            rows = min(tile_rows, j.rows - r)
            oy = j.first_row + r
            y0 = max(0, oy * j.sh - j.pad_top)
            y1 = min(j.in_h, (oy + rows - 1) * j.sh - j.pad_top + j.kh)
            in_rows = y1 - y0
            size_in, size_out = in_rows * j.in_w, rows * j.out_w
            by_rows = planes * ((rows + 254) // 255)
            by_planes = rows * ((planes + 254) // 255)
            worst = j.kh * j.kw * (j.out_w + 7) // 8 * min(by_rows, by_planes) + 64 + planes * 2
            if at + worst + (planes * (size_in + size_out)) // 1024 >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            acc = slot + in_blocks
            at = load_tile(out, at, j.dtype, j.tag, source, p, y0 - j.in_first, j.in_w, planes, in_rows, slot)
            if j.scale != 0:
                at = flat(out, at, _VMULS, j.dtype, j.tag, slot, slot, -1, -1, 0, 0, planes * size_in, j.scale)
            at = flat(out, at, _VFILL, j.dtype, j.tag, acc, -1, -1, -1, 0, 0, planes * size_out, j.fill)
            for ky in range(j.kh):
                # output rows whose tap ky lies inside [y0, y1)
                top = j.pad_top - ky + y0 - oy * j.sh
                r0 = max(0, (top + j.sh - 1) // j.sh)
                r1 = min(rows, (y1 - 1 + j.pad_top - ky) // j.sh - oy + 1)
                if r1 <= r0:
                    continue
                for kx in range(j.kw):
                    c0 = max(0, (j.pad_left - kx + j.sw - 1) // j.sw)
                    c1 = min(j.out_w, (j.in_w - 1 + j.pad_left - kx) // j.sw + 1)
                    if c1 <= c0:
                        continue
                    src = slot + ((oy + r0) * j.sh - j.pad_top + ky - y0) * j.in_w + c0 * j.sw - j.pad_left + kx
                    dst = acc + r0 * j.out_w + c0
                    if by_rows <= by_planes:
                        for plane in range(planes):
                            d, s = dst + plane * size_out, src + plane * size_in
                            at = strided(
                                out, at, op, j.dtype, j.tag, d, d, s, c1 - c0, r1 - r0, 1, j.out_w, 1, j.out_w, j.sw, j.sh * j.in_w, 0,
                            )  # fmt: skip
                    else:
                        for row in range(r1 - r0):
                            d, s = dst + row * j.out_w, src + row * j.sh * j.in_w
                            at = strided(out, at, op, j.dtype, j.tag, d, d, s, c1 - c0, planes, 1, size_out, 1, size_out, j.sw, size_in, 0)
            if j.counts_at >= 0:
                at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, j.counts_at + oy * j.out_w, j.counts, size_out, 1, 0, 0, 1, 0, 0)
                for plane in range(planes):
                    d = acc + plane * size_out
                    at = flat(out, at, _VMUL, j.dtype, j.tag, d, d, j.counts, -1, 1, 0, size_out, 0)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r, j.out_w, planes, rows, acc)
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
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_reflow(out: Code, at: int, j: ReflowJob, source: Place, target: Place, parity: Ints) -> int:
    tile_rows = min(j.tile_rows, j.rows)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for r in range(0, j.rows, tile_rows):
            rows = min(tile_rows, j.rows - r)
            size = rows * j.width
            if at + 8 + 2 * planes * (size // 2040 + 2) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            first = (j.first_row + r) * j.width - j.before  # the other's pixel that belongs at the tile's first place
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
                inside = Place(UB, slot + begin, size, FAR, 0)
                at = move(out, at, j.dtype, j.tag, engine, source, start - j.in_first, inside, 0, p, planes, stop - start)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r, j.width, planes, rows, slot)
    return at
