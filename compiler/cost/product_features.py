"""What a product, of a convolution or of two tensors, adds to the features of its segment: one operator, as most operators are products."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import SERIAL, Cost, cost_of
from compiler.cost.ddr_traffic import StoredWeights, fetched_blocks, stored_weights, weight_loads
from compiler.cost.expansion_cost import Expanding, expanding
from compiler.ir.im2col import Cut
from compiler.ops.base import Heights
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass
from compiler.ops.tile_counts import counts, counts_of_panels, pieces, places, whole
from compiler.plan.plan import ConvTiling
from compiler.segment.dataflow import Sizes, sizes_of
from compiler.target.capabilities import L0
from compiler.target.zero_blocks import Ints
from simulator.npu.parts import BLOCK_BYTES, Memory

_DDR, _L1, _SHARED = int(Memory.DDR), int(Memory.L1), int(Memory.SHARED)
PRODUCT_FEATURES = (
    "cube_cycles", "ideal_cube_cycles", "mte1_cycles", "fixpipe_cycles", "vector_cycles", "mte3_on_chip_cycles", "load_bytes",
    "weight_bytes", "residual_bytes", "shared_read_bytes", "instructions", "products", "drain_cycles", "streamed_share", "row_share",
    *SERIAL,
)  # fmt: skip


class _Product(NamedTuple):
    """Sizes of a product; bias and right (its right operand, where that is a tensor) are in blocks.  cut: see `Shape`.

    planes, residual: planes of the result, and of a residual.  times: products of the matrix unit for each of the sum.  needed:
    see `target.zero_blocks`.  l0: where tiles stay.
    """

    out_h: int
    out_w: int
    groups: int
    n1: int
    k1: int
    weights: StoredWeights
    bias: int
    right: int
    planes: int
    residual: int
    times: int
    cut: Cut
    needed: Ints
    l0: L0


@lru_cache(maxsize=1 << 14)
def _product(kind: CostClass) -> _Product:
    s = product_of(kind.spec)
    assert s is not None, kind.spec.name
    residual = 0 if s.residual is None else s.residual.planes
    sizes = s.out_h, s.out_w, s.groups, s.n1, s.k1, stored_weights(s), s.bias_blocks, s.right_blocks
    return _Product(*sizes, s.y.planes, residual, s.products, s.parts.cut, s.needed, s.staying)


class ProductStanding(NamedTuple):
    """How a segment has a product.

    inside: results stay on chip.  residual_in, right_in: the memory that a residual and a right operand come from, -1 without one.
    staged: weights come to the shared memory once, and from there.  cores: to how many blocks are dealt.
    strips, together: see `Unit`; images: groups of so many.  read_rate: bytes per cycle of DDR that a core gets.
    """

    inside: bool
    residual_in: int
    right_in: int
    staged: bool
    cores: int
    strips: int
    images: int
    together: int
    read_rate: float


def product_features(kind: CostClass, tiling: ConvTiling, heights: Heights, standing: ProductStanding) -> NDArray[np.float64]:
    """float64 [len(PRODUCT_FEATURES)]."""
    high, c = (
        np.array(heights, np.int64).reshape(-1, 2),
        cost_of(kind.target_graph.machine, int(kind.target_graph.type_of(kind.spec.reads[0])), standing.inside),
    )
    product = _product(kind)
    found: NDArray[np.float64] = _add_up(c, product, sizes_of(tiling), high, standing, expanding(kind, tiling))
    return found


@njit(cache=True)
def _add_up(
    c: Cost, s: _Product, sizes: Sizes, heights: NDArray[np.int64], standing: ProductStanding, expanded: Expanding
) -> NDArray[np.float64]:
    inside, residual_in, right_in, staged, cores, strips, groups_of_images, together, read_rate = standing
    images = groups_of_images * together
    resident, n_outer, once, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1 = sizes
    along_n = pieces(s.n1, s.n1 if resident else chunk_n1)
    along_k = pieces(s.k1, s.k1 if resident else chunk_k1)
    beside = closed_form.panels_between(c, s.needed, along_n[0][0], along_k[0][0], tile_n1, tile_k1, s.cut)
    room = places(s.l0, c.weight_blocks, tile_m, tile_n1, tile_k1)
    blocks = rows = pixels = products = results = loads_a = moved_a = loads_b = moved_b = steps_m = 0
    for high, count in heights:
        if s.needed.size:
            one = counts_of_panels(beside, c.rows, high * s.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, room)
        else:
            one = counts(c.rows, high * s.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, s.cut, room)
        blocks += count
        rows += count * high
        pixels += count * high * s.out_w
        products += count * one.products
        results += count * one.results
        loads_a, moved_a = loads_a + count * one.loads_a, moved_a + count * one.moved_a
        loads_b, moved_b = loads_b + count * one.loads_b, moved_b + count * one.moved_b
        steps_m += count * closed_form.steps_along(c, closed_form.M, whole(one.rows), tile_m)
    times = s.groups * images
    if s.needed.size:
        steps, multiplied = steps_m * beside.steps, beside.blocks
    else:
        steps = (
            steps_m
            * closed_form.steps_along(c, closed_form.N, along_n, tile_n1)
            * closed_form.steps_along(c, closed_form.K, along_k, tile_k1)
        )
        multiplied = s.n1 * s.k1
    products *= s.times
    cube = float(closed_form.cube(c, products, steps * s.times)) * times
    ideal = float(pixels) * c.lanes * c.columns * multiplied / c.macs_per_cycle * times
    mte1 = closed_form.mte1(c, closed_form.a_cycles(c, moved_a), loads_a, closed_form.b_cycles(c, moved_b), loads_b) * times
    fixpipe = closed_form.fixpipe(c, closed_form.out_cycles(c, pixels * s.n1), results) * times
    result = float(pixels) * s.planes * BLOCK_BYTES * images
    added = float(pixels) * s.residual * BLOCK_BYTES * images
    mte1 += closed_form.moves(added, c.in_rate, results * times, c.in_startup) if residual_in == _L1 else 0.0
    mte3 = closed_form.moves(result, c.back_rate, results * times, c.back_startup) if inside and not c.direct else 0.0
    every_block = float(blocks * groups_of_images)
    # what stays is loaded by each core that has a block, in its first strip: a share of that in each, so that they add up
    loads = min(float(cores), every_block) / strips
    chunks_n = along_n[0][1] + along_n[1][1]
    own, operand = fetched_blocks(s.weights, s.bias, s.right * together, resident, once, chunks_n, loads, every_block)
    times_expanded = loads if resident else every_block
    vector, mte3 = expanded.vector * times_expanded, mte3 + expanded.mte3 * times_expanded
    weights, right = own * BLOCK_BYTES, operand * BLOCK_BYTES
    residual, shared = added if residual_in == _DDR else 0.0, added if residual_in == _SHARED else 0.0
    if right_in == _SHARED:
        shared, right = shared + right, 0.0
    if staged:
        once_each = float(s.weights.blocks * BLOCK_BYTES)
        again = once_each * weight_loads(s.weights, resident, chunks_n, loads, every_block)
        shared, weights = shared + again, weights - again + once_each / strips
    drain = closed_form.out_cycles(c, tile_m * tile_n1) * blocks * groups_of_images
    serial, half, quarter = closed_form.serial(max(cube, mte1, fixpipe, vector, mte3), (weights + residual + right) / read_rate)
    # FIXPIPE, and MTE3 behind it unless it writes L1
    ways = 1 + (not c.direct) + (residual_in == _L1)
    instructions = float(products + loads_a + loads_b + results * ways) * times + expanded.records * times_expanded
    share = rows / s.out_h
    streamed = 0.0 if resident else 1.0
    return np.array((
        cube, ideal, mte1, fixpipe, vector, mte3, right, weights, residual, shared, instructions, float(products) * times, drain, streamed,
        share, serial, half, quarter,
    ))  # fmt: skip
