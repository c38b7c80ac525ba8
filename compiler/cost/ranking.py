"""Tilings of a convolution by rank: the best of its space by estimate, for weights that stay or that come in chunks of a budget.

A gene names a tiling by its place here (`space.gene`), so that a place that is good for one block is mostly good for another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import Cost, cost_of
from compiler.cost.tiling_space import (
    Layer,
    Shape,
    axes,
    block_cycles,
    block_cycles_of_panels,
    cycles_out,
    estimate,
    fill_cycles,
    is_legal,
    k_side,
    largest_k,
    layer_of,
    layer_shape,
    legal_points,
    m_side,
    n_side,
    orders,
    work,
)
from compiler.ops.conv import ConvSpec
from compiler.ops.tile_counts import partial_blocks, places
from compiler.plan.plan import ConvTiling
from compiler.target.capabilities import room_blocks, writes_l1
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Fractal, Memory
from simulator.npu.tiles import ROWS

CHUNK_BUDGETS = (8192, 4096, 2048, 1024, 512, 256)  # blocks of one chunk of streamed weights, two of which are live
LAST_BUDGETS = (8, 4, 2, 1)  # where nothing else fits, in `Fractal.weight_blocks`; the last one is a fractal's columns by one block of k
_CHUNKS_N1 = (32, 16, 8, 4)  # n1 of pieces of k that are looked at, beside the most that there is room for
_ANY = 1 << 40, 1 << 40  # tiles that stay in a bound
KEPT = 64  # points of a space that are kept, best estimates first
FEW = 4  # of every chunk, whatever others have


@njit(cache=True)
def _best(s: Shape, c: Cost, most: int) -> NDArray[np.int64]:
    """A shape's best points, int64 [<= most, 7] as `_ranked` has them; of equal estimates the earlier point.

    The last points come first: large tiles are mostly better, so those that follow are mostly not kept, and mostly not even looked at: no k
    is better than the fewest tiles and the fewest steps that any of them makes.
    """
    if s.needed.size:
        points, _ = _of_panels(s, c)
        return points[_least(points[:, 0], most)]
    ms, ns, ks = axes(s, c)
    all_n, all_k = [n_side(s, c, n) for n in ns], [k_side(s, c, k) for k in ks]
    fewest_steps = np.empty(ks.shape[0], np.int64)  # of a k and all smaller ones
    for j in range(ks.shape[0]):
        fewest_steps[j] = all_k[j][1] if j == 0 else min(fewest_steps[j - 1], all_k[j][1])
    weights = int(closed_form.b_cycles(c, s.n1 * s.k1))
    room_a, room_b = np.empty(ks.shape[0], np.int64), np.empty((ns.shape[0], ks.shape[0]), np.int64)
    for i, n in enumerate(ns):
        for j, k in enumerate(ks):
            room_b[i, j] = places(s.l0, c.weight_blocks, 1, n, k)[1]
    table, order, used = np.empty((most, 7), np.int64), np.empty((most, 2), np.int64), 0  # order: (cycles, row), the best first
    for m in ms[::-1]:
        along_m, largest = m_side(s, c, m), 0
        for j, k in enumerate(ks):
            room_a[j] = places(s.l0, c.weight_blocks, m, 1, k)[0]
        for i in range(ns.shape[0] - 1, -1, -1):
            n = ns[i]
            if not is_legal(s, c, m, n, ks[0]):
                continue  # nor is a larger k
            fix, drain = cycles_out(s, c, along_m[0], along_m[3], all_n[i][0], n)
            top = largest_k(c, m, n)  # grows while n falls
            while largest + 1 < ks.shape[0] and ks[largest + 1] <= top:
                largest += 1
            if used == most:
                at_best = all_k[largest][0], fewest_steps[largest], all_k[largest][0]
                inner = block_cycles(s, c, along_m, all_n[i], at_best, weights, 0, fix, drain, 0, _ANY)
                outer = block_cycles(s, c, along_m, all_n[i], at_best, weights, 0, fix, drain, 1, _ANY)
                if min(inner, outer) > order[most - 1, 0]:
                    continue
            for j in range(largest, -1, -1):
                k = ks[j]
                for n_outer in range(orders(along_m[0], all_n[i][0]) - 1, -1, -1):
                    cycles = block_cycles(s, c, along_m, all_n[i], all_k[j], weights, 0, fix, drain, n_outer, (room_a[j], room_b[i, j]))
                    if used == most and cycles > order[most - 1, 0]:
                        continue
                    cycles += fill_cycles(c, along_m[3], n, k)
                    if used == most and cycles > order[most - 1, 0]:
                        continue
                    at = used
                    while at > 0 and cycles <= order[at - 1, 0]:
                        at -= 1
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
    return table[order[:used, 1]]


@njit(cache=True)
def _least(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Places of the least values, in order; of equal ones the earlier.  numba's own sorts take longer to compile than all else here."""
    order, used = np.empty(most, np.int64), 0
    for i in range(values.shape[0]):
        at = used
        while at > 0 and values[i] < values[order[at - 1]]:
            at -= 1
        if at == most:
            continue
        used = min(used + 1, most)
        for k in range(used - 1, at, -1):
            order[k] = order[k - 1]
        order[at] = i
    return order[:used]


