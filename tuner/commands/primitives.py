"""`plan show --primitives`: a plan as schedule primitives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compiler.build import check_plan, plans_of_pieces
from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import cut
from compiler.segment.channels import channel_parts, largest
from compiler.segment.primitives import to_text
from compiler.segment.run import streamed_rights
from compiler.segment.siblings import as_made
from compiler.segment.stages import nest_of
from compiler.segment.strips import widest
from compiler.source import Source, open_source
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import DataType, load_machine
from simulator.terminal import print_line, print_text
from tuner.commands.options import parse_shapes
from tuner.commands.text import print_json
from tuner.source import SOURCE, read_source


def show_primitives(
    path: Path, model: Path | None, machine: str | None, shape_texts: Sequence[str], random_weights: int | None, as_json: bool
) -> None:
    """`tilefarm plan show --primitives`: every operator of a plan as schedule primitives."""
    plan = Plan.load(path)
    opened = open_source(_source(path, plan, model, machine, shape_texts, random_weights))
    texts, before = list[tuple[int, str, str]](), 0
    for unit, part in zip(opened.units, plans_of_pieces(opened, plan, str(path)), strict=True):
        unit = check_plan(unit, part, str(path))
        texts += [(before + i, name, text) for i, segment, start in _placed(part) for name, text in _operators(unit, segment, start)]
        before += len(part.segments)
    if as_json:
        print_json([{"segment": index, "operator": name, "primitives": text.splitlines()} for index, name, text in texts])
        return
    for index, name, text in texts:
        blocks = plan.segments[index].blocks_of_strips
        print_line(f"# segment {index}, {name}" + (f", the largest of {blocks} blocks" if blocks > 1 else ""))
        print_text(text)
        print_line()


def _source(
    path: Path, plan: Plan, model: Path | None, machine: str | None, shape_texts: Sequence[str], random_weights: int | None
) -> Source:
    """What the plan was made for: as given, or as the run knows in whose folder it lies."""
    if model is not None and machine is not None:
        return Source(model, load_machine(machine), DataType[plan.dtype], parse_shapes(shape_texts), random_weights)
    if model is not None or machine is not None:
        raise BadInputError("--model and --machine go together")
    run = path.resolve().parent.parent
    if not (run / SOURCE).is_file():
        raise BadInputError(f"{path}: lies in no run folder, so give --model and --machine")
    return read_source(run).source


def _placed(plan: Plan) -> list[tuple[int, SegmentPlan, int]]:
    """(number, segment, its first operator) of every segment."""
    out, start = [], 0
    for index, segment in enumerate(plan.segments):
        out.append((index, segment, start))
        start += len(segment.operators)
    return out


def _operators(unit: Unit, segment: SegmentPlan, start: int) -> list[tuple[str, str]]:
    """(operator, primitives) on the segment's largest block, of the core with the most channels where they are split."""
    made = as_made(unit, segment, start)
    if isinstance(made, Infeasible):
        raise InfeasibleError(str(made))
    unit, segment, start = made
    stop = start + len(segment.operators)
    parts = channel_parts(unit, start, stop, segment.channels)
    unit = unit if isinstance(parts, Infeasible) else largest(parts, start, stop)
    strip = widest(unit, start, stop, segment.columns)
    if isinstance(strip, Infeasible):
        raise InfeasibleError(str(strip))
    unit = strip
    streamed = streamed_rights(unit, start, segment.made_tilings)
    blocks = cut(unit, start, stop, segment.blocks, segment.caching, segment.dealt, streamed)
    out = []
    for k, tiling in enumerate(segment.made_tilings):
        spec = unit.kernels[start + k]
        rows = blocks.rows(k)
        fed = int(isinstance(spec, ConvSpec))  # what CUBE is fed with has to come to L1 in any case
        reads = spec.reads[:1] if streamed >> k & 1 else spec.reads
        staged = [(i, blocks.staged[piece.storage]) for i, piece in enumerate(reads) if piece.storage in blocks.staged]
        kept = frozenset(i for i, tensor in staged if tensor.produced or i >= fed)
        out.append((spec.name, to_text(unit.machine, nest_of(unit, spec, rows, kept, blocks.inside[k]), tiling)))
    return out
