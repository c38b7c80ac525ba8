"""Command `tilefarm compile`: compile given plans into an ONNX file and describe it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compiler.compiler_stages import DUMPED
from simulator.command import new_app
from simulator.npu.errors import BadInputError, InfeasibleError
from simulator.terminal import print_line
from tuner.cli import options
from tuner.cli.dump_stages import parse_stages, print_texts, write_texts
from tuner.cli.group import FOLDER, READ
from tuner.cli.malloc_tuning import keep_freed_memory
from tuner.cli.parse import parse_plans, parse_shapes
from tuner.cli.text import ddr_text, print_json, print_pace, print_pieces, print_table

if TYPE_CHECKING:
    from compiler.model import LoweredModel
    from simulator.onnx_names import Style
    from tuner.cli.checking import FileCheck
    from tuner.cli.write_file import CompiledReport

app = new_app()


@app.command()
def compile_(
    model: options.Model,
    machine: options.MachineName,
    out: options.CompiledOut = None,
    plan: Annotated[
        list[str] | None,
        READ,
        typer.Option(metavar="PLAN.json", help="A plan for all levels, or level=PLAN.json for each; the best by prediction unless given."),
    ] = None,
    layerwise: Annotated[bool, typer.Option("--layerwise", help="Every operator by itself, in place of the best by prediction.")] = False,
    predicted_by: Annotated[
        Path | None, typer.Option("--model", metavar="MODEL", help="Predict by that cost model (`tilefarm train`), not by the estimate.")
    ] = None,
    dtype: options.DType = "float16",
    style: options.Style = "function",
    shape: options.Shape = None,
    random_weights: options.RandomWeights = None,
    objective: options.Objective = "latency",
    frames: options.Frames = None,
    min_npu_share: options.MinNpuShare = None,
    dump: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE",
            help=f"Print what a stage has made, in place of the report: {', '.join(DUMPED)}, all; repeatable, or with commas.",
        ),
    ] = None,
    dump_to: Annotated[
        Path | None,
        FOLDER,
        typer.Option(metavar="DIR", help="With --dump: into files [PIECE.][LEVEL.]STAGE.txt there; the report is printed."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file at once, every level, as `run --check --input random` does; exit 1 on a fault.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    keep_freed_memory()
    from compiler.dump.texts import texts_of
    from compiler.frontend.partition.partition import AllOnHostError
    from compiler.model import ModelSpec
    from compiler.plan.plan import Plan
    from simulator.npu.machine_file import load_machine
    from simulator.npu.parts import DataType
    from simulator.objective import frames_of
    from tuner.cli.predicted_plans import unmeasured_plans
    from tuner.cli.write_file import write_compiled, write_for_host, write_stack_file
    from tuner.finalize.packagers import is_stack_file
    from tuner.measure.host import check_share
    from tuner.zoo.load import open_network

    in_run = frames_of(objective, frames)
    model, random_weights = options.model_and_seed(model, random_weights)
    stages = _stages(dump or (), dump_to, out, as_json)
    if out is None and check:
        raise BadInputError("--check: checks the file that is written; expected together with --out")
    if check and is_stack_file(out):
        raise BadInputError(f"--check: {out} is no ONNX file; expected --out FILE.onnx")
    if plan and (layerwise or predicted_by is not None):
        raise BadInputError(f"{'--layerwise' if layerwise else '--model'}: makes plans, so it does not go with --plan")
    npu = load_machine(machine)
    files = parse_plans(plan or (), tuple(npu.contention), npu.name)
    read = {path: Plan.load(path) for path in dict.fromkeys(files.values())}
    source = ModelSpec(model, npu, DataType[dtype], parse_shapes(shape or ()), random_weights, in_run)
    try:
        lowered = open_network(source)
    except AllOnHostError as nothing:
        reason = str(nothing).partition("; supported are ")[0]
        if min_npu_share is not None:
            raise InfeasibleError(f"--min-npu-share {min_npu_share:g}: {reason}") from None
        if out is None or stages or plan or in_run > 1:  # no NPU program exists for these options
            raise
        on_host = write_for_host(nothing.part, source, reason, out)
        if as_json:
            print_json(on_host.values)
        for line in () if as_json else (*on_host.lines, f"{out}: {on_host.values['file_bytes']:,} bytes"):
            print_line(line)
        return 0
    check_share(lowered, min_npu_share)
    plans = {level: read[path] for level, path in files.items()} or unmeasured_plans(lowered, layerwise, predicted_by)
    names = {level: str(path) for level, path in files.items()}
    if stages:
        texts = texts_of(lowered, plans, names, stages)
        print_texts(texts) if dump_to is None else write_texts(texts, dump_to)
    if out is None:
        return 0
    if is_stack_file(out):
        report = write_stack_file(lowered, plans, out, names)
        show_report(report, as_json)
        for line in () if as_json else (f"{out}: {out.stat().st_size:,} bytes",):
            print_line(line)
        return 0
    report = write_compiled(lowered, plans, out, style, names)
    file_check = _checked(lowered, out, style) if check else None
    if not stages or dump_to is not None:
        check_values = None if file_check is None else {**file_check.told(), "levels": file_check.rows()}
        show_report(report._replace(values={**report.values, "check": check_values}), as_json)
        if not as_json and file_check is not None:
            file_check.show()
        elif not as_json:
            words = f"`{shlex.join(['tilefarm', 'run', str(out), '--input', 'random', '--check'])}`, or " if style == "function" else ""
            print_line(f"values unchecked: {words}compile with --check")
    return 0 if file_check is None or file_check.ok else 1


def _checked(lowered: LoweredModel, out: Path, style: Style) -> FileCheck:
    """Check the file just written, with random inputs."""
    from compiler.package import file_with_body
    from simulator.session import InferenceSession
    from tuner.cli.checking import check_compiled
    from tuner.verify.check import random_feeds

    session = InferenceSession(out)
    with file_with_body(lowered.written, out, style) as body:
        return check_compiled(out, session, random_feeds(session, 0), session.levels, body=body)


def _stages(dump: Sequence[str], dump_to: Path | None, out: Path | None, as_json: bool) -> tuple[str, ...]:
    """Stages of --dump.  Raises `BadInputError` where options do not go together."""
    if dump_to is not None and not dump:
        raise BadInputError(f"--dump-to {dump_to}: goes with --dump")
    if out is None and not dump:
        raise BadInputError("--out: missing; expected where to write the compiled ONNX file, or --dump STAGE")
    if as_json and dump and (dump_to is None or out is None):
        raise BadInputError("--json: with --dump it goes with --dump-to and --out")
    return parse_stages(dump)


def show_report(report: CompiledReport, as_json: bool) -> None:
    """Print the report of `write_compiled`: the levels, and the file if one was written."""
    if as_json:
        print_json(report.values)
        return
    values = report.values
    print_line(f"{values['model']} on {values['machine']}, {values['computes']}: {values['operators']} operators, {report.lines[0]}")
    for line in report.lines[1:]:
        print_line(line)
    columns = ("<level", "DDR share", "<variant", "segments", "instructions", "cycles", "latency us", "bound cycles", "DDR bytes")
    print_table(columns, [(level, *_cells(row)) for level, row in values["levels"].items()])
    print_pace(values["frames"], values["levels"])
    print_pieces(values["pieces"])
    if values["out"] is not None:
        sizes = f"{values['file_bytes']:,} bytes, {values['container_bytes']:,} of them the container"
        print_line(f"{values['out']}: {sizes}, style {values['style']}")


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        ddr_text(row),
        f"as {row['same_as']}" if row["same_as"] else row["plan"][:12],
        row["segments"],
        row["instructions"],
        row["cycles"],
        f"{row['latency_us']:,.1f}",
        row["program_bound_cycles"],
        row["ddr_bytes"],
    )
