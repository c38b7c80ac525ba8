"""What the cost model sees of an operator's stages (`tile.stages`), on its largest block, by where they move or compute.

| name              | adds up over operators as | meaning                                                             |
|-------------------|---------------------------|---------------------------------------------------------------------|
| *_compute_bits    | a sum                     | compute_bit x compute_num: bits that go through the stage in all blocks |
| *_emit_num        | a sum                     | instructions in all blocks                                           |
| *_store_bits      | a mean                    | store_bit x store_num: bits that are kept, both tiles where two are live |
| *_emit_bits       | a mean                    | bits that one instruction on a whole tile handles                     |
"""

from __future__ import annotations

from functools import lru_cache

from compiler.derive.plan import Tiling
from compiler.schedule.blocks import Blocks
from compiler.tile.spec import Unit
from compiler.tile.stages import Nest, Stage, cube_places, live, nest_of, stages_of, tiles_of
from simulator.npu.machine import Memory

_STAGES = ("to_l1", "to_l0a", "to_l0b", "to_ub", "cube", "vector", "out", "store")
STAGE_SUMS = tuple(f"{stage}_{what}" for stage in _STAGES for what in ("compute_bits", "emit_num"))
STAGE_MEANS = tuple(f"{stage}_{what}" for stage in _STAGES for what in ("store_bits", "emit_bits"))
_MEANS = len(STAGE_SUMS)  # where they start


def add_stages(out: list[float], first: int, unit: Unit, blocks: Blocks, k: int, tiling: Tiling, images: int) -> None:
    """Adds operator k of the segment to out[first:], which has (*STAGE_SUMS, *STAGE_MEANS)."""
    spec, times = unit.kernels[blocks.start + k], sum(blocks.heights[k].values()) * images
    on_chip = tuple(piece.storage in blocks.staged and blocks.staged[piece.storage].produced for piece in spec.reads)
    if blocks.streamed >> k & 1:
        on_chip = (on_chip[0], False)
    nest, stages, cube, places = _nest(unit, spec.index, blocks.rows(k), on_chip, blocks.inside[k])
    for stage, place, tile in zip(stages, places, tiles_of(nest, stages, cube, tiling), strict=True):
        at = first + 2 * place
        out[at] += tile.computed * stage.bits * times
        out[at + 1] += tile.emitted * times
        at += _MEANS
        out[at] += live(stage, tile, nest, tiling) * stage.bits
        out[at + 1] += tile.elements * stage.bits


@lru_cache(maxsize=1 << 14)
def _nest(
    unit: Unit, kernel: int, rows: int, on_chip: tuple[bool, ...], inside: bool
) -> tuple[Nest, tuple[Stage, ...], tuple[int, ...], tuple[int, ...]]:
    """The nest of a block, and its `_stages`."""
    nest = nest_of(unit, unit.kernels[kernel], rows, frozenset(i for i, kept in enumerate(on_chip) if kept), inside)
    return nest, *_stages(unit, kernel, on_chip, inside)


@lru_cache(maxsize=1 << 12)
def _stages(unit: Unit, kernel: int, on_chip: tuple[bool, ...], inside: bool) -> tuple[tuple[Stage, ...], tuple[int, ...], tuple[int, ...]]:
    """Stages, their `cube_places`, and the place of each among `_STAGES`; they do not depend on the block's rows."""
    nest = nest_of(unit, unit.kernels[kernel], 1, frozenset(i for i, kept in enumerate(on_chip) if kept), inside)
    stages = stages_of(unit.machine, nest)
    return stages, cube_places(stages), tuple(_STAGES.index(_name(stage)) for stage in stages)


def _name(stage: Stage) -> str:
    if stage.source == stage.buffer:
        return "cube" if stage.buffer == Memory.L0C else "vector"
    if stage.source == Memory.L0C:
        return "out"
    return "store" if stage.source == Memory.UB else f"to_{stage.buffer.name.lower()}"
