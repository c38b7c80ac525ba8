"""A search that gains nothing more ends, at the same place however it is run."""

from __future__ import annotations

from pathlib import Path

from tests.tuning import assert_equal_runs, quick, save_small
from tuner.farm.plateau import Plateau
from tuner.store.read import read_log


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
