"""Ranking of a convolution's tilings: the best of its space by estimate, for weights that stay or that come in chunks of a budget.

A gene names a tiling by its rank here (`space.gene`), so that a rank that is good for one block is mostly good for another.
m, n, k are tile sizes along the axes of a product (`cost.closed_form`): pixels, blocks of output channels, blocks of k.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import Cost, cost_of
from compiler.cost.smallest_indices import smallest_indices
from compiler.cost.tiling_space import (
    Layer,
    Shape,
    block_cycles,
    block_cycles_of_panels,
    chunk_work,
    cycles_out,
    estimate,
    fill_cycles,
    is_legal,
    k_side,
    largest_k,
    layer_of,
    layer_shape,
    legal_points,
    loop_orders,
    m_side,
    n_side,
    tile_axes,
)
from compiler.ops.conv import ConvSpec
from compiler.ops.tile_counts import l0_slot_counts, partial_blocks
from compiler.plan.plan import ConvTiling
from compiler.target.capabilities import room_blocks, writes_result
from compiler.target.target_graph import TargetGraph
from simulator.npu.fractal_sizes import ROWS
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Fractal, Memory

CHUNK_BUDGETS = (8192, 4096, 2048, 1024, 512, 256)  # blocks of a chunk of streamed weights; two chunks are live at a time
LAST_BUDGETS = (8, 4, 2, 1)  # the last resort, in `Fractal.weight_blocks`; 1: a block of k by a fractal's columns
_CHUNKS_N1 = (32, 16, 8, 4)  # blocks of n to try for chunks along k, besides the largest number that fits
_ANY = 1 << 40, 1 << 40  # limits of tiles that stay, if there is no limit
RANKING_SIZE = 64  # size of a ranking, best estimates first
CHUNK_POINTS = 4  # points of every chunk that a ranking always has


@njit(cache=True)
def _best(shape: Shape, cost: Cost, limit: int) -> NDArray[np.int64]:
    """Best points of a shape, int64 [<= limit, 7] as in `_ranked`; the earlier of two points with equal estimates.

    The last points are tried first: large tiles are mostly better, so most later tries are dropped.  Many are skipped without an estimate:
    no k is better than one with the fewest tiles and the fewest steps.
    """
    if shape.needed.size:
        points, _ = _of_panels(shape, cost)
        return points[smallest_indices(points[:, 0], limit)]
    ms, ns, ks = tile_axes(shape, cost)
    all_n, all_k = [n_side(shape, cost, n) for n in ns], [k_side(shape, cost, k) for k in ks]
    fewest_steps = np.empty(ks.shape[0], np.int64)  # per k: fewest steps of it and all smaller ones
    for j in range(ks.shape[0]):
        fewest_steps[j] = all_k[j][1] if j == 0 else min(fewest_steps[j - 1], all_k[j][1])
    weights = int(closed_form.b_cycles(cost, shape.n1 * shape.k1))
    room_a, room_b = np.empty(ks.shape[0], np.int64), np.empty((ns.shape[0], ks.shape[0]), np.int64)
    for i, n in enumerate(ns):
        for j, k in enumerate(ks):
            room_b[i, j] = l0_slot_counts(shape.l0, cost.weight_blocks, 1, n, k)[1]
    table, order, used = np.empty((limit, 7), np.int64), np.empty((limit, 2), np.int64), 0  # order: (cycles, row), the best first
    for m in ms[::-1]:
        along_m, largest = m_side(shape, cost, m), 0
        for j, k in enumerate(ks):
            room_a[j] = l0_slot_counts(shape.l0, cost.weight_blocks, m, 1, k)[0]
        for i in range(ns.shape[0] - 1, -1, -1):
            n = ns[i]
            if not is_legal(shape, cost, m, n, ks[0]):
                continue  # nor is a larger k
            fix, drain = cycles_out(shape, cost, along_m[0], along_m[3], all_n[i][0], n)
            top = largest_k(cost, m, n)  # grows while n falls
            while largest + 1 < ks.shape[0] and ks[largest + 1] <= top:
                largest += 1
            if used == limit:
                at_best = all_k[largest][0], fewest_steps[largest], all_k[largest][0]
                inner = block_cycles(shape, cost, along_m, all_n[i], at_best, weights, 0, fix, drain, 0, _ANY)
                outer = block_cycles(shape, cost, along_m, all_n[i], at_best, weights, 0, fix, drain, 1, _ANY)
                if min(inner, outer) > order[limit - 1, 0]:
                    continue
            for j in range(largest, -1, -1):
                k = ks[j]
                for n_outer in range(loop_orders(along_m[0], all_n[i][0]) - 1, -1, -1):
                    cycles = block_cycles(
                        shape, cost, along_m, all_n[i], all_k[j], weights, 0, fix, drain, n_outer, (room_a[j], room_b[i, j])
                    )
                    if used == limit and cycles > order[limit - 1, 0]:
                        continue
                    cycles += fill_cycles(cost, along_m[3], n, k)
                    if used == limit and cycles > order[limit - 1, 0]:
                        continue
                    position = used
                    while position > 0 and cycles <= order[position - 1, 0]:
                        position -= 1
                    row = used
                    if used == limit:
                        row = order[limit - 1, 1]
                    else:
                        used += 1
                    for p in range(used - 1, position, -1):
                        order[p, 0], order[p, 1] = order[p - 1, 0], order[p - 1, 1]
                    order[position, 0], order[position, 1] = cycles, row
                    table[row, 0], table[row, 1], table[row, 2] = cycles, shape.n1, shape.k1
                    table[row, 3], table[row, 4], table[row, 5], table[row, 6] = m, n, k, n_outer
    return table[order[:used, 1]]


@njit(cache=True)
def _of_panels(shape: Shape, cost: Cost) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Points of a shape with zero blocks beside its groups, int64 [p, 7] as in `_ranked`, and the work of CUBE and MTE1 for each point."""
    ms, ns, ks = tile_axes(shape, cost)
    panels = [closed_form.panels_between(cost, shape.needed, shape.n1, shape.k1, n, k, shape.cut) for n in ns for k in ks]
    table, worked, used = np.empty((2 * len(ms) * len(panels), 7), np.int64), np.empty(2 * len(ms) * len(panels), np.int64), 0
    for m in ms:
        for i, n in enumerate(ns):
            for j, k in enumerate(ks):
                if not is_legal(shape, cost, m, n, k):
                    break  # nor is a larger one
                for n_outer in range(loop_orders((shape.pixels + m - 1) // m, (shape.n1 + n - 1) // n)):
                    cycles, work = block_cycles_of_panels(shape, cost, m, n, k, panels[i * len(ks) + j], n_outer)
                    worked[used], table[used, 0], table[used, 1], table[used, 2] = work, cycles, shape.n1, shape.k1
                    table[used, 3], table[used, 4], table[used, 5], table[used, 6] = m, n, k, n_outer
                    used += 1
    return table[:used], worked[:used]


@njit(cache=True)
def _least_work(shape: Shape, cost: Cost) -> NDArray[np.int64]:
    """Point with the least work of CUBE and MTE1, [7] as in `_ranked`; among equal ones the best by estimate, then the last."""
    if shape.needed.size:
        points, worked = _of_panels(shape, cost)
        i = 0
        for j in range(1, worked.shape[0]):
            if (worked[j], points[j, 0]) < (worked[i], points[i, 0]):
                i = j
        return points[i]
    ms, ns, ks = tile_axes(shape, cost)
    all_n, all_k = [n_side(shape, cost, n) for n in ns], [k_side(shape, cost, k) for k in ks]
    weights = int(closed_form.b_cycles(cost, shape.n1 * shape.k1))
    out, least = np.zeros(7, np.int64), (np.int64(1) << 62, np.int64(0))
    for m in ms:
        along_m = m_side(shape, cost, m)
        for n, along_n in zip(ns, all_n):  # noqa: B905  numba knows no `strict`
            for k, along_k in zip(ks, all_k):  # noqa: B905
                if not is_legal(shape, cost, m, n, k):
                    break  # nor is a larger one
                slot_counts = l0_slot_counts(shape.l0, cost.weight_blocks, m, n, k)
                for n_outer in range(loop_orders(along_m[0], along_n[0])):
                    cube, moves = chunk_work(cost, along_m, along_n, along_k, weights, n_outer, slot_counts)
                    if cube + moves > least[0]:
                        continue
                    fix, drain = cycles_out(shape, cost, along_m[0], along_m[3], along_n[0], n)
                    fill = fill_cycles(cost, along_m[3], n, k)
                    cycles = block_cycles(shape, cost, along_m, along_n, along_k, weights, fill, fix, drain, n_outer, slot_counts)
                    if (cube + moves, cycles) <= least:
                        least = cube + moves, cycles
                        out[0], out[1], out[2], out[3], out[4], out[5], out[6] = cycles, shape.n1, shape.k1, m, n, k, n_outer
    return out


@njit(cache=True)
def _points(shape: Shape, cost: Cost, chunks: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Best points of every chunk of weights, int64 [n, 7] as in `_ranked`, and the rank of each point within its chunk.

    shape: shape with all weights as one chunk.  Rank 0 is the point with the least work.
    """
    rows = (limit + 1) * chunks.shape[0]
    points, place, count = np.empty((rows, 7), np.int64), np.empty(rows, np.int64), 0
    for i in range(chunks.shape[0]):
        n1, k1 = chunks[i]
        chunks_n, chunks_k = (shape.n1 + n1 - 1) // n1, (shape.k1 + k1 - 1) // k1
        shape_tail = shape.n1_step, shape.result_lanes, shape.ub_blocks, shape.cut, shape.needed, shape.l0
        chunk = Shape(shape.pixels, shape.groups, n1, k1, chunks_n, chunks_k, shape.to_l1, shape.dtype, *shape_tail)
        best = _best(chunk, cost, limit)
        for k in range(len(best)):
            place[count + k] = k
            for column in range(7):
                points[count + k, column] = best[k, column]
        if len(best) > CHUNK_POINTS:
            least, row = _least_work(chunk, cost), 0
            while row < len(best) and not (
                best[row, 3] == least[3] and best[row, 4] == least[4] and best[row, 5] == least[5] and best[row, 6] == least[6]
            ):
                row += 1
            place[count + row] = 0
            for column in range(7):
                points[count + row, column] = least[column]
            count += row == len(best)  # counts new points only
        count += len(best)
    return points[:count], place[:count]


def _rank(shape: Shape, cost: Cost, chunks: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Best points over all given chunks of weights, int64 [<= limit, 7], as in `_ranked`.  shape: shape with all weights as one chunk.

    The best few points of every chunk are always included, and the point with the least work.  The estimate assumes that engines run side
    by side; under contention the number of chunks matters too, and the work after the last load.  Between equal estimates the larger chunk
    wins, because its bursts are longer.
    """
    points, place = _points(shape, cost, chunks[np.argsort(-chunks[:, 0] * chunks[:, 1], kind="stable")], limit)
    order = np.argsort(points[:, 0], kind="stable")
    few = place[order] < CHUNK_POINTS
    return points[order[few | (np.cumsum(~few) <= limit - few.sum())][:limit]]


def _chunk_choices(weight_blocks: int, sum_blocks: int, n1: int, k1: int, pixels: int, budget: int, l0c_blocks: int) -> NDArray[np.int64]:
    """Chunks of streamed weights within `budget` blocks, int64 [p, 2] of (chunk_n1, chunk_k1), ascending.

    Either all of k and as much of n as fits, or parts of k with partial sums.
    """
    full_k = budget // (k1 * weight_blocks)
    of_n = {min(n, n1) for n in (full_k, (full_k + 1) // 2, 1) if 1 <= n <= full_k}
    choices = {(_even_length(n1, n), k1) for n in of_n}
    room = l0c_blocks // partial_blocks(sum_blocks, pixels, 1, ROWS)
    for n in (min(n, room, n1, budget // weight_blocks) for n in (room, *_CHUNKS_N1)):
        if n >= 1:
            choices.add((n, _even_length(k1, min(k1, budget // (weight_blocks * n)))))
    return np.array(sorted(choices), np.int64).reshape(-1, 2)


def _even_length(length: int, limit: int) -> int:
    """Length of equal parts of at most `limit`, as few as possible."""
    return -(-length // -(-length // limit))


def chunk_choices(spec: ConvSpec, rows: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """Chunks (chunk_n1, chunk_k1) of streamed weights within `budget` blocks to try for `rows` output rows."""
    return [(n, k) for n, k in _chunks(spec.fractal, layer_of(spec), rows * spec.out_w, budget, l0c_blocks).tolist()]


def _chunks(fractal: Fractal, layer: Layer, pixels: int, budget: int, l0c_blocks: int) -> NDArray[np.int64]:
    """Chunks of full planes of the result, int64 [p, 2] of (chunk_n1, chunk_k1)."""
    step = layer.n1_step
    n1 = -(-layer.n1 // step)
    chunks = _chunk_choices(fractal.weight_blocks * step, fractal.sum_blocks * step, n1, layer.k1, pixels, budget, l0c_blocks)
    chunks[:, 0] *= step
    if layer.deep < layer.k1:
        chunks[:, 1] = np.minimum(chunks[:, 1], layer.deep)
        chunks = np.unique(chunks, axis=0)
    return chunks


@lru_cache(maxsize=1 << 16)
def _ranked(
    machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, resident: bool, budget: int, limit: int, together: int = 1
) -> NDArray[np.int64]:
    """Ranking of tilings, int64 [<= limit, 7] of (cycles, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer), the best estimate first.

    together: images in work at once, each of which has a part of L0C for its partial sums.
    """
    shape = layer_shape(machine, dtype, layer, rows, direct, (layer.n1, layer.k1))
    if resident:
        chunks = np.array([(layer.n1, layer.k1)], np.int64)
    else:
        chunks = _chunks(machine.fractal(dtype), layer, shape.pixels, budget, room_blocks(machine, Memory.L0C) // together)
    points: NDArray[np.int64] = _rank(shape, cost_of(machine, dtype, direct), chunks, limit)
    if together > 1:
        points = points[_sums_fit(points, machine, dtype, shape, together)]
    return points


def _sums_fit(points: NDArray[np.int64], machine: Machine, dtype: int, shape: Shape, together: int) -> NDArray[np.bool_]:
    """Whether points have room in L0C for partial sums of all images."""
    _, n1, k1, m, *_ = points.T
    blocks = partial_blocks(machine.fractal(DataType(dtype)).sum_blocks, shape.pixels, n1, m)
    return np.asarray((k1 >= shape.k1) | (together * blocks <= room_blocks(machine, Memory.L0C) // 2 * 2))


@lru_cache(maxsize=1 << 16)
def tiling_of(
    weights: Literal["resident", "streamed"], chunk_n1: int, chunk_k1: int, tile_m: int, tile_n1: int, tile_k1: int, n_outer: int
) -> ConvTiling:
    return ConvTiling.model_construct(
        kind="conv", weights=weights, chunk_n1=chunk_n1, chunk_k1=chunk_k1, tile_m=tile_m, tile_n1=tile_n1, tile_k1=tile_k1,
        order="n" if n_outer else "m",
    )  # fmt: skip


def conv_tiling(
    target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, choice: int = 0
) -> ConvTiling | None:
    """Tiling of rank `choice` (of at most `RANKING_SIZE`) by estimate, for `rows` output rows; None if no tiling is legal.

    Streamed weights come in chunks of at most `budget` blocks.
    """
    ranked = _ranking(target_graph, spec, rows, to_l1, resident, budget, RANKING_SIZE if choice else 1)
    if not len(ranked):
        return None
    point = ranked[min(choice, len(ranked) - 1)].tolist()
    return tiling_of("resident" if resident else "streamed", *point[1:])


def narrow_tiling(
    target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, ub_blocks: int
) -> ConvTiling | None:
    """Best tiling by estimate whose result tile takes at most `ub_blocks` blocks of UB, with the same weights; None if there is none."""
    resident, direct = tiling.weights == "resident", writes_result(target_graph.machine, to_l1)
    chunk = (spec.n1, spec.k1) if resident else (tiling.chunk_n1, tiling.chunk_k1)
    point = _narrower(target_graph.machine, int(target_graph.type_of(spec.reads[0])), layer_of(spec), rows, direct, chunk, ub_blocks)
    if point is None:
        return None
    sizes = dict(zip(("tile_m", "tile_n1", "tile_k1"), point, strict=False))
    return tiling.model_copy(update={**sizes, "order": "n" if point[3] else "m"})


@lru_cache(maxsize=4096)
def _narrower(
    machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, chunk: tuple[int, int], ub_blocks: int
) -> tuple[int, ...] | None:
    shape = layer_shape(machine, dtype, layer, rows, direct, chunk)
    shape = shape._replace(ub_blocks=ub_blocks)
    points = legal_points(machine, shape)
    return tuple(points[int(np.argmin(estimate(machine, shape, points)))].tolist()) if len(points) else None


def tiling_rank(target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, budget: int) -> int:
    """Rank for which `conv_tiling` returns this tiling; 0 without one."""
    point = (tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1, int(tiling.order == "n"))
    ranked = _ranking(target_graph, spec, rows, to_l1, tiling.weights == "resident", budget, RANKING_SIZE)
    places = np.flatnonzero((ranked[:, 1:] == point).all(1))
    return int(places[0]) if len(places) else 0


def least_tail_rank(target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool) -> int:
    """Rank of the tiling of resident weights with the least work after the last load of weights: the smallest last tile along n.

    Among equal ones, the best by estimate.  With pixel tiles as the outer loop, all of n comes after the last load.
    """
    _, _, _, m, n, _, n_outer = _ranking(target_graph, spec, rows, to_l1, True, 0, RANKING_SIZE).T
    last = (spec.n1 - 1) % n + 1
    return int(np.argmin(np.where((n_outer > 0) | (m >= rows * spec.out_w), last, spec.n1)))


def _ranking(
    target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, limit: int
) -> NDArray[np.int64]:
    """`_ranked` for a spec; limit 1: only the first, which takes a fraction of the time."""
    direct = writes_result(target_graph.machine, to_l1)
    dtype, layer, budget = int(target_graph.type_of(spec.reads[0])), layer_of(spec), 0 if resident else budget
    if target_graph.together == 1:
        return _ranked(target_graph.machine, dtype, layer, rows, direct, resident, budget, limit)
    return _ranked(
        target_graph.machine, dtype, layer, rows, direct, resident, budget, RANKING_SIZE, 1 if resident else target_graph.together
    )
