"""`tilefarm train`: what it reads of runs, that nothing but rows counts, and what it says of networks that a model has not seen."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import simulator
from compiler.cost.features import FEATURES
from compiler.cost.level_conditions import CONDITIONS, condition_of
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.messages import naming
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.config import load_config
from tuner.cost_model import training_rows
from tuner.cost_model.boosted_trees import BoostedTrees
from tuner.cost_model.cross_validation import ModelBesideEstimate, assign_folds, compare_with_estimate, predict_unseen
from tuner.cost_model.model_file import load_trained
from tuner.cost_model.offline_training import model_of_runs
from tuner.cost_model.training_rows import LoggedRows, read_logged
from tuner.log.read import read_log, read_tasks
from tuner.log.record import FEATURE_PREFIX
from tuner.runs.folder import read_json

FEW = load_config(None, ["model.rounds=20"]).model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Of two networks on one machine, and of one of them on another."""
    folder = tmp_path_factory.mktemp("logged")
    models = [save_small(name, folder) for name in ("residual_block", "conv_chain")]
    made = [(models[0], "edge"), (models[1], "edge"), (models[1], "tiny")]
    for at, (model, machine) in enumerate(made):
        quick(model, folder / f"run{at}", 8, "use.cost_model=false", machine=machine, tag=f"n={at}")
    return tuple(folder / f"run{at}" for at in range(len(made)))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> LoggedRows:
    """Of five networks, some hundred segments of each."""
    folder, more = tmp_path_factory.mktemp("learnt"), ("use.cost_model=false", "segments.candidates=48", "segments.measured=16")
    names = ("conv_chain", "dense_block", "inception_block", "residual_block", "shuffle_block")
    for name in names:
        quick(save_small(name, folder), folder / name, 8, *more)
    return read_logged([folder / name for name in names])


def same(one: LoggedRows, two: LoggedRows) -> bool:
    arrays = zip((*one.rows[:4], one.networks, one.kinds), (*two.rows[:4], two.networks, two.kinds), strict=True)
    return one[3:] == two[3:] and all(a.tobytes() == b.tobytes() for a, b in arrays)


def test_rows_are_those_of_a_join_of_datasets(runs: tuple[Path, ...]) -> None:
    found = read_logged(runs[:1])
    log, tasks = read_log(runs[0]), read_tasks(runs[0])
    log = log[log["kind"].isin(["operator", "segment"]) & (log["status"] == "ok")]
    joined = log.merge(tasks, on="task").sort_values(["task", "level_index"])
    np.testing.assert_array_equal(found.rows.cycles, joined["cycles"].astype(np.float64))
    np.testing.assert_array_equal(found.rows.features[:, : len(FEATURES)], joined[[FEATURE_PREFIX + name for name in FEATURES]])
    assert found.rows.groups.tolist() == joined["workload"].astype(str).tolist()
    assert found.rows.levels.tolist() == joined["level"].astype(str).tolist()
    conditions = {level: condition_of(load_machine("edge"), DataType.float16, level) for level in joined["level"].unique()}
    for level, condition in conditions.items():
        mine = found.rows.features[found.rows.levels == level, -len(CONDITIONS) :]
        np.testing.assert_array_equal(mine, np.broadcast_to(condition, mine.shape))
    assert found.tasks == joined["task"].nunique() > 20


def test_nothing_but_the_rows_counts(runs: tuple[Path, ...], tmp_path: Path) -> None:
    """The order of runs, how rows lie in parts, and a run that is named twice."""
    once = read_logged(runs)
    assert set(once.rows.levels) == {f"{machine}/{level}" for machine in ("edge", "tiny") for level in ("none", "slight", "severe")}
    assert sorted(once.machines) == ["edge", "tiny"]
    compacted = tmp_path / "compacted"
    shutil.copytree(runs[0], compacted)
    for name in ("log", "tasks"):
        shutil.rmtree(compacted / name)
    (compacted / "parts.json").unlink()
    assert main(["log", "compact", str(runs[0]), "--out", str(tmp_path / "few")]) == 0
    for path in (tmp_path / "few").iterdir():
        shutil.move(path, compacted / path.name)
    assert len(list((compacted / "log").glob("*.parquet"))) < len(list((runs[0] / "log").glob("*.parquet")))
    two = read_logged([runs[2], compacted, runs[1]])
    assert same(once, two)
    assert model_of_runs(once, FEW, 3).model == model_of_runs(two, FEW, 3).model
    twice = read_logged([*runs, compacted])
    np.testing.assert_array_equal(twice.rows.features, once.rows.features)


def test_excess_rows_are_cut_to_the_least_digests(runs: tuple[Path, ...]) -> None:
    whole, some = read_logged(runs), read_logged(runs, limit=100)
    assert 90 < len(some.rows.cycles) <= 100
    assert some.skipped == len(whole.rows.cycles) + whole.rows.left_out - len(some.rows.cycles)
    np.testing.assert_array_equal(some.rows.features, whole.rows.features[: len(some.rows.cycles)])
    assert some.tasks * 3 == len(some.rows.cycles), "of each task every level"


