"""Command `tilefarm study`: tune the search's settings with Optuna; print the best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line, say
from tuner.cli import common, options
from tuner.cli.group import FOLDER
from tuner.cli.text import print_json, print_next, print_table
from tuner.measure.merit import speedup

app = new_app()


@app.command()
def study(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx", help="Networks, as in tune, in the order in which they are run.")],
    machine: options.MachineName,
    out: Annotated[Path, FOLDER, typer.Option(metavar="STUDY", help="Study folder: new, empty, or with --resume an earlier one.")],
    *,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Trials in all.")] = 50,
    seeds: Annotated[int, typer.Option(metavar="K", min=1, help="Runs per network and trial, with seeds 0..K-1.")] = 1,
    seed: options.Seed = 0,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Database of the study; a journal file in STUDY unless given.")] = None,
    measurements: Annotated[int | None, typer.Option(metavar="N", min=1, help="Readings per search. (default: study.measurements)")] = None,
    config: options.Config = None,
    overrides: options.Set = None,
    farm: options.FarmOptions,
    store: options.CellsStore = None,
    resume: options.Resume = False,
    dtype: options.DType = "float16",
    random_weights: options.RandomWeights = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """The objective is the area under a search's curve: log(best so far / untuned) over log(readings), a mean over levels, seeds, networks.
    A trial worse than the median of earlier ones is stopped at an eighth, a quarter or half of the readings.
    """
    from tuner.runs.study_summary import setting_text
    from tuner.study.run_study import study as drive
    from tuner.tune_request import StudyRequest

    resolved = [options.model_and_seed(model, random_weights) for model in models]
    if len({seed for _, seed in resolved}) > 1:
        raise BadInputError("light:NAME or made:NAME beside other files: give --random-weights, one seed for all")
    request = StudyRequest(
        models=tuple(path for path, _ in resolved), machine=machine, out=out, trials=trials, seeds=seeds, seed=seed, storage=storage,
        measurements=measurements, config=config, overrides=tuple(overrides or ()), resume=resume, dtype=dtype,
        random_weights=resolved[0][1], quiet=quiet, store=store, **vars(farm),
    )  # fmt: skip
    with common.resumable(out):
        summary = drive(request, common.drop_line if quiet else say)
    best = summary["best"]
    if as_json:
        print_json(summary)
        return int(best is None)
    if best is None:
        reason = next((f"; trial {trial['number']}: {trial['error']}" for trial in summary["trials"] if trial["error"]), "")
        print_line(f"{out}: {summary['trials_done']} trials, none came to its end{reason}")
        return 1
    gain = speedup(1 / best["ratio_to_baseline"])
    print_line(
        f"{out}: {summary['trials_done']} trials; best is trial {best['trial']}, {gain} the untuned plan in the mean over log(readings)"
    )
    print_line(f"networks: {len(summary['models'])}, seeds: {len(summary['seeds'])}, {summary['cpu_s'] / 3600:.2f} CPU hours")
    print_table(("<setting", "value"), [(name, setting_text(value)) for name, value in best["params"].items()])
    print_next(("report", out), ("tune", "MODEL.onnx", "--machine", "M", "--config", out / "best.yaml", "--out", "RUN"))
    return 0
