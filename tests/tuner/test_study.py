"""A study asks the same trials for any number of workers and after any interruption."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from ray import cloudpickle

from simulator.npu.errors import BadInputError
from tuner import study as study_module
from tuner.config import TuneConfig, leaves, load_config
from tuner.farm.actors import RayBackend, SerialBackend
from tuner.study import JOURNAL, Record, StudySpec, behind, pruned_value, run_study

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONFIG = load_config(None, ["study.batch=3", "study.startup=3"])
SPEC = StudySpec(("a", "b"), "tiny", (0, 1), CONFIG, trials=9, seed=5)


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


def trials(summary: dict[str, Any]) -> list[Any]:
    """Trials without their numbers: discarded ones leave gaps."""
    return [{key: value for key, value in trial.items() if key != "number"} for trial in summary["trials"]]


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_study(tmp_path_factory.mktemp("study") / "whole", SPEC, bowl, SerialBackend, say=quiet)


def test_a_study_finds_better_and_tune_takes_it(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert whole["trials_done"] == 9
    default = dict(leaves(CONFIG.model_dump()))
    assert whole["trials"][0]["params"] == {path: default[path] for path in CONFIG.study.parameters}, "the settings as they are come first"
    spec = StudySpec(("a",), "tiny", (0,), CONFIG, trials=4)
    summary = run_study(tmp_path / "s", spec, bowl, SerialBackend, say=quiet)
    assert summary["trials_done"] == 6, "whole batches"
    assert summary["best"]["value"] == min(trial["value"] for trial in summary["trials"])
    best = load_config(str(tmp_path / "s" / "best.yaml"))
    assert best.digest == summary["best"]["config_digest"]
    assert best.search.population == summary["best"]["params"]["search.population"]
    assert best.farm == CONFIG.farm


@pytest.mark.parametrize("cells", [0, 5, 13, 25])
def test_an_interrupted_study_goes_on_as_if_nothing_had_been(tmp_path: Path, whole: dict[str, Any], cells: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path / "s", SPEC, Interrupted(cells), SerialBackend, say=quiet)
    journal = tmp_path / "s" / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code":')  # a torn line, and the lock of its writer
    (tmp_path / "s" / f"{JOURNAL}.lock").symlink_to(journal)
    with pytest.raises(BadInputError, match="--resume continues"):
        run_study(tmp_path / "s", SPEC, bowl, SerialBackend, say=quiet)
    assert trials(run_study(tmp_path / "s", SPEC, bowl, SerialBackend, resume=True, say=quiet)) == trials(whole)


def test_killed_between_two_tells(tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tell, left = optuna.Study.tell, [4]

    def dying(self: optuna.Study, *args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return tell(self, *args, **kwargs)

    monkeypatch.setattr(optuna.Study, "tell", dying)
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path / "s", SPEC, bowl, SerialBackend, say=quiet)
    monkeypatch.undo()
    assert trials(run_study(tmp_path / "s", SPEC, bowl, SerialBackend, resume=True, say=quiet)) == trials(whole)


def test_more_trials_go_on_from_fewer(tmp_path: Path, whole: dict[str, Any]) -> None:
    fewer = StudySpec(**{**SPEC.__dict__, "trials": 3})
    run_study(tmp_path / "s", fewer, bowl, SerialBackend, say=quiet)
    assert trials(run_study(tmp_path / "s", SPEC, bowl, SerialBackend, resume=True, say=quiet)) == trials(whole)


def test_two_ray_workers_ask_the_same_trials(tmp_path: Path, whole: dict[str, Any]) -> None:
    def backend(make: Any) -> Any:
        return RayBackend(make, 2, run_id="study", item_timeout_s=None, in_flight=1, max_batch=1)

    assert trials(run_study(tmp_path / "s", SPEC, bowl, backend, say=quiet)) == trials(whole)


def test_a_failing_cell_fails_its_trial_only(tmp_path: Path) -> None:
    summary = run_study(tmp_path / "s", SPEC, crashing, SerialBackend, say=quiet)
    failed = [trial for trial in summary["trials"] if trial["value"] is None]
    assert failed
    assert all(trial["params"]["search.mutation_rate"] < 0.6 for trial in failed)
    assert failed[0]["error"] == "a: RuntimeError: no luck"
    assert summary["best"]["params"]["search.mutation_rate"] >= 0.6


def test_pruning_follows_the_median_and_does_not_flatter() -> None:
    earlier = [Record(i, {}, [-1.0 + i / 10, -0.5 + i / 10], -0.5 + i / 10) for i in range(3)]
    assert behind(-0.85, 0, earlier, 3)
    assert not behind(-0.95, 0, earlier, 3)
    assert not behind(5.0, 0, earlier, 4), "too few to judge by"
    stopped = Record(9, {}, [-0.85], pruned=True)
    assert pruned_value(stopped, earlier) == pytest.approx(-0.4 + 0.05)
    assert pruned_value(stopped, earlier) > study_module.median(record.value or 0 for record in earlier)
    assert pruned_value(stopped, []) == -0.85


def test_some_trials_are_pruned(whole: dict[str, Any]) -> None:
    pruned = [trial for trial in whole["trials"] if trial["pruned"]]
    assert pruned
    assert all(len(trial["means"]) == 1 for trial in pruned)
    assert not any(trial["pruned"] for trial in whole["trials"][:3])


def test_storage_that_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--storage nonsense"):
        run_study(tmp_path / "a", StudySpec(**{**SPEC.__dict__, "storage": "nonsense"}), bowl, SerialBackend, say=quiet)
    url = f"sqlite:///{tmp_path / 'db.sqlite'}"
    spec = StudySpec(**{**SPEC.__dict__, "storage": url, "trials": 3})
    run_study(tmp_path / "b", spec, bowl, SerialBackend, say=quiet)
    with pytest.raises(BadInputError, match="of another folder"):
        run_study(tmp_path / "c", spec, bowl, SerialBackend, say=quiet)
    with pytest.raises(BadInputError, match="does not hold trial"):
        run_study(tmp_path / "b", SPEC, bowl, SerialBackend, resume=True, say=quiet)
