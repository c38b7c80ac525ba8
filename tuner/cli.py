"""The command `tilefarm`: parse, call, print.

Exit codes: 0 done; 1 a check failed; 2 bad input (one line on stderr: what and where); 3 infeasible on this machine; 130 interrupted.
Everything heavy is imported inside the command that needs it, so that `tilefarm --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.npu.errors import BadInputError, TilefarmError

if TYPE_CHECKING:
    from tuner.commands.contended import Contention

INTERRUPTED = 130
BAD_INPUT = 2

app = typer.Typer(
    name="tilefarm",
    help="Tune ONNX models for an NPU: one compiled pipeline per level of DDR contention, in one ONNX file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
plan_app = typer.Typer(help="Look at plans.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")
log_app = typer.Typer(help="Look after a run's Parquet log.", no_args_is_help=True)
app.add_typer(log_app, name="log")


class DTypeName(StrEnum):
    float16 = "float16"
    float32 = "float32"


class StyleName(StrEnum):
    function = "function"
    epcontext = "epcontext"


class ControllerName(StrEnum):
    threshold = "threshold"
    estimator = "estimator"
    static = "static"
    oracle = "oracle"


class BackendName(StrEnum):
    ray = "ray"
    serial = "serial"


Model = Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The ONNX model, light:NAME of one that onnx ships, or made:NAME.")]
Compiled = Annotated[Path, typer.Argument(metavar="OUT.onnx", help="A compiled ONNX file.")]
MachineName = Annotated[str, typer.Option("--machine", metavar="M", help="A preset (see `tilefarm machines`) or a YAML file.")]
DType = Annotated[DTypeName, typer.Option(help="Data type on the NPU; products are accumulated in float32.")]
Style = Annotated[StyleName, typer.Option(help="function: stock onnxruntime runs the file by its body; epcontext: no body, no weights.")]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=DIMS", help="Shape of a dynamic input, e.g. x=1,3,224,224; repeatable.")
]
RandomWeights = Annotated[
    int | None, typer.Option(metavar="SEED", min=0, help="Replace all weights by random ones from this seed. (default for light:, made: 0)")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
OneLevel = Annotated[str | None, typer.Option(metavar="L", help="Contention level; the file's first one unless given.")]
Load = Annotated[
    str | None,
    typer.Option("--trace", metavar="T", help="Load over time: a file, or step:SEED, periodic:SEED, bursty:SEED, adversarial:SEED."),
]
Controller = Annotated[ControllerName | None, typer.Option(help="Who picks the variant of each inference. (default: estimator)")]
TMin = Annotated[float | None, typer.Option("--t-min", metavar="RHO", help="Threshold rule: one variant heavier below.")]
TMax = Annotated[float | None, typer.Option("--t-max", metavar="RHO", help="Threshold rule: one variant lighter from there on.")]
Slice = Annotated[
    int | None, typer.Option("--slice", metavar="CYCLES", min=0, help="Threshold rule: how long it must hold. (default: one inference)")
]
Inferences = Annotated[int | None, typer.Option(metavar="N", min=1, help="Inferences under the trace. (default: 1000)")]
SwitchCycles = Annotated[int | None, typer.Option(metavar="CYCLES", min=0, help="Cost of a switch. (default: the machine's issue_cycles)")]
Seed = Annotated[int, typer.Option(metavar="S", min=0, help="Seed of everything random; the same seed gives the same result.")]
Config = Annotated[str | None, typer.Option(metavar="F", help="Settings laid over the default: a preset or a YAML file.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting laid over the others; repeatable.")]
Backend = Annotated[BackendName | None, typer.Option(help="ray: a farm of actors; serial: this process. (default: farm.backend)")]
Address = Annotated[str | None, typer.Option(metavar="A", help="Ray cluster; else RAY_ADDRESS, else a local one is started.")]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Workers, one CPU each. (default: farm.workers, all free CPUs)")]
Wait = Annotated[float | None, typer.Option(metavar="S", min=0, help="Seconds to wait for CPUs. (default: farm.wait_s)")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            print(installed("tilefarm"))
        except PackageNotFoundError:
            print("not installed (running from a source tree)")
        raise typer.Exit


@app.command("tune")
def _tune(
    model: Model,
    machine: MachineName,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder: new, empty, or with --resume an earlier one.")],
    candidates: Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: measured programs.")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", min=0.001, help="Budget: seconds of wall time.")] = None,
    seed: Seed = 0,
    config: Config = None,
    overrides: Set = None,
    level_weights: Annotated[
        str | None, typer.Option(metavar="L=W,...", help="How often a level picks parents, e.g. none=1,severe=3. (default: level_weights)")
    ] = None,
    backend: Backend = None,
    address: Address = None,
    workers: Workers = None,
    wait: Wait = None,
    resume: Resume = False,
    style: Style = StyleName.function,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the log; repeatable.")] = None,
    dtype: DType = DTypeName.float16,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search for the best plan at every contention level; writes RUN/best.onnx, plans, log and summary."""
    from tuner.commands.options import parse_shapes, parse_tags, parse_weights
    from tuner.commands.search import tune
    from tuner.request import TuneRequest

    model, random_weights = _named(model, random_weights)
    request = TuneRequest(
        model=model, machine=machine, out=out, candidates=candidates, seconds=seconds, seed=seed, config=config,
        overrides=tuple(overrides or ()), level_weights=parse_weights(level_weights), backend=backend.value if backend else None,
        address=address, workers=workers, wait_s=wait, resume=resume, style=style.value, tag=parse_tags(tag or ()), dtype=dtype.value,
        shapes=parse_shapes(shape or ()), random_weights=random_weights, quiet=quiet,
    )  # fmt: skip
    tune(request, as_json)


