"""`tilefarm study` from its request: what one trial runs on one network, and where the trials run.

A trial is judged against the same cycles whatever it does: those of the plan that `compile` makes without a search, which is the first
program that every run measures.  Against a baseline that the trial tunes itself, tuning the baseline badly would look like winning.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from simulator.npu.files import atomic_write
from simulator.npu.machine import load_machine
from tuner.config import TuneConfig
from tuner.farm.each import Make
from tuner.request import DTypeName, StudyRequest, TuneRequest
from tuner.store.read import read_log
from tuner.store.served import copies
from tuner.study.cells import cells_config, cells_store, cells_workers, model_digest, there
from tuner.study.driver import Cells, StudySpec, TrialRun, run_study
from tuner.world.local import LocalPlace


def study(request: StudyRequest, say: Callable[[str], None]) -> dict[str, Any]:
    """Run or resume a study in `request.out`; returns what its summary.json holds.  say: takes a line after every batch.

    Raises `BadInputError`.
    """
    models = tuple(str(there(model)) for model in request.models)
    machine = load_machine(request.machine)
    config = cells_config(request)
    inputs = (
        f"dtype {request.dtype}",
        f"random_weights {request.random_weights}",
        f"machine {machine.digest}",
        *(f"{model.name} {model_digest(model)}" for model in request.models),
    )
    spec = StudySpec(models, request.machine, tuple(range(request.seeds)), config, request.trials, request.seed, request.storage, inputs)
    cell = partial(run_cell, dtype=request.dtype, random_weights=request.random_weights, store=cells_store(request))
    at_once = config.study.batch * request.seeds  # the cells of one network and batch

    def workers(make: Make[TrialRun, list[float]]) -> AbstractContextManager[Cells]:
        return cells_workers(request, config, make, "study", at_once)

    return run_study(request.out, spec, cell, workers, request.resume, say)


def run_cell(
    model: str, machine: str, config: TuneConfig, seed: int, *, dtype: DTypeName = "float16", random_weights: int | None = None,
    store: str | None = None,
) -> list[float]:  # fmt: skip
    """One tuning run on the serial backend, in a folder that goes away: log(champion's cycles ÷ untuned cycles) of every level."""
    from tuner.driver import tune

    with tempfile.TemporaryDirectory(prefix="tilefarm-cell-") as folder:
        settings = Path(folder) / "config.yaml"
        atomic_write(settings, [config.to_yaml().encode()])
        out = LocalPlace(folder) / "run"
        summary = tune(
            TuneRequest(
                model=Path(model),
                machine=machine,
                out=out,
                seed=seed,
                config=str(settings),
                backend="serial",
                dtype=dtype,
                random_weights=random_weights,
                quiet=True,
                store=store,
                champions=False,
            )
        )
        first, served = read_log(out).query("seq == 0"), copies(out)
    cycles = first["cycles"].astype("int64") * first["run"].astype("str").map(lambda run: served.get(run, 1))
    untuned = cycles.groupby(first["level"].astype("str"), sort=False).sum().to_dict()
    return [math.log(cycles / int(untuned[level])) for level, cycles in summary.own_cycles.items()]
