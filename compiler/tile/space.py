"""The legal tiling space of an operator on a block, with an estimate of every point's cycles.

A point is legal where its tiles fit half of L0A, L0B and L0C (the other half is being filled or drained), and two of results fit UB.
Tile sizes include padded ones, not only divisors.  The estimate is the busiest of CUBE, MTE1 and FIXPIPE plus what fills and drains the
pipe; it ranks points, the simulator judges them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling, VectorTiling
from compiler.ir.graph import Pool
from compiler.tile.spec import AnySpec, ConvSpec, PoolSpec, SoftmaxSpec, Unit, VectorSpec
from simulator.npu.cycles import CostTables, cost_tables
from simulator.npu.machine import DataType, Machine, Memory

CHUNK_BUDGETS = (8192, 4096, 2048, 1024, 512, 256)  # blocks of one chunk of streamed weights, two of which are live
UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector kernel may hold by default; two of them are live


KEPT = 64  # points of a space that are kept, best estimates first


class Shape(NamedTuple):
    """A convolution on one block, as the estimate sees it: n1 and k1 of one chunk of weights, `chunks_n` x `chunks_k` of them per group.

    ub_blocks: what one tile of results may take of UB, on its way out or as a residual; 0 where none goes through it.
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


def shape_of(machine: Machine, dtype: DataType, spec: ConvSpec, rows: int, to_l1: bool, chunk: tuple[int, int]) -> Shape:
    """`rows` output rows with weights in chunks of (n1, k1); to_l1: results stay on chip, by FIXPIPE where it has the path."""
    n1, k1 = chunk
    direct = to_l1 and machine.path(Memory.L0C, Memory.L1) is not None
    slots = 2 * (not direct) + 2 * (spec.residual is not None)
    ub = max(1, (machine.buffer_blocks(Memory.UB) - spec.bias_blocks) // slots // 8 * 8) if slots else 0
    return Shape(rows * spec.out_w, spec.groups, n1, k1, -(-spec.n1 // n1), -(-spec.k1 // k1), direct, int(dtype), ub)


@lru_cache(maxsize=64)
def tables(machine: Machine) -> CostTables:
    return cost_tables(machine)


def _sizes(limit: int, top: int) -> list[int]:
    """Tile sizes along one axis: all small ones, then those that cut `limit` into equal parts, rounded up."""
    wanted = {min(size, limit) for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}
    wanted |= {-(-limit // parts) for parts in range(1, 17)}
    return sorted(size for size in wanted if 1 <= size <= top)


def legal_points(machine: Machine, s: Shape) -> NDArray[np.int64]:
    """int64 [p, 4] of (tile_m, tile_n1, tile_k1, n_outer): every legal combination."""
    half_a, half_b, half_c = (machine.buffer_blocks(m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    m = np.array(_sizes(-(-s.pixels // 16), half_a // 16), np.int64) * 16
    n = np.array(_sizes(s.n1, half_b // 16), np.int64)
    k = np.array(_sizes(s.k1, half_a // 16), np.int64)
    grid = np.stack([g.reshape(-1) for g in np.meshgrid(m, n, k, np.array([0, 1], np.int64), indexing="ij")], 1)
    legal = (grid[:, 0] * grid[:, 2] <= half_a) & (grid[:, 1] * grid[:, 2] * 16 <= half_b) & (grid[:, 1] * grid[:, 0] * 2 <= half_c)
    if s.ub_blocks:
        legal &= grid[:, 1] * grid[:, 0] * (16 // DataType(s.dtype).lanes) <= s.ub_blocks
    if s.chunks_k > 1:
        legal &= -(-s.pixels // grid[:, 0]) * grid[:, 0] * s.n1 * 2 <= 2 * half_c
    return grid[legal]


def estimate(machine: Machine, s: Shape, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles of the whole block for every point, uncontended: the busiest engine, plus filling and draining the pipe."""
    t = tables(machine)
    m, n, k, n_outer = points.T
    tiles_m, tiles_n, tiles_k = -(-s.pixels // m), -(-s.n1 // n), -(-s.k1 // k)
    repeats = s.groups * s.chunks_n * s.chunks_k
    rows = (tiles_m - 1) * m + -(-(s.pixels - (tiles_m - 1) * m) // 16) * 16
    products = tiles_m * tiles_n * tiles_k
    cube = products * t.scalars[0] + rows // 16 * s.k1 * s.n1 * t.fractal_cycles[s.dtype]
    one_k = tiles_k == 1
    times_a = np.where(one_k & ((n_outer == 0) | (tiles_m == 1)), 1, tiles_n)
    times_b = np.where(one_k & ((n_outer == 1) | (tiles_n == 1)), 1, tiles_m)
    l1, l0a, l0b, l0c = Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C
    a = times_a * (rows * s.k1 * 32 // t.rate[l1, l0a] + tiles_m * tiles_k * t.startup[l1, l0a])
    b = times_b * (s.n1 * s.k1 * 512 // t.rate[l1, l0b] + tiles_n * tiles_k * t.startup[l1, l0b])
    out = l1 if s.to_l1 else Memory.UB
    fix = (s.pixels * s.n1 * 64 // t.rate[l0c, out] + tiles_m * tiles_n * t.startup[l0c, out]) // s.chunks_k
    fill = np.minimum(m, rows) * k * 32 // t.rate[l1, l0a] + n * k * 512 // t.rate[l1, l0b]
    drain = np.minimum(m, rows) * n * 64 // t.rate[l0c, out]
    # partial sums that take all of L0C leave no second place: every chunk of n drains before the next one starts
    stalls = drain * (s.chunks_n if s.chunks_k > 1 else 1)
    return repeats * (np.maximum(np.maximum(cube, a + b), fix) + products // 4) + fill + stalls


@lru_cache(maxsize=8192)
def _best(machine: Machine, s: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    points = legal_points(machine, s)
    cycles = estimate(machine, s, points)
    order = np.argsort(cycles, kind="stable")[:KEPT]
    return points[order], cycles[order]


def _chunk_choices(spec: ConvSpec, pixels: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """(chunk_n1, chunk_k1) of streamed weights within `budget` blocks: all of k and what fits of n, or pieces of k with partial sums."""
    choices = set()
    whole = budget // (spec.k1 * 16)
    for n in {whole, -(-whole // 2), 1}:
        if 1 <= n <= whole:
            n = min(n, spec.n1)
            choices.add((-(-spec.n1 // -(-spec.n1 // n)), spec.k1))
    room = l0c_blocks // (2 * (-(-pixels // 16) * 16))
    for n in {room, 32, 16, 8, 4}:
        n = min(n, room, spec.n1, budget // 16)
        if n >= 1:
            k = min(spec.k1, budget // (16 * n))
            choices.add((n, -(-spec.k1 // -(-spec.k1 // k))))
    return sorted(choices)


@lru_cache(maxsize=16384)
def _ranked(machine: Machine, dtype: int, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int) -> NDArray[np.int64]:
    """int64 [<= KEPT, 7] of (cycles, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer), the best estimate first."""
    pixels = rows * spec.out_w
    chunks = [(spec.n1, spec.k1)] if resident else _chunk_choices(spec, pixels, budget, machine.buffer_blocks(Memory.L0C))
    parts = [np.empty((0, 7), np.int64)]
    for n1, k1 in chunks:
        points, cycles = _best(machine, shape_of(machine, DataType(dtype), spec, rows, to_l1, (n1, k1)))
        parts.append(np.column_stack([cycles, np.full(len(cycles), n1), np.full(len(cycles), k1), points]))
    table = np.concatenate(parts)
    # equal estimates: the larger chunk, whose bursts are longer, then the earlier point
    return table[np.lexsort((-table[:, 1] * table[:, 2], table[:, 0]))[:KEPT]]


@lru_cache(maxsize=65536)
def _made(weights: str, chunk_n1: int, chunk_k1: int, m: int, n: int, k: int, n_outer: int) -> ConvTiling:
    return ConvTiling.model_construct(
        kind="conv", weights=weights, chunk_n1=chunk_n1, chunk_k1=chunk_k1, tile_m=m, tile_n1=n, tile_k1=k, order="n" if n_outer else "m"
    )


def conv_tiling(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, choice: int = 0) -> ConvTiling | None:
    """The tiling at place `choice` (of at most `KEPT`) by estimate, for `rows` output rows; None where no tiling is legal.

    Streamed weights come in chunks of at most `budget` blocks.
    """
    ranked = _ranked(unit.machine, int(unit.dtype), spec, rows, to_l1, resident, budget)
    if not len(ranked):
        return None
    point = ranked[min(choice, len(ranked) - 1)].tolist()
    return _made("resident" if resident else "streamed", *point[1:])


def vector_tiling(unit: Unit, spec: AnySpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane; two slots and the constants fit UB where anything does."""
    constants = spec.y.planes
    if isinstance(spec, VectorSpec):
        constants *= 2 * len(spec.steps) if (spec.steps[:, 3] >= 0).any() else 0
    elif isinstance(spec, PoolSpec):
        constants = rows * spec.out_w if spec.counts_at >= 0 else 0
    slot_blocks = max(8, min(slot_blocks, (unit.machine.buffer_blocks(Memory.UB) - constants) // 16 * 8))
    if isinstance(spec, SoftmaxSpec):
        return VectorTiling(tile_planes=spec.y.planes, tile_rows=max(1, min(rows, slot_blocks // ((spec.y.planes + 2) * spec.out_w))))
    per_row, extra = spec.out_w, 0
    if isinstance(spec, PoolSpec):
        assert isinstance(spec.kernel, Pool)
        per_row += spec.kernel.stride[0] * spec.in_w
        extra = (spec.kernel.kernel[0] - spec.kernel.stride[0]) * spec.in_w
    else:
        assert isinstance(spec, VectorSpec)
        per_row *= len(spec.reads) + spec.keeps_input
    plane = max(1, rows * per_row + extra)
    if plane <= slot_blocks:
        return VectorTiling(tile_planes=max(1, min(spec.y.planes, slot_blocks // plane)), tile_rows=max(1, rows))
    return VectorTiling(tile_planes=1, tile_rows=max(1, min(rows, (slot_blocks - extra) // per_row)))
