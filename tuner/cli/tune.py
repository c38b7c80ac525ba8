"""Command `tilefarm tune`: run one search; print the summary written to the run folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from simulator.command import new_app
from simulator.npu.errors import BadInputError
from simulator.terminal import print_line
from tuner.cli import options
from tuner.cli.common import UNCONFIRMED, resumable
from tuner.cli.group import FOLDER
from tuner.cli.parse import parse_shapes, parse_tags, parse_weights
from tuner.cli.text import print_json, print_levels, print_next, print_robust, print_search, print_unconfirmed

app = new_app()
EARLY = {
    "saturated": "saturated (--set budget.least_gain=null goes on)",
    "core hours": "--max-core-hours are spent (more, and --resume, go on)",
    "exhausted": "nothing new was left to try",
}
"""Reason -> words."""


@app.command()
def tune(
    model: options.Model,
    machine: options.MachineName,
    out: Annotated[Path, FOLDER, typer.Option(metavar="RUN", help="Run folder: new, empty, or with --resume an earlier one.")],
    *,
    candidates: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Budget: measured programs. (default: budget.candidates)")
    ] = None,
    measurements: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Budget: readings, task x level x repeat, the finals' among them.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", min=0.001, help="Budget: seconds of wall time.")] = None,
    max_core_hours: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="End before the budget is spent after N CPU hours of workers, of all sessions. (default: budget.core_hours)"
        ),
    ] = None,
    seed: options.Seed = 0,
    config: options.Config = None,
    overrides: options.Set = None,
    level_weights: Annotated[
        str | None, typer.Option(metavar="L=W,...", help="How often a level picks parents, e.g. none=1,severe=3. (default: level_weights)")
    ] = None,
    farm: options.FarmOptions,
    resume: options.Resume = False,
    style: options.Style = "function",
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag for every row of the log; repeatable.")] = None,
    dtype: options.DType = "float16",
    shape: options.Shape = None,
    random_weights: options.RandomWeights = None,
    mirror: options.MirrorUrl = None,
    store: options.StoreUrl = None,
    warm_start: options.WarmStart = None,
    start: options.Start = None,
    prior: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A cost model (`tilefarm train`) that proposes candidates in the beginning, or `none`: the built-in estimate alone. "
            "(default: the packaged one)",
        ),
    ] = None,
    strategy: options.Strategy = None,
    variants: options.Variants = None,
    insure: options.Insure = None,
    objective: options.Objective = "latency",
    frames: options.Frames = None,
    min_npu_share: options.MinNpuShare = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    if sum(budget is not None for budget in (candidates, measurements, seconds)) > 1:
        raise BadInputError("--candidates, --measurements and --seconds: give one of them")
    if max_core_hours is not None and not 0 < max_core_hours < math.inf:
        raise BadInputError(f"--max-core-hours {max_core_hours:g}: expected a number of hours above 0")
    from tuner.driver import tune as drive
    from tuner.runs.folder import read_json
    from tuner.tune_request import TuneRequest

    model, random_weights = options.model_and_seed(model, random_weights)
    request = TuneRequest(
        model=model, machine=machine, out=out, candidates=candidates, measurements=measurements, seconds=seconds,
        max_core_hours=max_core_hours, seed=seed, config=config, overrides=tuple(overrides or ()),
        level_weights=parse_weights(level_weights), resume=resume, style=style, tag=parse_tags(tag or ()), dtype=dtype,
        shapes=parse_shapes(shape or ()), random_weights=random_weights, quiet=quiet, mirror=mirror, store=store,
        warm_start=tuple(warm_start or ()), start=tuple(start or ()), prior=prior, min_npu_share=min_npu_share,
        strategy=strategy, variants=variants, insure=insure, objective=objective, frames=frames,
        **vars(farm),
    )  # fmt: skip
    with resumable(out):
        drive(request)
    summary = read_json(out / "summary.json")
    code = 0 if summary["status"] == "done" else UNCONFIRMED
    if as_json:
        print_json(summary)
        return code
    print_levels(summary)
    if target := summary["target"]:
        target_cycles = ", ".join(f"{level} {cycles:,}" for level, cycles in target["cycles"].items())
        print_line(f"searched with target {target['name']}, which says {target_cycles} cycles; the table is the NPU's")
    print_robust(summary)
    print_search(summary)
    print_unconfirmed(summary)
    if store is not None:
        use = summary["measurements"]
        note = "; the store had the others" if use["paid"] < use["asked"] else ""
        print_line(f"measurements: asked {use['asked']:,}, paid {use['paid']:,}{note}")
    ending = next((f"; ended early: {EARLY[reason]}" for reason in summary["stopped"] if reason in EARLY), "")
    print_line(f"{out}: {summary['status']}{ending}; {out / 'best.onnx'}")
    best = out / "best.onnx"
    has_variants = len({row["plan"] for row in summary["levels"].values()}) > 1
    switch = [("simulate", best, "--trace", "periodic:1")] if has_variants else []
    print_next(("report", out), ("run", best, "--input", "random", "--check"), *switch)
    return code
