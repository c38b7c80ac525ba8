"""Text of a plan: its model and machine, then a line per segment and per operator."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.dump.align import aligned
from compiler.plan.plan import ConvTiling, Plan, SegmentPlan, Text, Tiling

_TEXTS = {key: text for key, field in SegmentPlan.model_fields.items() for text in field.metadata if isinstance(text, Text)}


def plan_lines(plan: Plan) -> list[str]:
    """All keys of the plan, defaults included; left out are `ahead_kib`, passes of 1, empty names, and the tilings' default `constants` and
    columns."""
    lines = [f"plan {plan.digest} version {plan.version}"]
    lines += aligned([["model", plan.model], ["machine", plan.machine], ["dtype", plan.dtype]])
    pieces = {sum(before.segments for before in plan.pieces[:k]): piece for k, piece in enumerate(plan.pieces)}
    for index, segment in enumerate(plan.segments):
        if index in pieces:
            lines.append(f"piece {pieces[index].name}: {counted(pieces[index].segments, 'segment')}")
        lines += _segment(index, segment)
    return lines


def counted(number: int, what: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number:,} {what}" + ("s" if number != 1 else "")


def _segment(index: int, plan: SegmentPlan) -> Iterator[str]:
    words = {key: text.of(getattr(plan, key)) for key, text in _TEXTS.items()}
    words["sliding"] += f", core{'s' * (len(plan.cores) > 1)} {','.join(map(str, plan.cores))} split {plan.split}"
    yield f"segment {index}: {''.join(words.values())}"
    if plan.shared:
        yield f"shared: {' '.join(plan.shared)}"
    if plan.held:
        yield f"held: {' '.join(plan.held)}"
    halo = plan.halo or ("recompute",) * len(plan.operators)
    rows = zip(plan.operators, halo, plan.tilings, strict=True)
    yield from aligned(
        [[name, f"halo {kind}", _tiling(tiling) + (" weights staged" if name in plan.staged else "")] for name, kind, tiling in rows]
    )
    for share in plan.on_vector:
        yield f"on VECTOR: {share.operator} {counted(share.planes, 'plane')} {_tiling(share.tiling)}"


def _tiling(tiling: Tiling) -> str:
    streamed = " constants streamed" if tiling.constants == "streamed" else ""
    if isinstance(tiling, ConvTiling):
        chunk = f" chunk n{tiling.chunk_n1} k{tiling.chunk_k1}"
        return f"m{tiling.tile_m} n{tiling.tile_n1} k{tiling.tile_k1} {tiling.order}-outer weights {tiling.weights}{chunk}{streamed}"
    columns = f" columns{tiling.tile_columns}" if tiling.tile_columns else ""
    return f"planes{tiling.tile_planes} rows{tiling.tile_rows}{columns}{streamed}"
