"""Command `tilefarm sweep`: one run for every model, machine and seed; print the gains of all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.command import new_app
from simulator.terminal import print_line, say
from tuner.cli import common, options
from tuner.cli.group import FOLDER, READ
from tuner.cli.parse import parse_tags
from tuner.cli.text import print_json, print_next, print_table
from tuner.measure.merit import speedup

if TYPE_CHECKING:
    from pandas import DataFrame

app = new_app()


@app.command()
def sweep(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL.onnx", help="Models: ONNX files, light:NAME or made:NAME.")],
    machine: Annotated[
        list[str],
        READ,
        typer.Option("--machine", metavar="M", help="A preset or a YAML file; repeatable.", autocompletion=options.machine_names),
    ],
    out: Annotated[Path, FOLDER, typer.Option(metavar="DIR", help="Folder of the sweep: new, empty, or with --resume an earlier one.")],
    *,
    seeds: Annotated[int, typer.Option(metavar="K", min=1, help="Runs per model and machine, with seeds 0..K-1.")] = 1,
    candidates: options.RunCandidates = None,
    measurements: options.RunMeasurements = None,
    config: options.Config = None,
    overrides: options.Set = None,
    farm: options.FarmOptions,
    store: options.CellsStore = None,
    resume: options.Resume = False,
    style: options.Style = "function",
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the logs; repeatable.")] = None,
    dtype: options.DType = "float16",
    random_weights: options.RandomWeights = None,
    mirror: options.MirrorUrl = None,
    warm_start: options.WarmStart = None,
    min_npu_share: options.MinNpuShare = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    from tuner.runs.list_runs import ENDED, INDEX
    from tuner.study.sweep import sweep as drive
    from tuner.tune_request import SweepRequest

    request = SweepRequest(
        models=tuple(options.model_and_seed(model, random_weights) for model in models), machines=tuple(machine), out=out, seeds=seeds,
        candidates=candidates, measurements=measurements, config=config, overrides=tuple(overrides or ()), resume=resume, style=style,
        tag=parse_tags(tag or ()), dtype=dtype, quiet=quiet, mirror=mirror, warm_start=tuple(warm_start or ()),
        store=store, min_npu_share=min_npu_share, **vars(farm),
    )  # fmt: skip
    with common.resumable(out):
        index = drive(request, common.drop_line if quiet else say)
    failed, unconfirmed = index[index["state"] == "failed"], index[index["state"] == "unconfirmed"].drop_duplicates("path")
    code = 1 if len(failed) else common.UNCONFIRMED if len(unconfirmed) else 0
    runs = index.drop_duplicates("path")
    tasks, stored_tasks = int(runs["tasks"].sum()), int(runs["stored_tasks"].sum())
    if as_json:
        rows = json.loads(index.to_json(orient="records"))
        print_json({"out": str(out), "index": str(out / INDEX), "tasks": tasks, "stored_tasks": stored_tasks, "rows": rows})
        return code
    ended = index[index["state"].isin(ENDED)]
    if len(ended):
        _print_gains(ended)
    for _, row in failed.iterrows():
        print_line(f"{row['path']}: failed: {row['error']}")
    for _, row in unconfirmed.iterrows():
        print_line(f"{row['path']}: values not confirmed: {row['error']}")
    print_line(f"{out}: {ended['path'].nunique()} of {index['path'].nunique()} runs done; pd.read_parquet({str(out / INDEX)!r})")
    if stored_tasks:
        print_line(f"{stored_tasks:,} of {tasks:,} tasks came from the store")
    if len(ended):
        print_next(("report", out), ("ls", out))
    return code


def _print_gains(ended: DataFrame) -> None:
    """Print a row per model and machine; over seeds the geometric mean, since gains are ratios."""
    logs = ended["speedup"].astype("float64").map(math.log)
    gains = logs.groupby([ended["model"], ended["machine"], ended["level"]], sort=False).mean().map(math.exp)
    levels = list(dict.fromkeys(ended["level"]))
    rows = [
        (model, machine, *(speedup(gains.get((model, machine, level))) for level in levels))
        for model, machine in dict.fromkeys(zip(ended["model"], ended["machine"], strict=True))
    ]
    print_line("speed-up over the baseline, by level")
    print_table(("<model", "<machine", *levels), rows)