def test_runs_that_cannot_be_learnt_from(runs: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInputError, match=naming("run.json", "`tilefarm tune`")):
        read_logged([tmp_path])
    part = next((runs[0] / "log").glob("*[1-9].parquet"))
    shutil.copytree(runs[0], tmp_path / "damaged")
    (tmp_path / "damaged" / "log" / part.name).unlink()
    with pytest.raises(BadInputError, match=r"missing.*log repair"):
        read_logged([tmp_path / "damaged"])
    few = read_logged(runs[:1])
    with pytest.raises(BadInputError, match=naming("1 rows", "1 workloads")):
        model_of_runs(few._replace(rows=few.rows.select(np.array([0])), networks=few.networks[:1], kinds=few.kinds[:1]), FEW, 0)
    with monkeypatch.context() as patch:
        patch.setattr(simulator, "VERSION", "0.9")
        with pytest.raises(BadInputError, match=r"run\d: .*simulator \S+; .*0\.9"):
            read_logged(runs)
    with monkeypatch.context() as patch:
        patch.setattr(training_rows, "FEATURE_SET", "schedule-0")
        with pytest.raises(BadInputError, match=r"schedule-\d+; .*schedule-0,"):
            read_logged(runs)


def test_networks_are_ranked_by_models_that_exclude_them(runs: tuple[Path, ...]) -> None:
    found = read_logged(runs[:2])
    fold, held_out = assign_folds(found, 0)
    assert held_out == "networks"
    assert pd.Series(fold).groupby(found.networks).nunique().tolist() == [1, 1]
    unseen = predict_unseen(BoostedTrees, found, 0, FEW)
    assert unseen.folds == 2
    back = found.networks == found.networks[0]
    alone = BoostedTrees.train(found.rows.select(~back), 0, FEW)
    np.testing.assert_array_equal(unseen.predicted[back], alone.predict(found.rows.features[back]))
    metrics = compare_with_estimate(found, unseen.predicted)
    assert set(metrics["network"]) == set(found.networks)
    assert set(metrics["kind"]) == {"operator", "segment"}


def test_model_ranks_unseen_networks_better_than_the_estimate(learnt: LoggedRows) -> None:
    """Of pairs of segments a tenth more in their right order, and more at every level; one that learnt nothing true does not."""
    settings = load_config(None, ["model.rounds=60"]).model
    assert assign_folds(learnt, 0)[0].max() == 4, "each network is held out alone"

    def found(rows: LoggedRows) -> dict[str, ModelBesideEstimate]:
        metrics = compare_with_estimate(learnt, predict_unseen(BoostedTrees, rows, 0, settings).predicted)
        return {**metrics["level"], **metrics["all"]}

    ranked = found(learnt)
    assert len(ranked) == 1 + 3
    assert all(each.model.pair_accuracy > each.estimate.pair_accuracy for each in ranked.values())
    assert ranked[""].model.pair_accuracy > 0.1 + ranked[""].estimate.pair_accuracy
    shuffled = learnt.rows._replace(cycles=np.random.default_rng(0).permutation(learnt.rows.cycles))
    nothing = found(learnt._replace(rows=shuffled))[""]
    assert nothing.model.pair_accuracy < 0.1 + nothing.estimate.pair_accuracy


def test_command_writes_the_same_bytes_and_a_card(runs: tuple[Path, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", *map(str, runs), "--set", "model.rounds=20"]
    assert main([*words, "--out", str(tmp_path / "a"), "--json"]) == 0
    assert main(["train", *map(str, reversed(runs)), "--set", "model.rounds=20", "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    card = read_json(tmp_path / "a.json")
    assert card == read_json(tmp_path / "b.json")
    kept = load_trained(tmp_path / "a")
    assert card["model_version"] == kept.model.version
    assert card["saw"]["rows"] == kept.model.trained_rows == sum(card["saw"]["networks"].values())
    assert card["held_out"] == {"by": "networks", "folds": 2}
    shown = capfd.readouterr().out
    assert "tilefarm tune MODEL.onnx --machine M --model" in shown
    assert shown.count("network  ") == 2


def test_trials_find_settings_that_are_no_worse(runs: tuple[Path, ...], tmp_path: Path) -> None:
    found = read_logged(runs[:2])
    lines: list[str] = []
    one, two = (model_of_runs(found, FEW, 5, 2, lines.append) for _ in range(2))
    assert one == two, "the same trials again"
    own = model_of_runs(found, FEW, 5)
    pairs = [made.card["metrics"]["all"][""]["model"]["pair_accuracy"] for made in (one, own)]
    assert pairs[0] >= pairs[1]
    assert [line.partition(":")[0] for line in lines[:3]] == ["given settings", "trial 1", "trial 2"]
    assert main(["train", str(runs[0]), "--out", str(tmp_path / "no" / "a")]) == 2
