"""Legal tiling space of a convolution on a block, with an estimate of every point's cycles.

A point is legal if its tiles fit half of L0A, L0B and L0C (the other half is being filled or drained), and two tiles of results fit UB.
Tile sizes include padded ones, not only divisors.  The estimate is the busiest of CUBE, MTE1 and FIXPIPE plus filling and draining; it
ranks points (`cost.ranking`), the simulator judges them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import Cost, cost_of
from compiler.cost.smallest_indices import smallest_indices
from compiler.ir.im2col import WHOLE, Cut, count_instructions
from compiler.ops.conv import ConvSpec
from compiler.ops.tile_counts import (
    Pair,
    count_chunk,
    count_panel_product,
    count_product,
    l0_blocks,
    l0_slot_counts,
    padded_rows,
    partial_blocks,
    single_piece,
    split_axis,
    tiles_stay,
)
from compiler.target.capabilities import L0, SINGLE_TILE, room_blocks, writes_result
from compiler.target.zero_blocks import EVERYWHERE, Ints, Panels, count_loads
from simulator.npu.fractal_sizes import ROWS
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Memory

_SMALL, _PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), 16  # tile sizes to try, and numbers of parts to cut an axis into
_OVERLAP = 2  # share of the other engine's work (CUBE or MTE1) that adds to the busiest engine's: a quarter


class Shape(NamedTuple):
    """Convolution on one block, as the estimate sees it.  n1, k1: blocks of one chunk of weights; each group has `chunks_n` x `chunks_k`
    chunks.

    ub_blocks: blocks of UB for one tile of results or of a residual; 0 if no tile passes through UB.
    n1_step: tiles along n1 are multiples of it.  cut: ends of IM2COL along k (`ir.im2col`).  needed: needed blocks of a whole group
    (`target.zero_blocks`).  l0: which tiles stay in L0, and how long.
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
    l0: L0 = SINGLE_TILE


