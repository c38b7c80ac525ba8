"""Plans to start from: tilings chosen by estimate, weights resident where they fit, layer by layer as the baseline."""

from __future__ import annotations

from compiler.derive.plan import ConvTiling, Plan, SegmentPlan, Tiling
from compiler.emit.segment import l1_need
from compiler.schedule.blocks import Blocks, cut
from compiler.tile.space import conv_tiling, vector_tiling
from compiler.tile.spec import ConvSpec, Unit
from simulator.npu.machine import Memory


def segment_plan(unit: Unit, start: int, stop: int, blocks: int, *, prefetch: int = 2, window: int = 1) -> SegmentPlan:
    """A segment with default tilings: weights resident where a second block would read them again, the smallest first, while L1 holds them."""
    layout = cut(unit, start, stop, blocks)
    names = tuple(spec.name for spec in unit.kernels[start:stop])
    tilings = [default_tiling(unit, layout, k, resident=False) for k in range(stop - start)]
    plan = SegmentPlan.model_construct(operators=names, blocks=blocks, prefetch=prefetch, window=window, tilings=tuple(tilings))
    if blocks == 1 and unit.storages[0].n == 1:
        return plan
    convs = [k for k in range(stop - start) if isinstance(unit.kernels[start + k], ConvSpec)]
    for k in sorted(convs, key=lambda k: (unit.kernels[start + k].weight_blocks, k)):  # type: ignore[union-attr]
        trial = list(tilings)
        trial[k] = default_tiling(unit, layout, k, resident=True)
        candidate = plan.model_copy(update={"tilings": tuple(trial)})
        if l1_need(unit, candidate, layout) > unit.machine.buffer_blocks(Memory.L1):
            break
        tilings, plan = trial, candidate
    return plan


def default_tiling(unit: Unit, layout: Blocks, k: int, *, resident: bool, choice: int = 0) -> Tiling:
    """The tiling of kernel k of a segment that the estimate likes best (or `choice` places behind)."""
    spec = unit.kernels[layout.start + k]
    rows = max(1, max(r.size for r in layout.computed[k]))
    if isinstance(spec, ConvSpec):
        return conv_tiling(unit, spec, rows, layout.inside[k], resident, choice)
    return vector_tiling(unit, spec, rows)


def make_plan(unit: Unit, segments: list[SegmentPlan]) -> Plan:
    return Plan.model_construct(
        version=1, model=unit.graph.digest, machine=unit.machine.digest, dtype=unit.dtype.name, segments=tuple(segments)
    )


def layer_by_layer(unit: Unit) -> Plan:
    """Every operator its own segment, in as few blocks as fit L1 with prefetch: what the search has to beat."""
    segments = []
    for start in range(len(unit.kernels)):
        height = unit.kernels[start].out_h
        choices = [b for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 112, 224) if b <= height]
        for blocks in choices:
            plan = segment_plan(unit, start, start + 1, blocks)
            if l1_need(unit, plan, cut(unit, start, start + 1, blocks)) <= unit.machine.buffer_blocks(Memory.L1):
                break
        segments.append(plan)
    return make_plan(unit, segments)


__all__ = ["ConvTiling", "default_tiling", "layer_by_layer", "make_plan", "segment_plan"]
