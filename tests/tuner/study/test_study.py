"""A study asks the same trials for any number of workers and after any interruption."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial
from ray import cloudpickle

from simulator.npu.errors import BadInputError
from tuner.cli import main
from tuner.config import TuneConfig, leaves, load_config
from tuner.farm.each import each_here, each_on_ray
from tuner.study.driver import StudySpec, run_study
from tuner.study.storage import JOURNAL
from tuner.study.trials import INSTANCES, Record, behind, pruned_value, stops

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONFIG = load_config(None, ["study.batch=3", "study.startup=3"])
SPEC = StudySpec(("a", "b"), "tiny", tuple(range(INSTANCES)), CONFIG, trials=9, seed=5)


def bowl(model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]:
    """Best at mutation_rate 0.5, population 32, epsilon 0.1; the networks differ in what there is to gain."""
    assert config.farm.backend == "serial"
    search = config.search
    loss = (search.mutation_rate - 0.5) ** 2 + math.log(search.population / 32) ** 2 + math.log(search.epsilon / 0.1) ** 2
    return [loss - (1.0 if model == "a" else 0.1), loss + 0.01 * seed]


@dataclass
class Interrupted:
    """Stops the driver at its n-th cell, as Ctrl-C would."""

    cells: int

    def __call__(self, model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]:
        if self.cells == 0:
            raise KeyboardInterrupt
        self.cells -= 1
        return bowl(model, machine, config, seed)


def crashing(model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]:
    if config.search.mutation_rate < 0.6:
        raise RuntimeError("no luck")
    return bowl(model, machine, config, seed)


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_study(tmp_path_factory.mktemp("study") / "whole", SPEC, bowl, each_here, say=quiet)


def test_a_study_finds_better_and_tune_takes_it(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert whole["trials_done"] == 9
    default = dict(leaves(CONFIG.model_dump()))
    assert whole["trials"][0]["params"] == {path: default[path] for path in CONFIG.study.parameters}, "the settings as they are come first"
    spec = StudySpec(("a",), "tiny", (0,), CONFIG, trials=4)
    summary = run_study(tmp_path / "s", spec, bowl, each_here, say=quiet)
    assert summary["trials_done"] == len(summary["trials"]) == 4, "as many as were asked for"
    assert summary["best"]["value"] == min(trial["value"] for trial in summary["trials"])
    best = load_config(str(tmp_path / "s" / "best.yaml"))
    assert best.digest == summary["best"]["config_digest"]
    assert best.search.population == summary["best"]["params"]["search.population"]
    assert best.farm == CONFIG.farm


@pytest.mark.parametrize("cells", [0, 20, 52, 100])
def test_an_interrupted_study_goes_on_as_if_nothing_had_been(tmp_path: Path, whole: dict[str, Any], cells: int) -> None:
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
    ran: list[float] = []

    def counting(model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]:
        ran.append(config.search.mutation_rate)
        return bowl(model, machine, config, seed)

    asked = 0
    for count in steps:
        spec = StudySpec(**{**SPEC.__dict__, "trials": count})
        summary = run_study(tmp_path / "s", spec, counting, each_here, resume=asked > 0, say=quiet)
        asked = max(asked, count)
        assert summary["trials"] == whole["trials"][:asked]
    assert len(ran) == INSTANCES * sum(len(trial["means"]) for trial in whole["trials"])


def test_trials_of_another_sampler_are_said(tmp_path: Path) -> None:
    run_study(tmp_path / "s", StudySpec(**{**SPEC.__dict__, "trials": 4}), bowl, each_here, say=quiet)
    path = tmp_path / "s" / "batches" / "000001.json"
    raw = json.loads(path.read_text())
    raw["trials"][0]["params"]["search.mutation_rate"] += 0.001
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
    failed = [trial for trial in summary["trials"] if trial["value"] is None]
    assert failed
    assert all(trial["params"]["search.mutation_rate"] < 0.6 for trial in failed)
    assert failed[0]["error"] == "a: RuntimeError: no luck"
    assert summary["best"]["params"]["search.mutation_rate"] >= 0.6


def test_a_study_of_which_nothing_ran_says_why_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> Sequence[float]:
        raise RuntimeError("no luck")

    monkeypatch.setattr("tuner.study.run.run_cell", failing)
    out = tmp_path / "s"
    assert main(["study", "made:vit_b16-small", "--machine", "edge", "--out", str(out), "--trials", "2", "--backend", "serial"]) == 1
    assert "2 trials, none ran on every network; trial 0: made:vit_b16-small: RuntimeError: no luck" in capsys.readouterr().out


def test_pruning_follows_the_median_and_does_not_flatter() -> None:
    earlier = [Record(i, {}, [-1.0 + i / 10, -0.5 + i / 10], -0.5 + i / 10) for i in range(3)]
    assert behind(-0.85, 0, earlier, 3)
    assert not behind(-0.95, 0, earlier, 3)
    assert not behind(5.0, 0, earlier, 4), "too few to judge by"
    stopped = Record(9, {}, [-0.85], pruned=True)
    assert pruned_value(stopped, earlier) == pytest.approx(-0.4 + 0.05)
    assert pruned_value(stopped, earlier) > earlier[1].value
    assert pruned_value(stopped, []) == -0.85


def test_some_trials_are_pruned(whole: dict[str, Any]) -> None:
    pruned = [trial for trial in whole["trials"] if trial["pruned"]]
    assert pruned
    assert all(len(trial["means"]) == 1 for trial in pruned)
    assert not any(trial["pruned"] for trial in whole["trials"][:3])


@pytest.mark.parametrize(
    ("networks", "seeds", "after"),
    [(3, 2, []), (8, 1, []), (1, 20, []), (9, 1, [7]), (10, 1, [7, 8]), (3, 3, []), (3, 4, [1]), (3, 8, [0, 1]), (5, 3, [2, 3])],
)
def test_no_trial_is_judged_by_fewer_than_eight_runs(networks: int, seeds: int, after: list[int]) -> None:
    assert list(stops(networks, seeds)) == after


@pytest.mark.parametrize(
    ("networks", "seeds", "settings", "line"),
    [
        (3, 2, [], "runs of a trial: 3 x 2 = 6 (networks x seeds); no trial is stopped early: that takes 8 runs, and a network left"),
        (3, 3, [], "runs of a trial: 3 x 3 = 9 (networks x seeds); no trial is stopped early: that takes 8 runs, and a network left"),
        (3, 4, [], "runs of a trial: 3 x 4 = 12 (networks x seeds); a trial behind the median after 8 or more is stopped"),
        (3, 4, ["study.prune=false"], "runs of a trial: 3 x 4 = 12 (networks x seeds); no trial is stopped early: study.prune is false"),
    ],
)
def test_what_is_stopped_early_is_said_first(tmp_path: Path, networks: int, seeds: int, settings: list[str], line: str) -> None:
    """And is what happens: the same trials, all far behind the first ones, are stopped or not."""

    def worse_and_worse(model: str, machine: str, config: TuneConfig, seed: int) -> Sequence[float]:
        cells.append(model)
        return [float(len(cells))]

    cells: list[str] = []
    lines: list[str] = []
    config = load_config(None, ["study.batch=3", "study.startup=3", *settings])
    spec = StudySpec(tuple("abc"[:networks]), "tiny", tuple(range(seeds)), config, trials=6)
    summary = run_study(tmp_path / "s", spec, worse_and_worse, each_here, say=lines.append)
    assert lines[0] == line
    assert any(trial["pruned"] for trial in summary["trials"]) == ("no trial is stopped" not in line)


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
