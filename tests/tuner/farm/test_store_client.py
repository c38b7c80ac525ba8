"""Runs that share a store find what they find without it, and pay less."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.object_store import object_store
from tests.tuning import FEW, Driver, assert_equal_runs, quick, save_small
from tuner.cli import main
from tuner.farm import store_client
from tuner.log.read import read_log
from tuner.measure import store_lookup
from tuner.measure.runner_api import Encoded, Reading
from tuner.measure.simulator_runner import measure as simulated
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.folder import read_json
from tuner.store.pack_store import collect, entries
from tuner.store.packs import decoded_pack, encoded_pack, keys, pack_name
from tuner.summary import Summary

N = 24
NO_MODEL = "use.cost_model=false"
SET = [word for text in FEW for word in ("--set", text)]


def small(model: Path, out: Path, candidates: int | None = N, *overrides: str, **values: Any) -> Summary:
    """Of few segments."""
    return quick(model, out, candidates, *FEW, *overrides, **values)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("residual_block", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows of no store."""
    out = tmp_path_factory.mktemp("alone") / "run"
    small(model, out)
    return out


@pytest.fixture(scope="module")
def filled(model: Path, alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has all of the same run."""
    folder = tmp_path_factory.mktemp("filled")
    small(model, folder / "run", store=str(folder / "store"))
    assert_equal_runs(folder / "run", alone)
    return folder / "store"


def from_store(run: Path) -> pd.Series:
    """By row of the log."""
    return read_log(run)["worker"].astype("str").str.startswith(store_lookup.WORKER)


def packs(root: Path) -> list[Any]:
    return [entry.pack for entry in entries(LocalPath(root)) if entry.state == "used"]


def test_the_same_log_is_cheaper(model: Path, alone: Path, filled: Path, tmp_path: Path) -> None:
    small(model, tmp_path / "run", store=str(filled))
    assert_equal_runs(tmp_path / "run", alone)
    use, log = read_json(tmp_path / "run" / "summary.json")["measurements"], read_log(tmp_path / "run")
    assert use["asked"] == read_json(alone / "summary.json")["measurements"]["paid"] == log["readings"].sum()
    assert use["paid"] == log.loc[~from_store(tmp_path / "run"), "readings"].sum()
    assert use["paid"] < use["asked"] / 4
    assert len(packs(filled)) == 1, "nothing new was measured, so nothing was added"


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"seed": 2, "measurements": 250, "candidates": None}, {"seed": 3, "machine": "edge-shared"}]
)
def test_other_searches_of_the_network_find_a_part(model: Path, filled: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    candidates = {"candidates": N, **options}
    small(model, tmp_path / "without", **candidates)
    shutil.copytree(filled, tmp_path / "store")
    for name in ("first", "second"):
        small(model, tmp_path / name, store=str(tmp_path / "store"), **candidates)
        assert_equal_runs(tmp_path / name, tmp_path / "without")
    first, second = (read_json(tmp_path / name / "summary.json") for name in ("first", "second"))
    assert (first["stored_tasks"] > 0) == ("machine" not in options), "of another machine nothing counts"
    assert first["measurements"]["asked"] == second["measurements"]["asked"]
    assert second["measurements"]["paid"] < second["measurements"]["asked"] / 4


@pytest.mark.usefixtures("local_ray")
def test_the_same_on_any_number_of_workers(model: Path, alone: Path, filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "store")
    for workers in (1, 2):
        small(model, tmp_path / f"run{workers}", backend="ray", workers=workers, store=str(tmp_path / "store"))
        assert_equal_runs(tmp_path / f"run{workers}", alone)
        assert from_store(tmp_path / f"run{workers}").mean() > 0.7


def test_champions_and_baselines_are_measured(model: Path, filled: Path, tmp_path: Path) -> None:
    small(model, tmp_path / "run", store=str(filled))
    log = read_log(tmp_path / "run")
    log["stored"] = from_store(tmp_path / "run")
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    assert programs["stored"].any(), "the others may be taken"
    for _, rows in programs.groupby("level", observed=True):
        assert not rows.sort_values(["cycles", "task"]).iloc[0]["stored"]
    assert not programs.loc[programs["seq"] == 0, "stored"].any()


def test_a_store_has_what_the_log_has(filled: Path, alone: Path) -> None:
    (pack,) = packs(filled)
    log = read_log(alone)
    good = log[log.groupby("task")["cycles"].transform("count") > 0]
    names = {key.hex() for key in keys(pack.measured)}
    assert names == set(good["task"])
    by_task = dict(zip((key.hex() for key in keys(pack.measured)), pack.measured.values, strict=True))
    for task, rows in good.groupby("task"):
        np.testing.assert_array_equal(by_task[task][:, 0], rows.sort_values("level_index")["cycles"].fillna(0))


def test_packs_are_put_while_a_run_goes_on(model: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_FIRST_TRY", 20)
    monkeypatch.setattr(store_client, "PACK_BYTES", 5_000)
    small(model, tmp_path / "run", store=str(tmp_path / "store"))
    assert_equal_runs(tmp_path / "run", alone)
    sizes = sorted(entry.size_bytes for entry in entries(LocalPath(tmp_path / "store")))
    assert len(sizes) > 2
    assert min(sizes[1:]) >= 5_000, "all but the last"
    every = [key for pack in packs(tmp_path / "store") for key in keys(pack.measured)]
    assert len(every) == len(set(every)), "each task once"


# what goes wrong


def test_killed_driver_adds_remaining_readings_when_resumed(model: Path, alone: Path, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    for resume in (False, True):
        driver = Driver(model, run, N, resume, options=("--backend", "serial", "--store", str(store), *SET))
        parts = len(list((run / "log").glob("*.parquet")))
        driver.wait_for_parts(parts + 3)
        driver.stop(signal.SIGKILL)
    small(model, run, resume=True, store=store.as_uri())
    assert_equal_runs(run, alone)
    log = read_log(run)
    good = set(log.loc[log["status"] == "ok", "task"])
    found = [key.hex() for pack in packs(store) for key in keys(pack.measured)]
    assert set(found) == good
    assert len(found) == len(good)


def poisoned(root: Path) -> str:
    """Every pack says a cycle more of everything; the name of the last one."""
    name = ""
    for path in root.rglob("*.parquet"):
        pack = decoded_pack(path.read_bytes(), path.stem)
        pack.measured.values[:, :, 0] += pack.measured.values[:, :, 0] > 0
        data = encoded_pack(pack.conditions, pack.whose, pack.measured)
        path.unlink()
        (path.parent / f"{(name := pack_name(data))}.parquet").write_bytes(data)
    return name


@pytest.mark.parametrize("backend", ["serial", pytest.param("ray", marks=pytest.mark.slow)])
def test_wrong_pack_is_detected_and_dropped(
    model: Path, alone: Path, filled: Path, tmp_path: Path, backend: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if backend == "ray":
        request.getfixturevalue("local_ray")
    shutil.copytree(filled, tmp_path / "store")
    pack = poisoned(tmp_path / "store")
    summary = small(model, tmp_path / "run", store=str(tmp_path / "store"), backend=backend, quiet=False)
    said = [line for line in capsys.readouterr().err.splitlines() if "is dropped" in line]
    assert len(said) == 1
    assert re.search(
        rf"--store .*{pack}: task [0-9a-f]{{32}} was measured again, with another result; the pack of run .* is dropped", said[0]
    )
    assert read_json(alone / "run.json")["run"] in said[0]
    log = read_log(tmp_path / "run")
    log["stored"] = from_store(tmp_path / "run")
    for level, cycles in summary.own_cycles.items():
        best = log[(log["kind"] == "program") & (log["level"] == level)].sort_values(["cycles", "task"]).iloc[0]
        assert (best["cycles"], best["stored"]) == (cycles, False)
    small(model, tmp_path / "next", store=str(tmp_path / "store"))
    assert_equal_runs(tmp_path / "next", alone)
    assert sorted(entry.state for entry in entries(LocalPath(tmp_path / "store")) if entry.state != "champions") == ["dropped", "used"]
    collect(LocalPath(tmp_path / "store"), REAL.clock.epoch_us(), lambda line: None)
    assert pack not in str(list((tmp_path / "store").rglob("*")))


def test_damaged_packs_are_reported_and_change_no_run(
    model: Path, alone: Path, filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(filled, tmp_path / "store")
    (path,) = (tmp_path / "store").rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    small(model, tmp_path / "run", store=str(tmp_path / "store"), quiet=False)
    assert_equal_runs(tmp_path / "run", alone)
    said = [line for line in capsys.readouterr().err.splitlines() if str(path) in line]
    assert len(said) == 1
    assert "its digest differs); left out, `tilefarm store gc` deletes it" in said[0]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nowhere://x", r"nowhere://x: .*expected a path, or a URL"),
        ("FILE/store", r"--store .*/file/store: cannot be used: Not a directory"),
        (
            "s3://key:secret@b/s?scheme=http&endpoint_override=127.0.0.1%3A9&region=x",
            r"--store s3://b/s/[^ ]*: cannot be",
        ),
    ],
)
def test_unreachable_store_is_one_line(model: Path, tmp_path: Path, url: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    where = url.replace("FILE", str(tmp_path / "file"))
    command = [
        "tune",
        str(model),
        "--machine",
        "edge",
        "--out",
        str(tmp_path / "run"),
        "--backend",
        "serial",
        "--candidates",
        "4",
        "--quiet",
    ]
    assert main([*command, "--store", where, *SET]) == 2
    said = capsys.readouterr().err
    assert re.search(text, said), said
    assert said.count("\n") == 1
    assert "secret" not in said


def test_a_store_that_goes_away_costs_a_line(model: Path, alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with object_store() as server:
        url = server.url("bucket/store")
        server.broken = True
        small(model, tmp_path / "run", store=url, quiet=False)
        assert_equal_runs(tmp_path / "run", alone)
        said = [line for line in capsys.readouterr().err.splitlines() if "cannot be written" in line]
        assert len(said) == 1
        assert "--resume adds what is missing" in said[0]
        assert not [name for name in server.objects if name.endswith(".parquet")]
        server.broken = False
        small(model, tmp_path / "run", store=url, resume=True)
        small(model, tmp_path / "other", store=url)
    assert_equal_runs(tmp_path / "other", alone)
    assert from_store(tmp_path / "other").mean() > 0.7


# boards

SAID: dict[str, tuple[str, str] | None] = {"board": ("B7", "1.0")}


class Board:
    """The simulator, 1% off to either side."""

    def board(self) -> tuple[str, str] | None:
        return SAID["board"]

    def __call__(self, program: Encoded, level: str) -> Reading:
        cycles = simulated(program, level).cycles
        assert cycles is not None
        return Reading(round(cycles * np.random.default_rng().uniform(0.99, 1.01)))


def test_board_readings_are_for_the_same_board(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("segments.measured=2", "segments.candidates=4", "runner.finalists=1", "runner.readings=5", NO_MODEL)
    values: dict[str, Any] = {"runner": f"{__name__}:Board", "store": str(tmp_path / "store")}
    shares = []
    for name, board in (("a", ("B7", "1.0")), ("b", ("B7", "1.0")), ("c", ("B7", "1.1")), ("d", None), ("e", None)):
        monkeypatch.setitem(SAID, "board", board)
        summary = small(model, tmp_path / name, 12, *few, **values)
        log = read_log(tmp_path / name)
        stored = log[from_store(tmp_path / name)]
        shares.append(len(stored) / len(log))
        use = summary.measurements
        assert use.paid == use.asked - stored["readings"].sum()
        assert use.finals > 0, "finals are read, whatever is known"
        if name == "b":
            before = read_log(tmp_path / "a").set_index(["task", "level"])["cycles"]
            assert (stored.set_index(["task", "level"])["cycles"] == before.loc[pd.MultiIndex.from_frame(stored[["task", "level"]])]).all()
    assert shares[1] > 0.3
    assert [share == 0 for share in shares] == [True, False, True, True, True]
    assert {board for pack in packs(tmp_path / "store") for board in pack.measured.boards[:, 0]} == {"B7"}


def test_a_store_of_other_conditions_is_left_alone(model: Path, filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path / "store")
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*.parquet")}
    small(model, tmp_path / "run", 4, machine="edge-shared", store=str(tmp_path / "store"))
    assert not from_store(tmp_path / "run").any()
    assert {path: path.read_bytes() for path in before} == before
