"""The legal tiling space of a convolution on a block, with an estimate of every point's cycles.

A point is legal where its tiles fit half of L0A, L0B and L0C (the other half is being filled or drained), and two of results fit UB.
Tile sizes include padded ones, not only divisors.  The estimate is the busiest of CUBE, MTE1 and FIXPIPE plus what fills and drains the
pipe; it ranks points (`cost.ranking`), the simulator judges them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import Cost, cost_of
from compiler.ir.im2col import WHOLE, Cut, count_instructions
from compiler.ops.conv import ConvSpec
from compiler.ops.tile_counts import (
    Pair,
    counts,
    counts_of_panels,
    l0_blocks,
    of_chunk,
    padded,
    partial_blocks,
    pieces,
    places,
    staying,
    whole,
)
from compiler.target.capabilities import ALONE, L0, room_blocks, writes_l1
from compiler.target.zero_blocks import EVERYWHERE, Ints, Panels, loads
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.tiles import ROWS

_SMALL, _PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 16  # tile sizes that are looked at, and into how many parts an axis is cut
_OVERLAP = 2  # a quarter of the work of CUBE and MTE1 counts beside that of the busiest engine


class Shape(NamedTuple):
    """A convolution on one block, as the estimate sees it: n1 and k1 of one chunk of weights, `chunks_n` x `chunks_k` of them per group.

    ub_blocks: what one tile of results may take of UB, on its way out or as a residual; 0 where none goes through it.
    n1_step: tiles along n1 are whole multiples of it.  cut: where IM2COL ends along k (`ir.im2col`).  needed: of all chunks of a group
    (`target.zero_blocks`).  l0: where tiles stay.
    """

    pixels: int
    groups: int
    n1: int
    k1: int
    chunks_n: int
    chunks_k: int
    to_l1: bool
    dtype: int
    n1_step: int
    result_lanes: int
    ub_blocks: int = 0
    cut: Cut = WHOLE
    needed: Ints = EVERYWHERE
    l0: L0 = ALONE


class Layer(NamedTuple):
    """What a convolution's tilings depend on, apart from its block: equal layers share their ranking.

    columns: blocks of what FIXPIPE reads for all channels.  n1_step, result_lanes: see `ConvSpec`.  residual: tiles of results that one of
    it is at least as large as; 0 without one.  l0: where tiles stay.  deep: the most blocks of k of a chunk of weights.
    """

    out_w: int
    groups: int
    n1: int
    k1: int
    columns: int
    n1_step: int
    result_lanes: int
    residual: int
    cut: Cut
    needed: bytes
    l0: L0
    deep: int

    @property
    def blocks(self) -> Ints:
        """`target.zero_blocks`, int64 [n1, k1]."""
        return np.frombuffer(self.needed, np.int64).reshape(self.n1, self.k1).copy() if self.needed else EVERYWHERE


@lru_cache(maxsize=1 << 14)
def layer_of(spec: ConvSpec) -> Layer:
    columns, result = spec.groups * spec.n1 * spec.column_blocks, (spec.n1_step, spec.result_lanes)
    residual = 0 if spec.residual is None else -(-spec.result_lanes // spec.residual_lanes)
    e = spec.expansion
    deep = spec.k1 if e is None or e.kept else min(spec.k1, e.deep)
    return Layer(
        spec.out_w, spec.groups, spec.n1, spec.k1, columns, *result, residual, spec.parts.cut, spec.needed.tobytes(), spec.staying, deep
    )


def shape_of(machine: Machine, dtype: DataType, spec: ConvSpec, rows: int, to_l1: bool, chunk: tuple[int, int]) -> Shape:
    """`rows` output rows with weights in chunks of (n1, k1); to_l1: results stay on chip, by FIXPIPE where it has the path."""
    return layer_shape(machine, int(dtype), layer_of(spec), rows, to_l1 and writes_l1(machine), chunk)


def layer_shape(machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, chunk: tuple[int, int]) -> Shape:
    n1, k1 = chunk
    slots = 2 * (not direct) + 2 * layer.residual
    fractal = machine.fractal(dtype)
    ub = room_blocks(machine, Memory.UB)
    if slots:
        whole = (ub - layer.columns) // slots // REPEAT_BLOCKS * REPEAT_BLOCKS
        # a bias that leaves no room for the smallest tile comes in chunks (`space.fit_ub`)
        least = ROWS * -(-layer.n1_step * fractal.columns // layer.result_lanes)
        ub = whole if whole >= least else max(1, ub * 3 // 4 // slots // REPEAT_BLOCKS * REPEAT_BLOCKS)
    else:
        ub = 0
    chunks_n, chunks_k = -(-layer.n1 // n1), -(-layer.k1 // k1)
    result = layer.n1_step, layer.result_lanes
    return Shape(
        rows * layer.out_w, layer.groups, n1, k1, chunks_n, chunks_k, direct, dtype, *result, ub, layer.cut, layer.blocks, layer.l0
    )


@njit(cache=True)
def _sizes(limit: int, top: int, unit: int = 1) -> NDArray[np.int64]:
    """Tile sizes along one axis: all small ones, then those that cut `limit` into equal parts, rounded up; times `unit`."""
    found = np.empty(len(_SMALL) + _PARTS, np.int64)
    for i, size in enumerate(_SMALL):
        found[i] = min(size, limit)
    for i in range(_PARTS):
        found[len(_SMALL) + i] = (limit + i) // (i + 1)
    found.sort()
    count = 0
    for i in range(found.shape[0]):
        if 1 <= found[i] <= top and (count == 0 or found[i] > found[count - 1]):
            found[count] = found[i]
            count += 1
    return found[:count] * unit


@njit(cache=True)
def is_legal(s: Shape, c: Cost, m: int, n: int, k: int) -> bool:
    """Whether tiles fit their halves of L0 and their slot of UB, and partial sums all of L0C."""
    a, b, sums = l0_blocks(c.weight_blocks, c.sum_blocks, m, n, k)
    if a > c.half_a or b > c.half_b or sums > c.half_c:
        return False
    if s.ub_blocks and (n * c.columns + s.result_lanes - 1) // s.result_lanes * m > s.ub_blocks:
        return False
    return s.chunks_k == 1 or partial_blocks(c.sum_blocks, s.pixels, s.n1, m) <= 2 * c.half_c


@njit(cache=True)
def largest_k(c: Cost, m: int, n: int) -> int:
    """The largest k whose tiles fit beside those of m and n."""
    return min(c.half_a // m, c.half_b // (n * c.weight_blocks))


@njit(cache=True)
def m_side(s: Shape, c: Cost, m: int) -> tuple[int, int, int, int]:
    """Tiles of so many pixels, steps of MMAD, cycles that all of the left operand takes to L0A, and rows of the largest tile."""
    tiles, rows = (s.pixels + m - 1) // m, padded(c.rows, s.pixels, m)
    return tiles, closed_form.steps_along(c, closed_form.M, whole(rows), m), int(closed_form.a_cycles(c, rows * s.k1)), min(m, rows)


@njit(cache=True)
def n_side(s: Shape, c: Cost, n: int) -> tuple[int, int]:
    """Tiles, and steps of MMAD."""
    return (s.n1 + n - 1) // n, closed_form.steps_along(c, closed_form.N, whole(s.n1), n)


@njit(cache=True)
def k_side(s: Shape, c: Cost, k: int) -> tuple[int, int, int]:
    """Tiles, steps of MMAD, and instructions that bring the left operand's tiles."""
    return (s.k1 + k - 1) // k, closed_form.steps_along(c, closed_form.K, whole(s.k1), k), count_instructions(s.cut, 0, s.k1, s.k1, k)


