"""Tilings of a convolution by rank: the best of its space by estimate, for weights that stay or that come in chunks of a budget.

A gene names a tiling by its place here (`derive.gene`), so that a place that is good for one block is mostly good for another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling
from compiler.tile.space import (
    Cost,
    Layer,
    Shape,
    axes,
    cost_of,
    cycles_of,
    estimate,
    is_legal,
    layer_of,
    layer_shape,
    legal_points,
    writes_l1,
)
from compiler.tile.spec import ConvSpec, Unit
from simulator.npu.machine import Machine, Memory

CHUNK_BUDGETS = (8192, 4096, 2048, 1024, 512, 256)  # blocks of one chunk of streamed weights, two of which are live
LAST_BUDGETS = (128, 64, 32, 16)  # where nothing else fits; the last one is 16 channels by one block of C0
KEPT = 64  # points of a space that are kept, best estimates first


@njit(cache=True)
def _keep(
    s: Shape,
    c: Cost,
    ms: NDArray[np.int64],
    ns: NDArray[np.int64],
    ks: NDArray[np.int64],
    table: NDArray[np.int64],
    order: NDArray[np.int64],
    used: int,
) -> int:
    """Rank a shape's points among those in `table` (int64 [KEPT, 7], `used` rows); order: int64 [KEPT, 2] of (cycles, row), the best first.

    Equal estimates: the larger chunk, whose bursts are longer, then the earlier point.  Returns how many rows are used then.
    """
    area = s.n1 * s.k1
    most = table.shape[0]
    for m in ms:
        for n in ns:
            for k in ks:
                if not is_legal(s, c, m, n, k):
                    continue
                for n_outer in range(2):
                    cycles = cycles_of(s, c, m, n, k, n_outer)
                    if used == most and cycles > order[most - 1, 0]:
                        continue
                    at = used
                    while at > 0:
                        before = order[at - 1, 0]
                        if cycles > before:
                            break
                        if cycles == before:
                            row = order[at - 1, 1]
                            if area <= table[row, 1] * table[row, 2]:
                                break
                        at -= 1
                    if at == most:
                        continue
                    row = used
                    if used == most:
                        row = order[most - 1, 1]
                    else:
                        used += 1
                    for i in range(used - 1, at, -1):
                        order[i, 0], order[i, 1] = order[i - 1, 0], order[i - 1, 1]
                    order[at, 0], order[at, 1] = cycles, row
                    table[row, 0], table[row, 1], table[row, 2] = cycles, s.n1, s.k1
                    table[row, 3], table[row, 4], table[row, 5], table[row, 6] = m, n, k, n_outer
    return used


def _chunk_choices(layer: Layer, pixels: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """(chunk_n1, chunk_k1) of streamed weights within `budget` blocks: all of k and what fits of n, or pieces of k with partial sums."""
    choices = set()
    whole = budget // (layer.k1 * 16)
    for n in {whole, -(-whole // 2), 1}:
        if 1 <= n <= whole:
            n = min(n, layer.n1)
            choices.add((-(-layer.n1 // -(-layer.n1 // n)), layer.k1))
    room = l0c_blocks // (2 * (-(-pixels // 16) * 16))
    for n in {room, 32, 16, 8, 4}:
        n = min(n, room, layer.n1, budget // 16)
        if n >= 1:
            k = min(layer.k1, budget // (16 * n))
            choices.add((n, -(-layer.k1 // -(-layer.k1 // k))))
    return sorted(choices)


def chunk_choices(spec: ConvSpec, rows: int, budget: int, l0c_blocks: int) -> list[tuple[int, int]]:
    """(chunk_n1, chunk_k1) of streamed weights within `budget` blocks that are looked at for `rows` output rows."""
    return _chunk_choices(layer_of(spec), rows * spec.out_w, budget, l0c_blocks)


@lru_cache(maxsize=1 << 16)
def _ranked(machine: Machine, dtype: int, layer: Layer, rows: int, direct: bool, resident: bool, budget: int) -> NDArray[np.int64]:
    """int64 [<= KEPT, 7] of (cycles, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer), the best estimate first."""
    c = cost_of(machine, dtype, direct)
    chunks = [(layer.n1, layer.k1)] if resident else _chunk_choices(layer, rows * layer.out_w, budget, machine.buffer_blocks(Memory.L0C))
    table, order, used = np.empty((KEPT, 7), np.int64), np.empty((KEPT, 2), np.int64), 0
    for chunk in chunks:
        shape = layer_shape(machine, dtype, layer, rows, direct, chunk)
        used = _keep(shape, c, *axes(shape, c), table, order, used)
    return table[order[:used, 1]]


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
    point = _narrower(unit.machine, int(unit.dtype), layer_of(spec), rows, direct, chunk, ub_blocks)
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


def conv_place(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, tiling: ConvTiling, budget: int) -> int | None:
    """The `choice` for which `conv_tiling` returns this tiling; None where there is none."""
    point = (tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1, int(tiling.order == "n"))
    ranked = _ranking(unit, spec, rows, to_l1, tiling.weights == "resident", budget)
    places = np.flatnonzero((ranked[:, 1:] == point).all(1))
    return int(places[0]) if len(places) else None


def _ranking(unit: Unit, spec: ConvSpec, rows: int, to_l1: bool, resident: bool, budget: int) -> NDArray[np.int64]:
    direct = to_l1 and writes_l1(unit.machine)
    return _ranked(unit.machine, int(unit.dtype), layer_of(spec), rows, direct, resident, 0 if resident else budget)
