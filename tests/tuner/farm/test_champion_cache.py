"""A model that was trained again needs no search: the store has the champions of its computation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.tuner.study.test_sweep import request
from tests.tuning import assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.log.read import read_log
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.folder import read_json
from tuner.store.pack_store import collect, entries
from tuner.study.sweep import sweep
from tuner.summary import Summary

N = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("residual_block", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def searched(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Path]:
    """A search, and the store that it left."""
    folder = tmp_path_factory.mktemp("searched")
    return quick(model, folder / "run", N, random_weights=1, store=str(folder / "store")), folder / "store"


def test_other_weights_are_measured_once(
    model: Path, searched: tuple[Summary, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, store = searched
    summary = quick(model, tmp_path / "run", N, random_weights=2, store=str(store), quiet=False)
    said = [line for line in capsys.readouterr().err.splitlines() if "searched the same computation" in line]
    assert len(said) == 1
    assert before.run in said[0]
    assert (summary.own_cycles, summary.status) == (before.own_cycles, "done")
    assert summary.model_digest != before.model_digest
    log = read_log(tmp_path / "run")
    assert set(log["kind"]) == {"program"}
    assert log["task"].nunique() <= 1 + len(summary.levels) + 1, "the baseline, champions, the robust program"
    assert set(log["proposed_by"]) == {"baseline", "store"}
    assert not log["worker"].astype("str").str.startswith("store/").any()
    assert summary.measurements.paid == summary.measurements.asked == log["readings"].sum()
    assert read_json(tmp_path / "run" / "run.json")["champions"]
    assert summary.robust is not None
    assert before.robust is not None
    assert summary.robust.cycles == before.robust.cycles
    assert main(["run", str(tmp_path / "run" / "best.onnx"), "--input", "random", "--check"]) == 0
    assert sum(entry.state == "champions" for entry in entries(LocalPath(store))) == 1, "nobody searched"


def test_the_same_file_is_searched_again(model: Path, searched: tuple[Summary, Path], tmp_path: Path) -> None:
    """With the store as without: what was searched once is cheap, not skipped."""
    for name, store in (("without", None), ("with", str(searched[1]))):
        quick(model, tmp_path / name, N, random_weights=1, seed=3, store=store)
    assert_equal_runs(tmp_path / "without", tmp_path / "with")
    assert "segment" in set(read_log(tmp_path / "with")["kind"])


@pytest.mark.parametrize(("asked", "weights", "machine"), [(N + 1, 2, "edge"), (N, 2, "edge-shared")])
def test_a_longer_search_and_another_machine_are_searched(
    model: Path, searched: tuple[Summary, Path], tmp_path: Path, asked: int, weights: int, machine: str
) -> None:
    summary = quick(model, tmp_path / "run", asked, random_weights=weights, machine=machine, store=str(searched[1]))
    assert summary.candidates == asked
    assert read_json(tmp_path / "run" / "run.json")["champions"] == []


def test_another_computation_is_searched(searched: tuple[Summary, Path], tmp_path: Path) -> None:
    summary = quick(save_small("conv_chain", tmp_path), tmp_path / "run", 8, store=str(searched[1]))
    assert summary.candidates == 8


def test_a_run_of_champions_goes_on_as_one(model: Path, searched: tuple[Summary, Path], tmp_path: Path) -> None:
    values = {"random_weights": 2, "store": str(searched[1])}
    first = quick(model, tmp_path / "run", N, **values)
    again = quick(model, tmp_path / "run", N, resume=True, **values)
    assert (again.own_cycles, again.tasks) == (first.own_cycles, first.tasks)
    with pytest.raises(BadInputError, match=r"--store .*/none: .*/run began with its champions [0-9a-f, -]*, which are not there"):
        quick(model, tmp_path / "run", N, resume=True, random_weights=2, store=str(tmp_path / "none"))
    with pytest.raises(BadInputError, match=r"--store: .*/run began with champions of a store; name it again"):
        quick(model, tmp_path / "run", N, resume=True, random_weights=2)


def test_cells_of_a_sweep_are_searched_each(tmp_path: Path) -> None:
    """Whoever ends first decides nothing for the others."""
    found = request((save_small("residual_block", tmp_path),), tmp_path / "sweep", candidates=6)
    models = tuple((path, weights) for (path, _) in found.models for weights in (1, 2))
    names = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for name in names:
        name.write_bytes(models[0][0].read_bytes())
    index = sweep(type(found)(**{**vars(found), "models": tuple(zip(names, (1, 2), strict=True))}), lambda line: None)
    assert set(index["candidates"]) == {6}


def test_what_is_damaged_stands_for_nothing(model: Path, searched: tuple[Summary, Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    quick(model, tmp_path / "first", 4, random_weights=1, store=str(store))
    (path,) = store.rglob("*.champions")
    path.write_bytes(path.read_bytes()[:-1])
    assert quick(model, tmp_path / "second", 4, random_weights=2, store=str(store)).candidates == 4
    says: list[str] = []
    collect(LocalPath(store), REAL.clock.epoch_us(), says.append)
    assert any(re.search(r"\.champions: damaged", line) for line in says)
    assert len(list(store.rglob("*.champions"))) == 1