class Layer(NamedTuple):
    """Properties of a convolution, besides its block, that decide its tilings: equal layers share one ranking.

    columns: blocks of FIXPIPE's per-channel data.  n1_step, result_lanes: see `ConvSpec`.  residual: least size of a residual tile in
    result tiles; 0 without a residual.  l0: which tiles stay in L0, and how long.  deep: most blocks of k in a chunk of weights.
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
    columns, result = spec.groups * spec.n1 * spec.channel_vector_blocks, (spec.n1_step, spec.result_lanes)
    residual = 0 if spec.residual is None else -(-spec.result_lanes // spec.residual_lanes)
    expansion = spec.expansion
    deep = spec.k1 if expansion is None or expansion.resident else min(spec.k1, expansion.deep)
    return Layer(
        spec.out_w, spec.groups, spec.n1, spec.k1, columns, *result, residual, spec.parts.cut, spec.needed.tobytes(), spec.staying, deep
    )


def shape_of(machine: Machine, dtype: DataType, spec: ConvSpec, rows: int, to_l1: bool, chunk: tuple[int, int]) -> Shape:
    """Shape of `rows` output rows with weights in chunks of (n1, k1).  to_l1: whether results stay on chip."""
    return layer_shape(machine, int(dtype), layer_of(spec), rows, writes_result(machine, to_l1), chunk)


def layer_shape(machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, chunk: tuple[int, int]) -> Shape:
    n1, k1 = chunk
    slots = 2 * (not direct) + 2 * layer.residual
    fractal = machine.fractal(dtype)
    ub = room_blocks(machine, Memory.UB)
    if slots:
        slot_blocks = (ub - layer.columns) // slots // REPEAT_BLOCKS * REPEAT_BLOCKS
        # a bias that leaves no room for the smallest tile comes in chunks (`space.fit_ub`)
        least = ROWS * -(-layer.n1_step * fractal.columns // layer.result_lanes)
        ub = slot_blocks if slot_blocks >= least else max(1, ub * 3 // 4 // slots // REPEAT_BLOCKS * REPEAT_BLOCKS)
    else:
        ub = 0
    chunks_n, chunks_k = -(-layer.n1 // n1), -(-layer.k1 // k1)
    result = layer.n1_step, layer.result_lanes
    return Shape(
        rows * layer.out_w, layer.groups, n1, k1, chunks_n, chunks_k, direct, dtype, *result, ub, layer.cut, layer.blocks, layer.l0
    )


@njit(cache=True)
def _sizes(limit: int, top: int, unit: int = 1) -> NDArray[np.int64]:
    """Tile sizes along one axis, times `unit`: all small sizes, then those that cut `limit` into equal parts, rounded up."""
    drawn = np.empty(len(_SMALL) + _PARTS, np.int64)
    for i in range(drawn.shape[0]):
        drawn[i] = min(_SMALL[i], limit) if i < len(_SMALL) else (limit + i - len(_SMALL)) // (i - len(_SMALL) + 1)
    sizes, count = np.empty_like(drawn), 0
    for i in smallest_indices(drawn, drawn.shape[0]):
        if 1 <= drawn[i] <= top and (count == 0 or drawn[i] > sizes[count - 1]):
            sizes[count] = drawn[i]
            count += 1
    return sizes[:count] * unit


@njit(cache=True)
def is_legal(shape: Shape, cost: Cost, tile_m: int, tile_n: int, tile_k: int) -> bool:
    """Whether tiles fit half of L0A, L0B and L0C and their slot of UB, and partial sums fit all of L0C."""
    a, b, sums = l0_blocks(cost.weight_blocks, cost.sum_blocks, tile_m, tile_n, tile_k)
    if a > cost.half_a or b > cost.half_b or sums > cost.half_c:
        return False
    if shape.ub_blocks and (tile_n * cost.columns + shape.result_lanes - 1) // shape.result_lanes * tile_m > shape.ub_blocks:
        return False
    return shape.chunks_k == 1 or partial_blocks(cost.sum_blocks, shape.pixels, shape.n1, tile_m) <= 2 * cost.half_c


@njit(cache=True)
def largest_k(cost: Cost, tile_m: int, tile_n: int) -> int:
    """Largest tile along k that fits together with the given tiles along m and n."""
    return min(cost.half_a // tile_m, cost.half_b // (tile_n * cost.weight_blocks))


@njit(cache=True)
def m_side(shape: Shape, cost: Cost, tile: int) -> tuple[int, int, int, int]:
    """Figures along m: tiles, steps of MMAD, cycles of the left operand to L0A, and rows of the largest tile."""
    tiles, rows = (shape.pixels + tile - 1) // tile, padded_rows(cost.rows, shape.pixels, tile)
    return (
        tiles, closed_form.steps_along(cost, closed_form.M, single_piece(rows), tile), int(closed_form.a_cycles(cost, rows * shape.k1)),
        min(tile, rows),
    )  # fmt: skip


@njit(cache=True)
def n_side(shape: Shape, cost: Cost, tile: int) -> tuple[int, int]:
    """Figures along n: tiles, and steps of MMAD."""
    return (shape.n1 + tile - 1) // tile, closed_form.steps_along(cost, closed_form.N, single_piece(shape.n1), tile)


@njit(cache=True)
def k_side(shape: Shape, cost: Cost, tile: int) -> tuple[int, int, int]:
    """Figures along k: tiles, steps of MMAD, and instructions for the left operand's tiles."""
    return (
        (shape.k1 + tile - 1) // tile,
        closed_form.steps_along(cost, closed_form.K, single_piece(shape.k1), tile),
        count_instructions(shape.cut, 0, shape.k1, shape.k1, tile),
    )


@njit(cache=True)
def loop_orders(tiles_m: int, tiles_n: int) -> int:
    """Number of different orders of the loops over tiles: one if one of the loops has a single tile."""
    return 2 if tiles_m > 1 and tiles_n > 1 else 1


@njit(cache=True)
def fill_cycles(cost: Cost, rows: int, tile_n: int, tile_k: int) -> int:
    """Cycles of the first tiles' moves to L0."""
    return int(closed_form.a_cycles(cost, rows * tile_k)) + int(closed_form.b_cycles(cost, tile_n * tile_k))


@njit(cache=True)
def cycles_out(shape: Shape, cost: Cost, tiles_m: int, rows: int, tiles_n: int, tile_n: int) -> tuple[int, int]:
    """Cycles of FIXPIPE per chunk, and of one tile."""
    fix = closed_form.fixpipe_cycles(cost, int(closed_form.out_cycles(cost, shape.pixels * shape.n1)), tiles_m * tiles_n) // shape.chunks_k
    return fix, int(closed_form.out_cycles(cost, rows * tile_n))


