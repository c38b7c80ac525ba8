"""`plan show --primitives`: a plan as schedule primitives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import Infeasible, Plan, SegmentPlan, read_plan
from compiler.segment.primitives import to_text
from compiler.segment.segment import Segment
from compiler.segment.stages import nest_of
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.npu.machine import DataType, load_machine
from tuner.build import check_plan, open_source, plans_of_pieces
from tuner.commands.options import parse_shapes
from tuner.commands.text import print_json
from tuner.source import SOURCE, Source, read_source
from tuner.terminal import print_line, print_text


def show_primitives(
    path: Path, model: Path | None, machine: str | None, shape_texts: Sequence[str], random_weights: int | None, as_json: bool
) -> None:
    """`tilefarm plan show --primitives`: every operator of a plan as schedule primitives."""
    plan = read_plan(path)
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


def _operators(unit: Unit, plan: SegmentPlan, start: int) -> list[tuple[str, str]]:
    """(operator, primitives) on the segment's largest block, of the core with the most channels where they are split."""
    segment = Segment.of(unit, plan, start)
    if isinstance(segment, Infeasible):
        raise InfeasibleError(str(segment))
    strip, out = segment.widest(), []
    for k, tiling in enumerate(segment.tilings):
        spec = strip.unit.kernels[segment.outline.start + k]
        fed = int(isinstance(spec, ConvSpec))  # what CUBE is fed with has to come to L1 in any case
        kept = frozenset(i for i, (in_l1, made) in enumerate(strip.residence(k)) if made or (in_l1 and i >= fed))
        nest = nest_of(strip.unit, spec, strip.blocks.rows(k), kept, strip.blocks.inside[k])
        out.append((spec.name, to_text(unit.machine, nest, tiling)))
    return out
