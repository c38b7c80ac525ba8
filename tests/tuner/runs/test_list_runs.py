"""Runs by their folders: listed, told how far they are, compared."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.tuning import Driver, quick, save_small
from tuner.cli import main
from tuner.log.read import read_log
from tuner.runs.list_runs import find_runs, open_run
from tuner.runs.progress import compare_runs, read_progress


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one model with different seeds, the second one shorter and without fusion, in folders of different depth."""
    folder = tmp_path_factory.mktemp("runs")
    model = save_small("conv_chain", folder)
    quick(model, folder / "a", 32, seed=0)
    (folder / "deep").mkdir()
    quick(model, folder / "deep" / "b", 16, "use.segmentations=false", "use.block_fusion=false", seed=1)
    return folder


def test_all_runs_below_a_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [run.path.relative_to(runs).as_posix() for run in find_runs(runs)] == ["a", "deep/b"]
    assert main(["ls", str(runs)]) == 0
    assert "deep/b" in capsys.readouterr().out
    assert main(["ls", str(runs), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(run["seed"], run["state"]) for run in listed] == [(0, "done"), (1, "done")]
    assert listed[0]["cycles"] == {
        name: row["cycles"] for name, row in json.loads((runs / "a" / "summary.json").read_text())["levels"].items()
    }


def test_best_is_what_the_summary_says(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["best", str(runs / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["levels"] == json.loads((runs / "a" / "summary.json").read_text())["levels"]


def test_standing_follows_the_log(runs: Path) -> None:
    now = read_progress(open_run(runs / "a"))
    log = read_log(runs / "a")
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    assert now.programs == programs["seq"].nunique() == 32
    assert now.tasks == log["seq"].nunique()
    assert now.best == {level: int(rows["cycles"].min()) for level, rows in programs.groupby(programs["level"].astype("str"))}
    assert all(now.first[level] >= cycles for level, cycles in now.best.items())


def test_runs_are_compared_at_equal_candidates(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = open_run(runs / "a"), open_run(runs / "deep" / "b")
    found = compare_runs(a, b)
    assert found.candidates == 16
    log = read_log(runs / "a")
    programs = log[(log["kind"] == "program") & (log["status"] == "ok") & (log["level"].astype("str") == "severe")].sort_values("seq")
    assert found.cycles["severe"][0] == programs["cycles"].iloc[:16].min()
    assert found.cycles["severe"][1] == read_progress(b).best["severe"]
    assert main(["compare", str(a.path), str(b.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["levels"]["severe"]["ratio"] == found.ratio("severe")


def test_run_slower_anywhere_fails_a_check(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(runs / "a"), str(runs / "deep" / "b")
    found = compare_runs(open_run(a), open_run(b))
    (fast, slow), most = (a, b), max(map(found.ratio, found.cycles))
    if most <= 1:
        (fast, slow), most = (b, a), 1 / min(map(found.ratio, found.cycles))
    percent = 100 * (most - 1)
    assert percent > 0.1
    assert main(["compare", fast, slow, "--fail-if-slower", f"{percent + 0.05:.2f}%"]) == 0
    assert "nowhere more than" in capsys.readouterr().out
    assert main(["compare", fast, slow, "--fail-if-slower", f"{percent - 0.05:.2f}%", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["slower"]
    assert main(["compare", a, a, "--fail-if-slower", "0%"]) == 0
    assert main(["compare", a, b, "--fail-if-slower", "-2%"]) == 2
    assert "expected a share in percent, e.g. 2%" in capsys.readouterr().err


def test_runs_of_different_machines_compare_by_force_only(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    quick(save_small("conv_chain", tmp_path), other, 8, machine="ascend310")
    with pytest.raises(BadInputError, match="machine"):
        compare_runs(open_run(runs / "a"), open_run(other))
    assert main(["compare", str(runs / "a"), str(other)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["compare", str(runs / "a"), str(other), "--force"]) == 0


def test_a_run_without_rows_has_a_status(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "a", tmp_path / "RUN", ignore=shutil.ignore_patterns("log", "tasks", "parts.json", "summary.json"))
    assert main(["status", str(tmp_path / "RUN")]) == 0
    assert "0 of 32" in capsys.readouterr().out
    assert main(["status", str(runs / "a")]) == 0
    assert "32 of 32" in capsys.readouterr().out


def test_one_figure_of_merit(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """best, ls and the page say the same of what ships; status says the best measured, also before the end, by the last checkpoint."""
    summary = json.loads((runs / "a" / "summary.json").read_text())
    levels = summary["levels"]
    gains = {name: f"{row['baseline_layerwise_cycles'] / row['cycles']:.2f}x" for name, row in levels.items()}
    own = {name: summary["robust"]["own_cycles"][name] if summary["robust"] else row["cycles"] for name, row in levels.items()}
    measured = {name: f"{row['baseline_layerwise_cycles'] / own[name]:.2f}x" for name, row in levels.items()}
    said = []
    for words in (["best", runs / "a"], ["ls", runs], ["status", runs / "a"], ["report", runs / "a", "--out", tmp_path / "r.html"]):
        assert main([str(word) for word in words]) == 0
        said.append(capsys.readouterr().out)
    best, ls, status, _ = said
    page = (tmp_path / "r.html").read_text()
    for name, gain in gains.items():
        assert [row.split()[-2] for row in best.split("\n\n")[0].splitlines() if row.startswith(f"{name} ")] == [gain]
        assert f"{name}={gain}" in ls
        assert [row.split()[-1] for row in status.splitlines() if row.startswith(f"{name} ")] == [measured[name]]
        assert f"<td>{gain}</td>" in page
    shutil.copytree(runs / "a", tmp_path / "RUN", ignore=shutil.ignore_patterns("summary.json"))
    assert main(["status", str(tmp_path / "RUN")]) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == status.splitlines()[-4:]
    (tmp_path / "RUN" / "checkpoint" / "state.json").unlink()
    assert main(["status", str(tmp_path / "RUN"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["baseline_cycles"] == {}
    assert main(["status", str(tmp_path / "RUN")]) == 0


def test_running_and_stopped_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "RUN"
    driver = Driver(save_small("conv_chain", tmp_path), out, 10_000)
    driver.wait_for_parts(2)
    try:
        assert main(["status", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "running"
    finally:
        driver.stop(signal.SIGKILL)
    assert main(["status", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "stopped" in shown
    assert "--resume" in shown
    assert main(["best", str(out)]) == 2
    assert main(["report", str(out)]) == 2
    assert "no summary.json yet, the run is stopped" in capsys.readouterr().err


def test_what_is_no_run(tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["status", str(tmp_path)], ["best", str(tmp_path)], ["report", str(tmp_path)], ["ls", str(tmp_path / "none")]):
        assert main(command) == 2, command
    copy = tmp_path / "copy"
    shutil.copytree(runs / "a", copy)
    (copy / "run.json").write_text('{"run": 1}')
    assert main(["status", str(copy)]) == 2
    assert "run.json: not the identity of a tuning run" in capsys.readouterr().err
    for identity, said in (
        ('{"run": "sweep-0", "machines": []}', "a sweep; give one of its runs"),
        ('{"run": "s", "study_digest": ""}', "a study"),
    ):
        (copy / "run.json").write_text(identity)
        assert main(["best", str(copy)]) == 2
        assert said in capsys.readouterr().err
    assert not list(find_runs(tmp_path))
