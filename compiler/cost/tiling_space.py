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

from compiler.ir.im2col import WHOLE, Cut, instructions
from compiler.kinds.conv import ConvSpec
from compiler.kinds.counts import all_steps, counts, loads_of_tiles, padded, pieces, steps_of_pieces
from simulator.npu.cycles import CostTables, cost_tables, latency_cycles
from simulator.npu.machine import DataType, Machine, Memory

_SMALL, _PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 16  # tile sizes that are looked at, and into how many parts an axis is cut


class Shape(NamedTuple):
    """A convolution on one block, as the estimate sees it: n1 and k1 of one chunk of weights, `chunks_n` x `chunks_k` of them per group.

    ub_blocks: what one tile of results may take of UB, on its way out or as a residual; 0 where none goes through it.
    cut: where IM2COL ends along k (`ir.im2col`).
    """

    pixels: int
    groups: int
    n1: int
    k1: int
    chunks_n: int
    chunks_k: int
    to_l1: bool
    dtype: int
    ub_blocks: int = 0
    cut: Cut = WHOLE


class Layer(NamedTuple):
    """What a convolution's tilings depend on, apart from its block: equal layers share their ranking."""

    out_w: int
    groups: int
    n1: int
    k1: int
    residual: bool
    cut: Cut


class Cost(NamedTuple):
    """Halves of L0 in blocks, cycles and bytes per cycle (0 where there is no path), as the kernels below want them."""

    half_a: int
    half_b: int
    half_c: int
    planes_per_n1: int
    lanes: int
    cube_startup: int
    cube_latency: int
    step_cycles: int
    axes: NDArray[np.int64]  # [3, 3], see `CostTables.matrix`
    a_rate: int
    a_startup: int
    b_rate: int
    b_startup: int
    out_rate: int
    out_startup: int


@lru_cache(maxsize=1 << 14)
def layer_of(spec: ConvSpec) -> Layer:
    return Layer(spec.out_w, spec.groups, spec.n1, spec.k1, spec.residual is not None, spec.parts.cut)


def shape_of(machine: Machine, dtype: DataType, spec: ConvSpec, rows: int, to_l1: bool, chunk: tuple[int, int]) -> Shape:
    """`rows` output rows with weights in chunks of (n1, k1); to_l1: results stay on chip, by FIXPIPE where it has the path."""
    return layer_shape(machine, int(dtype), layer_of(spec), rows, to_l1 and machine.path(Memory.L0C, Memory.L1) is not None, chunk)


