"""L1 and UB buffers that an operator needs with a tiling.  They do not depend on the segment, so they are cached per cost class."""

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

SHARED_KINDS = "arriving", "expanded"  # kinds of UB buffers that all operators of a segment share
L0_MEMORIES = (Memory.L0A, Memory.L0B, Memory.L0C)


class BufferDemand(NamedTuple):
    """Tiling and its demand: slots for weights in L1, and buffers in UB, of `ub_blocks` in all.

    l0_blocks: blocks of L0A, L0B and L0C for a tile of a product; () for other operators.  fits_l0: whether the tile fits half of each L0
    memory, and consists of full planes of the result.  shares_pool: whether some of the UB buffers are `SHARED_KINDS`.
    """

    tiling: Tiling
    weight_slots: int
    weight_slot_blocks: int
    ub_buffers: tuple[UbBuffers, ...]
    ub_blocks: int
    l0_blocks: tuple[int, ...]
    fits_l0: bool
    shares_pool: bool


def demand_of(target_graph: TargetGraph, spec: TargetOp, tiling: Tiling, inside: bool) -> BufferDemand:
    """Demand of an operator of the target graph.  inside: whether its result stays on chip."""
    return tiling_demand(cost_class_of(target_graph, spec), tiling, inside)


@lru_cache(maxsize=1 << 16)
def tiling_demand(kind: CostClass, tiling: Tiling, inside: bool) -> BufferDemand:
    """Demand of an operator with a tiling.  kind: cost class of the operator.  inside: whether its result stays on chip."""
    target_graph, spec = kind.target_graph, kind.spec
    buffers = spec.ub_buffers(tiling, through_ub(target_graph, inside), target_graph.type_of(spec.y))
    product, tile_blocks, fits_l0 = product_of(spec), (), True
    if product is not None:
        assert isinstance(tiling, ConvTiling)
        tile_blocks = l0_blocks(product.fractal.weight_blocks, product.fractal.sum_blocks, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
        halves = [room_blocks(target_graph.machine, memory) // 2 for memory in L0_MEMORIES]
        splits_plane = any(n1 % product.n1_step and n1 < product.n1 for n1 in (tiling.tile_n1, tiling.chunk_n1))
        fits_l0 = not splits_plane and all(need <= half for need, half in zip(tile_blocks, halves, strict=True))
    slots, slot_blocks = spec.weight_slots(tiling)
    return BufferDemand(
        tiling=tiling, weight_slots=slots, weight_slot_blocks=slot_blocks, ub_buffers=buffers,
        ub_blocks=sum([buffer.slots * buffer.size for buffer in buffers]), l0_blocks=tile_blocks, fits_l0=fits_l0,
        shares_pool=any(buffer.kind in SHARED_KINDS for buffer in buffers),
    )  # fmt: skip


def through_ub(target_graph: TargetGraph, inside: bool) -> bool:
    """Whether a convolution's result passes through UB.  inside: whether the result stays on chip."""
    return not writes_result(target_graph.machine, inside)
