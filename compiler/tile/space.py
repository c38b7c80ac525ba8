"""The legal tiling space of an operator on a block, with an estimate of every point's cycles.

A point is legal where its tiles fit half of L0A, L0B and L0C (the other half is being filled or drained).  Tile sizes include padded
ones, not only divisors.  The estimate is the busiest of CUBE, MTE1 and FIXPIPE plus what fills and drains the pipe; it ranks points, the
simulator judges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling, VectorTiling
from compiler.ir.graph import Pool
from compiler.tile.spec import AnySpec, ConvSpec, PoolSpec, SoftmaxSpec, Unit, VectorSpec
from simulator.npu.cycles import CostTables, cost_tables
from simulator.npu.machine import Machine, Memory

CHUNK_BLOCKS = 3072  # 96 KiB: what a chunk of streamed weights may hold by default; two of them are live
UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector kernel may hold by default; two of them are live


@dataclass(frozen=True, eq=False)
class TileSpace:
    """points: int64 [p, 4] of (tile_m, tile_n1, tile_k1, n_outer); cycles: int64 [p], estimated for the whole block."""

    points: NDArray[np.int64]
    cycles: NDArray[np.int64]


class _Shape(NamedTuple):
    pixels: int
    groups: int
    n1: int
    k1: int
    to_l1: bool
    dtype: int


@lru_cache(maxsize=64)
def _tables(machine: Machine) -> CostTables:
    return cost_tables(machine)


def _sizes(limit: int, top: int) -> list[int]:
    """Tile sizes along one axis: all small ones, then those that cut `limit` into equal parts, rounded up."""
    wanted = {min(size, limit) for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}
    wanted |= {-(-limit // parts) for parts in range(1, 17)}
    return sorted(size for size in wanted if 1 <= size <= top)


@lru_cache(maxsize=4096)
def _space(machine: Machine, shape: _Shape) -> TileSpace:
    half_a, half_b, half_c = (machine.buffer_blocks(m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    rows = -(-shape.pixels // 16)
    m = np.array(_sizes(rows, half_a // 16), np.int64) * 16
    n = np.array(_sizes(shape.n1, half_b // 16), np.int64)
    k = np.array(_sizes(shape.k1, half_a // 16), np.int64)
    order = np.array([0, 1], np.int64)
    grid = np.stack([g.reshape(-1) for g in np.meshgrid(m, n, k, order, indexing="ij")], 1)
    legal = (grid[:, 0] * grid[:, 2] <= half_a) & (grid[:, 1] * grid[:, 2] * 16 <= half_b) & (grid[:, 1] * grid[:, 0] * 2 <= half_c)
    points = grid[legal]
    cycles = _estimate(machine, shape, points)
    return TileSpace(points, cycles)


def _estimate(machine: Machine, s: _Shape, points: NDArray[np.int64]) -> NDArray[np.int64]:
    t = _tables(machine)
    m, n, k, n_outer = points.T
    tiles_m, tiles_n, tiles_k = -(-s.pixels // m), -(-s.n1 // n), -(-s.k1 // k)
    last_m = -(-(s.pixels - (tiles_m - 1) * m) // 16) * 16
    rows = (tiles_m - 1) * m + last_m
    products = s.groups * tiles_m * tiles_n * tiles_k
    cube = products * t.scalars[0] + s.groups * rows // 16 * s.k1 * s.n1 * t.fractal_cycles[s.dtype]
    one_k = tiles_k == 1
    times_a = np.where(one_k & ((n_outer == 0) | (tiles_m == 1)), 1, tiles_n)
    times_b = np.where(one_k & ((n_outer == 1) | (tiles_n == 1)), 1, tiles_m)
    l1, l0a, l0b, l0c = Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C
    a = s.groups * times_a * (rows * s.k1 * 32 // t.rate[l1, l0a] + tiles_m * tiles_k * t.startup[l1, l0a])
    b = s.groups * times_b * (s.n1 * s.k1 * 512 // t.rate[l1, l0b] + tiles_n * tiles_k * t.startup[l1, l0b])
    out = l1 if s.to_l1 else Memory.UB
    fix = s.groups * (s.pixels * s.n1 * 64 // t.rate[l0c, out] + tiles_m * tiles_n * t.startup[l0c, out])
    fill = np.minimum(m, rows) * k * 32 // t.rate[l1, l0a] + n * k * 512 // t.rate[l1, l0b]
    drain = np.minimum(m, rows) * n * 64 // t.rate[l0c, out]
    return np.maximum(np.maximum(cube, a + b), fix) + fill + drain + products // 4


def conv_space(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool) -> TileSpace:
    """The space of a convolution on `rows` output rows whose results go to L1 or, through UB, elsewhere."""
    path = unit.machine.path(Memory.L0C, Memory.L1) is not None and to_l1
    return _space(unit.machine, _Shape(rows * spec.out_w, spec.groups, spec.n1, spec.k1, path, int(unit.dtype)))


def rank(space: TileSpace) -> NDArray[np.int64]:
    """Points from the best estimate to the worst; ties to the earlier point."""
    return np.argsort(space.cycles, kind="stable")


def chunks(spec: ConvSpec, pixels: int, tile_m: int, blocks: int = CHUNK_BLOCKS, l0c_blocks: int = 8192) -> tuple[int, int]:
    """(chunk_n1, chunk_k1) of streamed weights: whole k where that fits, else as much of n as the partial sums in L0C allow."""
    if spec.k1 * 16 <= blocks:
        return max(1, min(spec.n1, blocks // (spec.k1 * 16))), spec.k1
    padded = -(-pixels // tile_m) * tile_m
    room = l0c_blocks // (2 * padded)
    if room < 1:
        return 1, spec.k1
    n = min(spec.n1, room, 16)
    return n, max(1, min(spec.k1, blocks // (16 * n)))


def conv_tiling(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, choice: int = 0, blocks: int = CHUNK_BLOCKS) -> ConvTiling:
    """The tiling at place `choice` of the ranking."""
    space = conv_space(unit, spec, rows, to_l1)
    order = rank(space)
    m, n, k, n_outer = (int(v) for v in space.points[order[min(choice, len(order) - 1)]])
    if resident:
        chunk_n, chunk_k = spec.n1, spec.k1
    else:
        chunk_n, chunk_k = chunks(spec, rows * spec.out_w, m, blocks, unit.machine.buffer_blocks(Memory.L0C))
        n, k = min(n, chunk_n), min(k, chunk_k)
    return ConvTiling(
        weights="resident" if resident else "streamed",
        chunk_n1=chunk_n,
        chunk_k1=chunk_k,
        tile_m=m,
        tile_n1=n,
        tile_k1=k,
        order="n" if n_outer else "m",
    )


def vector_tiling(unit: Unit, spec: AnySpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane."""
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
