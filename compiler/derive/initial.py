"""Plans to start from: tilings chosen by estimate, weights resident where they fit, layer by layer as the baseline."""

from __future__ import annotations

from compiler.derive.plan import Plan, SegmentPlan, Tiling
from compiler.emit.segment import Infeasible, l1_need
from compiler.schedule.blocks import Blocks, cut
from compiler.tile.space import CHUNK_BUDGETS, conv_tiling, vector_tiling
from compiler.tile.spec import ConvSpec, Unit
from simulator.npu.machine import Memory


def segment_plan(unit: Unit, start: int, stop: int, blocks: int, *, prefetch: int = 2, window: int = 1) -> SegmentPlan | None:
    """A segment with the tilings that the estimate likes best; None where L1 cannot hold it.

    Weights are resident where a second block would read them again, the smallest first, while L1 holds them; the others are streamed in
    the largest chunks that fit.
    """
    layout = cut(unit, start, stop, blocks)
    names = tuple(spec.name for spec in unit.kernels[start:stop])
    capacity = unit.machine.buffer_blocks(Memory.L1)
    plan = SegmentPlan.model_construct(operators=names, blocks=blocks, prefetch=prefetch, window=window, tilings=())
    convs = [k for k in range(stop - start) if isinstance(unit.kernels[start + k], ConvSpec)]
    by_size = sorted(convs, key=lambda k: (unit.kernels[start + k].weight_blocks, k))  # type: ignore[union-attr]
    repeated = blocks * unit.storages[0].n > 1
    for budget in CHUNK_BUDGETS if convs else (0,):
        resident: set[int] = set()
        found = _fitting(unit, plan, layout, resident, budget, capacity)
        if found is None:
            continue
        for k in by_size if repeated else ():
            better = _fitting(unit, plan, layout, resident | {k}, budget, capacity)
            if better is None:
                break
            resident.add(k)
            found = better
        return found
    # nothing but resident weights may fit as well: a single slot instead of two
    return _fitting(unit, plan, layout, set(convs), CHUNK_BUDGETS[0], capacity)


def _fitting(unit: Unit, plan: SegmentPlan, layout: Blocks, resident: set[int], budget: int, capacity: int) -> SegmentPlan | None:
    tilings = [default_tiling(unit, layout, k, k in resident, budget) for k in range(layout.stop - layout.start)]
    if any(tiling is None for tiling in tilings):
        return None
    trial = plan.model_copy(update={"tilings": tuple(tilings)})
    return trial if l1_need(unit, trial, layout) <= capacity else None


def default_tiling(unit: Unit, layout: Blocks, k: int, resident: bool, budget: int, choice: int = 0) -> Tiling | None:
    """The tiling of kernel k of a segment that the estimate likes best (or `choice` places behind); None where nothing is legal."""
    spec = unit.kernels[layout.start + k]
    rows = max(1, max(r.size for r in layout.computed[k]))
    if not isinstance(spec, ConvSpec):
        return vector_tiling(unit, spec, rows)
    return conv_tiling(unit, spec, rows, layout.inside[k], resident, budget, choice)


def make_plan(unit: Unit, segments: list[SegmentPlan]) -> Plan:
    return Plan.model_construct(
        version=1, model=unit.graph.digest, machine=unit.machine.digest, dtype=unit.dtype.name, segments=tuple(segments)
    )


BLOCK_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 160, 224)


def block_counts(unit: Unit, start: int, stop: int) -> list[int]:
    """Block counts worth trying for kernels [start, stop): up to one block per row of the lowest output."""
    height = min(spec.out_h for spec in unit.kernels[start:stop])
    return [count for count in BLOCK_COUNTS if count <= max(1, height)]


def layer_by_layer(unit: Unit) -> Plan | Infeasible:
    """Every operator its own segment, in as few blocks as fit L1 with prefetch: where every search starts."""
    segments = []
    for start, spec in enumerate(unit.kernels):
        plans = (segment_plan(unit, start, start + 1, blocks) for blocks in block_counts(unit, start, start + 1))
        plan = next((p for p in plans if p is not None), None)
        if plan is None:
            return Infeasible(spec.name, f"fits no tiling in {unit.machine.buffers_bytes.L1:,} B of L1")
        segments.append(plan)
    return make_plan(unit, segments)
