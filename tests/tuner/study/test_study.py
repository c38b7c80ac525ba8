"""A study asks the same trials for any number of workers and after any interruption."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial
from ray import cloudpickle

from simulator.npu.errors import BadInputError
from tuner.cli import main
from tuner.config import TuneConfig, leaves, load_config
from tuner.farm.isolated_map import each_here, each_on_ray
from tuner.study import trials
from tuner.study.curve import CellCurve, areas
from tuner.study.optuna_storage import JOURNAL
from tuner.study.trial_driver import StudySpec, run_study
from tuner.study.trials import Record, ask_trials, select_history

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONFIG = load_config(None, ["study.batch=3", "study.startup=3", "study.measurements=64", "study.points=4"])
COUNTS = (8, 16, 32, 64)
SPEC = StudySpec(("a", "b"), "tiny", (0, 1), CONFIG, trials=9, seed=5)
LEVELS = ("none", "severe")


def bowl(model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve:
    """Best at a generation of 4, 64 segments measured, in the order of the file; networks differ in what there is to gain.

    Comes down with readings, and how fast says how low.
    """
    assert config.farm.backend == "serial"
    assert "/.work/" in folder
    far = math.log(config.search.generation / 4) ** 2 + math.log(config.segments.measured / 64) ** 2 + (config.search.order != "file")
    most = (1.0 if model == "a" else 0.1) / (1 + far)
    row = [-most * math.log2(count) / 6 + 0.001 * seed for count in counts]
    return CellCurve({"none": row, "severe": [2 * value for value in row]}, cpu_s=1.5)


@dataclass
class Interrupted:
    """Stops the driver at its n-th cell, as Ctrl-C would."""

    cells: int

    def __call__(self, *words: Any) -> CellCurve:
        if self.cells == 0:
            raise KeyboardInterrupt
        self.cells -= 1
        return bowl(*words)


def crashing(model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve:
    if config.search.generation > 4:
        raise RuntimeError("no luck")
    return bowl(model, machine, config, seed, counts, folder)


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_study(tmp_path_factory.mktemp("study") / "whole", SPEC, bowl, each_here, say=quiet)


@settings(max_examples=50)
@given(st.lists(st.none() | st.integers(0, 9), max_size=60), st.integers(4, 20))
def test_optuna_hears_of_the_best_and_the_newest(values: list[int | None], most: int) -> None:
    records = [Record(number, {}, value=value) for number, value in enumerate(values)]
    best = most // 4
    with mock.patch.multiple(trials, HISTORY=most, BEST=best):
        numbers = [record.number for record in select_history(records)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == min(most, len(records))
    if len(records) > most:
        finished = sorted((record for record in records if record.value is not None), key=lambda record: (record.value, record.number))
        kept = {record.number for record in finished[:best]}
        others = [number for number in range(len(records)) if number not in kept]
        assert set(numbers) == kept | set(others[len(kept) - most :])


def test_a_study_finds_better_and_tune_takes_it(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert whole["trials_done"] == 9
    default = dict(leaves(CONFIG.model_dump()))
    assert whole["trials"][0]["params"] == {path: default[path] for path in CONFIG.study.parameters}, "the settings as they are come first"
    assert {record.params["search.order"] for record in ask_trials(CONFIG, 5, 0, 12, (), COUNTS)} == {"depth", "file"}
    spec = StudySpec(("a",), "tiny", (0,), CONFIG, trials=4)
    summary = run_study(tmp_path / "s", spec, bowl, each_here, say=quiet)
    assert summary["trials_done"] == len(summary["trials"]) == 4, "as many as were asked for"
    assert summary["best"]["value"] == min(trial["value"] for trial in summary["trials"] if trial["value"] is not None)
    best = load_config(str(tmp_path / "s" / "best.yaml"))
    assert best.digest == summary["best"]["config_digest"]
    assert best.segments.measured == summary["best"]["params"]["segments.measured"]
    assert best.farm == CONFIG.farm


@pytest.mark.parametrize("cells", [0, 5, 13, 20])
def test_interrupted_study_continues_unchanged(tmp_path: Path, whole: dict[str, Any], cells: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path / "s", SPEC, Interrupted(cells), each_here, say=quiet)
    journal = tmp_path / "s" / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code":')  # a torn line, and the lock of its writer
    (tmp_path / "s" / f"{JOURNAL}.lock").symlink_to(journal)
    with pytest.raises(BadInputError, match="--resume continues"):
        run_study(tmp_path / "s", SPEC, bowl, each_here, say=quiet)
    assert run_study(tmp_path / "s", SPEC, bowl, each_here, resume=True, say=quiet) == whole


def test_killed_between_a_batch_and_its_copy(tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    add = optuna.Study.add_trials

    def dying(self: optuna.Study, trials: Iterable[FrozenTrial]) -> None:
        found = list(trials)
        add(self, found[:2])
        if found:
            raise KeyboardInterrupt

    spec = StudySpec(**{**SPEC.__dict__, "storage": f"sqlite:///{tmp_path / 'db.sqlite'}"})
    monkeypatch.setattr(optuna.Study, "add_trials", dying)
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path / "s", spec, bowl, each_here, say=quiet)
    monkeypatch.undo()
    summary = run_study(tmp_path / "s", spec, bowl, each_here, resume=True, say=quiet)
    assert summary["trials"] == whole["trials"]
    copy = optuna.load_study(study_name=summary["study"], storage=spec.storage)
    assert [(trial.params, trial.value) for trial in copy.trials] == [(trial["params"], trial["value"]) for trial in whole["trials"]]


@pytest.mark.parametrize("steps", [(3, 9), (2, 9), (1, 4, 5, 9), (7, 2, 9)])
def test_more_trials_go_on_from_fewer(tmp_path: Path, whole: dict[str, Any], steps: tuple[int, ...]) -> None:
    """Whole batches or not; the runs that are there are not run again."""
    ran: list[tuple[str, int]] = []

    def counting(*words: Any) -> CellCurve:
        ran.append((words[-1], len(words[-2])))
        return bowl(*words)

    asked = 0
    for count in steps:
        spec = StudySpec(**{**SPEC.__dict__, "trials": count})
        summary = run_study(tmp_path / "s", spec, counting, each_here, resume=asked > 0, say=quiet)
        asked = max(asked, count)
        assert summary["trials"] == whole["trials"][:asked]
    assert len(set(ran)) == len(ran), "nothing is searched twice"
    assert len({folder for folder, _ in ran}) == 9 * len(SPEC.models) * len(SPEC.seeds)


def test_trials_of_another_sampler_are_said(tmp_path: Path) -> None:
    run_study(tmp_path / "s", StudySpec(**{**SPEC.__dict__, "trials": 4}), bowl, each_here, say=quiet)
    path = tmp_path / "s" / "batches" / "000001.json"
    raw = json.loads(path.read_text())
    raw["trials"][0]["params"]["search.proposed"] += 0.001
    path.write_text(json.dumps(raw))
    with pytest.raises(BadInputError, match=r"000001.json: optuna .* asks other trials"):
        run_study(tmp_path / "s", SPEC, bowl, each_here, resume=True, say=quiet)


@pytest.mark.usefixtures("local_ray")
def test_two_ray_workers_ask_the_same_trials(tmp_path: Path, whole: dict[str, Any]) -> None:
    def workers(make: Any) -> Any:
        return each_on_ray(make, 2, None, 60.0, "study")

    assert run_study(tmp_path / "s", SPEC, bowl, workers, say=quiet) == whole


def test_a_failing_cell_fails_its_trial_only(tmp_path: Path) -> None:
    summary = run_study(tmp_path / "s", SPEC, crashing, each_here, say=quiet)
    failed = [trial for trial in summary["trials"] if trial["error"] is not None]
    assert failed
    assert all(trial["params"]["search.generation"] > 4 for trial in failed)
    assert failed[0]["error"] == "a: RuntimeError: no luck"
    assert summary["best"]["params"]["search.generation"] <= 4


def test_study_without_runs_has_reason_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> CellCurve:
        raise RuntimeError("no luck")

    monkeypatch.setattr("tuner.study.run_study.run_cell", failing)
    out = tmp_path / "s"
    assert main(["study", "made:vit_b16-small", "--machine", "edge", "--out", str(out), "--trials", "2", "--backend", "serial"]) == 1
    assert "2 trials, none came to its end; trial 0: made:vit_b16-small: RuntimeError: no luck" in capsys.readouterr().out


def test_the_value_is_the_area_under_the_curve(whole: dict[str, Any], tmp_path: Path) -> None:
    """The mean over levels, searches and counts, which are evenly apart in the logarithm."""
    assert whole["counts"] == list(COUNTS)
    trial = whole["trials"][0]
    serial = CONFIG.replaced({"farm.backend": "serial"})
    cells = [bowl(model, "tiny", serial, seed, COUNTS, "/.work/").levels for model in SPEC.models for seed in SPEC.seeds]
    expected = np.array([[cell[level] for level in LEVELS] for cell in cells])  # cells, levels, counts
    assert trial["curve"] == pytest.approx(expected.mean((0, 1)))
    assert trial["value"] == pytest.approx(expected.mean())
    assert trial["cpu_s"] == 1.5 * len(cells)


def test_front_is_drawn_from_all_curves(tmp_path: Path) -> None:
    summary = run_study(tmp_path / "s", SPEC, bowl, each_here, say=quiet)
    batches = [json.loads(path.read_text())["trials"] for path in sorted((tmp_path / "s" / "batches").iterdir())]
    kept = [trial for batch in batches for trial in batch]
    assert [trial["number"] for trial in kept] == list(range(9))
    for trial, row in zip(kept, summary["trials"], strict=True):
        assert list(trial["cells"]) == ["0 0", "0 1", "1 0", "1 1"]
        assert all(len(curve) == len(trial["curve"]) for levels in trial["cells"].values() for curve in levels.values())
        assert trial["curve"] == row["curve"]
    for at, (count, point) in enumerate(zip(COUNTS, summary["front"], strict=True)):
        there = [trial["curve"][at] for trial in kept if len(trial["curve"]) > at]
        assert (point["readings"], point["value"]) == (count, min(there))
    assert not (tmp_path / "s" / ".work").exists()


def test_trial_is_stopped_by_median_at_equal_readings(whole: dict[str, Any]) -> None:
    trials = whole["trials"]
    pruned = [trial for trial in trials if trial["pruned"]]
    assert pruned
    assert not any(trial["pruned"] for trial in trials[:3]), "no one is behind before there are others"
    for trial in pruned:
        at = len(trial["curve"])
        assert at < len(COUNTS)
        earlier = [areas(t["curve"])[at - 1] for t in trials if t["value"] is not None and t["number"] < 3 * (trial["number"] // 3)]
        assert min(areas(trial["curve"])) > median(earlier)
        assert trial["value"] is None
    assert whole["best"]["trial"] not in [trial["number"] for trial in pruned]


def test_trial_and_its_stopping_are_printed_first(tmp_path: Path) -> None:
    lines: list[str] = []
    run_study(tmp_path / "s", StudySpec(**{**SPEC.__dict__, "trials": 1}), bowl, each_here, say=lines.append)
    assert lines[0] == (
        "a trial is 2 x 2 = 4 searches (networks x seeds) of 64 readings; after 8, 16, 32 one behind the median is stopped, "
        "once 3 have come to their end"
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "study.parameters={search.generation: {low: 1, high: 8}}",
            "study.parameters.search.generation {'low': 1, 'high': 16, 'log': True}, not",
        ),
        ("study.measurements=128", "study.measurements 64, not 128"),
        ("search.generation=12", "search.generation 1, not 12"),
    ],
)
def test_another_space_is_one_line_and_loses_nothing(tmp_path: Path, setting: str, said: str) -> None:
    out = tmp_path / "s"
    spec = StudySpec(**{**SPEC.__dict__, "trials": 4})
    run_study(out, spec, bowl, each_here, say=quiet)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    config = load_config(str(out / "config.yaml"), [setting])
    with pytest.raises(BadInputError) as refused:
        run_study(out, StudySpec(**{**spec.__dict__, "config": config}), bowl, each_here, resume=True, say=quiet)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run_study(out, spec, bowl, each_here, resume=True, say=quiet)


def test_a_choice_that_the_setting_does_not_take(tmp_path: Path) -> None:
    config = load_config(None, ["study.parameters={search.order: {choices: [depth, breadth]}}"])
    with pytest.raises(BadInputError, match=r"study.parameters: search.order: choice 'breadth': .*search\.order"):
        run_study(tmp_path / "s", StudySpec(("a",), "tiny", (0,), config, trials=2), bowl, each_here, say=quiet)
    assert not (tmp_path / "s").exists()


def test_storage_that_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--storage nonsense"):
        run_study(tmp_path / "a", StudySpec(**{**SPEC.__dict__, "storage": "nonsense"}), bowl, each_here, say=quiet)
    url = f"sqlite:///{tmp_path / 'db.sqlite'}"
    spec = StudySpec(**{**SPEC.__dict__, "storage": url, "trials": 3})
    run_study(tmp_path / "b", spec, bowl, each_here, say=quiet)
    (tmp_path / "b" / "batches" / "000000.json").rename(tmp_path / "aside.json")
    with pytest.raises(BadInputError, match="of another folder"):
        run_study(tmp_path / "b", spec, bowl, each_here, resume=True, say=quiet)
    with pytest.raises(BadInputError, match="of another folder"):
        run_study(tmp_path / "c", spec, bowl, each_here, say=quiet)
