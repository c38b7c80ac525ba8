"""Searches: tune, study, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.npu.errors import BadInputError
from tuner.cli.group import new_app
from tuner.cli.options import (
    Address,
    Backend,
    Config,
    DType,
    DTypeName,
    Json,
    MachineName,
    MinNpuShare,
    MirrorUrl,
    Model,
    NoShare,
    Quiet,
    RandomWeights,
    Resource,
    Resume,
    RunnerName,
    Seed,
    Set,
    Shape,
    Style,
    StyleName,
    Wait,
    WarmStart,
    Workers,
    machine_names,
    named,
)

app = new_app()


@app.command("tune")
def _tune(
    model: Model,
    machine: MachineName,
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder: new, empty, or with --resume an earlier one.")],
    candidates: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Budget: measured programs. (default: budget.candidates)")
    ] = None,
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
    runner: RunnerName = None,
    resource: Resource = None,
    resume: Resume = False,
    style: Style = StyleName.function,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the log; repeatable.")] = None,
    dtype: DType = DTypeName.float16,
    shape: Shape = None,
    random_weights: RandomWeights = None,
    mirror: MirrorUrl = None,
    warm_start: WarmStart = None,
    min_npu_share: MinNpuShare = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Search for the best plan at every contention level; writes RUN/best.onnx, plans, log and summary."""
    from tuner.commands.options import parse_shapes, parse_tags, parse_weights
    from tuner.commands.search import tune
    from tuner.request import TuneRequest

    model, random_weights = named(model, random_weights)
    request = TuneRequest(
        model=model, machine=machine, out=out, candidates=candidates, seconds=seconds, seed=seed, config=config,
        overrides=tuple(overrides or ()), level_weights=parse_weights(level_weights), backend=backend.value if backend else None,
        address=address, workers=workers, wait_s=wait, resume=resume, style=style.value, tag=parse_tags(tag or ()), dtype=dtype.value,
        shapes=parse_shapes(shape or ()), random_weights=random_weights, quiet=quiet, mirror=mirror,
        runner=runner, resource=resource, warm_start=tuple(warm_start or ()), min_npu_share=min_npu_share,
    )  # fmt: skip
    return tune(request, as_json)


@app.command("study")
def _study(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx", help="Networks, as in tune, in the order in which they are run.")],
    machine: MachineName,
    out: Annotated[Path, typer.Option(metavar="STUDY", help="Study folder: new, empty, or with --resume an earlier one.")],
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Trials in all.")] = 50,
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
    runner: RunnerName = None,
    resource: Resource = None,
    no_share: NoShare = False,
    resume: Resume = False,
    dtype: DType = DTypeName.float16,
    random_weights: RandomWeights = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Tune the search's own settings with Optuna; writes STUDY/best.yaml for `tune --config`.

    A trial behind the median of earlier ones is stopped after a network, once it has 8 runs (networks x seeds); fewer in all stop none.
    """
    from tuner.commands.search import study
    from tuner.request import StudyRequest

    found = [named(model, random_weights) for model in models]
    if len({seed for _, seed in found}) > 1:
        raise BadInputError("light:NAME or made:NAME beside other files: give --random-weights, one seed for all")
    models, random_weights = [path for path, _ in found], found[0][1]
    request = StudyRequest(
        models=tuple(models), machine=machine, out=out, trials=trials, seeds=seeds, seed=seed, storage=storage, candidates=candidates,
        config=config, overrides=tuple(overrides or ()), backend=backend.value if backend else None, address=address, workers=workers,
        wait_s=wait, resume=resume, dtype=dtype.value, random_weights=random_weights, quiet=quiet,
        runner=runner, resource=resource, share=not no_share,
    )  # fmt: skip
    return study(request, as_json)


@app.command("sweep")
def _sweep(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx", help="Models: ONNX files, light:NAME or made:NAME.")],
    machine: Annotated[
        list[str], typer.Option("--machine", metavar="M", help="A preset or a YAML file; repeatable.", autocompletion=machine_names)
    ],
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
    runner: RunnerName = None,
    resource: Resource = None,
    no_share: NoShare = False,
    resume: Resume = False,
    style: Style = StyleName.function,
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the logs; repeatable.")] = None,
    dtype: DType = DTypeName.float16,
    random_weights: RandomWeights = None,
    mirror: MirrorUrl = None,
    warm_start: WarmStart = None,
    min_npu_share: MinNpuShare = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Every model on every machine with every seed: a run folder each, and DIR/index.parquet over all of them."""
    from tuner.commands.options import parse_tags
    from tuner.commands.search import sweep
    from tuner.request import SweepRequest

    request = SweepRequest(
        models=tuple(named(model, random_weights) for model in models), machines=tuple(machine), out=out, seeds=seeds,
        candidates=candidates, config=config, overrides=tuple(overrides or ()), backend=backend.value if backend else None,
        address=address, workers=workers, wait_s=wait, resume=resume, style=style.value, tag=parse_tags(tag or ()), dtype=dtype.value,
        quiet=quiet, mirror=mirror, warm_start=tuple(warm_start or ()), runner=runner, resource=resource,
        share=not no_share, min_npu_share=min_npu_share,
    )  # fmt: skip
    return sweep(request, as_json)