@njit(cache=True)
def orders(tiles_m: int, tiles_n: int) -> int:
    """Orders of the loops over tiles that differ: one of two where one of the loops has a single tile."""
    return 2 if tiles_m > 1 and tiles_n > 1 else 1


@njit(cache=True)
def fill_cycles(c: Cost, rows: int, n: int, k: int) -> int:
    """Cycles of the first tiles on their way to L0."""
    return int(closed_form.a_cycles(c, rows * k)) + int(closed_form.b_cycles(c, n * k))


@njit(cache=True)
def cycles_out(s: Shape, c: Cost, tiles_m: int, rows: int, tiles_n: int, n: int) -> tuple[int, int]:
    """Cycles of FIXPIPE in every chunk, and of one tile."""
    fix = closed_form.fixpipe(c, int(closed_form.out_cycles(c, s.pixels * s.n1)), tiles_m * tiles_n) // s.chunks_k
    return fix, int(closed_form.out_cycles(c, rows * n))


@njit(cache=True)
def work(
    c: Cost, along_m: tuple[int, int, int, int], along_n: tuple[int, int], along_k: tuple[int, int, int], weights: int, n_outer: int,
    room: Pair,
) -> tuple[int, int]:  # fmt: skip
    """Cycles in which CUBE and MTE1 work on one chunk; weights: those that all of its right operand takes to L0B.  room: `places`."""
    (tiles_m, steps_m, pixels, _), (tiles_n, steps_n), (tiles_k, steps_k, copies_k) = along_m, along_n, along_k
    products, loads_a, left, loads_b, right = of_chunk(
        tiles_m, tiles_n, tiles_k, copies_k, n_outer, staying(tiles_m, tiles_n, tiles_k, n_outer, room)
    )
    cube = closed_form.cube(c, products, steps_m * steps_k * steps_n)
    return cube, closed_form.mte1(c, left * pixels, loads_a, right * weights, loads_b)


