"""A board says another thing at every reading, and jobs measure beside each other: the log's reading of a task is everybody's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from compiler.ops.lower_graph import make_unit
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.farm.commit_log import Ledger, Order, RunBudget
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_run import SearchRun
from tuner.farm.search_spec import SearchSpec
from tuner.log.read import read_log
from tuner.log.writer import Origin, RunLog
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.folder import SearchFolder
from tuner.testing.shuffled import ShuffledJobs
from tuner.tune_request import TuneRequest

LEVELS = ("none", "slight", "severe")


@pytest.fixture(scope="module")
def target_graph() -> TargetGraph:
    return make_unit(small_graph("residual_block"), load_machine("tiny"), DataType.float16)


@dataclass
class Noise:
    """Of all workers.  readings: taken so far."""

    target_graph: TargetGraph
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    readings: int = 0

    def __call__(self) -> Evaluator:
        return Evaluator(self.target_graph, LEVELS, _Noisy(self.target_graph, self))


class _Noisy(Npu):
    def __init__(self, target_graph: TargetGraph, noise: Noise) -> None:
        super().__init__(target_graph, LEVELS)
        self._noise = noise

    def _timed(self, *values: Any) -> Any:
        found = super()._timed(*values)
        if isinstance(found, np.ndarray):
            self._noise.readings += 1
            found[:, 0] = np.round(found[:, 0] * np.exp(self._noise.rng.normal(0, 0.1, len(LEVELS))))
        return found


@dataclass
class Searched:
    """best: cycles of the champions that are placed.  programs: that are.  otherwise: how many jobs were done again."""

    log: pd.DataFrame
    best: list[NDArray[np.int64]]
    programs: int
    readings: int
    places: list[Order]


def searched(
    target_graph: TargetGraph, folder: Path, candidates: int, workers: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> Searched:
    noise, run = Noise(target_graph), LocalPath(folder)
    config = load_config(None, (*QUICK, "search.lag=8", "use.cost_model=false"))
    spec = SearchSpec(Origin("r", "m", "tiny", "v", runner="a board"), target_graph, LEVELS, config, evaluator=noise)
    place = SearchFolder(run, run / "models", run / "checkpoint", resumed=False)
    for each in (place.models, place.checkpoint):
        each.mkdir(exist_ok=True)
    places, commit = list[Order](), Ledger.commit
    with monkeypatch.context() as patched, RunLog(run, REAL, spec.origin, FEATURE_SETS) as log:
        patched.setattr(Ledger, "commit", lambda *args: places.append(commit(*args)) or places[-1])
        request = TuneRequest(Path("m"), "tiny", folder)
        jobs = ShuffledJobs(spec, workers, seed)
        noise.readings = 0  # kernels were compiled
        resumed = replace(place, resumed=True)
        search = SearchRun(REAL, spec, request, resumed, log, jobs, RunBudget(candidates))
        search.search_until_spent()
    champions = search.champions
    best = [champion.cycles for champion in champions.best if champion is not None]
    return Searched(read_log(folder), best, champions.programs, noise.readings, places)


@pytest.mark.parametrize(("workers", "seed"), [(1, 0), (4, 0)])
def test_the_log_explains_a_noisy_search(
    target_graph: TargetGraph, tmp_path: Path, workers: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its checkpoint it does all of it again, answered by the log: nothing is measured, whoever works, and nothing differs."""
    first = searched(target_graph, tmp_path, 20, workers, seed, monkeypatch)
    assert not first.log.duplicated(["task", "level"]).any()
    assert ("otherwise" in first.places) == (workers > 1), "jobs measure the same at the same time"
    for others in (1, 3):
        for path in (tmp_path / "checkpoint").iterdir():
            path.unlink()
        again = searched(target_graph, tmp_path, first.programs, others, seed, monkeypatch)
        assert again.readings == 0 or others > 1, "what lies beyond the end is measured, and has no place"
        assert set(again.places) == {"here"}
        pd.testing.assert_frame_equal(again.log, first.log)
        assert [each.tolist() for each in again.best] == [each.tolist() for each in first.best]
