"""The comparison of settings on a small model: its table follows from its rows, and a configuration is taken apart right."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from scripts import study_settings
from scripts.study_settings import differences
from simulator.npu.errors import BadInputError
from simulator.npu.machine import load_machine
from tests.tuning import save_small
from tuner.config import load_config


def study(folder: Path, **options: Any) -> list[dict[str, str]]:
    """Rows of a run of the script on a small model: called here, while its searches are in a process of their own."""
    study_settings.main(folder / "out", str(save_small("conv_chain", folder)), **options)
    with (folder / "out/settings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_switch_is_compared_pair_by_pair(tmp_path: Path) -> None:
    rows = study(tmp_path, seeds=2, candidates=6, only="no prefetch")
    assert len(rows) == 2 * 2 * len(load_machine("edge").contention)
    logs = [math.log(float(row["over_default"])) for row in rows if row["settings"] != "default"]
    assert any(logs), "that switch is not without effect"
    assert {row["over_default"] for row in rows if row["settings"] == "default"} == {"1.0"}
    with (tmp_path / "out/summary.csv").open(newline="") as file:
        (summary,) = csv.DictReader(file)
    assert float(summary["over_default"]) == pytest.approx(math.exp(sum(logs) / len(logs)))
    assert float(summary["low"]) <= float(summary["over_default"]) <= float(summary["high"])


def test_settings_have_a_budget_of_their_own(tmp_path: Path) -> None:
    rows = study(tmp_path, seeds=1, candidates=6, settings=["search.islands=2 budget.candidates=3"])
    assert {(row["settings"], row["programs"]) for row in rows} == {("default", "6"), ("search.islands=2 budget.candidates=3", "3")}
    assert all(float(row["cpu_s"]) > 0 for row in rows)


def test_a_configuration_is_what_it_changes(tmp_path: Path) -> None:
    changed = load_config().replaced({"search.epsilon": 0.25, "search.moves": ["shift_border"], "budget.candidates": 9})
    (tmp_path / "best.yaml").write_text(changed.to_yaml())
    texts = differences(str(tmp_path / "best.yaml"))
    assert load_config(None, texts).digest == changed.digest
    assert not any(text.startswith("budget") for text in texts)
    (tmp_path / "same.yaml").write_text("budget: {candidates: 9}\n")
    with pytest.raises(BadInputError, match="changes nothing"):
        differences(str(tmp_path / "same.yaml"))


def test_one_island_makes_as_many_programs_in_an_epoch_as_all_of_them() -> None:
    default, one = (load_config(None, settings).search for settings in ((), study_settings.SWITCHED["no islands"]))
    assert one.generation == default.islands * default.generation
