"""`tune` and `study`: call the driver, print the summary that it left in the folder."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.npu.machine import load_machine
from tuner.backend import Backend, SerialBackend
from tuner.commands.text import print_json, print_table
from tuner.config import TuneConfig, load_config
from tuner.request import StudyRequest, TuneRequest
from tuner.runfolder import read_json

SUMMARY = "summary.json"


def tune(request: TuneRequest, as_json: bool) -> None:
    """`tilefarm tune`."""
    from tuner.tune import tune as drive

    if request.candidates is not None and request.seconds is not None:
        raise BadInputError("--candidates and --seconds: give one of them")
    drive(request)
    summary = read_json(request.out / SUMMARY)
    if as_json:
        print_json(summary)
        return
    columns = ("<level", "DDR share", "<plan", "cycles", "latency us", "baseline cycles", "of baseline", "roofline cycles")
    print_table(columns, [_level(name, row) for name, row in summary["levels"].items()])
    print(f"{request.out}: {summary['status']}; {request.out / 'best.onnx'}")


def _level(name: str, row: Mapping[str, Any]) -> tuple[object, ...]:
    baseline = row["baseline_layerwise_cycles"]
    plan = f"as {row['same_as']}" if row.get("same_as") else row["plan"][:12]
    ratio = f"{row['cycles'] / baseline:.3f}" if baseline else ""
    return name, f"{row['ddr_share']:g}", plan, row["cycles"], f"{row['latency_us']:,.1f}", baseline, ratio, row["roofline_cycles"]


def study(request: StudyRequest, as_json: bool) -> None:
    """`tilefarm study`."""
    from tuner.study import CellWorker, StudySpec, run_study

    for model in request.models:
        if not model.is_file():
            raise BadInputError(f"{model}: no such file")
    load_machine(request.machine)
    budget = () if request.candidates is None else (f"budget.candidates={request.candidates}", "budget.seconds=null")
    config = load_config(request.config, (*request.overrides, *budget))
    models = tuple(str(model.resolve()) for model in request.models)
    spec = StudySpec(models, request.machine, tuple(range(request.seeds)), config, request.trials, request.seed, request.storage)
    cell = partial(run_cell, dtype=request.dtype, random_weights=request.random_weights)

    def make_backend(make: Callable[[], CellWorker]) -> Backend[Any, list[float]]:
        if (request.backend or config.farm.backend) == "serial":
            return SerialBackend(make)
        from tuner.farm import RayBackend

        workers = request.workers if request.workers is not None else config.farm.workers
        wait_s = request.wait_s if request.wait_s is not None else config.farm.wait_s
        # a cell is a whole run: minutes, on one CPU
        return RayBackend(make, workers, request.address, wait_s, "study", item_timeout_s=None, in_flight=1, max_batch=1)

    summary = run_study(request.out, spec, cell, make_backend, request.resume, _quiet if request.quiet else _say)
    if as_json:
        print_json(summary)
        return
    best = summary["best"]
    if best is None:
        print(f"{request.out}: {summary['trials_done']} trials, none ran on every network")
        return
    print(f"{request.out}: {summary['trials_done']} trials; best is trial {best['trial']}, {best['ratio_to_baseline']:.4f} of the baseline")
    print_table(("<setting", "value"), [(name, f"{value:g}") for name, value in best["params"].items()])


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _quiet(_: str) -> None:
    pass


def run_cell(
    model: str, machine: str, config: TuneConfig, seed: int, *, dtype: str = "float16", random_weights: int | None = None
) -> list[float]:
    """One tuning run on the serial backend in a folder that goes away: log(cycles / baseline) of the champion of every level."""
    from tuner.tune import tune as drive

    with tempfile.TemporaryDirectory(prefix="tilefarm-cell-") as folder:
        settings = Path(folder) / "config.yaml"
        atomic_write(settings, [config.to_yaml().encode()])
        out = Path(folder) / "run"
        drive(
            TuneRequest(
                model=Path(model),
                machine=machine,
                out=out,
                seed=seed,
                config=str(settings),
                backend="serial",
                dtype="float32" if dtype == "float32" else "float16",
                random_weights=random_weights,
                quiet=True,
            )
        )
        levels = read_json(out / SUMMARY)["levels"]
    return [math.log(row["cycles"] / row["baseline_layerwise_cycles"]) for row in levels.values()]
