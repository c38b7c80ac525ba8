"""Closed forms of engine cycles, one per engine: shared by the ranking, features, the operator space and its bounds.

Arguments and results are numbers, so a kernel over many tilings and a call for one tiling use the same functions.  Tile counts of a product
come from `ops.tile_counts`, those of a VECTOR operator from its kind.  Bytes of DDR traffic are in `cost.ddr_traffic`.

A quotient by a rate is not rounded.  Callers that need integer cycles round it down before start-ups are added: a product's forms take
cycles of moves (`a_cycles`, `b_cycles`, `out_cycles`) apart from instructions, because the ranking's inner loop must not divide.
Forms with a division are inlined: a call makes estimates of many points a quarter slower.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.im2col import Cut
from compiler.ops.tile_counts import Along, all_steps
from compiler.target.capabilities import room_blocks, writes_result
from compiler.target.zero_blocks import Ints, Panels, count_panels
from simulator.npu.cycles import cost_tables, latency_cycles
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

M, K, N = 0, 1, 2  # axes
# feature -> factor by which DDR is slower: operators run in sequence, each as long as its busiest engine or its own loads
SERIAL = {"serial_cycles": 1, "serial_half_cycles": 2, "serial_quarter_cycles": 4}


class Cost(NamedTuple):
    """Parameters of a core for a data type, for kernels: halves of L0 in blocks, `Fractal`, cycles, and bytes per cycle, 0 without a path.

    axes: int64 [3, 3] of (m, k, n), see `CostTables.matrix`.  Prefixes of paths: a, b: L1 to L0A, L1 to L0B.  out: L0C to L1 or DDR if
    `direct`, else L0C to UB.  in: L1 to UB.  back: UB to L1.
    """

    half_a: int
    half_b: int
    half_c: int
    rows: int
    lanes: int
    columns: int
    weight_blocks: int
    sum_blocks: int
    direct: bool
    cube_startup: int
    cube_latency: int
    step_cycles: int
    macs_per_cycle: float
    axes: NDArray[np.int64]
    a_rate: int
    a_startup: int
    b_rate: int
    b_startup: int
    out_rate: int
    out_startup: int
    in_rate: int
    in_startup: int
    back_rate: int
    back_startup: int
    vector_startup: int


@lru_cache(maxsize=64)
def cost_of(machine: Machine, dtype: int, inside: bool) -> Cost:
    """Figures of a machine.  inside: a product's results stay on chip; FIXPIPE writes them there, or to DDR, if it has the path."""
    tables, fractal, direct = cost_tables(machine), machine.fractal(dtype), writes_result(machine, inside)
    halves = (room_blocks(machine, m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    first = Memory.UB if not direct else Memory.L1 if inside else Memory.DDR
    ways = (Memory.L1, Memory.L0A), (Memory.L1, Memory.L0B), (Memory.L0C, first)
    paths = (*ways, (Memory.L1, Memory.UB), (Memory.UB, Memory.L1))
    units = [SHARE_UNIT if Memory.DDR in path else 1 for path in paths]
    rates = (
        cycles for path, unit in zip(paths, units, strict=True) for cycles in (int(tables.rate[path]) // unit, int(tables.startup[path]))
    )
    matrix, vector, _ = tables.scalars.tolist()
    macs = float(machine.macs_per_cycle.get(DataType(dtype).product.name, 0))
    products = matrix, latency_cycles(machine), int(tables.step_cycles[dtype]), macs, tables.matrix[dtype]
    return Cost._make((*halves, *fractal, direct, *products, *rates, vector))


@njit(cache=True, error_model="numpy", inline="always")
def _per(size_bytes: float, rate: int) -> float:
    return size_bytes / rate if rate else 0.0


@njit(cache=True)
def path_cycles(size_bytes: float, rate: int, count: float, startup: int) -> float:
    """Cycles of `size_bytes` bytes on a path, in `count` instructions: operands to UB (MTE1), results back to L1 (MTE3)."""
    return _per(size_bytes, rate) + count * startup


@njit(cache=True, inline="always")
def steps_along(cost: Cost, axis: int, along: Along, tile: int) -> int:
    """Number of MMAD steps along one axis; the steps of M, K and N are multiplied.  along, tile: in rows, blocks of k, or blocks of n."""
    (size, count), (remainder, one) = along
    unit = cost.lanes if axis == K else cost.columns if axis == N else 1
    return count * all_steps(size * unit, tile * unit, cost.axes[axis]) + one * all_steps(remainder * unit, tile * unit, cost.axes[axis])


@njit(cache=True)
def panels_between(cost: Cost, needed: Ints, chunk_n1: int, chunk_k1: int, tile_n1: int, tile_k1: int, cut: Cut) -> Panels:
    """Panels of a product whose weights have zero blocks beside their groups (`target.zero_blocks`)."""
    return count_panels(needed, chunk_n1, chunk_k1, tile_n1, tile_k1, cut, cost.lanes, cost.axes[K], cost.columns, cost.axes[N])


@njit(cache=True)
def cube_cycles(cost: Cost, products: int, steps: int) -> int:
    """Cycles of CUBE."""
    return products * cost.cube_startup + steps * cost.step_cycles


@njit(cache=True)
def a_cycles(cost: Cost, moved: int) -> float:
    """Cycles of moves to L0A.  moved: rows x blocks of k."""
    return _per(moved * BLOCK_BYTES, cost.a_rate)


@njit(cache=True)
def b_cycles(cost: Cost, moved: int) -> float:
    """Cycles of moves to L0B.  moved: n1 x blocks of k."""
    return _per(moved * (cost.weight_blocks * BLOCK_BYTES), cost.b_rate)


@njit(cache=True)
def out_cycles(cost: Cost, results: int) -> float:
    """Cycles of moves out of L0C.  results: pixels x n1."""
    return _per(results * (cost.sum_blocks * BLOCK_BYTES), cost.out_rate)


@njit(cache=True)
def mte1_cycles(cost: Cost, left_cycles: float, loads_a: int, right_cycles: float, loads_b: int) -> float:
    """Cycles of MTE1 for L0.  left_cycles, right_cycles: cycles of the moves of both operands, without start-ups."""
    return (left_cycles + loads_a * cost.a_startup) + (right_cycles + loads_b * cost.b_startup)


@njit(cache=True)
def fixpipe_cycles(cost: Cost, out: float, results: int) -> float:
    """Cycles of FIXPIPE.  out: cycles of the moves, without start-ups.  results: number of result tiles."""
    return out + results * cost.out_startup


@njit(cache=True)
def serial_cycles(busiest: float, read_cycles: float) -> tuple[float, float, float]:
    """An operator's part of `SERIAL`, in that order."""
    return max(busiest, read_cycles), max(busiest, read_cycles * 2), max(busiest, read_cycles * 4)
