"""The legal tiling space of an operator on a block, with an estimate of every point's cycles.

A point is legal where its tiles fit half of L0A, L0B and L0C (the other half is being filled or drained), and two of results fit UB.
Tile sizes include padded ones, not only divisors.  The estimate is the busiest of CUBE, MTE1 and FIXPIPE plus what fills and drains the
pipe; it ranks points, the simulator judges them.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling, VectorTiling
from compiler.tile.slots import vector_slot
from compiler.tile.spec import AnySpec, ConvSpec, LayerNormSpec, PoolSpec, ResampleSpec, SoftmaxSpec, Unit, VectorSpec
from simulator.npu.cycles import CostTables, cost_tables, latency_cycles, steps
from simulator.npu.machine import DataType, Machine, Memory

CHUNK_BUDGETS = (8192, 4096, 2048, 1024, 512, 256)  # blocks of one chunk of streamed weights, two of which are live
LAST_BUDGETS = (128, 64, 32, 16)  # where nothing else fits; the last one is 16 channels by one block of C0
UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector kernel may hold by default; two of them are live


KEPT = 64  # points of a space that are kept, best estimates first
_SMALL, _PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 16  # tile sizes that are looked at, and into how many parts an axis is cut


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


class _Layer(NamedTuple):
    """What a convolution's tilings depend on, apart from its block: equal layers share their ranking."""

    out_w: int
    groups: int
    n1: int
    k1: int
    residual: bool


class _Cost(NamedTuple):
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


def _layer(spec: ConvSpec) -> _Layer:
    return _Layer(spec.out_w, spec.groups, spec.n1, spec.k1, spec.residual is not None)


def shape_of(machine: Machine, dtype: DataType, spec: ConvSpec, rows: int, to_l1: bool, chunk: tuple[int, int]) -> Shape:
    """`rows` output rows with weights in chunks of (n1, k1); to_l1: results stay on chip, by FIXPIPE where it has the path."""
    return _shape(machine, int(dtype), _layer(spec), rows, to_l1 and machine.path(Memory.L0C, Memory.L1) is not None, chunk)