def layer_shape(machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, chunk: tuple[int, int]) -> Shape:
    n1, k1 = chunk
    slots = 2 * (not direct) + 2 * layer.residual
    ub, bias_blocks = machine.buffer_blocks(Memory.UB), layer.groups * layer.n1 * 2
    if slots:
        whole = (ub - bias_blocks) // slots // 8 * 8
        # a bias that leaves no room for the smallest tile comes in chunks (`space.fit_ub`)
        ub = whole if whole >= 16 * 16 // DataType(dtype).lanes else max(1, ub * 3 // 4 // slots // 8 * 8)
    else:
        ub = 0
    chunks_n, chunks_k = -(-layer.n1 // n1), -(-layer.k1 // k1)
    return Shape(rows * layer.out_w, layer.groups, n1, k1, chunks_n, chunks_k, direct, dtype, ub, layer.cut)


@lru_cache(maxsize=64)
def tables(machine: Machine) -> CostTables:
    return cost_tables(machine)


@lru_cache(maxsize=64)
def cost_of(machine: Machine, dtype: int, direct: bool) -> Cost:
    t = tables(machine)
    halves = (machine.buffer_blocks(m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    paths = ((Memory.L1, Memory.L0A), (Memory.L1, Memory.L0B), (Memory.L0C, Memory.L1 if direct else Memory.UB))
    rates = (int(table[path]) for path in paths for table in (t.rate, t.startup))
    lanes = DataType(dtype).lanes
    matrix = (int(t.scalars[0]), latency_cycles(machine), int(t.step_cycles[dtype]), t.matrix[dtype])
    return Cost._make((*halves, 16 // lanes, lanes, *matrix, *rates))


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
    if m * k > c.half_a or n * k * 16 > c.half_b or n * m * 2 > c.half_c:
        return False
    if s.ub_blocks and n * m * c.planes_per_n1 > s.ub_blocks:
        return False
    return s.chunks_k == 1 or (s.pixels + m - 1) // m * m * s.n1 * 2 <= 2 * c.half_c


@njit(cache=True)
def largest_k(c: Cost, m: int, n: int) -> int:
    """The largest k whose tiles fit beside those of m and n."""
    return min(c.half_a // m, c.half_b // (n * 16))


@njit(cache=True)
def _per(amount: int, rate: int) -> int:
    return amount // rate if rate else 0


@njit(cache=True)
def m_side(s: Shape, c: Cost, m: int) -> tuple[int, int, int, int]:
    """Tiles of so many pixels, steps of MMAD, cycles that all of the left operand takes to L0A, and rows of the largest tile."""
    tiles, rows = (s.pixels + m - 1) // m, padded(s.pixels, m)
    return tiles, all_steps(rows, m, c.axes[0]), to_l0a(c, rows, s.k1), min(m, rows)


@njit(cache=True)
def n_side(s: Shape, c: Cost, n: int) -> tuple[int, int]:
    """Tiles, and steps of MMAD."""
    return (s.n1 + n - 1) // n, all_steps(s.n1 * 16, n * 16, c.axes[2])


@njit(cache=True)
def k_side(s: Shape, c: Cost, k: int) -> tuple[int, int, int]:
    """Tiles, steps of MMAD, and instructions that bring the left operand's tiles."""
    return (s.k1 + k - 1) // k, all_steps(s.k1 * c.lanes, k * c.lanes, c.axes[1]), instructions(s.cut, 0, s.k1, s.k1, k)


@njit(cache=True)
def orders(tiles_m: int, tiles_n: int) -> int:
    """Orders of the loops over tiles that differ: one of two where one of the loops has a single tile."""
    return 2 if tiles_m > 1 and tiles_n > 1 else 1


@njit(cache=True)
def to_l0a(c: Cost, rows: int, k: int) -> int:
    """Cycles of so much of the left operand on its way to L0A."""
    return _per(rows * k * 32, c.a_rate)


@njit(cache=True)
def to_l0b(c: Cost, n: int, k: int) -> int:
    """Cycles of so much of the right operand on its way to L0B."""
    return _per(n * k * 512, c.b_rate)


@njit(cache=True)
def cycles_out(s: Shape, c: Cost, tiles_m: int, rows: int, tiles_n: int, n: int) -> tuple[int, int]:
    """Cycles of FIXPIPE in every chunk, and of one tile."""
    fix = (_per(s.pixels * s.n1 * 64, c.out_rate) + tiles_m * tiles_n * c.out_startup) // s.chunks_k
    return fix, _per(rows * n * 64, c.out_rate)


@njit(cache=True)
def work(
    c: Cost, along_m: tuple[int, int, int, int], along_n: tuple[int, int], along_k: tuple[int, int, int], weights: int, n_outer: int
) -> tuple[int, int]:
    """Cycles in which CUBE and MTE1 work on one chunk; weights: those that all of its right operand takes to L0B."""
    (tiles_m, steps_m, pixels, _), (tiles_n, steps_n), (tiles_k, steps_k, loads_k) = along_m, along_n, along_k
    cube = tiles_m * tiles_n * tiles_k * c.cube_startup + steps_m * steps_k * steps_n * c.step_cycles
    times_a, times_b = loads_of_tiles(tiles_m, tiles_n, tiles_k, n_outer)
    a = times_a * (pixels + tiles_m * loads_k * c.a_startup)
    b = times_b * (weights + tiles_n * tiles_k * c.b_startup)
    return cube, a + b


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
) -> int:
    """The estimate; weights: see `work`.  No division: it is the ranking's inner loop."""
    cube, moves = work(c, along_m, along_n, along_k, weights, n_outer)
    products = along_m[0] * along_n[0] * along_k[0]
    # partial sums that take all of L0C leave no second place: every chunk of n drains before the next one starts
    stalls = drain * (s.chunks_n if s.chunks_k > 1 else 1)
    # halves of L0 that are released when results are out: of two tiles in flight, each takes its move, its product and the latency
    released = (cube + moves + products * c.cube_latency) >> 1
    repeats = s.groups * s.chunks_n * s.chunks_k
    return repeats * (max(cube, moves, fix, released) + (products >> 2)) + fill + stalls + c.cube_latency


@njit(cache=True)
def _cycles(s: Shape, c: Cost, m: int, n: int, k: int, n_outer: int) -> int:
    along_m, along_n = m_side(s, c, m), n_side(s, c, n)
    fix, drain = cycles_out(s, c, along_m[0], along_m[3], along_n[0], n)
    fill = to_l0a(c, along_m[3], k) + to_l0b(c, n, k)
    return block_cycles(s, c, along_m, along_n, k_side(s, c, k), to_l0b(c, s.n1, s.k1), fill, fix, drain, n_outer)


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
    out = np.empty(points.shape[0], np.int64)
    for i in range(points.shape[0]):
        out[i] = _cycles(s, c, points[i, 0], points[i, 1], points[i, 2], points[i, 3])
    return out


@njit(cache=True)
def _engines(s: Shape, c: Cost, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out, along_n, along_k = np.empty((points.shape[0], 3), np.int64), pieces(n1, s.n1), pieces(k1, s.k1)
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        found = counts(s.pixels, along_n, along_k, m, n, k, n_outer, s.cut)
        steps_nk = steps_of_pieces(along_n, n, 16, c.axes[2]) * steps_of_pieces(along_k, k, c.lanes, c.axes[1])
        cube = found.products * c.cube_startup + all_steps(found.rows, m, c.axes[0]) * steps_nk * c.step_cycles
        moves = found.moved_a * 32 // c.a_rate + found.loads_a * c.a_startup
        moves += found.moved_b * 512 // c.b_rate + found.loads_b * c.b_startup
        fix = found.results * c.out_startup + s.pixels * n1 * 64 // c.out_rate
        out[i, 0], out[i, 1], out[i, 2] = s.groups * cube, s.groups * moves, s.groups * fix
    return out


@njit(cache=True)
def axes(s: Shape, c: Cost) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of tiles along m (pixels), n1 and k1 that are looked at."""
    return _sizes((s.pixels + 15) // 16, c.half_a // 16, 16), _sizes(s.n1, c.half_b // 16), _sizes(s.k1, c.half_a // 16)


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
