"""VECTOR operation over a grid of blocks, on the fastest axes (`compiler.instructions.repeats`)."""

from __future__ import annotations

from typing import Any

from numba import njit

from compiler.instructions.builders import compile_once, vector
from compiler.instructions.repeats import START, cheapest_way
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

Axes = tuple[int, int, int]


@njit(cache=True)
def _can_join(shape: Axes, ds: Axes, s0: Axes, s1: Axes, s2: Axes, i: int, j: int) -> bool:
    """Whether axes i and j can be joined: axis j continues where axis i ends, or one of them has length 1."""
    if shape[i] == 1 or shape[j] == 1:
        return True
    return bool(ds[j] == shape[i] * ds[i] and s0[j] == shape[i] * s0[i] and s1[j] == shape[i] * s1[i] and s2[j] == shape[i] * s2[i])


@njit(cache=True)
def _join(strides: Axes, i: int, first: bool) -> Axes:
    """Strides after axes i and i + 1 are joined.  first: keep the stride of axis i, not of i + 1."""
    stride = strides[i] if first else strides[i + 1]
    return (stride, strides[2], 0) if i == 0 else (strides[0], stride, 0)


@compile_once
@njit(cache=True)
def grid(
    out: Code, cursor: int, op: int, dtype: int, tag: int, shape: Axes, target: int, ds: Axes, s0: int, s0s: Axes, s1: int, s1s: Axes,
    imm: int,
) -> int:  # fmt: skip
    """target = op(s0, s1) over shape[0] x shape[1] x shape[2] blocks.  s1: -1 if the operation has one source.

    ds, s0s, s1s: strides of target and sources along the three axes, in blocks.  imm: float32 bits of the operation's constant, or 0.
    """
    if s1 < 0:
        s1s = s0s
    return grid_of_three(out, cursor, op, dtype, tag, shape, target, ds, s0, s0s, s1, s1s, -1, s0s, imm)


@compile_once
@njit(cache=True)
def grid_of_three(
    out: Code, cursor: int, op: int, dtype: int, tag: int, shape: Axes, target: int, ds: Axes, s0: int, s0s: Axes, s1: int, s1s: Axes,
    s2: int, s2s: Axes, imm: int,
) -> int:  # fmt: skip
    """Write an operation with up to three sources over the grid.  A missing s1 or s2 is -1, with the strides of another source."""
    for i in (0, 0, 1):
        if _can_join(shape, ds, s0s, s1s, s2s, i, i + 1):
            first = shape[i] > 1
            shape = (shape[0] * shape[1], shape[2], 1) if i == 0 else (shape[0], shape[1] * shape[2], 1)
            ds, s0s, s1s, s2s = _join(ds, i, first), _join(s0s, i, first), _join(s1s, i, first), _join(s2s, i, first)
    way = cheapest_way(shape[0], shape[1], shape[2])
    b, r = way.blocks, way.repeats
    across = b != r
    u: Any = 3 - b - r if across else (b + 1) % 3
    v: Any = (b + 2) % 3
    for i in range(shape[u]):
        for j in range(1 if across else shape[v]):
            d_at = target + i * ds[u] + (0 if across else j * ds[v])
            s0_at = s0 + i * s0s[u] + (0 if across else j * s0s[v])
            s1_at = s1 + i * s1s[u] + (0 if across else j * s1s[v])
            s2_at = s2 + i * s2s[u] + (0 if across else j * s2s[v])
            block = 0
            while block < shape[b]:
                width = min(REPEAT_BLOCKS, shape[b] - block)
                step = 1 if across else width  # distance of two repeats along their axis
                times = shape[r] if across else (shape[b] - block) // width
                repeat = 0
                while repeat < times:
                    repeats = min(MAX_REPEATS, times - repeat)
                    along = repeat * step
                    cursor = vector(
                        out, cursor, op, dtype, tag,
                        d_at + block * ds[b] + along * ds[r], s0_at + block * s0s[b] + along * s0s[r],
                        s1_at + block * s1s[b] + along * s1s[r] if s1 >= 0 else -1,
                        s2_at + block * s2s[b] + along * s2s[r] if s2 >= 0 else -1,
                        width, repeats, ds[b], step * ds[r], s0s[b], step * s0s[r], s1s[b] if s1 >= 0 else 0,
                        step * s1s[r] if s1 >= 0 else 0, s2s[b] if s2 >= 0 else 0, step * s2s[r] if s2 >= 0 else 0, imm,
                    )  # fmt: skip
                    repeat += repeats
                block += width if across else width * times
    return cursor


@njit(cache=True)
def max_instructions(inner: int, middle: int, outer: int) -> int:
    """Upper bound of instructions over inner x middle x outer blocks or a part of these blocks: every instruction costs its start."""
    way = cheapest_way(inner, middle, outer)
    return way.work // START + way.instructions + 1
