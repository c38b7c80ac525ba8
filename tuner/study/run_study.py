"""A study: every trial (a setting of the search) is run on each network with each seed; one such run is a cell.

All trials are judged against the same cycles: those of every operator on its own, as `compile --layerwise` makes them.  Against a baseline
tuned by the trial, a badly tuned baseline would look like a gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from compiler.build import default_by_level, measure
from compiler.model import LoweredModel
from simulator.npu.files import atomic_write
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DTypeName
from tuner.config import BUILT_IN, NPU, TuneConfig
from tuner.farm.isolated_map import Make
from tuner.log.read import read_log
from tuner.platform.local_files import LocalPath
from tuner.runs.anytime_curve import COLUMNS
from tuner.runs.subgraph_runs import subgraph_copies
from tuner.study.cells import cells_config, cells_store, cells_workers, locate_model
from tuner.study.curve import CellCurve, levels_curve
from tuner.study.trial_driver import Cells, StudySpec, TrialRun, run_study
from tuner.tune_request import StudyRequest, TuneRequest
from tuner.zoo.names import file_digest


def study(request: StudyRequest, say: Callable[[str], None]) -> dict[str, Any]:
    """Run or resume a study in `request.out`; returns the content of its summary.json.  say: prints a line after every batch.

    Raises `BadInputError`.
    """
    models = tuple(str(locate_model(model)) for model in request.models)
    machine = load_machine(request.machine)
    config = cells_config(request)
    if request.measurements is not None:
        config = config.replaced({"study.measurements": request.measurements})
    identity = (  # a resumed study must have the same
        f"dtype {request.dtype}",
        f"random_weights {request.random_weights}",
        f"machine {machine.digest}",
        *(f"{model.name} {file_digest(model)}" for model in request.models),
    )
    spec = StudySpec(models, request.machine, tuple(range(request.seeds)), config, request.trials, request.seed, request.storage, identity)
    cell = partial(run_cell, dtype=request.dtype, random_weights=request.random_weights, store=cells_store(request))
    cells_at_once = config.study.batch * request.seeds * len(models)

    def workers(make: Make[TrialRun, CellCurve]) -> AbstractContextManager[Cells]:
        return cells_workers(request, config, make, "study", cells_at_once)

    return run_study(request.out, spec, cell, workers, request.resume, say)


def run_cell(
    model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str, *, dtype: DTypeName = "float16",
    random_weights: int | None = None, store: str | None = None,
) -> CellCurve:  # fmt: skip
    """Run one search on the serial backend, resumed from its folder.

    counts: numbers of measurements at which the curve has points; the search ends at the last one.
    """
    from tuner.driver import searched

    start_s = time.process_time()
    folder_path = Path(folder)
    folder_path.mkdir(parents=True, exist_ok=True)
    settings, out = folder_path / "config.yaml", LocalPath(folder_path / "run")
    atomic_write(settings, [config.to_yaml().encode()])
    request = TuneRequest(
        Path(model), machine, out, measurements=counts[-1], seed=seed, config=str(settings), backend="serial", dtype=dtype,
        random_weights=random_weights, quiet=True, store=store, champions=False, resume=True,
    )  # fmt: skip
    with searched(request) as searched_run:
        lowered = searched_run.opened
    log, copies = read_log(out, COLUMNS), subgraph_copies(out)
    return CellCurve(levels_curve(log, copies, _baseline_cycles(lowered, config, log, copies), counts), time.process_time() - start_s)


def _baseline_cycles(lowered: LoweredModel, config: TuneConfig, log: pd.DataFrame, copies: Mapping[str, int]) -> dict[str, int]:
    """Cycles of the default plan by level: by the simulator; with another clock, of the first program of the log."""
    if config.runner.name == BUILT_IN and config.target.name == NPU:
        plans = default_by_level(lowered)
        return {level: measured.timings[level].cycles for level, measured in measure(lowered, plans).items()}
    first = log[log["seq"] == 0]
    cycles = first["cycles"].astype("int64") * first["run"].astype("str").map(lambda run: copies.get(run, 1))
    return {str(level): int(total) for level, total in cycles.groupby(first["level"].astype("str"), sort=False).sum().items()}
