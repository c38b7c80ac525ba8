"""A VECTOR operation over a grid of blocks, on whichever axes take the least time (`compiler.instructions.repeats`)."""

from __future__ import annotations

from typing import Any

from numba import njit

from compiler.instructions.builders import general, vector
from compiler.instructions.repeats import START, cheapest
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

Axes = tuple[int, int, int]


@njit(cache=True)
def _one(n: Axes, d: Axes, s0: Axes, s1: Axes, s2: Axes, i: int, j: int) -> bool:
    """Whether axes i and j are one: axis j goes on where axis i ends, or one of them has a single place."""
    if n[i] == 1 or n[j] == 1:
        return True
    return bool(d[j] == n[i] * d[i] and s0[j] == n[i] * s0[i] and s1[j] == n[i] * s1[i] and s2[j] == n[i] * s2[i])


@njit(cache=True)
def _joined(x: Axes, i: int, first: bool) -> Axes:
    """Strides after axes i and i + 1 have become one; first: those of axis i count."""
    kept = x[i] if first else x[i + 1]
    return (kept, x[2], 0) if i == 0 else (x[0], kept, 0)


@general
@njit(cache=True)
def grid(
    out: Code, at: int, op: int, dtype: int, tag: int, n: Axes, d: int, ds: Axes, s0: int, s0s: Axes, s1: int, s1s: Axes, imm: int
) -> int:  # fmt: skip
    """d = op(s0, s1) over n[0] x n[1] x n[2] blocks, each with its strides; s1: -1 where the operation has one source.

    imm: float32 bits of its constant, where it has one.
    """
    if s1 < 0:
        s1s = s0s
    return grid_of_three(out, at, op, dtype, tag, n, d, ds, s0, s0s, s1, s1s, -1, s0s, imm)


@general
@njit(cache=True)
def grid_of_three(
    out: Code, at: int, op: int, dtype: int, tag: int, n: Axes, d: int, ds: Axes, s0: int, s0s: Axes, s1: int, s1s: Axes, s2: int,
    s2s: Axes, imm: int,
) -> int:  # fmt: skip
    """The same of an operation with three sources, or of fewer: s1, s2 are -1 where there is none, and have the strides of another."""
    for i in (0, 0, 1):
        if _one(n, ds, s0s, s1s, s2s, i, i + 1):
            first = n[i] > 1
            n = (n[0] * n[1], n[2], 1) if i == 0 else (n[0], n[1] * n[2], 1)
            ds, s0s, s1s, s2s = _joined(ds, i, first), _joined(s0s, i, first), _joined(s1s, i, first), _joined(s2s, i, first)
    way = cheapest(n[0], n[1], n[2])
    b, r = way.blocks, way.repeats
    apart = b != r
    u: Any = 3 - b - r if apart else (b + 1) % 3
    v: Any = (b + 2) % 3
    for i in range(n[u]):
        for j in range(1 if apart else n[v]):
            d_at = d + i * ds[u] + (0 if apart else j * ds[v])
            s0_at = s0 + i * s0s[u] + (0 if apart else j * s0s[v])
            s1_at = s1 + i * s1s[u] + (0 if apart else j * s1s[v])
            s2_at = s2 + i * s2s[u] + (0 if apart else j * s2s[v])
            block = 0
            while block < n[b]:
                width = min(REPEAT_BLOCKS, n[b] - block)
                step = 1 if apart else width  # of the repeats' axis from one to the next
                times = n[r] if apart else (n[b] - block) // width
                repeat = 0
                while repeat < times:
                    repeats = min(MAX_REPEATS, times - repeat)
                    along = repeat * step
                    at = vector(
                        out, at, op, dtype, tag,
                        d_at + block * ds[b] + along * ds[r], s0_at + block * s0s[b] + along * s0s[r],
                        s1_at + block * s1s[b] + along * s1s[r] if s1 >= 0 else -1,
                        s2_at + block * s2s[b] + along * s2s[r] if s2 >= 0 else -1,
                        width, repeats, ds[b], step * ds[r], s0s[b], step * s0s[r], s1s[b] if s1 >= 0 else 0,
                        step * s1s[r] if s1 >= 0 else 0, s2s[b] if s2 >= 0 else 0, step * s2s[r] if s2 >= 0 else 0, imm,
                    )  # fmt: skip
                    repeat += repeats
                block += width if apart else width * times
    return at


@njit(cache=True)
def most(a: int, b: int, c: int) -> int:
    """Instructions over a x b x c blocks or a part of them, at most: none takes less time than its start, and a part no more than all."""
    way = cheapest(a, b, c)
    return way.work // START + way.instructions + 1