def _shape(machine: Machine, dtype: int, layer: _Layer, rows: int, direct: bool, chunk: tuple[int, int]) -> Shape:
    n1, k1 = chunk
    slots = 2 * (not direct) + 2 * layer.residual
    ub, bias_blocks = machine.buffer_blocks(Memory.UB), layer.groups * layer.n1 * 2
    if slots:
        whole = (ub - bias_blocks) // slots // 8 * 8
        # a bias that leaves no room for the smallest tile comes in chunks (`derive.fit_ub`)
        ub = whole if whole >= 16 * 16 // DataType(dtype).lanes else max(1, ub * 3 // 4 // slots // 8 * 8)
    else:
        ub = 0
    return Shape(rows * layer.out_w, layer.groups, n1, k1, -(-layer.n1 // n1), -(-layer.k1 // k1), direct, dtype, ub)


@lru_cache(maxsize=64)
def tables(machine: Machine) -> CostTables:
    return cost_tables(machine)


@lru_cache(maxsize=64)
def writes_l1(machine: Machine) -> bool:
    """Whether results of the matrix unit can go to L1 without UB."""
    return machine.path(Memory.L0C, Memory.L1) is not None


@lru_cache(maxsize=64)
def _cost(machine: Machine, dtype: int, direct: bool) -> _Cost:
    t = tables(machine)
    halves = (machine.buffer_blocks(m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    paths = ((Memory.L1, Memory.L0A), (Memory.L1, Memory.L0B), (Memory.L0C, Memory.L1 if direct else Memory.UB))
    rates = (int(table[path]) for path in paths for table in (t.rate, t.startup))
    lanes = DataType(dtype).lanes
    matrix = (int(t.scalars[0]), latency_cycles(machine), int(t.step_cycles[dtype]), t.matrix[dtype])
    return _Cost._make((*halves, 16 // lanes, lanes, *matrix, *rates))


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


@njit(cache=True, inline="always")
def _legal(s: Shape, c: _Cost, m: int, n: int, k: int) -> bool:
    """Whether tiles fit their halves of L0 and their slot of UB, and partial sums all of L0C."""
    if m * k > c.half_a or n * k * 16 > c.half_b or n * m * 2 > c.half_c:
        return False
    if s.ub_blocks and n * m * c.planes_per_n1 > s.ub_blocks:
        return False
    return s.chunks_k == 1 or (s.pixels + m - 1) // m * m * s.n1 * 2 <= 2 * c.half_c


@njit(cache=True, inline="always")
def _per(amount: int, rate: int) -> int:
    return amount // rate if rate else 0


@njit(cache=True, inline="always")
def _steps(length: int, tile: int, axis: NDArray[np.int64]) -> int:
    """Steps of all tiles along one axis, the last one what is left."""
    whole = length // tile
    rest = length - whole * tile
    return whole * steps(tile, axis) + (steps(rest, axis) if rest else 0)


@njit(cache=True, inline="always")
def _along_m(s: Shape, c: _Cost, m: int) -> tuple[int, int, int, int]:
    """Tiles of so many pixels, steps of MMAD, cycles that all of the left operand takes to L0A, and rows of the largest tile."""
    tiles = (s.pixels + m - 1) // m
    rows = (tiles - 1) * m + (s.pixels - (tiles - 1) * m + 15) // 16 * 16
    return tiles, _steps(rows, m, c.axes[0]), _per(rows * s.k1 * 32, c.a_rate), min(m, rows)


@njit(cache=True, inline="always")
def _along_n(s: Shape, c: _Cost, n: int) -> tuple[int, int]:
    """Tiles, and steps of MMAD."""
    return (s.n1 + n - 1) // n, _steps(s.n1 * 16, n * 16, c.axes[2])


@njit(cache=True, inline="always")
def _along_k(s: Shape, c: _Cost, k: int) -> tuple[int, int]:
    """Tiles, and steps of MMAD."""
    return (s.k1 + k - 1) // k, _steps(s.k1 * c.lanes, k * c.lanes, c.axes[1])


@njit(cache=True, inline="always")
def _fill_a(c: _Cost, rows: int, k: int) -> int:
    return _per(rows * k * 32, c.a_rate)


@njit(cache=True, inline="always")
def _fill_b(c: _Cost, n: int, k: int) -> int:
    return _per(n * k * 512, c.b_rate)


@njit(cache=True, inline="always")
def _on_the_way_out(s: Shape, c: _Cost, tiles_m: int, rows: int, tiles_n: int, n: int) -> tuple[int, int]:
    """Cycles of FIXPIPE in every chunk, and of one tile."""
    fix = (_per(s.pixels * s.n1 * 64, c.out_rate) + tiles_m * tiles_n * c.out_startup) // s.chunks_k
    return fix, _per(rows * n * 64, c.out_rate)


@njit(cache=True, inline="always")
def _total(
    s: Shape,
    c: _Cost,
    along_m: tuple[int, int, int, int],
    along_n: tuple[int, int],
    along_k: tuple[int, int],
    weights: int,
    fill: int,
    fix: int,
    drain: int,
    n_outer: int,
) -> int:
    """Cycles of the block; weights: that all of the right operand takes to L0B.  No division: it is the ranking's inner loop."""
    (tiles_m, steps_m, pixels, _), (tiles_n, steps_n), (tiles_k, steps_k) = along_m, along_n, along_k
    products = tiles_m * tiles_n * tiles_k
    cube = products * c.cube_startup + steps_m * steps_k * steps_n * c.step_cycles
    times_a = 1 if tiles_k == 1 and (n_outer == 0 or tiles_m == 1) else tiles_n
    times_b = 1 if tiles_k == 1 and (n_outer == 1 or tiles_n == 1) else tiles_m
    a = times_a * (pixels + tiles_m * tiles_k * c.a_startup)
    b = times_b * (weights + tiles_n * tiles_k * c.b_startup)
    # partial sums that take all of L0C leave no second place: every chunk of n drains before the next one starts
    stalls = drain * (s.chunks_n if s.chunks_k > 1 else 1)
    # halves of L0 that are released when results are out: of two tiles in flight, each takes its move, its product and the latency
    released = (cube + a + b + products * c.cube_latency) >> 1
    repeats = s.groups * s.chunks_n * s.chunks_k
    return repeats * (max(cube, a + b, fix, released) + (products >> 2)) + fill + stalls + c.cube_latency


@njit(cache=True, inline="always")
def _weights(s: Shape, c: _Cost) -> int:
    return _per(s.n1 * s.k1 * 512, c.b_rate)


@njit(cache=True)
def _cycles(s: Shape, c: _Cost, m: int, n: int, k: int, n_outer: int) -> int:
    along_m, along_n = _along_m(s, c, m), _along_n(s, c, n)
    fix, drain = _on_the_way_out(s, c, along_m[0], along_m[3], along_n[0], n)
    fill = _fill_a(c, along_m[3], k) + _fill_b(c, n, k)
    return _total(s, c, along_m, along_n, _along_k(s, c, k), _weights(s, c), fill, fix, drain, n_outer)


@njit(cache=True)
def _points(s: Shape, c: _Cost, ms: NDArray[np.int64], ns: NDArray[np.int64], ks: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty((ms.shape[0] * ns.shape[0] * ks.shape[0] * 2, 4), np.int64)
    at = 0
    for m in ms:
        for n in ns:
            for k in ks:
                if _legal(s, c, m, n, k):
                    for n_outer in range(2):
                        out[at, 0], out[at, 1], out[at, 2], out[at, 3] = m, n, k, n_outer
                        at += 1
    return out[:at].copy()


@njit(cache=True)
def _estimate(s: Shape, c: _Cost, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty(points.shape[0], np.int64)
    for i in range(points.shape[0]):
        out[i] = _cycles(s, c, points[i, 0], points[i, 1], points[i, 2], points[i, 3])
    return out


@njit(cache=True)
def _engines(s: Shape, c: _Cost, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty((points.shape[0], 3), np.int64)
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        tiles_m = (s.pixels + m - 1) // m
        rows = (tiles_m - 1) * m + (s.pixels - (tiles_m - 1) * m + 15) // 16 * 16
        steps_m = _steps(rows, m, c.axes[0])
        cube, moves, stores = 0, 0, 0
        for n_start in range(0, n1, s.n1):
            size_n = min(s.n1, n1 - n_start)
            tiles_n = (size_n + n - 1) // n
            stores += tiles_m * tiles_n
            steps_n = _steps(size_n * 16, n * 16, c.axes[2])
            for k_start in range(0, k1, s.k1):
                size_k = min(s.k1, k1 - k_start)
                tiles_k = (size_k + k - 1) // k
                again_a = 1 if tiles_k == 1 and (n_outer == 0 or tiles_m == 1) else tiles_n
                again_b = 1 if tiles_k == 1 and (n_outer == 1 or tiles_n == 1) else tiles_m
                steps_k = _steps(size_k * c.lanes, k * c.lanes, c.axes[1])
                cube += tiles_m * tiles_n * tiles_k * c.cube_startup + steps_m * steps_n * steps_k * c.step_cycles
                moves += again_a * (rows * size_k * 32 // c.a_rate + tiles_m * tiles_k * c.a_startup)
                moves += again_b * (size_n * size_k * 512 // c.b_rate + tiles_n * tiles_k * c.b_startup)
        fix = stores * c.out_startup + s.pixels * n1 * 64 // c.out_rate
        out[i, 0], out[i, 1], out[i, 2] = s.groups * cube, s.groups * moves, s.groups * fix
    return out


@njit(cache=True)
def _keep(s: Shape, c: _Cost, table: NDArray[np.int64], order: NDArray[np.int64], used: int) -> int:
    """Rank a shape's points among those in `table` (int64 [KEPT, 7], `used` rows); order: int64 [KEPT, 2] of (cycles, row), the best first.

    Equal estimates: the larger chunk, whose bursts are longer, then the earlier point.  The last points come first: large tiles are mostly
    better, so those that follow are mostly not kept.  Returns how many rows are used then.
    """
    ms, ns, ks = _axes(s, c)
    all_n, all_k = [_along_n(s, c, n) for n in ns], [_along_k(s, c, k) for k in ks]
    fill_b = np.empty((ns.shape[0], ks.shape[0]), np.int64)
    for i, n in enumerate(ns):
        for j, k in enumerate(ks):
            fill_b[i, j] = _fill_b(c, n, k)
    fill_a = np.empty(ks.shape[0], np.int64)
    area, weights = s.n1 * s.k1, _weights(s, c)
    most = table.shape[0]
    for m in ms[::-1]:
        along_m = _along_m(s, c, m)
        for j, k in enumerate(ks):
            fill_a[j] = _fill_a(c, along_m[3], k)
        for i in range(ns.shape[0] - 1, -1, -1):
            n = ns[i]
            if not _legal(s, c, m, n, ks[0]):
                continue  # nor is a larger k
            fix, drain = _on_the_way_out(s, c, along_m[0], along_m[3], all_n[i][0], n)
            for j in range(ks.shape[0] - 1, -1, -1):
                k = ks[j]
                if not _legal(s, c, m, n, k):
                    continue
                for n_outer in range(1, -1, -1):
                    cycles = _total(s, c, along_m, all_n[i], all_k[j], weights, fill_a[j] + fill_b[i, j], fix, drain, n_outer)
                    if used == most and cycles > order[most - 1, 0]:
                        continue
                    at = used
                    while at > 0:
                        before = order[at - 1, 0]
                        if cycles > before:
                            break
                        if cycles == before:
                            row = order[at - 1, 1]
                            if area < table[row, 1] * table[row, 2]:
                                break
                        at -= 1
                    if at == most:
                        continue
                    row = used
                    if used == most:
                        row = order[most - 1, 1]
                    else:
                        used += 1
                    for p in range(used - 1, at, -1):
                        order[p, 0], order[p, 1] = order[p - 1, 0], order[p - 1, 1]
                    order[at, 0], order[at, 1] = cycles, row
                    table[row, 0], table[row, 1], table[row, 2] = cycles, s.n1, s.k1
                    table[row, 3], table[row, 4], table[row, 5], table[row, 6] = m, n, k, n_outer
    return used


@njit(cache=True)
def _rank(s: Shape, c: _Cost, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The best points in any of these chunks of weights, int64 [p, 2], as `_ranked` has them.  s: where all weights are one chunk."""
    table, order, used = np.empty((KEPT, 7), np.int64), np.empty((KEPT, 2), np.int64), 0
    for n1, k1 in chunks[::-1]:
        chunks_n, chunks_k = (s.n1 + n1 - 1) // n1, (s.k1 + k1 - 1) // k1
        used = _keep(Shape(s.pixels, s.groups, n1, k1, chunks_n, chunks_k, s.to_l1, s.dtype, s.ub_blocks), c, table, order, used)
    return table[order[:used, 1]]


@njit(cache=True)
def _axes(s: Shape, c: _Cost) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Sizes of tiles along m (pixels), n1 and k1 that are looked at."""
    return _sizes((s.pixels + 15) // 16, c.half_a // 16, 16), _sizes(s.n1, c.half_b // 16), _sizes(s.k1, c.half_a // 16)


def legal_points(machine: Machine, s: Shape) -> NDArray[np.int64]:
    """int64 [p, 4] of (tile_m, tile_n1, tile_k1, n_outer): every legal combination."""
    c = _cost(machine, s.dtype, s.to_l1)
    points: NDArray[np.int64] = _points(s, c, *_axes(s, c))
    return points


def estimate(machine: Machine, s: Shape, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles of the whole block for every point, uncontended: the busiest engine, plus filling and draining the pipe."""
    cycles: NDArray[np.int64] = _estimate(s, _cost(machine, s.dtype, s.to_l1), points)
    return cycles


def engine_cycles(machine: Machine, s: Shape, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [p, 3]: cycles in which CUBE, MTE1 and FIXPIPE work on the block, rounded down.

    n1, k1: of all chunks together, so that the last one counts for what it is.
    """
    cycles: NDArray[np.int64] = _engines(s, _cost(machine, s.dtype, s.to_l1), n1, k1, points)
    return cycles


@njit(cache=True)
def _chunk_choices(n1: int, k1: int, pixels: int, budget: int, l0c_blocks: int) -> NDArray[np.int64]:
    """int64 [p, 2] of (chunk_n1, chunk_k1) of streamed weights within `budget` blocks: all of k and what fits of n, or pieces of k with
    partial sums."""
    found = np.empty(8, np.int64)  # both in one number, to be sorted
    count = 0
    whole = budget // (k1 * 16)
    for n in (whole, (whole + 1) // 2, 1):
        if 1 <= n <= whole:
            n = min(n, n1)
            parts = (n1 + n - 1) // n
            found[count] = (n1 + parts - 1) // parts << 32 | k1
            count += 1
    room = l0c_blocks // (2 * ((pixels + 15) // 16 * 16))
    for n in (room, 32, 16, 8, 4):
        n = min(n, room, n1, budget // 16)
        if n >= 1:
            k = min(k1, budget // (16 * n))
            parts = (k1 + k - 1) // k
            found[count] = n << 32 | (k1 + parts - 1) // parts
            count += 1
    codes = np.unique(found[:count])
    out = np.empty((codes.shape[0], 2), np.int64)
    out[:, 0], out[:, 1] = codes >> 32, codes & 0xFFFFFFFF
    return out


def chunk_choices(spec: ConvSpec, rows: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """(chunk_n1, chunk_k1) of streamed weights within `budget` blocks that are looked at for `rows` output rows."""
    return [(n, k) for n, k in _chunk_choices(spec.n1, spec.k1, rows * spec.out_w, budget, l0c_blocks).tolist()]


@lru_cache(maxsize=1 << 16)
def _ranked(machine: Machine, dtype: int, layer: _Layer, rows: int, direct: bool, resident: bool, budget: int) -> NDArray[np.int64]:
    """int64 [<= KEPT, 7] of (cycles, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer), the best estimate first."""
    shape = _shape(machine, dtype, layer, rows, direct, (layer.n1, layer.k1))
    if resident:
        chunks = np.array([(layer.n1, layer.k1)], np.int64)
    else:
        chunks = _chunk_choices(layer.n1, layer.k1, shape.pixels, budget, machine.buffer_blocks(Memory.L0C))
    found: NDArray[np.int64] = _rank(shape, _cost(machine, dtype, direct), chunks)
    return found


@lru_cache(maxsize=65536)
def tiling_of(weights: Literal["resident", "streamed"], chunk_n1: int, chunk_k1: int, m: int, n: int, k: int, n_outer: int) -> ConvTiling:
    return ConvTiling.model_construct(
        kind="conv", weights=weights, chunk_n1=chunk_n1, chunk_k1=chunk_k1, tile_m=m, tile_n1=n, tile_k1=k, order="n" if n_outer else "m"
    )


@lru_cache(maxsize=1 << 16)
def conv_tiling(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, choice: int = 0) -> ConvTiling | None:
    """The tiling at place `choice` (of at most `KEPT`) by estimate, for `rows` output rows; None where no tiling is legal.

    Streamed weights come in chunks of at most `budget` blocks.
    """
    ranked = _ranking(unit, spec, rows, to_l1, resident, budget)
    if not len(ranked):
        return None
    point = ranked[min(choice, len(ranked) - 1)].tolist()
    return tiling_of("resident" if resident else "streamed", *point[1:])


def narrower(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, ub_blocks: int) -> ConvTiling | None:
    """The best tiling by estimate whose tile of results takes at most `ub_blocks` blocks of UB, weights as they are; None without one."""
    resident, direct = tiling.weights == "resident", to_l1 and writes_l1(unit.machine)
    chunk = (spec.n1, spec.k1) if resident else (tiling.chunk_n1, tiling.chunk_k1)
    point = _narrower(unit.machine, int(unit.dtype), _layer(spec), rows, direct, chunk, ub_blocks)
    if point is None:
        return None
    sizes = dict(zip(("tile_m", "tile_n1", "tile_k1"), point, strict=False))
    return tiling.model_copy(update={**sizes, "order": "n" if point[3] else "m"})


@lru_cache(maxsize=4096)
def _narrower(
    machine: Machine, dtype: int, layer: _Layer, rows: int, direct: bool, chunk: tuple[int, int], ub_blocks: int
) -> tuple[int, ...] | None:
    shape = _shape(machine, dtype, layer, rows, direct, chunk)
    shape = shape._replace(ub_blocks=ub_blocks)
    points = legal_points(machine, shape)
    return tuple(points[int(np.argmin(estimate(machine, shape, points)))].tolist()) if len(points) else None


def conv_place(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, budget: int) -> int | None:
    """The `choice` for which `conv_tiling` returns this tiling; None where there is none."""
    point = (tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1, int(tiling.order == "n"))
    ranked = _ranking(unit, spec, rows, to_l1, tiling.weights == "resident", budget)
    places = np.flatnonzero((ranked[:, 1:] == point).all(1))
    return int(places[0]) if len(places) else None


def _ranking(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int) -> NDArray[np.int64]:
    direct = to_l1 and writes_l1(unit.machine)
    return _ranked(unit.machine, int(unit.dtype), _layer(spec), rows, direct, resident, 0 if resident else budget)


@lru_cache(maxsize=1 << 14)
def vector_tiling(unit: Unit, spec: AnySpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane, or columns of one row; two slots and the constants fit UB where
    anything does."""
    constants = spec.y.planes
    if isinstance(spec, LayerNormSpec):
        constants *= 3
    elif isinstance(spec, VectorSpec):
        constants *= 2 * len(spec.steps) if (spec.steps[:, 3] >= 0).any() else 0
    elif isinstance(spec, PoolSpec):
        constants = rows * spec.out_w if spec.counts_at >= 0 else 0
    elif isinstance(spec, ResampleSpec):
        constants = 0
    ub = unit.machine.buffer_blocks(Memory.UB)
    most = (ub - (spec.out_w if isinstance(spec, PoolSpec) and constants else constants)) // 16 * 8
    found = columns_tiling(spec, min(slot_blocks, most), most, unit.dtype)
    return found or slot_tiling(spec, rows, max(8, min(slot_blocks, (ub - constants) // 16 * 8)), unit.dtype)


def columns_tiling(spec: AnySpec, slot_blocks: int, most: int, dtype: DataType) -> VectorTiling | None:
    """Columns of one row that fit a slot of so many blocks, at least one; None where a whole row fits `most` blocks."""
    planes = _granule(spec)
    if spec.out_w == 1 or vector_slot(spec, planes, 1, spec.out_w, int(dtype)) <= most:
        return None
    columns = bisect_right(range(1, spec.out_w), slot_blocks, key=lambda c: vector_slot(spec, planes, 1, c, int(dtype)))
    return VectorTiling(tile_planes=planes, tile_rows=1, tile_columns=max(1, columns))


def _granule(spec: AnySpec) -> int:
    """Planes that can only be worked on together."""
    return spec.group_planes if isinstance(spec, SoftmaxSpec) else spec.y.planes if isinstance(spec, LayerNormSpec) else 1


def slot_tiling(spec: AnySpec, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
    """As many whole planes as fit a slot of so many blocks, else as many rows of one plane (or of those that belong together)."""
    granule = _granule(spec)

    def taken(tile_rows: int) -> int:
        return vector_slot(spec, granule, tile_rows, spec.out_w, int(dtype))

    if isinstance(spec, SoftmaxSpec):
        tile_rows = max(1, min(rows, slot_blocks // ((granule + 2) * spec.out_w)))
        groups = max(1, (slot_blocks // (tile_rows * spec.out_w) - 2) // granule)
        return VectorTiling(tile_planes=min(spec.groups, groups) * granule, tile_rows=tile_rows)
    if isinstance(spec, LayerNormSpec):
        return VectorTiling(tile_planes=granule, tile_rows=max(1, min(rows, slot_blocks // taken(1))))
    whole = max(1, taken(max(1, rows)))
    if whole <= slot_blocks:
        return VectorTiling(tile_planes=max(1, min(spec.y.planes, slot_blocks // whole)), tile_rows=max(1, rows))
    if isinstance(spec, ResampleSpec):
        fitting = bisect_right(range(1, rows + 1), slot_blocks, key=taken)
    else:
        fitting = 1 + (slot_blocks - taken(1)) // (taken(2) - taken(1))
    return VectorTiling(tile_planes=1, tile_rows=max(1, min(rows, fitting)))