@app.command("study")
def _study(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx...", help="Networks, in the order in which they are run and pruned.")],
    machine: MachineName,
    out: Annotated[Path, typer.Option(metavar="STUDY", help="Study folder: new, empty, or with --resume an earlier one.")],
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Trials, rounded up to whole batches.")] = 50,
    seeds: Annotated[int, typer.Option(metavar="K", min=1, help="Runs per network and trial, with seeds 0..K-1.")] = 1,
    seed: Seed = 0,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Database of the study; a journal file in STUDY unless given.")] = None,
    candidates: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Measured programs per run. (default: budget.candidates)")
    ] = None,
    config: Config = None,
    overrides: Set = None,
    backend: Backend = None,
    address: Address = None,
    workers: Workers = None,
    wait: Wait = None,
    resume: Resume = False,
    dtype: DType = DTypeName.float16,
    random_weights: RandomWeights = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Tune the search's own settings with Optuna; writes STUDY/best.yaml for `tune --config`."""
    from tuner.commands.search import study
    from tuner.request import StudyRequest

    named = [_named(model, random_weights) for model in models]
    if len({seed for _, seed in named}) > 1:
        raise BadInputError("light:NAME or made:NAME beside other files: give --random-weights, one seed for all")
    models, random_weights = [path for path, _ in named], named[0][1]
    request = StudyRequest(
        models=tuple(models), machine=machine, out=out, trials=trials, seeds=seeds, seed=seed, storage=storage, candidates=candidates,
        config=config, overrides=tuple(overrides or ()), backend=backend.value if backend else None, address=address, workers=workers,
        wait_s=wait, resume=resume, dtype=dtype.value, random_weights=random_weights, quiet=quiet,
    )  # fmt: skip
    study(request, as_json)


