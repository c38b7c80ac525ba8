"""Cycles of every engine, each in one closed form: ranking, features, the operator space and its bounds ask here and spell none of them.

Numbers in, numbers out, so that a kernel over many tilings and a call for one tiling share a form.  What an operator's tiles come to is
counted elsewhere: of a product by `ops.tile_counts`, of an operator of VECTOR by its kind.  Bytes on DDR are in `cost.ddr_traffic`.

What is divided by a rate is not rounded.  Who counts in whole cycles rounds it down before start-ups are added: a product's forms take
cycles of what moves (`a_cycles`, `b_cycles`, `out_cycles`) apart from instructions, because the ranking's inner loop must not divide.
What divides is inlined: as a call it costs estimates of many points a quarter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.im2col import Cut
from compiler.ops.tile_counts import Along, all_steps
from compiler.target.capabilities import room_blocks, writes_l1
from compiler.target.zero_blocks import Ints, Panels, panels_of
from simulator.npu.cycles import cost_tables, latency_cycles
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

M, K, N = 0, 1, 2  # axes
# one operator after the other, each as long as its busiest engine or what it reads itself, where DDR is so many times slower
SERIAL = {"serial_cycles": 1, "serial_half_cycles": 2, "serial_quarter_cycles": 4}


class Cost(NamedTuple):
    """A core for a data type, as kernels want it: halves of L0 in blocks, in what operands lie (`Fractal`), cycles, and bytes per cycle,
    0 where there is no path.

    axes: int64 [3, 3] of (m, k, n), see `CostTables.matrix`.  a, b: to L0A and L0B.  out: of results out of L0C, to L1 where `direct`, else
    to UB.  in: from L1 to UB.  back: from UB to L1.
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
    """inside: a product's results stay on chip, by FIXPIPE where it has the path."""
    t, fractal, direct = cost_tables(machine), machine.fractal(dtype), inside and writes_l1(machine)
    halves = (room_blocks(machine, m) // 2 for m in (Memory.L0A, Memory.L0B, Memory.L0C))
    ways = (Memory.L1, Memory.L0A), (Memory.L1, Memory.L0B), (Memory.L0C, Memory.L1 if direct else Memory.UB)
    paths = (*ways, (Memory.L1, Memory.UB), (Memory.UB, Memory.L1))
    rates = (int(table[path]) for path in paths for table in (t.rate, t.startup))
    matrix, vector, _ = t.scalars.tolist()
    macs = float(machine.macs_per_cycle.get(DataType(dtype).product.name, 0))
    products = matrix, latency_cycles(machine), int(t.step_cycles[dtype]), macs, t.matrix[dtype]
    return Cost._make((*halves, *fractal, direct, *products, *rates, vector))


@njit(cache=True, error_model="numpy", inline="always")
def _per(size_bytes: float, rate: int) -> float:
    return size_bytes / rate if rate else 0.0


@njit(cache=True)
def moves(size_bytes: float, rate: int, count: float, startup: int) -> float:
    """Cycles of so many bytes on a path, in so many instructions: operands to UB (MTE1), results back to L1 (MTE3)."""
    return _per(size_bytes, rate) + count * startup


@njit(cache=True, inline="always")
def steps_along(c: Cost, axis: int, along: Along, tile: int) -> int:
    """Steps of MMAD of all pieces of an axis; those of M, K and N are multiplied.  along, tile: rows, blocks of k, or n1."""
    (size, count), (rest, one) = along
    target_graph = c.lanes if axis == K else c.columns if axis == N else 1
    return count * all_steps(size * target_graph, tile * target_graph, c.axes[axis]) + one * all_steps(
        rest * target_graph, tile * target_graph, c.axes[axis]
    )


@njit(cache=True)
def panels_between(c: Cost, needed: Ints, chunk_n1: int, chunk_k1: int, tile_n1: int, tile_k1: int, cut: Cut) -> Panels:
    """Of a product with zeros beside its groups (`target.zero_blocks`)."""
    return panels_of(needed, chunk_n1, chunk_k1, tile_n1, tile_k1, cut, c.lanes, c.axes[K], c.columns, c.axes[N])


@njit(cache=True)
def cube(c: Cost, products: int, steps: int) -> int:
    """Cycles of CUBE."""
    return products * c.cube_startup + steps * c.step_cycles


@njit(cache=True)
def a_cycles(c: Cost, moved: int) -> float:
    """Cycles of rows x blocks of k on their way to L0A."""
    return _per(moved * BLOCK_BYTES, c.a_rate)


@njit(cache=True)
def b_cycles(c: Cost, moved: int) -> float:
    """Cycles of n1 x blocks of k on their way to L0B."""
    return _per(moved * (c.weight_blocks * BLOCK_BYTES), c.b_rate)


@njit(cache=True)
def out_cycles(c: Cost, made: int) -> float:
    """Cycles of pixels x n1 on their way out of L0C."""
    return _per(made * (c.sum_blocks * BLOCK_BYTES), c.out_rate)


@njit(cache=True)
def mte1(c: Cost, a: float, loads_a: int, b: float, loads_b: int) -> float:
    """Cycles of MTE1 for L0.  a, b: those of what moves."""
    return (a + loads_a * c.a_startup) + (b + loads_b * c.b_startup)


@njit(cache=True)
def fixpipe(c: Cost, out: float, results: int) -> float:
    """Cycles of FIXPIPE.  out: those of what moves."""
    return out + results * c.out_startup


@njit(cache=True)
def serial(busiest: float, read_cycles: float) -> tuple[float, float, float]:
    """An operator's part of `SERIAL`, in that order."""
    return max(busiest, read_cycles), max(busiest, read_cycles * 2), max(busiest, read_cycles * 4)
