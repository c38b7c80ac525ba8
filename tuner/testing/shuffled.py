"""Search as in a farm, in one process: several job runners whose jobs end in any order, and resumed sessions."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pandas as pd

from tuner.cost_model.model_file import TrainingOutcome
from tuner.farm.commit_log import RunBudget
from tuner.farm.coordinator import Key
from tuner.farm.jobs import Broadcast, Job, JobResult, JobRunner, Training, build_job_runner
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_run import SearchRun
from tuner.farm.search_spec import SearchSpec
from tuner.log.read import read_log
from tuner.log.writer import RunLog
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.folder import SearchFolder
from tuner.tune_request import TuneRequest

VOLATILE = ["worker", "wall_s", "time", "attempt", "row_id"]  # columns of the log with time, place and worker


class ShuffledJobs:
    """`Jobs` with several job runners.  The seed decides which job runs next, and on which of them."""

    def __init__(self, spec: SearchSpec, workers: int, seed: int) -> None:
        self.workers, self._random = workers, Random(seed)
        self._job_runners: list[JobRunner] = [build_job_runner(spec) for _ in range(workers)]
        self._models = [0] * workers
        self.broadcast = Broadcast()
        self._started: list[tuple[Key, Job | Training]] = []

    @property
    def free(self) -> bool:
        return len(self._started) < self.workers

    def start(self, key: Key, job: Job | Training) -> None:
        self._started.append((key, job))

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        del patience_s
        key, job = self._started.pop(self._random.randrange(len(self._started)))
        worker = self._random.randrange(self.workers)
        update = self.broadcast.update(job, (self._job_runners[worker].known.version, self._models[worker]))
        self._models[worker] = job.models or self._models[worker]
        return [(key, self._job_runners[worker].work(job, update))]


def searched(spec: SearchSpec, folder: LocalPath, candidates: int, workers: int = 1, seed: int = 0) -> pd.DataFrame:
    """Log of a search without columns that may differ between equal searches.  folder: empty, or with an earlier session of the same
    search."""
    place = SearchFolder(folder, folder / "models", folder / "checkpoint", resumed=(folder / "checkpoint").is_dir())
    for subfolder in (place.models, place.checkpoint):
        if not subfolder.is_dir():
            subfolder.mkdir()
    request = TuneRequest(Path(spec.origin.model), spec.origin.machine, folder, seed=spec.origin.seed)
    with RunLog(folder, REAL, spec.origin, FEATURE_SETS) as log:
        search = SearchRun(REAL, spec, request, place, log, ShuffledJobs(spec, workers, seed), RunBudget(candidates))
        search.search_until_spent()
        search.ended("log")
    rows = read_log(folder)
    return rows.drop(columns=VOLATILE).sort_values(["seq", "level_index"]).reset_index(drop=True)
