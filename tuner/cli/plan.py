"""Commands `tilefarm plan show` and `plan diff`: print a plan, or the differences of two plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line, print_text
from tuner.cli.options import Json, RandomWeights, Shape, model_and_seed
from tuner.cli.parse import parse_shapes
from tuner.cli.text import print_json

if TYPE_CHECKING:
    from compiler.model import ModelSpec
    from compiler.plan.diff import Change, PlanDiff
    from compiler.plan.plan import Plan

app = new_app(no_args_is_help=True)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file.")],
    primitives: Annotated[
        bool, typer.Option("--primitives", help="Every operator's schedule: cache_read, cache_write, split, reorder, compute_at ...")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL.onnx", help="With --primitives: the plan's model, unless the plan lies in its run folder.")
    ] = None,
    machine: Annotated[str | None, typer.Option(metavar="M", help="With --model.")] = None,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    as_json: Json = False,
) -> None:
    """Segments, blocks and tilings of a plan, and its digest; or its operators as schedule primitives."""
    from compiler.plan.plan import Plan

    if not primitives:
        for name, value in (("--model", model), ("--machine", machine), ("--shape", shape), ("--random-weights", random_weights)):
            if value is not None:
                raise BadInputError(f"{name} goes with --primitives")
        _print_plan(Plan.load(path), as_json)
        return
    if model is not None:
        model, random_weights = model_and_seed(model, random_weights)
    plan = Plan.load(path)
    _print_primitives(plan, _source(path, plan, model, machine, shape or (), random_weights), str(path), as_json)


@app.command("diff")
def diff_plans(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A plan file.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another plan file.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 where they differ, as git diff --exit-code does.")] = False,
    as_json: Json = False,
) -> int:
    """Differences of two plans, segment by segment; no output for equal plans."""
    from compiler.plan.diff import diff
    from compiler.plan.plan import Plan

    plan_a, plan_b = Plan.load(a), Plan.load(b)
    difference = diff(plan_a, plan_b)
    if as_json:
        print_json({"equal": difference.equal, "a": plan_a.digest, "b": plan_b.digest, **asdict(difference)})
    else:
        for line in _lines(difference, plan_a, plan_b):
            print_line(line)
    return 1 if exit_code and not difference.equal else 0


def _print_plan(plan: Plan, as_json: bool) -> None:
    from compiler.dump.plan import plan_lines

    if as_json:
        print_json({"digest": plan.digest, **plan.model_dump(mode="json")})
        return
    for line in plan_lines(plan):
        print_line(line)


def _source(
    path: Path, plan: Plan, model: Path | None, machine: str | None, shape_texts: Sequence[str], random_weights: int | None
) -> ModelSpec:
    """Model and machine of the plan: from the options, or from the run folder that contains the plan."""
    from compiler.model import ModelSpec
    from simulator.npu.machine_file import load_machine
    from simulator.npu.parts import DataType
    from tuner.platform.local_files import LocalPath
    from tuner.runs.model_source import SOURCE, read_source

    if model is not None and machine is not None:
        return ModelSpec(model, load_machine(machine), DataType[plan.dtype], parse_shapes(shape_texts), random_weights)
    if model is not None or machine is not None:
        raise BadInputError("--model and --machine go together")
    run = next((folder for folder in path.resolve().parents[1:3] if (folder / SOURCE).is_file()), None)  # above plans/ or plans/own/
    if run is None:
        raise BadInputError(f"{path}: lies in no run folder, so give --model and --machine")
    return read_source(LocalPath(run)).source


def _print_primitives(plan: Plan, source: ModelSpec, label: str, as_json: bool) -> None:
    from compiler.build import check_plan, plans_of_pieces
    from compiler.dump.primitives import primitives
    from tuner.zoo.load import open_network

    lowered = open_network(source)
    texts, operators_before = list[tuple[int, str, str]](), 0
    for target_graph, part in zip(lowered.target_graphs, plans_of_pieces(lowered, plan, label), strict=True):
        texts += [(operators_before + index, name, text) for index, name, text in primitives(check_plan(target_graph, part, label), part)]
        operators_before += len(part.segments)
    if as_json:
        print_json([{"segment": index, "operator": name, "primitives": text.splitlines()} for index, name, text in texts])
        return
    for index, name, text in texts:
        blocks = plan.segments[index].blocks_of_strips
        print_line(f"# segment {index}, {name}" + (f", the largest of {blocks} blocks" if blocks > 1 else ""))
        print_text(text)
        print_line()


def _lines(difference: PlanDiff, plan_a: Plan, plan_b: Plan) -> list[str]:
    """Difference as text: `-` is plan a, `+` is plan b; empty for equal plans."""
    lines = [f"{key}: {old} -> {new}" for key, (old, new) in difference.keys.items()]
    lines += [f"- operator {name}" for name in difference.only_a] + [f"+ operator {name}" for name in difference.only_b]
    if difference.order:
        lines.append("operators come in another order")
    for change in difference.changes:
        lines += _change(change, plan_a, plan_b)
    return lines


def _change(change: Change, plan_a: Plan, plan_b: Plan) -> list[str]:
    numbers = f"segment {change.a[0]}" if change.a == change.b and change.a[0] == change.a[1] else "segments"
    if change.changed:
        position = numbers if numbers != "segments" else f"segment {change.a[0]} (now {change.b[0]})"
        return [f"{position}, {_run(change.operators)}:", *(f"  {key}: {old} -> {new}" for key, (old, new) in change.changed.items())]
    lines = [f"{_run(change.operators)}: cut in other places"]
    for sign, (first, last), plan in (("-", change.a, plan_a), ("+", change.b, plan_b)):
        for index in range(first, last + 1):
            segment = plan.segments[index]
            blocks = "1 block" if segment.blocks == 1 else f"{segment.blocks} blocks"
            blocks += f" of {segment.columns} strips" if segment.columns > 1 else ""
            lines.append(
                f"  {sign} segment {index}, {_run(segment.operators)}: {blocks}, prefetch {segment.prefetch}, window {segment.window}"
            )
    return lines


def _run(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"
