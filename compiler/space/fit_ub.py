"""Tilings that UB can hold: where constants and tiles of a segment overflow it, they are split until they fit.

A group of stages (`segment.stages`) on one tensor in UB overflows in one of two ways.  What is broadcast over pixels, a bias or a scale,
is a constant, and stays for the whole segment: split, it comes with every chunk of channels, or every tile's planes.  What a tile works
on is split into smaller tiles, and passes: fewer planes, fewer rows, columns of one row.  Planes that belong together are never refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.cost.ranking import narrower
from compiler.kinds.base import OnVector, on_vector
from compiler.kinds.conv import product_of
from compiler.plan.plan import ConvTiling, Tiling, VectorTiling
from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Apart, BufferRequest, fit
from compiler.segment.memory import ub_requests
from compiler.segment.shortage import peak
from compiler.unit.machine import room_blocks
from compiler.unit.unit import Unit
from simulator.npu.parts import DataType, Memory

_ALIGN = 8  # blocks
_TILES = ("out", "residual")
_BIAS_PART = 8  # of UB is the most that a chunk of a bias takes; two are live


def fitted(
    unit: Unit, layout: Blocks, tilings: Sequence[Tiling], apart: Apart | None, leaders: Sequence[int]
) -> list[Tiling] | None:  # fmt: skip
    """Tilings in place of those that UB cannot hold; None where not even granules fit.  leaders: operators that have the same one have
    equal tilings.

    Weights, and what they take of L1, stay as they are.  Constants come in pieces, the largest first, while they take more than half of UB;
    then the largest tile that is live at the worst step gives up what is missing, and so on.
    """
    have = room_blocks(unit.machine, Memory.UB)
    out = list(tilings)
    requests = ub_requests(unit, layout, out)
    while sum(each.size for each in requests if each.buffer.kind == "constants") > have // 2 and _streamed(
        unit, layout, requests, out, leaders
    ):
        requests = ub_requests(unit, layout, out)
    stuck: set[int] = set()
    while True:
        _, need = fit(requests, have, False, apart)
        if need <= have:
            return out
        k = _largest_tile(requests, have, stuck)
        if k is None:
            if not _streamed(unit, layout, requests, out, leaders):
                return None
            stuck.clear()
        else:
            mine = [request.size for request in requests if request.buffer.kind in _TILES and request.buffer.of == k]
            room = (max(mine) - max(_ALIGN, -(-(need - have) // len(mine)))) // _ALIGN * _ALIGN
            smaller = _smaller(unit, layout, k, out[k], max(_ALIGN, room)) if max(mine) > _ALIGN else None
            if smaller is None:
                stuck.add(k)
            else:
                _set(out, k, smaller, leaders)
        requests = ub_requests(unit, layout, out)


def _set(tilings: list[Tiling], k: int, tiling: Tiling, leaders: Sequence[int]) -> None:
    """Of an operator and its like."""
    for at, of in enumerate(leaders):
        if of == leaders[k]:
            tilings[at] = tiling


def _streamed(
    unit: Unit, layout: Blocks, requests: Sequence[BufferRequest], tilings: list[Tiling], leaders: Sequence[int]
) -> bool:  # fmt: skip
    """The largest constants of a tiling that keeps them from now on in pieces; False where there are none."""
    constants = [(request.size, request.buffer.of) for request in requests if request.buffer.kind == "constants"]
    kept = [(size, -k) for size, k in constants if tilings[k].constants == "resident"]
    if not kept:
        return False
    k = -max(kept)[1]
    tiling = tilings[k].model_copy(update={"constants": "streamed"})
    spec, ub = unit.operators[layout.start + k], room_blocks(unit.machine, Memory.UB)
    product = product_of(spec)
    if product is not None and isinstance(tiling, ConvTiling):
        whole = tiling.weights == "resident"
        most = max(1, ub // (_BIAS_PART * product.fractal.sum_blocks))
        n1, k1 = (product.n1, product.k1) if whole else (min(tiling.chunk_n1, product.n1), tiling.chunk_k1)
        if n1 > most:  # two chunks take no more of L1 than all weights did, or the two larger ones
            tiling = tiling.model_copy(update={"weights": "streamed", "chunk_n1": min(most, n1 // 2 if whole else n1), "chunk_k1": k1})
    _set(tilings, k, tiling, leaders)
    return True


def _largest_tile(requests: Sequence[BufferRequest], have: int, stuck: set[int]) -> int | None:
    """The operator whose tile is to shrink: of those that are live where most is, or of all where that would fit."""
    _, live = peak(requests)
    if sum(request.size for request in live) <= have:
        live = list(requests)
    tiles = [(request.size, -request.buffer.of) for request in live if request.buffer.kind in _TILES and request.buffer.of not in stuck]
    return -max(tiles)[1] if tiles else None


def _smaller(unit: Unit, layout: Blocks, k: int, tiling: Tiling, room: int) -> Tiling | None:
    """A tiling whose tile takes no more than `room` blocks of UB; None where there is none."""
    spec, rows = unit.operators[layout.start + k], layout.rows(k)
    product = product_of(spec)
    if product is not None and isinstance(tiling, ConvTiling):
        if product.residual_lanes < product.result_lanes:  # a residual's tile is larger than one of results
            room = room * product.residual_lanes // product.result_lanes // _ALIGN * _ALIGN
        return narrower(unit, product, rows, layout.inside[k], tiling, room) if room else None
    mine = on_vector(spec)
    dtype = unit.type_of(spec.y)
    found = mine.slot_tiling(rows, room, dtype)
    if _slot(mine, found, dtype) > room:
        found = mine.columns_tiling(room, room, dtype) or found
    if _slot(mine, found, dtype) > room:
        return None
    return found.model_copy(update={"constants": tiling.constants})


def _slot(spec: OnVector, tiling: VectorTiling, dtype: DataType) -> int:
    return spec.tile_blocks(spec.planes_of_tile(tiling), tiling.tile_rows, tiling.tile_columns or spec.out_w, dtype)