@njit(cache=True)
def chunk_work(
    cost: Cost, along_m: tuple[int, int, int, int], along_n: tuple[int, int], along_k: tuple[int, int, int], weights: int, n_outer: int,
    slot_counts: Pair,
) -> tuple[int, int]:  # fmt: skip
    """Busy cycles of CUBE and MTE1 on one chunk; weights: cycles of its right operand to L0B.  slot_counts: `l0_slot_counts`."""
    (tiles_m, steps_m, pixels, _), (tiles_n, steps_n), (tiles_k, steps_k, copies_k) = along_m, along_n, along_k
    products, loads_a, repeats_a, loads_b, repeats_b = count_chunk(
        tiles_m, tiles_n, tiles_k, copies_k, n_outer, tiles_stay(tiles_m, tiles_n, tiles_k, n_outer, slot_counts)
    )
    cube = closed_form.cube_cycles(cost, products, steps_m * steps_k * steps_n)
    return cube, closed_form.mte1_cycles(cost, repeats_a * pixels, loads_a, repeats_b * weights, loads_b)


@njit(cache=True)
def block_cycles(
    shape: Shape, cost: Cost, along_m: tuple[int, int, int, int], along_n: tuple[int, int], along_k: tuple[int, int, int], weights: int,
    fill: int, fix: int, drain: int, n_outer: int, slot_counts: Pair,
) -> int:  # fmt: skip
    """Estimate of a point; weights, slot_counts: see `chunk_work`.  No division: it is the ranking's inner loop."""
    cube, moves = chunk_work(cost, along_m, along_n, along_k, weights, n_outer, slot_counts)
    return side_by_side(shape, cost, cube, moves, along_m[0] * along_n[0] * along_k[0], fill, fix, drain)


@njit(cache=True)
def side_by_side(shape: Shape, cost: Cost, cube: int, moves: int, products: int, fill: int, fix: int, drain: int) -> int:
    """Estimate for all chunks.  cube, moves, products, fix: estimates for one chunk."""
    # partial sums that fill L0C leave no second slot: every chunk of n drains before the next one starts
    stalls = drain * (shape.chunks_n if shape.chunks_k > 1 else 1)
    # halves of L0 that are released when results are out: of two tiles in flight, each takes its move, its product and the latency
    released = (cube + moves + products * cost.cube_latency) >> 1
    repeats = shape.groups * shape.chunks_n * shape.chunks_k
    # operators overlap: work of the other engines delays the next or the previous operator
    shared = (cube + moves) >> _OVERLAP
    return repeats * (max(cube, moves, fix, released) + shared + (products >> 2)) + fill + stalls + cost.cube_latency


@njit(cache=True)
def work_of_panels(
    shape: Shape, cost: Cost, along_m: tuple[int, int, int, int], panels: Panels, n_outer: int, stay: tuple[bool, bool]
) -> tuple[int, int, int]:
    """Busy cycles of CUBE and MTE1, and number of products, for groups with zero blocks beside them: share of one chunk."""
    tiles_m, steps_m, pixels, _ = along_m
    chunks, products = shape.chunks_n * shape.chunks_k, tiles_m * panels.panels
    loads_a, of_a, loads_b, of_b = count_loads(panels, tiles_m, n_outer, stay)
    a = pixels * of_a // shape.k1
    moves = closed_form.mte1_cycles(cost, a, loads_a, int(closed_form.b_cycles(cost, of_b)), loads_b)
    return closed_form.cube_cycles(cost, products, steps_m * panels.steps) // chunks, int(moves) // chunks, products // chunks


@njit(cache=True)
def block_cycles_of_panels(
    shape: Shape, cost: Cost, tile_m: int, tile_n: int, tile_k: int, panels: Panels, n_outer: int
) -> tuple[int, int]:
    """Estimate of a point for groups with zero blocks beside them, and cycles of CUBE and MTE1 together on one chunk."""
    along_m, tiles_n = m_side(shape, cost, tile_m), n_side(shape, cost, tile_n)[0]
    stay = tiles_stay(
        along_m[0],
        tiles_n,
        (shape.k1 + tile_k - 1) // tile_k,
        n_outer,
        l0_slot_counts(shape.l0, cost.weight_blocks, tile_m, tile_n, tile_k),
    )
    cube, moves, products = work_of_panels(shape, cost, along_m, panels, n_outer, stay)
    fix, drain = cycles_out(shape, cost, along_m[0], along_m[3], tiles_n, tile_n)
    return side_by_side(shape, cost, cube, moves, products, fill_cycles(cost, along_m[3], tile_n, tile_k), fix, drain), cube + moves


