"""Features of a product, of a convolution or of two tensors: its share of the features of its segment."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost import closed_form
from compiler.cost.closed_form import SERIAL, Cost, cost_of
from compiler.cost.ddr_traffic import StoredWeights, fetched_blocks, stored_weights, weight_loads
from compiler.cost.expansion_cost import ExpansionCost, price_expansion
from compiler.ir.im2col import Cut
from compiler.ops.base import Heights
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass
from compiler.ops.tile_counts import count_panel_product, count_product, l0_slot_counts, single_piece, split_axis
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
    """Sizes of a product.  bias, right: blocks of the bias, and of the right operand if that is a tensor.  cut: see `Shape`.

    planes, residual: planes of the result, and of the residual.  times: MMAD passes per product (several for wide types).  needed:
    see `target.zero_blocks`.  l0: which tiles stay in L0, and how long.
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
    spec = product_of(kind.spec)
    assert spec is not None, kind.spec.name
    residual = 0 if spec.residual is None else spec.residual.planes
    sizes = spec.out_h, spec.out_w, spec.groups, spec.n1, spec.k1, stored_weights(spec), spec.bias_blocks, spec.right_blocks
    return _Product(*sizes, spec.y.planes, residual, spec.products, spec.parts.cut, spec.needed, spec.staying)


class ProductStanding(NamedTuple):
    """Surroundings of a product: its segment, cores and memories.

    inside: whether results stay on chip.  residual_in, right_in: memory of the residual and of the right operand; -1 without one.
    staged: whether weights are copied to the shared memory once, and loaded from there.  cores: number of cores that share the blocks.
    strips, together: see `TargetGraph`.  images: number of groups of images.  read_rate: bytes per cycle that one core gets from DDR.
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
    """Features of a product, float64 [len(PRODUCT_FEATURES)]."""
    high, cost = (
        np.array(heights, np.int64).reshape(-1, 2),
        cost_of(kind.target_graph.machine, int(kind.target_graph.type_of(kind.spec.reads[0])), standing.inside),
    )
    product = _product(kind)
    features: NDArray[np.float64] = _add_up(cost, product, sizes_of(tiling), high, standing, price_expansion(kind, tiling))
    return features


@njit(cache=True)
def _add_up(
    cost: Cost, product: _Product, sizes: Sizes, heights: NDArray[np.int64], standing: ProductStanding, expanded: ExpansionCost
) -> NDArray[np.float64]:
    """Features of a product, summed over block heights: heights, int64 [n, 2], has (rows, number of blocks)."""
    inside, residual_in, right_in, staged, cores, strips, groups_of_images, together, read_rate = standing
    images = groups_of_images * together
    resident, n_outer, once, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1 = sizes
    along_n = split_axis(product.n1, product.n1 if resident else chunk_n1)
    along_k = split_axis(product.k1, product.k1 if resident else chunk_k1)
    beside = closed_form.panels_between(cost, product.needed, along_n[0][0], along_k[0][0], tile_n1, tile_k1, product.cut)
    slot_counts = l0_slot_counts(product.l0, cost.weight_blocks, tile_m, tile_n1, tile_k1)
    blocks = rows = pixels = products = results = loads_a = moved_a = loads_b = moved_b = steps_m = 0
    for high, count in heights:
        if product.needed.size:
            one = count_panel_product(
                beside, cost.rows, high * product.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, slot_counts
            )
        else:
            one = count_product(
                cost.rows, high * product.out_w, along_n, along_k, tile_m, tile_n1, tile_k1, n_outer, product.cut, slot_counts
            )
        blocks += count
        rows += count * high
        pixels += count * high * product.out_w
        products += count * one.products
        results += count * one.results
        loads_a, moved_a = loads_a + count * one.loads_a, moved_a + count * one.moved_a
        loads_b, moved_b = loads_b + count * one.loads_b, moved_b + count * one.moved_b
        steps_m += count * closed_form.steps_along(cost, closed_form.M, single_piece(one.rows), tile_m)
    times = product.groups * images
    if product.needed.size:
        steps, multiplied = steps_m * beside.steps, beside.blocks
    else:
        steps = (
            steps_m
            * closed_form.steps_along(cost, closed_form.N, along_n, tile_n1)
            * closed_form.steps_along(cost, closed_form.K, along_k, tile_k1)
        )
        multiplied = product.n1 * product.k1
    products *= product.times
    cube = float(closed_form.cube_cycles(cost, products, steps * product.times)) * times
    ideal = float(pixels) * cost.lanes * cost.columns * multiplied / cost.macs_per_cycle * times
    mte1 = closed_form.mte1_cycles(cost, closed_form.a_cycles(cost, moved_a), loads_a, closed_form.b_cycles(cost, moved_b), loads_b) * times
    fixpipe = closed_form.fixpipe_cycles(cost, closed_form.out_cycles(cost, pixels * product.n1), results) * times
    result = float(pixels) * product.planes * BLOCK_BYTES * images
    added = float(pixels) * product.residual * BLOCK_BYTES * images
    mte1 += closed_form.path_cycles(added, cost.in_rate, results * times, cost.in_startup) if residual_in == _L1 else 0.0
    mte3 = closed_form.path_cycles(result, cost.back_rate, results * times, cost.back_startup) if inside and not cost.direct else 0.0
    every_block = float(blocks * groups_of_images)
    # resident data is loaded by each core that has a block, in its first strip; every strip counts an equal share of these loads
    loads = min(float(cores), every_block) / strips
    chunks_n = along_n[0][1] + along_n[1][1]
    fixed, operand = fetched_blocks(product.weights, product.bias, product.right * together, resident, once, chunks_n, loads, every_block)
    times_expanded = loads if resident else every_block
    vector, mte3 = expanded.vector * times_expanded, mte3 + expanded.mte3 * times_expanded
    weights, right = fixed * BLOCK_BYTES, operand * BLOCK_BYTES
    residual, shared = added if residual_in == _DDR else 0.0, added if residual_in == _SHARED else 0.0
    if right_in == _SHARED:
        shared, right = shared + right, 0.0
    if staged:
        once_each = float(product.weights.blocks * BLOCK_BYTES)
        staged_reads = once_each * weight_loads(product.weights, resident, chunks_n, loads, every_block)
        shared, weights = shared + staged_reads, weights - staged_reads + once_each / strips
    drain = closed_form.out_cycles(cost, tile_m * tile_n1) * blocks * groups_of_images
    serial, half, quarter = closed_form.serial_cycles(max(cube, mte1, fixpipe, vector, mte3), (weights + residual + right) / read_rate)
    # FIXPIPE, and MTE3 behind it unless it writes L1
    ways = 1 + (not cost.direct) + (residual_in == _L1)
    instructions = float(products + loads_a + loads_b + results * ways) * times + expanded.records * times_expanded
    share = rows / product.out_h
    streamed = 0.0 if resident else 1.0
    return np.array((
        cube, ideal, mte1, fixpipe, vector, mte3, right, weights, residual, shared, instructions, float(products) * times, drain, streamed,
        share, serial, half, quarter,
    ))  # fmt: skip
