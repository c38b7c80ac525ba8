"""Tilings that fit UB: constants and tiles of a segment that overflow UB are split until they fit.

Two kinds of buffers overflow UB.  Constants that are broadcast over pixels (bias, scale) stay for the whole segment; split constants are
loaded with every chunk of channels, or with the planes of every tile.  Tiles are split into smaller tiles: fewer planes, fewer rows,
columns of one row, or passes.  Planes that belong together are never split.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from compiler.cost.ranking import narrow_tiling
from compiler.ops.base import OnVector, as_vector_op
from compiler.ops.conv import ConvSpec, product_of
from compiler.plan.plan import ConvTiling, Tiling, VectorTiling
from compiler.segment.allocator import BufferRequest, Conflicts, place_buffers
from compiler.segment.blocks import Blocks
from compiler.segment.memory_plan import merge_pooled, own_requests, peak
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import DataType, Memory

_ALIGN = 8  # blocks
_TILES = ("out", "residual")
_EXPANDING = ("overlaid", "arriving", "expanded")
_BIAS_PART = 8  # a chunk of a bias takes at most UB / 8; two are live


def fitted(
    target_graph: TargetGraph, layout: Blocks, tilings: Sequence[Tiling], apart: Conflicts | None, leaders: Sequence[int]
) -> list[Tiling] | None:  # fmt: skip
    """Tilings whose buffers fit UB; None if not even granules fit.  leaders: operators with the same leader have equal tilings.

    Weights take no more of L1 than before.  Constants are split, the largest first, while they take more than half of UB.  Then the largest
    live tile of the worst step is reduced by the missing blocks, repeatedly.
    """
    capacity, asking = room_blocks(target_graph.machine, Memory.UB), _TilingRequests(target_graph, layout, tilings, leaders)
    if asking.least > capacity:
        return None
    while sum(request.size for request in asking.requests if request.buffer.kind == "constants") > capacity // 2 and _streamed(asking):
        pass
    stuck: set[int] = set()
    while True:
        requests = asking.requests
        _, need = place_buffers(requests, capacity, False, apart)
        if need <= capacity:
            return asking.tilings
        k = _largest_tile(requests, capacity, stuck)
        if k is None:
            if not _streamed(asking):
                return None
            stuck.clear()
        else:
            tiles = [request.size for request in requests if request.buffer.kind in _TILES and request.buffer.of == k]
            room = (max(tiles) - max(_ALIGN, -(-(need - capacity) // len(tiles)))) // _ALIGN * _ALIGN
            smaller = (
                _smaller_tiling(target_graph, layout, k, leaders[k], asking.tilings[k], max(_ALIGN, room)) if max(tiles) > _ALIGN else None
            )
            if smaller is None:
                stuck.add(k)
            else:
                asking.take(k, smaller)


class _TilingRequests:
    """Tilings during the fit, and their buffer requests; a new tiling of an operator updates the operator's requests."""

    def __init__(self, target_graph: TargetGraph, layout: Blocks, tilings: Sequence[Tiling], leaders: Sequence[int]) -> None:
        self.target_graph, self.layout, self.leaders, self.tilings = target_graph, layout, leaders, list(tilings)
        self._own = [own_requests(target_graph, layout, k, tiling) for k, tiling in enumerate(tilings)]
        self._pool()

    def take(self, index: int, tiling: Tiling) -> None:
        """Set the tiling of operator `index` and of all operators with the same leader."""
        for i, of in enumerate(self.leaders):
            if of == self.leaders[index]:
                self.tilings[i] = tiling
                self._own[i] = own_requests(self.target_graph, self.layout, i, tiling)
        self._pool()

    def _pool(self) -> None:
        self.requests = merge_pooled(list(chain.from_iterable(self._own)), len(self._own) - 1)

    @property
    def least(self) -> int:
        """Blocks that are live in every step and do not depend on tiles: buffers that expand weights."""
        fixed = [requests for k, requests in enumerate(self._own) if not self.splits(k)]
        common = merge_pooled(
            [request for requests in fixed for request in requests if request.buffer.kind in _EXPANDING], len(self._own) - 1
        )
        return sum([request.size for request in common if not request.touched])

    def splits(self, index: int) -> int:
        """Largest legal n1 of a weight chunk if the bias of the operator's chunks takes too much of UB, else 0."""
        product, tiling = product_of(self.target_graph.operators[self.layout.start + index]), self.tilings[index]
        if product is None or not isinstance(tiling, ConvTiling):
            return 0
        largest_n1 = max(1, room_blocks(self.target_graph.machine, Memory.UB) // (_BIAS_PART * product.fractal.sum_blocks))
        return largest_n1 if _live_n1(product, tiling) > largest_n1 else 0


def _live_n1(product: ConvSpec, tiling: ConvTiling) -> int:
    return product.n1 if tiling.weights == "resident" else min(tiling.chunk_n1, product.n1)


def _streamed(asking: _TilingRequests) -> bool:
    """Split the largest constants that are still resident; False if no constants are."""
    constants = [(request.size, request.buffer.of) for request in asking.requests if request.buffer.kind == "constants"]
    resident = [(size, -k) for size, k in constants if asking.tilings[k].constants == "resident"]
    if not resident:
        return False
    k = -max(resident)[1]
    tiling = asking.tilings[k].model_copy(update={"constants": "streamed"})
    product = product_of(asking.target_graph.operators[asking.layout.start + k])
    if product is not None and isinstance(tiling, ConvTiling) and (largest_n1 := asking.splits(k)):
        # two chunks take no more L1 than all weights took, or than the two larger chunks
        resident_weights, n1 = tiling.weights == "resident", _live_n1(product, tiling)
        k1, step = product.k1 if resident_weights else tiling.chunk_k1, product.n1_step
        n1 = max(step, min(largest_n1, n1 // 2 if resident_weights else n1) // step * step)
        tiling = tiling.model_copy(update={"weights": "streamed", "chunk_n1": n1, "chunk_k1": k1})
    asking.take(k, tiling)
    return True


def _largest_tile(requests: Sequence[BufferRequest], capacity: int, stuck: set[int]) -> int | None:
    """Operator with the largest tile that is live at the worst step, or at any step if the worst step fits; None without a tile.  stuck:
    operators whose tile cannot shrink."""
    _, live = peak(requests)
    if sum(request.size for request in live) <= capacity:
        live = list(requests)
    tiles = [(request.size, -request.buffer.of) for request in live if request.buffer.kind in _TILES and request.buffer.of not in stuck]
    return -max(tiles)[1] if tiles else None


def _smaller_tiling(target_graph: TargetGraph, layout: Blocks, index: int, leader: int, tiling: Tiling, room: int) -> Tiling | None:
    """Tiling that is legal for the leader, with a tile of at most `room` blocks of UB for operator `index`; None if there is none."""
    spec, rows = target_graph.operators[layout.start + index], layout.rows(index)
    product, first = product_of(spec), product_of(target_graph.operators[layout.start + leader])
    if product is not None and first is not None and isinstance(tiling, ConvTiling):
        lanes = min(product.residual_lanes, product.result_lanes)
        if lanes < first.result_lanes:  # a tile of a residual, or of sums, is larger than a result tile of the leader
            room = room * lanes // first.result_lanes // _ALIGN * _ALIGN
        return narrow_tiling(target_graph, first, rows, layout.inside[index], tiling, room) if room else None
    vector_op = as_vector_op(spec)
    dtype = target_graph.type_of(spec.y)
    smaller = vector_op.slot_tiling(rows, room, dtype)
    if _slot(vector_op, smaller, dtype) > room:
        smaller = vector_op.columns_tiling(room, room, dtype) or smaller
    if _slot(vector_op, smaller, dtype) > room:
        return None
    return smaller.model_copy(update={"constants": tiling.constants})


def _slot(spec: OnVector, tiling: VectorTiling, dtype: DataType) -> int:
    return spec.tile_blocks(spec.planes_of_tile(tiling), tiling.tile_rows, tiling.tile_columns or spec.out_w, dtype)
