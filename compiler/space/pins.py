"""Pins of a gene: the tilings of all of its operators as numbers, six of each, so that a gene stays a small tuple.

| place | convolution or product                                                    | anything else                              |
|-------|---------------------------------------------------------------------------|--------------------------------------------|
| 0     | bits: 1 `conv`, 2 weights `streamed`, 4 order `n`, 8 constants `streamed` | bits: 8 constants `streamed`, 16 `fed`     |
| 1..5  | chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1                              | tile_planes, tile_rows, tile_columns, 0, 0 |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from compiler.plan.plan import ConvTiling, Tiling, VectorTiling

PINS = 6  # of an operator
_CONV, _STREAMED, _N_OUTER, _CONSTANTS, _FED = (1 << bit for bit in range(5))


def pins_of(tilings: Sequence[Tiling]) -> tuple[int, ...]:
    """The pins that name these tilings."""
    return tuple(chain.from_iterable(map(_row, tilings)))


def pinned_tilings(pins: Sequence[int]) -> tuple[Tiling, ...]:
    """The tilings that `pins_of` made pins of."""
    return tuple(_tiling(*pins[at : at + PINS]) for at in range(0, len(pins), PINS))


def _row(tiling: Tiling) -> tuple[int, ...]:
    constants = _CONSTANTS * (tiling.constants == "streamed")
    if isinstance(tiling, VectorTiling):
        return constants | _FED * tiling.fed, tiling.tile_planes, tiling.tile_rows, tiling.tile_columns, 0, 0
    bits = _CONV | _STREAMED * (tiling.weights == "streamed") | _N_OUTER * (tiling.order == "n") | constants
    return bits, tiling.chunk_n1, tiling.chunk_k1, tiling.tile_m, tiling.tile_n1, tiling.tile_k1


def _tiling(bits: int, a: int, b: int, c: int, d: int, e: int) -> Tiling:
    constants = "streamed" if bits & _CONSTANTS else "resident"
    if not bits & _CONV:
        return VectorTiling(tile_planes=a, tile_rows=b, tile_columns=c, constants=constants, fed=bool(bits & _FED))
    weights, order = "streamed" if bits & _STREAMED else "resident", "n" if bits & _N_OUTER else "m"
    return ConvTiling.model_validate(
        {"weights": weights, "chunk_n1": a, "chunk_k1": b, "tile_m": c, "tile_n1": d, "tile_k1": e, "order": order, "constants": constants}
    )
