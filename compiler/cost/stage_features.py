"""Features of an operator's stages (`segment.dataflow`) on its largest block, by where they move or compute.

| name              | adds up over operators as | meaning                                                             |
|-------------------|---------------------------|---------------------------------------------------------------------|
| *_compute_bits    | a sum                     | compute_bit x compute_num: bits that go through the stage in all blocks |
| *_emit_num        | a sum                     | instructions in all blocks                                           |
| *_store_bits      | a mean                    | store_bit x store_num: bits in the buffer, both tiles if two are live |
| *_emit_bits       | a mean                    | bits that one instruction on a full tile handles                      |
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ops.base import Heights
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass
from compiler.plan.plan import ConvTiling, Tiling
from compiler.segment.dataflow import (
    Extents,
    Sizes,
    Stage,
    cube_places,
    cube_tile_loop,
    cube_tiles,
    live_elements,
    nest_of,
    sizes_of,
    stages_of,
    tiles_of,
)
from simulator.npu.parts import Memory

_STAGES = ("to_l1", "to_l0a", "to_l0b", "to_ub", "cube", "vector", "out", "store")
STAGE_SUMS = tuple(f"{stage}_{figure}" for stage in _STAGES for figure in ("compute_bits", "emit_num"))
STAGE_MEANS = tuple(f"{stage}_{figure}" for stage in _STAGES for figure in ("store_bits", "emit_bits"))
_MEANS = len(STAGE_SUMS)  # index of the first mean
_WEIGHTS = 2  # index of weights that go to L1, in `segment.dataflow.cube_tiles`


def stage_features(
    kind: CostClass, heights: Heights, on_chip: tuple[bool, ...], inside: bool, tiling: Tiling, images: int, together: int = 1
) -> NDArray[np.float64] | list[float]:
    """Stage features of an operator of a segment, [(*STAGE_SUMS, *STAGE_MEANS)].

    heights: (rows, number of blocks per image with that many rows).  images: number of images.  together: images that share one load of
    weights.
    on_chip: per operand, whether the segment produces it.  inside: whether the result stays on chip.
    """
    target_graph, spec = kind.target_graph, kind.spec
    rows, times = max([rows for rows, _ in heights], default=1), sum([count for _, count in heights]) * images
    product = product_of(spec)
    if product is not None and isinstance(tiling, ConvTiling):
        table = _cube_table(kind, on_chip, inside, tiling.weights, tiling.constants, tiling.chunk_k1 < product.k1)
        source = spec.reads[0]
        source_blocks = spec.input_rows(rows) * target_graph.storages[source.storage].row_blocks
        extents = (
            product.groups, rows * spec.out_w, product.n1, product.k1, *product.fractal[:4], product.staying, source.planes,
            source_blocks, product.parts.cut, product.needed,
        )  # fmt: skip
        sums: NDArray[np.float64] = _add_cube(table, extents, sizes_of(tiling), times, together)
        return sums
    out = [0.0] * (2 * _MEANS)
    # any other operator: stage by stage
    nest = nest_of(target_graph, spec, rows, _kept(on_chip), inside)
    stages, places = _stages(kind, on_chip, inside)
    for stage, place, tile in zip(stages, places, tiles_of(nest, stages, (), tiling), strict=True):
        column = 2 * place
        out[column] += tile.computed * stage.bits * times
        out[column + 1] += tile.emitted * times
        column += _MEANS
        out[column] += live_elements(stage, tile, nest, tiling) * stage.bits
        out[column + 1] += tile.elements * stage.bits
    return out


@njit(cache=True)
def _add_cube(table: NDArray[np.int64], extents: Extents, sizes: Sizes, all_times: int, together: int) -> NDArray[np.float64]:
    """Sums of a product's stages.  table: `_cube_table`."""
    out, tiles = np.zeros(2 * _MEANS), cube_tiles(extents, sizes)
    for cube, bits, place, slots in table:
        elements, computed, emitted = tiles[cube]
        times = all_times // together if cube == _WEIGHTS else all_times
        column = 2 * place
        out[column] += computed * bits * times
        out[column + 1] += emitted * times
        column += _MEANS
        out[column] += elements * slots * bits
        out[column + 1] += elements * bits
    return out


@lru_cache(maxsize=1 << 12)
def _cube_table(
    kind: CostClass, on_chip: tuple[bool, ...], inside: bool, weights: str, constants: str, pieces_of_k: bool
) -> NDArray[np.int64]:
    """Table of a product's stages, int64 [stages, 4]: `cube_places`, bits, index in `_STAGES`, and how many tiles are live."""
    stages, places = _stages(kind, on_chip, inside)
    partial = weights == "streamed" and pieces_of_k
    doubles = [cube_tile_loop(stage.tensor, stage.buffer.name, weights, constants, partial)[1] for stage in stages]
    rows = zip(cube_places(stages), [stage.bits for stage in stages], places, [1 + double for double in doubles], strict=True)
    return np.array(list(rows), np.int64)


def _kept(on_chip: tuple[bool, ...]) -> frozenset[int]:
    return frozenset(i for i, produced in enumerate(on_chip) if produced)


@lru_cache(maxsize=1 << 12)
def _stages(kind: CostClass, on_chip: tuple[bool, ...], inside: bool) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """Stages, and the index of each in `_STAGES`; independent of the block's rows."""
    stages = stages_of(kind.target_graph.machine, nest_of(kind.target_graph, kind.spec, 1, _kept(on_chip), inside))
    return stages, tuple(_STAGES.index(_name(stage)) for stage in stages)


def _name(stage: Stage) -> str:
    if stage.source == stage.buffer:
        return "cube" if stage.buffer == Memory.L0C else "vector"
    if stage.source == Memory.L0C:
        return "out"
    return "store" if stage.source == Memory.UB or stage.buffer == Memory.DDR else f"to_{stage.buffer.name.lower()}"