@njit(cache=True)
def block_cycles(
    s: Shape,
    c: Cost,
    along_m: tuple[int, int, int, int],
    along_n: tuple[int, int],
    along_k: tuple[int, int, int],
    weights: int,
    fill: int,
    fix: int,
    drain: int,
    n_outer: int,
    room: Pair,
) -> int:
    """The estimate; weights, room: see `work`.  No division: it is the ranking's inner loop."""
    cube, moves = work(c, along_m, along_n, along_k, weights, n_outer, room)
    return side_by_side(s, c, cube, moves, along_m[0] * along_n[0] * along_k[0], fill, fix, drain)


@njit(cache=True)
def side_by_side(s: Shape, c: Cost, cube: int, moves: int, products: int, fill: int, fix: int, drain: int) -> int:
    """The estimate of all chunks; cube, moves, products, fix: of one."""
    # partial sums that take all of L0C leave no second place: every chunk of n drains before the next one starts
    stalls = drain * (s.chunks_n if s.chunks_k > 1 else 1)
    # halves of L0 that are released when results are out: of two tiles in flight, each takes its move, its product and the latency
    released = (cube + moves + products * c.cube_latency) >> 1
    repeats = s.groups * s.chunks_n * s.chunks_k
    # operators overlap: what an engine does beside the busiest one keeps it from the next operator, or from the one before
    shared = (cube + moves) >> _OVERLAP
    return repeats * (max(cube, moves, fix, released) + shared + (products >> 2)) + fill + stalls + c.cube_latency


@njit(cache=True)
def work_of_panels(
    s: Shape, c: Cost, along_m: tuple[int, int, int, int], p: Panels, n_outer: int, stay: tuple[bool, bool]
) -> tuple[int, int, int]:
    """Cycles in which CUBE and MTE1 work where there are zeros beside groups, and products: a chunk's share of all."""
    tiles_m, steps_m, pixels, _ = along_m
    chunks, products = s.chunks_n * s.chunks_k, tiles_m * p.panels
    loads_a, of_a, loads_b, of_b = loads(p, tiles_m, n_outer, stay)
    a = pixels * of_a // s.k1
    moves = closed_form.mte1(c, a, loads_a, int(closed_form.b_cycles(c, of_b)), loads_b)
    return closed_form.cube(c, products, steps_m * p.steps) // chunks, int(moves) // chunks, products // chunks