@app.command("sweep")
def _sweep(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx...", help="Models, as in tune.")],
    machine: Annotated[list[str], typer.Option("--machine", metavar="M", help="A preset or a YAML file; repeatable.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the sweep: new, empty, or with --resume an earlier one.")],
    seeds: Annotated[int, typer.Option(metavar="K", min=1, help="Runs per model and machine, with seeds 0..K-1.")] = 1,
    candidates: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Measured programs per run. (default: budget.candidates)")
    ] = None,
    config: Config = None,
    overrides: Set = None,
    backend: Backend = None,
    address: Address = None,
    workers: Workers = None,
    wait: Wait = None,
    resume: Resume = False,
    style: Style = StyleName.function,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the logs; repeatable.")] = None,
    dtype: DType = DTypeName.float16,
    random_weights: RandomWeights = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Every model on every machine with every seed: a run folder each, and DIR/index.parquet over all of them."""
    from tuner.commands.options import parse_tags
    from tuner.commands.search import sweep
    from tuner.request import SweepRequest

    request = SweepRequest(
        models=tuple(_named(model, random_weights) for model in models), machines=tuple(machine), out=out, seeds=seeds,
        candidates=candidates, config=config, overrides=tuple(overrides or ()), backend=backend.value if backend else None,
        address=address, workers=workers, wait_s=wait, resume=resume, style=style.value, tag=parse_tags(tag or ()), dtype=dtype.value,
        quiet=quiet,
    )  # fmt: skip
    return sweep(request, as_json)


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
    as_json: Json = False,
) -> None:
    """Compile with given plans, without search: the same bytes every time."""
    from tuner.commands.build import compile_model

    model, random_weights = _named(model, random_weights)
    compile_model(model, machine, plan or (), dtype.value, style.value, shape or (), random_weights, tile_model, out, as_json)


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
        bool, typer.Option("--segments", help="Segment by segment instead: cycles, what limits it, bytes, work.")
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


@app.command("ls")
def _ls(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with runs in it or below.")],
    as_json: Json = False,
) -> None:
    """The runs below a folder: model, machine, state, gain per level."""
    from tuner.commands.runs import list_runs

    list_runs(folder, as_json)


@app.command("best")
def _best(run: RunFolder, as_json: Json = False) -> None:
    """The champions of a finished run."""
    from tuner.commands.runs import best

    best(run, as_json)


@app.command("status")
def _status(run: RunFolder, as_json: Json = False) -> None:
    """How far a run is, also while it goes on: programs, failures, best so far."""
    from tuner.commands.runs import status

    status(run, as_json)


@app.command("compare")
def _compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one.")],
    force: Annotated[bool, typer.Option("--force", help="Also where model, machine or simulator differ.")] = False,
    as_json: Json = False,
) -> None:
    """Two runs after the same number of measured programs, level by level."""
    from tuner.commands.runs import compare_runs

    compare_runs(first, second, force, as_json)


@app.command("report")
def _report(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(metavar="F.html", help="Where to write the page. (default: RUN/report.html)")] = None,
    as_json: Json = False,
) -> None:
    """A finished run as one offline HTML page: variants, search, pipelines, buffers, roofline, cost model, failures, settings."""
    from tuner.commands.report import report

    report(run, out, as_json)


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


@app.command("machines")
def _machines(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A preset or a YAML file; all presets unless given.")] = None,
    as_json: Json = False,
) -> None:
    """The machines that there are, or every value of one, with units."""
    from tuner.commands.inspect import machines

    machines(name, as_json)


@plan_app.command("show")
def _plan_show(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file.")],
    primitives: Annotated[
        bool, typer.Option("--primitives", help="Every operator's schedule: cache_read, cache_write, split, reorder, compute_at ...")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL.onnx", help="With --primitives: what the plan is for, unless it lies in its run folder.")
    ] = None,
    machine: Annotated[str | None, typer.Option(metavar="M", help="With --model.")] = None,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    as_json: Json = False,
) -> None:
    """Segments, blocks and tilings of a plan, and its digest; or its operators as schedule primitives."""
    if primitives:
        from tuner.commands.plans import show_primitives

        if model is not None:
            model, random_weights = _named(model, random_weights)
        show_primitives(plan, model, machine, shape or (), random_weights, as_json)
        return
    for name, value in (("--model", model), ("--machine", machine), ("--shape", shape), ("--random-weights", random_weights)):
        if value is not None:
            raise BadInputError(f"{name} goes with --primitives")
    from tuner.commands.inspect import show_plan

    show_plan(plan, as_json)


@plan_app.command("diff")
def _plan_diff(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A plan file.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 where they differ, as git diff --exit-code does.")] = False,
    as_json: Json = False,
) -> int:
    """What differs between two plans, segment by segment; nothing where they are the same."""
    from tuner.commands.plans import diff_plans

    return diff_plans(a, b, exit_code, as_json)


@log_app.command("verify")
def _log_verify(run: RunFolder, as_json: Json = False) -> int:
    """Read every part of tasks/ and log/ and check what the format promises.  Exit 1 where something is wrong."""
    from tuner.commands.logs import verify_log

    return verify_log(run, as_json)


@log_app.command("repair")
def _log_repair(run: RunFolder, as_json: Json = False) -> None:
    """Move what cannot be read to RUN/aside, so that the rest can.  Nothing is deleted; the run must not be under way."""
    from tuner.commands.logs import repair_log

    repair_log(run, as_json)


@log_app.command("compact")
def _log_compact(
    run: RunFolder, out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder; RUN stays as it is.")], as_json: Json = False
) -> None:
    """Write tasks/ and log/ to a new folder in few, large parts."""
    from tuner.commands.logs import compact_log

    compact_log(run, out, as_json)


@app.command("schema")
def _schema(name: Annotated[str, typer.Argument(metavar="NAME", help="config, machine, plan or summary.")]) -> None:
    """The JSON Schema of a file: plan.json, summary.json, a machine or a configuration (YAML, same keys)."""
    from tuner.commands.logs import print_schema

    print_schema(name)


@app.command("doctor")
def _doctor(as_json: Json = False) -> int:
    """Is everything here that a run needs?  Versions, machines, a small compile that is checked.  Exit 1 where not."""
    from tuner.commands.doctor import doctor

    return doctor(as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(sys.argv[1:] if arguments is None else arguments), prog_name="tilefarm", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn KeyboardInterrupt into this code, others into Abort
            return _say("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except TilefarmError as error:
        return _say(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # the reader has enough (`| head`); Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        usage = getattr(error, "format_message", None)  # click's own errors, whichever click typer carries
        if usage is None:
            raise
        return _say(f"{' '.join(usage().split())} (see {_path_of(error)} --help)", BAD_INPUT)


def _named(model: Path, random_weights: int | None) -> tuple[Path, int | None]:
    from compiler.frontend.zoo import resolve

    path, seed = resolve(model, random_weights)
    if seed != random_weights:
        sys.stderr.write(f"{model}: has constants as weights; drawn from seed {seed} instead (--random-weights)\n")
    return path, seed


def _path_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "tilefarm"


def _say(text: str, code: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"tilefarm: {' '.join(text.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
