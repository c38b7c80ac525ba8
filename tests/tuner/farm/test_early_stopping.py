"""A search that gains nothing more ends, at the same place however it is run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.tuning import assert_equal_runs, quick, save_small
from tuner.farm.commit_log import Order
from tuner.farm.coordinator import Coordinator
from tuner.farm.early_stopping import Plateau
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.jobs import JobResult
from tuner.log.read import read_log
from tuner.log.writer import Batch


def test_counted_from_the_last_gain() -> None:
    plateau = Plateau(2, 0.01)
    steps = [(1000, 500), (995, 500), (989, 500), (985, 499), (981, 498)]
    since = []
    for best in steps:
        plateau.epoch_done(best)
        since.append((plateau.since, plateau.reached))
    assert since == [(0, False), (1, False), (0, False), (1, False), (2, True)]
    again = Plateau(2, 0.01)
    again.restore(plateau.state())
    assert again.reached
    assert not Plateau(None, 0.0).reached


class Late:
    """`Jobs` and ledger of a run whose time is up when the one job that everybody waits for is done."""

    workers, free, late = 4, True, (2, 1)
    budget = SimpleNamespace(candidates=None, readings=None, deadline=object(), seconds=lambda: 1.0)
    levels, failures, logged, readings = (), Counter[str](), None, 0

    def __init__(self) -> None:
        self.running = list[Any]()
        self.spent = False
        self.champions = SimpleNamespace(programs=0, best=())
        self.tasks, self.kept = list[JobResult](), list[JobResult]()

    def tell_epoch(self, findings: object) -> None:
        pass

    def start(self, key: Any, job: Any) -> None:
        self.running.append(key)

    def finished(self, patience_s: float) -> list[Any]:
        ready = [key for key in self.running if key != self.late] or self.running
        self.spent = self.late in ready
        self.running = [key for key in self.running if key not in ready]
        return [(key, JobResult(Batch(repr(key).encode(), b"", b"", 0), True, 0, 0.0)) for key in ready]

    def commit(self, result: JobResult, epoch: int) -> Order:
        self.tasks.append(result)
        return "here"

    def keep(self, result: JobResult) -> None:
        self.kept.append(result)


class Reached:
    """Behind the first epoch that it hears of."""

    reached = False

    def epoch_done(self, best: object) -> None:
        self.reached = True


def test_plateau_and_deadline_commit_nothing_more() -> None:
    late = Late()
    conductor = Coordinator(late, EpochSchedule(4), late, None, plateau=Reached())  # type: ignore[arg-type]
    conductor.begin(())
    conductor.run()
    assert [result.findings for result in late.tasks[-4:]] == [b"(2, 0)", b"(2, 1)", b"(2, 2)", b"(2, 3)"]
    assert [result.findings for result in late.kept] == [b"(3, 0)", b"(3, 1)", b"(3, 2)", b"(3, 3)"]


def test_a_run_ends_early_and_can_go_on(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    early = ("budget.plateau=2", "budget.plateau_gain=0.5")
    summary = quick(model, tmp_path / "early", 400, *early)
    assert summary.stopped == ("plateau",)
    assert 0 < summary.candidates < 400
    log = read_log(tmp_path / "early")
    assert log["generation"].max() == 4  # the epoch of the first programs, and two more
    quick(model, tmp_path / "again", 400, *early)
    assert_equal_runs(tmp_path / "early", tmp_path / "again")
    assert quick(model, tmp_path / "early", summary.candidates + 8, resume=True).stopped == ("budget",)
    quick(model, tmp_path / "whole", summary.candidates + 8)
    assert_equal_runs(tmp_path / "early", tmp_path / "whole")
