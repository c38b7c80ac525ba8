"""L1 and UB demand of a tiling: independent of the segment, cached per cost class."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass, cost_class_of
from compiler.ops.tile_counts import l0_blocks
from compiler.plan.plan import ConvTiling, Tiling
from compiler.target.capabilities import room_blocks, writes_result
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp, UbBuffers
from simulator.npu.parts import Memory

POOLED = "arriving", "expanded"  # kinds of buffers that all operators of a segment share
OF_PRODUCTS = (Memory.L0A, Memory.L0B, Memory.L0C)


class BufferDemand(NamedTuple):
    """Tiling and its demand: `slots` buffers of `size` blocks in L1 for weights, and `buffers` in UB, of `ub` blocks in all.

    tile: blocks of L0A, L0B and L0C for a tile of a product; () for other operators.  pools: whether some of the buffers are `POOLED`.
    fits: whether the tile fits half of each L0 memory, and consists of full planes of the result.
    """

    tiling: Tiling
    slots: int
    size: int
    buffers: tuple[UbBuffers, ...]
    ub: int
    tile: tuple[int, ...]
    fits: bool
    pools: bool


def demand_of(target_graph: TargetGraph, spec: TargetOp, tiling: Tiling, inside: bool) -> BufferDemand:
    """Demand of an operator of the target graph.  inside: whether its result stays on chip."""
    return tiling_demand(cost_class_of(target_graph, spec), tiling, inside)


@lru_cache(maxsize=1 << 16)
def tiling_demand(kind: CostClass, tiling: Tiling, inside: bool) -> BufferDemand:
    """Demand of an operator with a tiling.  kind: cost class of the operator.  inside: whether its result stays on chip."""
    target_graph, spec = kind.target_graph, kind.spec
    buffers = spec.ub_buffers(tiling, through_ub(target_graph, inside), target_graph.type_of(spec.y))
    product, tile, fits = product_of(spec), (), True
    if product is not None:
        assert isinstance(tiling, ConvTiling)
        tile = l0_blocks(product.fractal.weight_blocks, product.fractal.sum_blocks, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
        halves = [room_blocks(target_graph.machine, memory) // 2 for memory in OF_PRODUCTS]
        cut = any(n1 % product.n1_step and n1 < product.n1 for n1 in (tiling.tile_n1, tiling.chunk_n1))
        fits = not cut and all(need <= half for need, half in zip(tile, halves, strict=True))
    size, pools = sum([buffer.slots * buffer.size for buffer in buffers]), any(buffer.kind in POOLED for buffer in buffers)
    return BufferDemand(tiling, *spec.weight_slots(tiling), buffers, size, tile, fits, pools)


def through_ub(target_graph: TargetGraph, inside: bool) -> bool:
    """Whether a convolution's result passes through UB.  inside: whether the result stays on chip."""
    return not writes_result(target_graph.machine, inside)