@njit(cache=True)
def _of_panels(s: Shape, c: Cost) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every point of a shape with zeros beside its groups, int64 [p, 7] as `_ranked` has them, and the work of CUBE and MTE1 on it."""
    ms, ns, ks = axes(s, c)
    panels = [closed_form.panels_between(c, s.needed, s.n1, s.k1, n, k, s.cut) for n in ns for k in ks]
    table, worked, used = np.empty((2 * len(ms) * len(panels), 7), np.int64), np.empty(2 * len(ms) * len(panels), np.int64), 0
    for m in ms:
        for i, n in enumerate(ns):
            for j, k in enumerate(ks):
                if not is_legal(s, c, m, n, k):
                    break  # nor is a larger one
                for n_outer in range(orders((s.pixels + m - 1) // m, (s.n1 + n - 1) // n)):
                    cycles, work = block_cycles_of_panels(s, c, m, n, k, panels[i * len(ks) + j], n_outer)
                    worked[used], table[used, 0], table[used, 1], table[used, 2] = work, cycles, s.n1, s.k1
                    table[used, 3], table[used, 4], table[used, 5], table[used, 6] = m, n, k, n_outer
                    used += 1
    return table[:used], worked[:used]


@njit(cache=True)
def _least_work(s: Shape, c: Cost) -> NDArray[np.int64]:
    """The point on which CUBE and MTE1 work least, [7] as `_ranked` has it; of equal ones the best by estimate, then the last."""
    if s.needed.size:
        points, worked = _of_panels(s, c)
        i = 0
        for j in range(1, worked.shape[0]):
            if (worked[j], points[j, 0]) < (worked[i], points[i, 0]):
                i = j
        return points[i]
    ms, ns, ks = axes(s, c)
    all_n, all_k = [n_side(s, c, n) for n in ns], [k_side(s, c, k) for k in ks]
    weights = int(closed_form.b_cycles(c, s.n1 * s.k1))
    out, least = np.zeros(7, np.int64), (np.int64(1) << 62, np.int64(0))
    for m in ms:
        along_m = m_side(s, c, m)
        for n, along_n in zip(ns, all_n):  # noqa: B905  numba knows no `strict`
            for k, along_k in zip(ks, all_k):  # noqa: B905
                if not is_legal(s, c, m, n, k):
                    break  # nor is a larger one
                room = places(s.l0, c.weight_blocks, m, n, k)
                for n_outer in range(orders(along_m[0], along_n[0])):
                    cube, moves = work(c, along_m, along_n, along_k, weights, n_outer, room)
                    if cube + moves > least[0]:
                        continue
                    fix, drain = cycles_out(s, c, along_m[0], along_m[3], along_n[0], n)
                    fill = fill_cycles(c, along_m[3], n, k)
                    cycles = block_cycles(s, c, along_m, along_n, along_k, weights, fill, fix, drain, n_outer, room)
                    if (cube + moves, cycles) <= least:
                        least = cube + moves, cycles
                        out[0], out[1], out[2], out[3], out[4], out[5], out[6] = cycles, s.n1, s.k1, m, n, k, n_outer
    return out


@njit(cache=True)
def _points(s: Shape, c: Cost, chunks: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The best points of every chunk of weights, int64 [n, 7] as `_ranked` has them, and each one's place there.

    s: where all weights are one chunk.  What makes least work of a chunk is its first.
    """
    rows = (most + 1) * chunks.shape[0]
    found, place, count = np.empty((rows, 7), np.int64), np.empty(rows, np.int64), 0
    for i in range(chunks.shape[0]):
        n1, k1 = chunks[i]
        chunks_n, chunks_k = (s.n1 + n1 - 1) // n1, (s.k1 + k1 - 1) // k1
        whole = s.n1_step, s.result_lanes, s.ub_blocks, s.cut, s.needed, s.l0
        chunk = Shape(s.pixels, s.groups, n1, k1, chunks_n, chunks_k, s.to_l1, s.dtype, *whole)
        best = _best(chunk, c, most)
        for k in range(len(best)):
            place[count + k] = k
            for column in range(7):
                found[count + k, column] = best[k, column]
        if len(best) > FEW:
            least, at = _least_work(chunk, c), 0
            while at < len(best) and not (
                best[at, 3] == least[3] and best[at, 4] == least[4] and best[at, 5] == least[5] and best[at, 6] == least[6]
            ):
                at += 1
            place[count + at] = 0
            for column in range(7):
                found[count + at, column] = least[column]
            count += at == len(best)  # it was none of them
        count += len(best)
    return found[:count], place[:count]