@njit(cache=True)
def _points(shape: Shape, cost: Cost, ms: NDArray[np.int64], ns: NDArray[np.int64], ks: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.empty((ms.shape[0] * ns.shape[0] * ks.shape[0] * 2, 4), np.int64)
    count = 0
    for m in ms:
        for n in ns:
            for k in ks:
                if is_legal(shape, cost, m, n, k):
                    for n_outer in range(loop_orders((shape.pixels + m - 1) // m, (shape.n1 + n - 1) // n)):
                        out[count, 0], out[count, 1], out[count, 2], out[count, 3] = m, n, k, n_outer
                        count += 1
    return out[:count].copy()


@njit(cache=True)
def _estimate(shape: Shape, cost: Cost, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out, weights = np.empty(points.shape[0], np.int64), int(closed_form.b_cycles(cost, shape.n1 * shape.k1))
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        if shape.needed.size:
            panels = closed_form.panels_between(cost, shape.needed, shape.n1, shape.k1, n, k, shape.cut)
            out[i] = block_cycles_of_panels(shape, cost, m, n, k, panels, n_outer)[0]
            continue
        along_m, along_n = m_side(shape, cost, m), n_side(shape, cost, n)
        fix, drain = cycles_out(shape, cost, along_m[0], along_m[3], along_n[0], n)
        fill = fill_cycles(cost, along_m[3], n, k)
        out[i] = block_cycles(
            shape, cost, along_m, along_n, k_side(shape, cost, k), weights, fill, fix, drain, n_outer,
            l0_slot_counts(shape.l0, cost.weight_blocks, m, n, k),
        )  # fmt: skip
    return out


@njit(cache=True)
def _engines(shape: Shape, cost: Cost, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    out, along_n, along_k = np.empty((points.shape[0], 3), np.int64), split_axis(n1, shape.n1), split_axis(k1, shape.k1)
    for i in range(points.shape[0]):
        m, n, k, n_outer = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
        slot_counts = l0_slot_counts(shape.l0, cost.weight_blocks, m, n, k)
        if shape.needed.size:
            panels = closed_form.panels_between(cost, shape.needed, shape.n1, shape.k1, n, k, shape.cut)
            tiles = count_panel_product(panels, cost.rows, shape.pixels, along_n, along_k, m, n, k, n_outer, slot_counts)
            steps = panels.steps
        else:
            tiles = count_product(cost.rows, shape.pixels, along_n, along_k, m, n, k, n_outer, shape.cut, slot_counts)
            steps = closed_form.steps_along(cost, closed_form.N, along_n, n) * closed_form.steps_along(cost, closed_form.K, along_k, k)
        steps *= closed_form.steps_along(cost, closed_form.M, single_piece(tiles.rows), m)
        cube = closed_form.cube_cycles(cost, tiles.products, steps)
        a, b, moved = (
            closed_form.a_cycles(cost, tiles.moved_a),
            closed_form.b_cycles(cost, tiles.moved_b),
            closed_form.out_cycles(cost, shape.pixels * n1),
        )
        moves, fix = (
            closed_form.mte1_cycles(cost, int(a), tiles.loads_a, int(b), tiles.loads_b),
            closed_form.fixpipe_cycles(cost, int(moved), tiles.results),
        )
        out[i, 0], out[i, 1], out[i, 2] = shape.groups * cube, shape.groups * moves, shape.groups * fix
    return out


@njit(cache=True)
def tile_axes(shape: Shape, cost: Cost) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Tile sizes to try along m (pixels), n1 and k1."""
    ms = _sizes((shape.pixels + ROWS - 1) // ROWS, cost.half_a // ROWS, ROWS)
    step = shape.n1_step
    ns = _sizes((shape.n1 + step - 1) // step, cost.half_b // cost.weight_blocks // step, step)
    return ms, ns, _sizes(shape.k1, cost.half_a // ROWS)


def legal_points(machine: Machine, shape: Shape) -> NDArray[np.int64]:
    """Legal points, int64 [p, 4] of (tile_m, tile_n1, tile_k1, n_outer); n_outer 0 if the order makes no difference."""
    cost = cost_of(machine, shape.dtype, shape.to_l1)
    points: NDArray[np.int64] = _points(shape, cost, *tile_axes(shape, cost))
    return points


def estimate(machine: Machine, shape: Shape, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles of the block for every point, uncontended: the busiest engine, plus filling and draining."""
    cycles: NDArray[np.int64] = _estimate(shape, cost_of(machine, shape.dtype, shape.to_l1), points)
    return cycles


def engine_cycles(machine: Machine, shape: Shape, n1: int, k1: int, points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Busy cycles of CUBE, MTE1 and FIXPIPE on the block, int64 [p, 3], rounded down.

    n1, k1: blocks of all chunks together, so that the smaller last chunk is counted exactly.
    """
    cycles: NDArray[np.int64] = _engines(shape, cost_of(machine, shape.dtype, shape.to_l1), n1, k1, points)
    return cycles
