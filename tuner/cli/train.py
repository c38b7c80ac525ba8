"""Command `tilefarm train`: train one cost model on the logs of runs; write the model and its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.command import new_app
from simulator.terminal import print_line, say
from tuner.cli import options
from tuner.cli.group import FILE, READ
from tuner.cli.text import print_json, print_next, print_table

app = new_app()

CARD = ".json"  # suffix to the model's name


@app.command()
def train(
    runs: Annotated[list[str], READ, typer.Argument(metavar="RUN...", help="Run folders, or URLs: of any networks, machines and levels.")],
    out: Annotated[Path, FILE, typer.Option(metavar="MODEL", help="The model's file; its card is MODEL.json.")],
    *,
    trials: Annotated[
        int, typer.Option(metavar="N", min=0, help="Other settings of the model to try, by Optuna; the best on unseen networks is taken.")
    ] = 0,
    seed: options.Seed = 0,
    config: options.Config = None,
    overrides: options.Set = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Networks are held out in turn: the table says how many pairs of a network's segments a model of the other networks ranks correctly,
    and how many the estimate ranks correctly.
    """
    from simulator.npu.files import write_atomically
    from tuner.config import load_config
    from tuner.cost_model.offline_training import model_of_runs
    from tuner.cost_model.training_rows import read_logged
    from tuner.platform.local_files import LocalPath
    from tuner.runs.folder import write_json

    settings = load_config(config, overrides or ()).model
    logged = read_logged(runs)
    if not quiet:
        say(f"{len(logged.rows.cycles):,} rows of {len(logged.runs)} runs, {logged.tasks:,} segments")
    trained = model_of_runs(logged, settings, seed, trials, (lambda _: None) if quiet else say)
    write_json(LocalPath(out.with_name(out.name + CARD)), trained.card)
    write_atomically(LocalPath(out), [trained.model.model.encoded(trained.model.kind)])
    if as_json:
        print_json(trained.card)
        return
    columns = ("<unseen", "<", "segments", "pairs", "by estimate", "rank", "by estimate", "best of 8 loses", "by estimate")
    print_table(columns, _rows(trained.card["metrics"]))
    print_line(f"{out}: {out.stat().st_size:,} bytes, {trained.model.kind} {trained.model.model.version[:8]}; {out}{CARD}")
    print_next(("tune", "MODEL.onnx", "--machine", "M", "--model", out, "--out", "RUN"))


def _rows(metrics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[object, ...]]:
    """Accuracy of the model and of the estimate, for every network, kind and level, and in total."""
    for grouping, groups in metrics.items():
        for name, scores in groups.items():
            columns = scores["model"], scores["estimate"]
            pairs = (f"{metric['pair_accuracy']:.1%}" for metric in columns)
            ranks = (f"{metric['spearman']:.2f}" for metric in columns)
            regret = (f"{metric['regret']['8']:.2%}" for metric in columns)
            yield grouping, name, scores["model"]["rows"], *pairs, *ranks, *regret
