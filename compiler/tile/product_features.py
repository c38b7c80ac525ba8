"""What a product, of a convolution or of two tensors, adds to the features of its segment: one kernel, as most operators are products."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.derive.plan import ConvTiling
from compiler.tile.alike import Kind
from compiler.tile.counts import all_steps, counts, pieces, steps_of_pieces
from compiler.tile.space import tables
from compiler.tile.spec import ConvSpec, MatMulSpec
from compiler.tile.stages import Sizes, sizes_of
from simulator.npu.machine import BLOCK_BYTES, DataType, Machine, Memory

# one operator after the other, each as long as its busiest engine or what it reads itself, where DDR is so many times slower
SERIAL = {"serial_cycles": 1, "serial_half_cycles": 2, "serial_quarter_cycles": 4}
PRODUCT_FEATURES = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "mte3_on_chip_cycles", "load_bytes", "weight_bytes",
    "residual_bytes", "instructions", "products", "drain_cycles", "streamed_share", "row_share", *SERIAL,
)  # fmt: skip


class _Rates(NamedTuple):
    """What a machine takes for a data type: bytes per cycle of paths, cycles of start-ups (see `CostTables`).

    axes: int64 [3, 3] of m, k, n.  ub_l1: 0 where results go to L1 without UB.
    """

    lanes: int
    l1_l0a: int
    l1_l0b: int
    l0c_ub: int
    ub_l1: int
    start_a: int
    start_b: int
    start_out: int
    start_product: int
    axes: NDArray[np.int64]
    step: int
    macs: float


@lru_cache(maxsize=64)
def _rates(machine: Machine, dtype: DataType, by_ub: bool) -> _Rates:
    t = tables(machine)
    return _Rates(
        lanes=dtype.lanes,
        l1_l0a=int(t.rate[Memory.L1, Memory.L0A]),
        l1_l0b=int(t.rate[Memory.L1, Memory.L0B]),
        l0c_ub=int(t.rate[Memory.L0C, Memory.UB]),
        ub_l1=max(1, int(t.rate[Memory.UB, Memory.L1])) if by_ub else 0,
        start_a=int(t.startup[Memory.L1, Memory.L0A]),
        start_b=int(t.startup[Memory.L1, Memory.L0B]),
        start_out=int(t.startup[Memory.L0C, Memory.UB]),
        start_product=int(t.scalars[0]),
        axes=t.matrix[dtype],
        step=int(t.step_cycles[dtype]),
        macs=machine.macs_per_cycle[dtype.name],
    )


class _Product(NamedTuple):
    """Sizes of a product; weights, bias and right (its right operand, where that is a tensor) are in blocks."""

    out_h: int
    out_w: int
    groups: int
    n1: int
    k1: int
    weights: int
    bias: int
    right: int
    planes: int


@lru_cache(maxsize=1 << 14)
def _product(kind: Kind) -> _Product:
    s = kind.spec
    assert isinstance(s, ConvSpec)
    right = s.pixels * s.reads[1].planes if isinstance(s, MatMulSpec) else 0
    return _Product(s.out_h, s.out_w, s.groups, s.n1, s.k1, s.weight_blocks, s.bias_blocks, right, s.y.planes)


def product_features(
    kind: Kind,
    tiling: ConvTiling,
    heights: NDArray[np.int64],
    by_ub: bool,
    reads_residual: bool,
    loads: float,
    images: int,
    read_rate: float,
) -> NDArray[np.float64]:
    """float64 [len(PRODUCT_FEATURES)].  heights: int64 [h, 2] of (rows, blocks of an image that compute so many).

    by_ub: results stay on chip, by way of UB.  reads_residual: from DDR.  loads: how many cores load what stays, a share of them in each
    strip.  read_rate: bytes per cycle that a core gets.
    """
    rates = _rates(kind.unit.machine, kind.unit.dtype, by_ub)
    found: NDArray[np.float64] = _add_up(rates, _product(kind), sizes_of(tiling), heights, reads_residual, loads, images, read_rate)
    return found


@njit(cache=True)
def one_after_another(busiest: float, read_cycles: float) -> tuple[float, float, float]:
    """An operator's part of `SERIAL`, in that order."""
    return max(busiest, read_cycles), max(busiest, read_cycles * 2), max(busiest, read_cycles * 4)


@njit(cache=True)
def _add_up(
    t: _Rates, s: _Product, sizes: Sizes, heights: NDArray[np.int64], reads_residual: bool, loads: float, images: int, read_rate: float
) -> NDArray[np.float64]:
    resident, n_outer, once, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1 = sizes
    along_n = pieces(s.n1, s.n1 if resident else chunk_n1)
    along_k = pieces(s.k1, s.k1 if resident else chunk_k1)
    blocks = rows = pixels = products = results = loads_a = moved_a = loads_b = moved_b = steps_m = 0
    for high, count in heights:
        one = counts(high * s.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer)
        blocks += count
        rows += count * high
        pixels += count * high * s.out_w
        products += count * one.products
        results += count * one.results
        loads_a, moved_a = loads_a + count * one.loads_a, moved_a + count * one.moved_a
        loads_b, moved_b = loads_b + count * one.loads_b, moved_b + count * one.moved_b
        steps_m += count * all_steps(one.rows, tile_m, t.axes[0])
    times = s.groups * images
    steps_nk = steps_of_pieces(along_n, tile_n1, 16, t.axes[2]) * steps_of_pieces(along_k, tile_k1, t.lanes, t.axes[1])
    cube = float(steps_m * steps_nk * t.step + products * t.start_product) * times
    ideal = float(pixels) * (s.k1 * t.lanes) * (s.n1 * 16) / t.macs * times
    a = float(moved_a) * 32 / t.l1_l0a + loads_a * t.start_a
    b = float(moved_b) * 512 / t.l1_l0b + loads_b * t.start_b
    mte1 = (a + b) * times
    fixpipe = (float(pixels) * s.n1 * 64 / t.l0c_ub + results * t.start_out) * times
    mte3 = float(pixels) * s.planes * BLOCK_BYTES / t.ub_l1 * images if t.ub_l1 else 0.0
    every_block = float(blocks * images)
    weights = (s.weights * (loads if resident else every_block) + s.bias * (loads if once else every_block)) * BLOCK_BYTES
    right = 0.0 if resident else float(s.right) * BLOCK_BYTES * every_block
    residual = float(pixels) * s.planes * BLOCK_BYTES * images if reads_residual else 0.0
    drain = tile_m * tile_n1 * 64 / t.l0c_ub * blocks * images
    serial, half, quarter = one_after_another(max(cube, mte1, fixpipe, mte3), (weights + residual + right) / read_rate)
    instructions, share = float(products * 3 + results * 2) * times, rows / s.out_h
    streamed = 0.0 if resident else 1.0
    return np.array(
        (
            cube,
            ideal,
            mte1,
            fixpipe,
            mte3,
            right,
            weights,
            residual,
            instructions,
            float(products) * times,
            drain,
            streamed,
            share,
            serial,
            half,
            quarter,
        )
    )
