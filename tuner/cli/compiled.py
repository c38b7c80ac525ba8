"""Compiled files: compile, export, run, simulate, trace, disasm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.npu.errors import BadInputError
from tuner.cli.group import new_app
from tuner.cli.options import (
    Compiled,
    Controller,
    ControllerName,
    DType,
    DTypeName,
    Inferences,
    Json,
    Load,
    MachineName,
    MinNpuShare,
    Model,
    OneLevel,
    RandomWeights,
    RunFolder,
    Shape,
    Slice,
    Style,
    StyleName,
    SwitchCycles,
    TMax,
    TMin,
    named,
)

if TYPE_CHECKING:
    from tuner.commands.contended import Contention

app = new_app()


@app.command("compile")
def _compile(
    model: Model,
    machine: MachineName,
    out: Annotated[Path, typer.Option(metavar="OUT.onnx", help="Where to write the compiled ONNX file.")],
    plan: Annotated[
        list[str] | None,
        typer.Option(metavar="PLAN.json", help="A plan for all levels, or level=PLAN.json for each; layer by layer unless given."),
    ] = None,
    tile_model: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Tile every operator by the cost model of that run (on any model), with no measurement."),
    ] = None,
    dtype: DType = DTypeName.float16,
    style: Style = StyleName.function,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    min_npu_share: MinNpuShare = None,
    as_json: Json = False,
) -> None:
    """Compile with given plans, without search: the same bytes every time."""
    from tuner.commands.build import compile_model

    model, random_weights = named(model, random_weights)
    compile_model(
        model, machine, plan or (), dtype.value, style.value, shape or (), random_weights, tile_model, min_npu_share, out, as_json
    )  # fmt: skip


@app.command("export")
def _export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="OUT.onnx", help="Where to write the compiled ONNX file.")],
    plan: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="One plan of the run for all levels, by the first digits of its digest.")
    ] = None,
    plans: Annotated[Path | None, typer.Option(metavar="DIR", help="A folder with <level>.json instead of RUN/plans.")] = None,
    style: Annotated[StyleName | None, typer.Option(help="As in compile. (default: the run's)")] = None,
    as_json: Json = False,
) -> None:
    """Compile the best plans of a run into an ONNX file."""
    from tuner.commands.build import export

    export(run, plan, plans, style.value if style else None, out, as_json)


@app.command("run")
def _run(
    compiled: Compiled,
    given: Annotated[str, typer.Option("--input", metavar="X.npz|random[:SEED]", help="Arrays by input name, or standard normal values.")],
    level: OneLevel = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with onnxruntime, run the sanitizer, recompute cycles; exit 1 on a fault.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="Y.npz", help="Write the outputs, float32 by name.")] = None,
    as_json: Json = False,
) -> int:
    """Execute the container on the simulated NPU, never the body."""
    from tuner.commands.compiled import run

    return run(compiled, given, level, check, out, as_json)


@app.command("simulate")
def _simulate(
    compiled: Compiled,
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; all unless given. With --controller static: the variant that runs.")
    ] = None,
    by_segment: Annotated[
        bool,
        typer.Option(
            "--segments", help="Segment by segment instead: cycles, limits, bytes, work; and the longest chain of work and waits."
        ),
    ] = False,
    trace: Load = None,
    controller: Controller = None,
    t_min: TMin = None,
    t_max: TMax = None,
    slice_cycles: Slice = None,
    inferences: Inferences = None,
    switch_cycles: SwitchCycles = None,
    as_json: Json = False,
) -> None:
    """Cycles, latency in us, bound, DDR bytes, balance and utilisation of every engine; with --trace, inferences under a changing load."""
    contention = _contention(trace, level, controller, t_min, t_max, slice_cycles, inferences, switch_cycles)
    if contention is None:
        from tuner.commands.compiled import simulate_file
        from tuner.commands.profile import segments

        (segments if by_segment else simulate_file)(compiled, level, as_json)
        return
    if by_segment:
        raise BadInputError("--segments does not go with --trace")
    from tuner.commands.contended import simulate_contended

    simulate_contended(compiled, contention, as_json)


@app.command("trace")
def _trace(
    compiled: Compiled,
    out: Annotated[Path, typer.Option(metavar="T.json[.gz]", help="The trace, for ui.perfetto.dev or chrome://tracing.")],
    level: Annotated[
        str | None, typer.Option(metavar="L", help="Contention level; the first one unless given. With --controller static: what runs.")
    ] = None,
    load: Load = None,
    controller: Controller = None,
    t_min: TMin = None,
    t_max: TMax = None,
    slice_cycles: Slice = None,
    inferences: Inferences = None,
    switch_cycles: SwitchCycles = None,
) -> None:
    """Every instruction of a variant on a time line: engines, waits, memory, bandwidth; with --trace, inferences under a changing load."""
    contention = _contention(load, level, controller, t_min, t_max, slice_cycles, inferences, switch_cycles)
    if contention is None:
        from tuner.commands.profile import trace

        trace(compiled, level, out)
        return
    from tuner.commands.contended import trace_contended

    trace_contended(compiled, contention, out)


def _contention(
    load: str | None,
    level: str | None,
    controller: ControllerName | None,
    t_min: float | None,
    t_max: float | None,
    slice_cycles: int | None,
    inferences: int | None,
    switch_cycles: int | None,
) -> Contention | None:
    """What `simulate` and `trace` share; None without --trace, with which all but the level go."""
    if load is None:
        given = {"--controller": controller, "--t-min": t_min, "--t-max": t_max, "--slice": slice_cycles}
        given |= {"--inferences": inferences, "--switch-cycles": switch_cycles}
        for name, value in given.items():
            if value is not None:
                raise BadInputError(f"{name} goes with --trace")
        return None
    from tuner.commands.contended import Contention

    count = 1000 if inferences is None else inferences
    return Contention(load, (controller or ControllerName.estimator).value, count, level, t_min, t_max, slice_cycles, switch_cycles)


@app.command("disasm")
def _disasm(
    compiled: Compiled,
    level: OneLevel = None,
    core: Annotated[int | None, typer.Option(metavar="N", help="One core; all unless given.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="F", help="Write the text there; stdout unless given.")] = None,
) -> None:
    """The instructions of a variant as text."""
    from tuner.commands.compiled import disassemble

    disassemble(compiled, level, core, out)