@njit(cache=True)
def block_cycles_of_panels(s: Shape, c: Cost, m: int, n: int, k: int, p: Panels, n_outer: int) -> tuple[int, int]:
    """The estimate where there are zeros beside groups, and cycles of CUBE and MTE1 together of a chunk."""
    along_m, tiles_n = m_side(s, c, m), n_side(s, c, n)[0]
    stay = staying(along_m[0], tiles_n, (s.k1 + k - 1) // k, n_outer, places(s.l0, c.weight_blocks, m, n, k))
    cube, moves, products = work_of_panels(s, c, along_m, p, n_outer, stay)
    fix, drain = cycles_out(s, c, along_m[0], along_m[3], tiles_n, n)
    return side_by_side(s, c, cube, moves, products, fill_cycles(c, along_m[3], n, k), fix, drain), cube + moves


@njit(cache=True)
def _points(s: Shape, c: Cost, ms: NDArray[np.int64], ns: NDArray[np.int64], ks: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty((ms.shape[0] * ns.shape[0] * ks.shape[0] * 2, 4), np.int64)
    at = 0
    for m in ms:
        for n in ns:
            for k in ks:
                if is_legal(s, c, m, n, k):
                    for n_outer in range(orders((s.pixels + m - 1) // m, (s.n1 + n - 1) // n)):
                        out[at, 0], out[at, 1], out[at, 2], out[at, 3] = m, n, k, n_outer
                        at += 1
    return out[:at].copy()


@njit(cache=True)
def _estimate(s: Shape, c: Cost, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out, weights = np.empty(points.shape[0], np.int64), int(closed_form.b_cycles(c, s.n1 * s.k1))
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        if s.needed.size:
            p = closed_form.panels_between(c, s.needed, s.n1, s.k1, n, k, s.cut)
            out[i] = block_cycles_of_panels(s, c, m, n, k, p, n_outer)[0]
            continue
        along_m, along_n = m_side(s, c, m), n_side(s, c, n)
        fix, drain = cycles_out(s, c, along_m[0], along_m[3], along_n[0], n)
        fill = fill_cycles(c, along_m[3], n, k)
        out[i] = block_cycles(
            s, c, along_m, along_n, k_side(s, c, k), weights, fill, fix, drain, n_outer, places(s.l0, c.weight_blocks, m, n, k)
        )
    return out


@njit(cache=True)
def _engines(s: Shape, c: Cost, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out, along_n, along_k = np.empty((points.shape[0], 3), np.int64), pieces(n1, s.n1), pieces(k1, s.k1)
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        room = places(s.l0, c.weight_blocks, m, n, k)
        if s.needed.size:
            p = closed_form.panels_between(c, s.needed, s.n1, s.k1, n, k, s.cut)
            found, steps = counts_of_panels(p, c.rows, s.pixels, along_n, along_k, m, n, k, n_outer, room), p.steps
        else:
            found = counts(c.rows, s.pixels, along_n, along_k, m, n, k, n_outer, s.cut, room)
            steps = closed_form.steps_along(c, closed_form.N, along_n, n) * closed_form.steps_along(c, closed_form.K, along_k, k)
        steps *= closed_form.steps_along(c, closed_form.M, whole(found.rows), m)
        cube = closed_form.cube(c, found.products, steps)
        a, b, moved = (
            closed_form.a_cycles(c, found.moved_a),
            closed_form.b_cycles(c, found.moved_b),
            closed_form.out_cycles(c, s.pixels * n1),
        )
        moves, fix = closed_form.mte1(c, int(a), found.loads_a, int(b), found.loads_b), closed_form.fixpipe(c, int(moved), found.results)
        out[i, 0], out[i, 1], out[i, 2] = s.groups * cube, s.groups * moves, s.groups * fix
    return out


@njit(cache=True)
def axes(s: Shape, c: Cost) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of tiles along m (pixels), n1 and k1 that are looked at."""
    ms = _sizes((s.pixels + ROWS - 1) // ROWS, c.half_a // ROWS, ROWS)
    step = s.n1_step
    ns = _sizes((s.n1 + step - 1) // step, c.half_b // c.weight_blocks // step, step)
    return ms, ns, _sizes(s.k1, c.half_a // ROWS)


def legal_points(machine: Machine, s: Shape) -> NDArray[np.int64]:
    """int64 [p, 4] of (tile_m, tile_n1, tile_k1, n_outer): every legal combination; n_outer 0 where the order makes no difference."""
    c = cost_of(machine, s.dtype, s.to_l1)
    points: NDArray[np.int64] = _points(s, c, *axes(s, c))
    return points


def estimate(machine: Machine, s: Shape, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles of the whole block for every point, uncontended: the busiest engine, plus filling and draining the pipe."""
    cycles: NDArray[np.int64] = _estimate(s, cost_of(machine, s.dtype, s.to_l1), points)
    return cycles


def engine_cycles(machine: Machine, s: Shape, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [p, 3]: cycles in which CUBE, MTE1 and FIXPIPE work on the block, rounded down.

    n1, k1: of all chunks together, so that the last one counts for what it is.
    """
    cycles: NDArray[np.int64] = _engines(s, cost_of(machine, s.dtype, s.to_l1), n1, k1, points)
    return cycles
