"""What the stages of one block add up to: features, held against emitted records, and bytes, held against the planner's."""

from __future__ import annotations

from typing import NamedTuple

from compiler.plan.plan import Tiling
from compiler.segment.dataflow import Nest, Stage, cube_places, group_stages, live_elements, tiles_of
from simulator.npu.parts import Memory


class StageFeatures(NamedTuple):
    """See the table at the top of `compiler.segment.dataflow`."""

    type: str
    store_bit: int
    store_num: int
    compute_bit: int
    compute_num: int
    emit_bit: int
    emit_num: int


def features_of(nest: Nest, stages: tuple[Stage, ...], tiling: Tiling) -> tuple[StageFeatures, ...]:
    """The seven features of every stage."""
    out = []
    for stage, tile in zip(stages, tiles_of(nest, stages, cube_places(stages), tiling), strict=True):
        kept = live_elements(stage, tile, nest, tiling) if stage.buffer != Memory.DDR else tile.computed
        out.append(StageFeatures(stage.type, stage.bits, kept, stage.bits, tile.computed, tile.elements * stage.bits, tile.emitted))
    return tuple(out)


def footprints(nest: Nest, stages: tuple[Stage, ...], tiling: Tiling) -> dict[Memory, int]:
    """Bytes that one block of the operator keeps in each buffer: of every group the tile of its first stage, twice where two are live."""
    tiles = dict(zip(stages, tiles_of(nest, stages, cube_places(stages), tiling), strict=True))
    out: dict[Memory, int] = {}
    for (buffer, _), group in group_stages(stages).items():
        if buffer != Memory.DDR:
            out[buffer] = out.get(buffer, 0) + live_elements(group[0], tiles[group[0]], nest, tiling) * group[0].bits // 8
    return out
