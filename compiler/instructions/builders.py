"""Builders of single records, inlined into the emission kernels.  Only these functions write the words of a record.

`out` holds records; `cursor` is the index of the next record.  Every builder returns the cursor behind its record.  src, dst: memories.
source, target, l0a, l0b, l0c: blocks in these memories.  m, n1, k: rows, columns in fractals and blocks of k of a matrix product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code

Ints = NDArray[np.int64]
Steps = tuple[int, int]

RECORD_BLOCKS = MAX_REPEATS * REPEAT_BLOCKS  # most blocks of one flat VECTOR record
DDR, L1, L0A, L0B, L0C, UB, SHARED = (int(m) for m in Memory)
MTE2, MTE1, CUBE, FIXPIPE_ENGINE, VECTOR, MTE3 = (int(e) for e in list(Engine)[:6])
_COPY, _IM2COL, _FRACTAL, _MMAD, _FIXPIPE = int(Op.COPY), int(Op.IM2COL), int(Op.FRACTAL), int(Op.MMAD), int(Op.FIXPIPE)
FAR = 1 << 30  # distance to the end of a ring, for places without a ring
OP, ENGINE, DTYPE, TAG, SRC, DST = isa.OP, isa.ENGINE, isa.DTYPE, isa.TAG, isa.SRC, isa.DST
D, S0, S1, S2, P = isa.D, isa.S0, isa.S1, isa.S2, isa.P
I_H, I_W, I_PITCH, I_PLANE, I_KH, I_KW = range(isa.I_H, isa.I_KW + 1)
I_SH, I_SW, I_DH, I_DW, I_PT, I_PL = range(isa.I_SH, isa.I_PL + 1)
I_OW, I_MOFF, I_M, I_MPAD, I_KOFF, I_K, I_LANES, I_RING, I_FIRST = range(isa.I_OW, isa.I_FIRST + 1)


def compile_once(kernel: Any) -> Any:
    """Compile a kernel once for all callers: numba would compile it again for every combination of constant arguments."""
    resolve = kernel.get_call_template

    def without_constants(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return resolve(tuple(types.unliteral(arg) for arg in arguments), {name: types.unliteral(arg) for name, arg in keywords.items()})

    kernel.get_call_template = without_constants
    return kernel


# For kernels with a segment's tables as arguments: a call copies every array and counts references, which took half of a node's time.
# And for builders, which are called in many places: numba's own inlining would type and lower each copy.
inlined = njit(cache=True, forceinline=True)


@compile_once
@inlined
def _begun(
    out: Code, cursor: int, op: int, engine: int, dtype: int, tag: int, src: int, dst: int, target: int, s0: int, s1: int, s2: int
) -> NDArray[np.int32]:
    """A record with the words that all records have; its parameters are 0."""
    row = out[cursor]
    row[:] = 0
    row[OP] = op
    row[ENGINE] = engine
    row[DTYPE] = dtype
    row[TAG] = tag
    row[SRC] = src
    row[DST] = dst
    row[D] = target
    row[S0] = s0
    row[S1] = s1
    row[S2] = s2
    return row


@compile_once
@inlined
def copy(
    out: Code, cursor: int, dtype: int, tag: int, engine: int, src: int, dst: int, source: int, target: int, length: int, count: int,
    sstride: int, dstride: int, count2: int, sstride2: int, dstride2: int,
) -> int:  # fmt: skip
    """COPY: count2 x count runs of `length` blocks.  Adjacent runs are joined, because bursts are timed by their length."""
    if count > 1 and sstride == length and dstride == length:
        length *= count
        count = 1
    if count == 1 and count2 > 1:
        count, sstride, dstride = count2, sstride2, dstride2
        count2 = 1
        if sstride == length and dstride == length:
            length *= count
            count = 1
    row = _begun(out, cursor, _COPY, engine, dtype, tag, src, dst, target, source, -1, -1)
    row[P] = length
    row[P + 1] = count
    row[P + 2] = sstride
    row[P + 3] = dstride
    row[P + 4] = count2
    row[P + 5] = sstride2
    row[P + 6] = dstride2
    return cursor + 1


class TilePlace(NamedTuple):
    """Address of rows of a tensor.  memory: DDR, L1 or UB.  base: block of plane 0 and the first row.  plane: blocks per plane.

    width: blocks of a row.  gap: other blocks between two rows; 0 for whole rows.  wrap, back: in a ring of rows, blocks from number `wrap`
    on lie `back` blocks lower; without a ring, back is 0.
    """

    memory: int
    base: int
    plane: int
    wrap: int
    back: int
    width: int
    gap: int


@compile_once
@njit(cache=True)
def dense(memory: int, base: int, plane: int) -> TilePlace:
    """Address whose planes are contiguous."""
    return TilePlace(memory, base, plane, FAR, 0, FAR, 0)


@compile_once
@njit(cache=True)
def advance(place: TilePlace, blocks: int) -> TilePlace:
    """Address `blocks` blocks behind."""
    return TilePlace(place.memory, place.base + blocks, place.plane, place.wrap, place.back, place.width, place.gap)


@compile_once
@njit(cache=True)
def before_wrap(place: TilePlace, offset: int, length: int) -> int:
    """Number of the `length` blocks from `offset` on that lie before the end of a ring."""
    return min(length, place.wrap - offset) if offset < place.wrap else length


@compile_once
@njit(cache=True)
def side_by_side(place: TilePlace, offset: int, length: int) -> int:
    """Number of the `length` blocks from `offset` on that are contiguous."""
    run = before_wrap(place, offset, length)
    return min(run, place.width - offset % place.width) if place.gap else run


@compile_once
@njit(cache=True)
def block_at(place: TilePlace, plane: int, offset: int) -> int:
    """The block `offset` blocks behind the first block of the first row, in a plane."""
    block = place.base + plane * place.plane + offset + (offset // place.width * place.gap if place.gap else 0)
    return block - place.back if offset >= place.wrap else block


@compile_once
@njit(cache=True)
def move(
    out: Code, cursor: int, dtype: int, tag: int, engine: int, source: TilePlace, source_offset: int, target: TilePlace, target_offset: int,
    plane: int, planes: int, length: int,
) -> int:  # fmt: skip
    """Write a move of `length` blocks per plane, from source_offset to target_offset; it is split in two at the end of a ring.

    plane: first plane in DDR and L1; UB has only the planes of the tile.
    """
    done = 0
    while done < length:
        run, rows = joined_rows(source, source_offset + done, target, target_offset + done, length - done)
        from_ = block_at(source, 0 if source.memory == UB else plane, source_offset + done)
        to = block_at(target, 0 if target.memory == UB else plane, target_offset + done)
        cursor = copy_rows(out, cursor, dtype, tag, engine, source, target, from_, to, run, rows, planes)
        done += run * rows
    return cursor


@compile_once
@njit(cache=True)
def joined_rows(source: TilePlace, source_offset: int, target: TilePlace, target_offset: int, length: int) -> tuple[int, int]:
    """(run, rows) of the next COPY: it moves `rows` rows of `run` blocks, at most `length` blocks; rows with gaps have equal widths."""
    run = side_by_side(source, source_offset, side_by_side(target, target_offset, length))
    if not source.gap and not target.gap:
        return run, 1
    blocks = before_wrap(source, source_offset, before_wrap(target, target_offset, length))
    width = source.width if source.gap else target.width
    return run, blocks // width if run == width else 1


@compile_once
@njit(cache=True)
def copy_rows(
    out: Code, cursor: int, dtype: int, tag: int, engine: int, source: TilePlace, target: TilePlace, from_: int, to: int, run: int,
    rows: int, planes: int,
) -> int:  # fmt: skip
    """COPY of the blocks that `joined_rows` returned, in `planes` planes."""
    if rows == 1:
        return copy(
            out, cursor, dtype, tag, engine, source.memory, target.memory, from_, to, run, planes, source.plane, target.plane, 1, 0, 0
        )
    return copy(
        out, cursor, dtype, tag, engine, source.memory, target.memory, from_, to, run, rows, run + source.gap, run + target.gap, planes,
        source.plane, target.plane,
    )  # fmt: skip


@compile_once
@inlined
def fractal(
    out: Code, cursor: int, dtype: int, tag: int, base: int, target: int, plane: int, pixels: int, k: int, n1: int, transpose: int
) -> int:
    row = _begun(out, cursor, _FRACTAL, MTE1, dtype, tag, L1, L0B, target, base, -1, -1)
    row[P] = plane
    row[P + 1] = pixels
    row[P + 2] = k
    row[P + 3] = n1
    row[P + 4] = transpose
    return cursor + 1


@compile_once
@inlined
def mmad(
    out: Code, cursor: int, dtype: int, tag: int, l0a: int, l0b: int, l0c: int, mpad: int, k: int, n1: int, acc: int, right: int
) -> int:
    row = _begun(out, cursor, _MMAD, CUBE, dtype, tag, L0A, L0C, l0c, l0a, l0b, -1)
    row[P] = mpad
    row[P + 1] = k
    row[P + 2] = n1
    row[P + 3] = acc
    row[P + 4] = right
    return cursor + 1


@compile_once
@inlined
def fixpipe(
    out: Code, cursor: int, dtype: int, tag: int, dst: int, source: int, target: int, bias: int, residual: int, m: int, mpad: int, n1: int,
    dplane: int, rplane: int, scale: int, epilogue: Any,
) -> int:  # fmt: skip
    """FIXPIPE.  dplane, rplane: blocks per plane of the result and of the residual.  epilogue: a `conv_job.ConvEpilogue`."""
    row = _begun(out, cursor, _FIXPIPE, epilogue.engine, dtype, tag, L0C, dst, target, source, bias, residual)
    row[P] = m
    row[P + 1] = mpad
    row[P + 2] = n1
    row[P + 3] = dplane
    row[P + 4] = rplane
    row[P + 5] = epilogue.act
    row[P + 6] = epilogue.limit
    row[P + 7] = epilogue.sums
    row[P + 8] = scale
    row[P + 9] = epilogue.zero
    row[P + 10] = epilogue.low
    row[P + 11] = epilogue.high
    row[isa.F_RTYPE] = epilogue.added
    row[isa.F_OWN] = epilogue.sum_factor
    row[isa.F_OTHER] = epilogue.residual_factor
    row[isa.F_FIXED] = epilogue.fixed
    row[isa.F_LAST] = epilogue.last
    return cursor + 1


@compile_once
@inlined
def im2col(
    out: Code, cursor: int, dtype: int, tag: int, base: int, target: int, height: int, width: int, pitch: int, plane: int, kh: int, kw: int,
    sh: int, sw: int, dh: int, dw: int, pt: int, pl: int, ow: int, moff: int, m: int, mpad: int, koff: int, k: int, lanes: int, ring: int,
    first: int, pad: int,
) -> int:  # fmt: skip
    row = _begun(out, cursor, _IM2COL, MTE1, dtype, tag, L1, L0A, target, base, -1, pad)
    row[I_H] = height
    row[I_W] = width
    row[I_PITCH] = pitch
    row[I_PLANE] = plane
    row[I_KH] = kh
    row[I_KW] = kw
    row[I_SH] = sh
    row[I_SW] = sw
    row[I_DH] = dh
    row[I_DW] = dw
    row[I_PT] = pt
    row[I_PL] = pl
    row[I_OW] = ow
    row[I_MOFF] = moff
    row[I_M] = m
    row[I_MPAD] = mpad
    row[I_KOFF] = koff
    row[I_K] = k
    row[I_LANES] = lanes
    row[I_RING] = ring
    row[I_FIRST] = first
    return cursor + 1


@compile_once
@inlined
def vector(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, s0: int, s1: int, s2: int, blocks: int, repeats: int, dbs: int,
    drs: int, s0bs: int, s0rs: int, s1bs: int, s1rs: int, s2bs: int, s2rs: int, imm: int,
) -> int:  # fmt: skip
    row = _begun(out, cursor, op, VECTOR, dtype, tag, UB, UB, target, s0, s1, s2)
    row[P] = blocks
    row[P + 1] = repeats
    row[P + 2] = dbs
    row[P + 3] = drs
    row[P + 4] = s0bs
    row[P + 5] = s0rs
    row[P + 6] = s1bs
    row[P + 7] = s1rs
    row[P + 8] = s2bs
    row[P + 9] = s2rs
    row[P + 10] = imm
    return cursor + 1


@compile_once
@njit(cache=True)
def along(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, s0: int, s1: int, s2: int, blocks: int, ds: Steps, s0s: Steps,
    s1s: Steps, s2s: Steps, imm: int,
) -> int:  # fmt: skip
    """A VECTOR operation over `blocks` blocks, eight at a time and then the remainder.  ds, s0s, s1s, s2s: strides of the operands in
    blocks: (from block to block, from eight blocks to the next eight)."""
    done = 0
    while done < blocks:
        eights, remaining = done // REPEAT_BLOCKS, blocks - done
        width, repeats = (REPEAT_BLOCKS, min(MAX_REPEATS, remaining // REPEAT_BLOCKS)) if remaining >= REPEAT_BLOCKS else (remaining, 1)
        cursor = vector(
            out, cursor, op, dtype, tag, target + eights * ds[1], s0 + eights * s0s[1], s1 + eights * s1s[1] if s1 >= 0 else s1,
            s2 + eights * s2s[1] if s2 >= 0 else s2, width, repeats, ds[0], ds[1], s0s[0], s0s[1], s1s[0], s1s[1], s2s[0], s2s[1], imm,
        )  # fmt: skip
        done += width * repeats
    return cursor


@compile_once
@njit(cache=True)
def flat(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, s0: int, s1: int, s2: int, step1: int, step2: int, blocks: int,
    imm: int,
) -> int:  # fmt: skip
    """A VECTOR operation over `blocks` contiguous blocks.  step1, step2: 1, or 0 for a source that is one broadcast block."""
    one, s1s, s2s = (1, REPEAT_BLOCKS), (step1, REPEAT_BLOCKS * step1), (step2, REPEAT_BLOCKS * step2)
    return along(out, cursor, op, dtype, tag, target, s0, s1, s2, blocks, one, one, s1s, s2s, imm)


@compile_once
@njit(cache=True)
def strided(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, s0: int, s1: int, s2: int, columns: int, rows: int, ds: Steps,
    s0s: Steps, s1s: Steps, s2s: Steps, imm: int,
) -> int:  # fmt: skip
    """A VECTOR operation over a grid of columns x rows blocks.  Repeats run over rows, 8 columns at a time.  ds, s0s, s1s, s2s: strides of
    the operands in blocks: (from column to column, from row to row)."""
    for c in range(0, columns, REPEAT_BLOCKS):
        for r in range(0, rows, MAX_REPEATS):
            cursor = vector(
                out, cursor, op, dtype, tag, target + c * ds[0] + r * ds[1], s0 + c * s0s[0] + r * s0s[1],
                s1 + c * s1s[0] + r * s1s[1] if s1 >= 0 else s1, s2 + c * s2s[0] + r * s2s[1] if s2 >= 0 else s2,
                min(REPEAT_BLOCKS, columns - c), min(MAX_REPEATS, rows - r), ds[0], ds[1], s0s[0], s0s[1], s1s[0], s1s[1], s2s[0], s2s[1],
                imm,
            )  # fmt: skip
    return cursor
