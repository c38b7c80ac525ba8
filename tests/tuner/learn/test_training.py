"""What the cost model learns from: findings in memory, which are what the log holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.cost.features import FEATURES
from compiler.kinds.build import make_unit
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.farm.conduct import Conductor, SerialJobs
from tuner.farm.jobs import JobRunnerSpec
from tuner.farm.ledger import Ledger, RunBudget
from tuner.farm.recorder import FEATURE_SETS, Facts
from tuner.farm.schedule import EpochSchedule
from tuner.learn.training import Trainer
from tuner.measure.evaluate import EvaluatorSpec
from tuner.search.champions import Champions
from tuner.store.read import read_log, read_tasks
from tuner.store.run_log import Origin, RunLog
from tuner.store.schema import FEATURE_PREFIX
from tuner.world.local import LocalPlace
from tuner.world.real import REAL

LEVELS = ("none", "slight", "severe")


@pytest.mark.parametrize("programs", [12, 40])
def test_a_training_learns_from_the_segments_that_the_log_holds(tmp_path: Path, programs: int) -> None:
    """Features and cycles, bit by bit, of every segment that fits, up to the last epoch that is complete; and of nothing else."""
    unit = make_unit(small_graph("residual_block"), load_machine("edge"), DataType.float16)
    config = load_config(None, QUICK)
    made = JobRunnerSpec(EvaluatorSpec(unit, LEVELS), Facts(Origin("r", "m", "edge", "v"), unit, LEVELS), config, {}, 0)
    (tmp_path / "models").mkdir()
    with SerialJobs(made) as jobs, RunLog(LocalPlace(tmp_path), REAL, made.facts.origin, FEATURE_SETS) as log:
        schedule = EpochSchedule([b""] * config.islands)
        ledger = Ledger(LEVELS, log, Champions(3), RunBudget(programs))
        conductor = Conductor(jobs, schedule, ledger, Trainer(LocalPlace(tmp_path / "models"), config.model))
        conductor.begin(())
        conductor.run()
        learnt = {
            (features.tobytes(), tuple(cycles.tolist()))
            for part in jobs.known().learnable
            for features, cycles in zip(part.features, part.cycles, strict=True)
        }
    rows = read_log(tmp_path)
    rows = rows[rows["kind"].isin(["operator", "segment"]) & (rows["status"] == "ok") & (rows["generation"] < schedule.complete)]
    cycles = rows.pivot(index="task", columns="level_index", values="cycles")
    features = read_tasks(tmp_path).set_index("task").loc[cycles.index, [FEATURE_PREFIX + name for name in FEATURES]]
    logged = {
        (row.astype(np.float32).tobytes(), tuple(map(int, times)))
        for row, times in zip(features.to_numpy(), cycles.to_numpy(), strict=True)
    }
    assert len(logged) > 20
    assert learnt == logged