def _rank(s: Shape, c: Cost, chunks: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The best points in any of these chunks of weights, int64 [<= most, 7], as `_ranked` has them.  s: where all weights are one chunk.

    The best few of every chunk are among them, and what makes least work of it: the estimate is of engines side by side, and under
    contention it is the chunks that count, and what is left to do when one has come.  Of equal estimates the larger chunk, whose bursts are
    longer.
    """
    points, place = _points(s, c, chunks[np.argsort(-chunks[:, 0] * chunks[:, 1], kind="stable")], most)
    order = np.argsort(points[:, 0], kind="stable")
    few = place[order] < FEW
    return points[order[few | (np.cumsum(~few) <= most - few.sum())][:most]]


def _chunk_choices(weight_blocks: int, sum_blocks: int, n1: int, k1: int, pixels: int, budget: int, l0c_blocks: int) -> NDArray[np.int64]:
    """int64 [p, 2] of (chunk_n1, chunk_k1) of streamed weights within `budget` blocks, ascending: all of k and what fits of n, or pieces of
    k with partial sums."""
    whole = budget // (k1 * weight_blocks)
    of_n = {min(n, n1) for n in (whole, (whole + 1) // 2, 1) if 1 <= n <= whole}
    choices = {(_even(n1, n), k1) for n in of_n}
    room = l0c_blocks // partial_blocks(sum_blocks, pixels, 1, ROWS)
    for n in (min(n, room, n1, budget // weight_blocks) for n in (room, *_CHUNKS_N1)):
        if n >= 1:
            choices.add((n, _even(k1, min(k1, budget // (weight_blocks * n)))))
    return np.array(sorted(choices), np.int64).reshape(-1, 2)


def _even(length: int, most: int) -> int:
    """The length of pieces of at most `most` that are as many as there have to be, and alike."""
    return -(-length // -(-length // most))


def chunk_choices(spec: ConvSpec, rows: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """(chunk_n1, chunk_k1) of streamed weights within `budget` blocks that are looked at for `rows` output rows."""
    return [(n, k) for n, k in _chunks(spec.fractal, layer_of(spec), rows * spec.out_w, budget, l0c_blocks).tolist()]


def _chunks(fractal: Fractal, layer: Layer, pixels: int, budget: int, l0c_blocks: int) -> NDArray[np.int64]:
    """int64 [p, 2] of (chunk_n1, chunk_k1): of whole planes of the result."""
    step = layer.n1_step
    n1 = -(-layer.n1 // step)
    found = _chunk_choices(fractal.weight_blocks * step, fractal.sum_blocks * step, n1, layer.k1, pixels, budget, l0c_blocks)
    found[:, 0] *= step
    if layer.deep < layer.k1:
        found[:, 1] = np.minimum(found[:, 1], layer.deep)
        found = np.unique(found, axis=0)
    return found


@lru_cache(maxsize=1 << 16)
def _ranked(
    machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, resident: bool, budget: int, most: int, together: int = 1
) -> NDArray[np.int64]:
    """int64 [<= most, 7] of (cycles, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer), the best estimate first.

    Of an image of those that are worked on together, each of which has a part of L0C for its partial sums."""
    shape = layer_shape(machine, dtype, layer, rows, direct, (layer.n1, layer.k1))
    if resident:
        chunks = np.array([(layer.n1, layer.k1)], np.int64)
    else:
        chunks = _chunks(machine.fractal(dtype), layer, shape.pixels, budget, room_blocks(machine, Memory.L0C) // together)
    found: NDArray[np.int64] = _rank(shape, cost_of(machine, dtype, direct), chunks, most)
    if together > 1:
        found = found[_sums_fit(found, machine, dtype, shape, together)]
    return found


def _sums_fit(points: NDArray[np.int64], machine: Machine, dtype: int, shape: Shape, together: int) -> NDArray[np.bool_]:
    """Which points have room in L0C for partial sums of all images."""
    _, n1, k1, m, *_ = points.T
    blocks = partial_blocks(machine.fractal(DataType(dtype)).sum_blocks, shape.pixels, n1, m)
    return np.asarray((k1 >= shape.k1) | (together * blocks <= room_blocks(machine, Memory.L0C) // 2 * 2))


@lru_cache(maxsize=1 << 16)
def tiling_of(weights: Literal["resident", "streamed"], chunk_n1: int, chunk_k1: int, m: int, n: int, k: int, n_outer: int) -> ConvTiling:
    return ConvTiling.model_construct(
        kind="conv", weights=weights, chunk_n1=chunk_n1, chunk_k1=chunk_k1, tile_m=m, tile_n1=n, tile_k1=k, order="n" if n_outer else "m"
    )


def conv_tiling(
    target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, choice: int = 0
) -> ConvTiling | None:
    """The tiling at place `choice` (of at most `KEPT`) by estimate, for `rows` output rows; None where no tiling is legal.

    Streamed weights come in chunks of at most `budget` blocks.
    """
    ranked = _ranking(target_graph, spec, rows, to_l1, resident, budget, KEPT if choice else 1)
    if not len(ranked):
        return None
    point = ranked[min(choice, len(ranked) - 1)].tolist()
    return tiling_of("resident" if resident else "streamed", *point[1:])


def narrower(target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, ub_blocks: int) -> ConvTiling | None:
    """The best tiling by estimate whose tile of results takes at most `ub_blocks` blocks of UB, weights as they are; None without one."""
    resident, direct = tiling.weights == "resident", to_l1 and writes_l1(target_graph.machine)
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


def conv_place(target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, budget: int) -> int:
    """The `choice` for which `conv_tiling` returns this tiling; 0 where there is none."""
    point = (tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1, int(tiling.order == "n"))
    ranked = _ranking(target_graph, spec, rows, to_l1, tiling.weights == "resident", budget, KEPT)
    places = np.flatnonzero((ranked[:, 1:] == point).all(1))
    return int(places[0]) if len(places) else 0


def least_behind(target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool) -> int:
    """The `choice` of weights that stay with which least is left to do when the last of them has come: the smallest last tile along n.

    Of equals the best by estimate.  Where tiles of pixels are the outer loop, all of n is left.
    """
    _, _, _, m, n, _, n_outer = _ranking(target_graph, spec, rows, to_l1, True, 0, KEPT).T
    last = (spec.n1 - 1) % n + 1
    return int(np.argmin(np.where((n_outer > 0) | (m >= rows * spec.out_w), last, spec.n1)))


def _ranking(
    target_graph: TargetGraph, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int, most: int
) -> NDArray[np.int64]:
    """`_ranked`; most: 1 where only the first is wanted, which is found in a fraction of the time."""
    direct = to_l1 and writes_l1(target_graph.machine)
    dtype, layer, budget = int(target_graph.type_of(spec.reads[0])), layer_of(spec), 0 if resident else budget
    if target_graph.together == 1:
        return _ranked(target_graph.machine, dtype, layer, rows, direct, resident, budget, most)
    return _ranked(target_graph.machine, dtype, layer, rows, direct, resident, budget, KEPT, 1 if resident else target_graph.together)
