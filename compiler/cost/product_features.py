"""What a product, of a convolution or of two tensors, adds to the features of its segment: one kernel, as most operators are products."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost.tiling_space import tables
from compiler.ir.im2col import Cut
from compiler.kinds.alike import Kind
from compiler.kinds.conv import product_of
from compiler.kinds.counts import all_steps, counts, pieces, steps_of_pieces
from compiler.plan.plan import ConvTiling
from compiler.segment.stages import Sizes, sizes_of
from compiler.unit.machine import writes_l1
from simulator.npu.machine import BLOCK_BYTES, DataType, Machine, Memory

_DDR, _L1 = int(Memory.DDR), int(Memory.L1)
# one operator after the other, each as long as its busiest engine or what it reads itself, where DDR is so many times slower
SERIAL = {"serial_cycles": 1, "serial_half_cycles": 2, "serial_quarter_cycles": 4}
PRODUCT_FEATURES = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "mte3_on_chip_cycles", "load_bytes", "weight_bytes",
    "residual_bytes", "instructions", "products", "drain_cycles", "streamed_share", "row_share", *SERIAL,
)  # fmt: skip


class _Rates(NamedTuple):
    """What a machine takes for a data type: bytes per cycle of paths, cycles of start-ups (see `CostTables`).

    axes: int64 [3, 3] of m, k, n.  out: of results out of L0C, to L1 or to UB.  ub_l1: 0 where they do not go on from UB to L1; l1_ub: of
    residuals that are on chip.
    """

    lanes: int
    l1_l0a: int
    l1_l0b: int
    l1_ub: int
    out: int
    ub_l1: int
    start_a: int
    start_b: int
    start_residual: int
    start_out: int
    start_ub_l1: int
    start_product: int
    direct: bool
    axes: NDArray[np.int64]
    step: int
    macs: float


@lru_cache(maxsize=64)
def _rates(machine: Machine, dtype: DataType, inside: bool) -> _Rates:
    t, direct = tables(machine), inside and writes_l1(machine)
    out = Memory.L0C, Memory.L1 if direct else Memory.UB
    return _Rates(
        lanes=dtype.lanes,
        l1_l0a=int(t.rate[Memory.L1, Memory.L0A]),
        l1_l0b=int(t.rate[Memory.L1, Memory.L0B]),
        l1_ub=max(1, int(t.rate[Memory.L1, Memory.UB])),
        out=int(t.rate[out]),
        ub_l1=max(1, int(t.rate[Memory.UB, Memory.L1])) if inside and not direct else 0,
        start_a=int(t.startup[Memory.L1, Memory.L0A]),
        start_b=int(t.startup[Memory.L1, Memory.L0B]),
        start_residual=int(t.startup[Memory.L1, Memory.UB]),
        start_out=int(t.startup[out]),
        start_ub_l1=int(t.startup[Memory.UB, Memory.L1]),
        start_product=int(t.scalars[0]),
        direct=direct,
        axes=t.matrix[dtype],
        step=int(t.step_cycles[dtype]),
        macs=machine.macs_per_cycle[dtype.name],
    )


class _Product(NamedTuple):
    """Sizes of a product; weights, bias and right (its right operand, where that is a tensor) are in blocks.  cut: see `Shape`."""

    out_h: int
    out_w: int
    groups: int
    n1: int
    k1: int
    weights: int
    bias: int
    right: int
    planes: int
    cut: Cut


@lru_cache(maxsize=1 << 14)
def _product(kind: Kind) -> _Product:
    s = product_of(kind.spec)
    assert s is not None, kind.spec.name
    return _Product(s.out_h, s.out_w, s.groups, s.n1, s.k1, s.weight_blocks, s.bias_blocks, s.right_blocks, s.y.planes, s.parts.cut)


def product_features(
    kind: Kind,
    tiling: ConvTiling,
    heights: NDArray[np.int64],
    inside: bool,
    residual_in: int,
    cores: int,
    strips: int,
    images: int,
    read_rate: float,
) -> NDArray[np.float64]:
    """float64 [len(PRODUCT_FEATURES)].  heights: int64 [h, 2] of (rows, blocks of an image that compute so many).

    inside: results stay on chip.  residual_in: the memory that a residual comes from, -1 without one.  cores: to how many blocks are dealt;
    strips: see `Unit`.  read_rate: bytes per cycle that a core gets.
    """
    rates = _rates(kind.unit.machine, kind.unit.dtype, inside)
    found: NDArray[np.float64] = _add_up(rates, _product(kind), sizes_of(tiling), heights, residual_in, cores, strips, images, read_rate)
    return found


@njit(cache=True)
def one_after_another(busiest: float, read_cycles: float) -> tuple[float, float, float]:
    """An operator's part of `SERIAL`, in that order."""
    return max(busiest, read_cycles), max(busiest, read_cycles * 2), max(busiest, read_cycles * 4)


@njit(cache=True)
def _add_up(
    t: _Rates,
    s: _Product,
    sizes: Sizes,
    heights: NDArray[np.int64],
    residual_in: int,
    cores: int,
    strips: int,
    images: int,
    read_rate: float,
) -> NDArray[np.float64]:
    resident, n_outer, once, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1 = sizes
    along_n = pieces(s.n1, s.n1 if resident else chunk_n1)
    along_k = pieces(s.k1, s.k1 if resident else chunk_k1)
    blocks = rows = pixels = products = results = loads_a = moved_a = loads_b = moved_b = steps_m = 0
    for high, count in heights:
        one = counts(high * s.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, s.cut)
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
    fixpipe = (float(pixels) * s.n1 * 64 / t.out + results * t.start_out) * times
    result = float(pixels) * s.planes * BLOCK_BYTES * images  # its bytes, and those of a residual
    mte1 += result / t.l1_ub + results * t.start_residual * times if residual_in == _L1 else 0.0
    mte3 = result / t.ub_l1 + results * t.start_ub_l1 * times if t.ub_l1 else 0.0
    every_block = float(blocks * images)
    # what stays is loaded by each core that has a block, in its first strip: a share of that in each, so that they add up
    loads = min(float(cores), every_block) / strips
    weights = (s.weights * (loads if resident else every_block) + s.bias * (loads if once else every_block)) * BLOCK_BYTES
    right = 0.0 if resident else float(s.right) * BLOCK_BYTES * every_block
    residual = result if residual_in == _DDR else 0.0
    drain = tile_m * tile_n1 * 64 / t.out * blocks * images
    serial, half, quarter = one_after_another(max(cube, mte1, fixpipe, mte3), (weights + residual + right) / read_rate)
    # FIXPIPE, and MTE3 behind it unless it writes L1
    ways = 1 + (not t.direct) + (residual_in == _L1)
    instructions = float(products + loads_a + loads_b + results * ways) * times
    share = rows / s.out_h
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
