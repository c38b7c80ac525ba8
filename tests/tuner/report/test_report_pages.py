"""The pages of a study and of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simulator.npu.errors import BadInputError
from tests.html_page import HOSTILE, Page, assert_navigation_names_headings, assert_offline
from tests.messages import naming
from tests.rows import write_index
from tuner.cli import main
from tuner.config import Choice, Range, TuneConfig, load_config
from tuner.farm.isolated_map import each_here
from tuner.platform.local_files import LocalPath
from tuner.report.study_page import importances, study_page
from tuner.report.sweep_page import sweep_page
from tuner.runs.folder import read_json
from tuner.study.curve import CellCurve
from tuner.study.trial_driver import StudySpec, run_study

CONFIG = load_config(None, ["study.batch=4", "study.startup=30"])


def only_proposed_counts(model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve:
    return CellCurve({"none": [(config.search.proposed - 0.3) ** 2 - 0.5] * len(counts)}, 0.0)


def failing(model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve:
    if config.search.proposed > 0.8:
        raise RuntimeError(HOSTILE)
    return only_proposed_counts(model, machine, config, seed, counts, folder)


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "study"
    run_study(out, StudySpec((HOSTILE,), "tiny", (0,), CONFIG, trials=24), failing, each_here, say=quiet)
    return out


def test_study_shows_best_and_failures_and_nothing_hostile(folder: Path) -> None:
    text, summary = study_page(LocalPath(folder)), read_json(folder / "summary.json")
    read = Page(text)
    assert_offline(read)
    assert f"{1 / summary['best']['ratio_to_baseline']:.4f}x" in text
    assert_navigation_names_headings(read)
    failed = [trial for trial in summary["trials"] if trial["value"] is None]
    assert failed
    assert text.count(f"RuntimeError: {escape(HOSTILE)}") == len(failed)
    assert not any("onerror" in attrs for _, attrs in read.tags)
    empty = [name for name, figure in read.data.items() if not figure["data"]]  # type: ignore[index]
    assert read.data
    assert not empty


@pytest.mark.parametrize("trials", [1, 12])
def test_trials_that_are_alike_look_alike(tmp_path: Path, trials: int) -> None:
    """Axes show what the values are of, not the last digits in which they differ; trials are whole numbers."""

    def alike(model: str, machine: str, config: TuneConfig, seed: int, counts: Sequence[int], folder: str) -> CellCurve:
        return CellCurve({"none": [-0.5 + 1e-12 * config.search.proposed] * len(counts)}, 0.0)

    config = load_config(None, [f"study.batch={min(4, trials)}", "study.startup=30"])
    run_study(tmp_path / "s", StudySpec(("net",), "tiny", (0,), config, trials=trials), alike, each_here, say=quiet)
    figures = [figure["layout"] for figure in Page(study_page(LocalPath(tmp_path / "s"))).data.values()]  # type: ignore[index]
    assert len(figures) == 2 + len(config.study.parameters)
    for layout in figures[1:]:
        low, high = layout["yaxis"]["range"]
        assert low < math.exp(0.5) < high
        assert high - low == pytest.approx(0.02 * math.exp(0.5), rel=0.01)
    _, history, *slices = figures
    assert history["xaxis"]["range"] == [-0.5, trials - 0.5]
    assert history["xaxis"]["dtick"] == 1
    for layout, span in zip(slices, config.study.parameters.values(), strict=True):
        if isinstance(span, Choice):
            assert layout["xaxis"]["categoryarray"] == list(span.choices)
            continue
        low, high = (10**end if layout["xaxis"].get("type") == "log" else end for end in layout["xaxis"]["range"])
        assert low < span.low
        assert high > span.high


def test_what_decides_is_named_first() -> None:
    spans = {"a": Range(low=0.0, high=1.0), "b": Range(low=1, high=64, log=True)}
    trials: list[dict[str, Any]] = [
        {"params": {"a": i * 0.37 % 1.0, "b": 1 + i * 29 % 64}, "value": (i * 0.37 % 1.0) ** 2} for i in range(40)
    ]
    found = importances(trials, spans)
    assert list(found) == ["a", "b"]
    assert found["a"] > 0.7
    assert math.isclose(sum(found.values()), 1.0)
    assert importances(trials[:3], spans) == {}
    assert importances([{**trial, "value": 1.0} for trial in trials], spans) == {}


def index(folder: Path, states: Sequence[str]) -> None:
    rows = []
    for seed, state in enumerate(states):
        row: dict[str, Any] = {
            "path": f"net-edge-s{seed}",
            "model": HOSTILE,
            "machine": "edge",
            "seed": seed,
            "state": state,
            "error": HOSTILE,
        }
        if state != "done":
            rows.append(row)
            continue
        for level, same_as in (("none", None), ("severe", "none")):
            facts = {"cycles": 100 + seed, "latency_us": 1.5, "speedup": 1.25 + seed, "roofline_cycles": 50, "max_rel_error": 1e-3}
            rows.append({**row, "error": None, "level": level, "same_as": same_as, "candidates": 8, "wall_s": 2.0, **facts})
    folder.mkdir()
    (folder / "run.json").write_text('{"run": "sweep-0", "models": [], "machines": []}')
    write_index(folder, pd.DataFrame(rows))


def test_a_sweep_shows_gains_and_what_is_left(tmp_path: Path) -> None:
    index(tmp_path / "sweep", ("done", "done", "done", "failed", "waiting"))
    text = sweep_page(LocalPath(tmp_path / "sweep"))
    assert "2.25x (1.25x … 3.25x)" in text
    assert "severe (as none)" in text
    assert "Sweep of 1 model on edge" in text
    assert "3 of 5 runs done · 5 seeds" in text
    assert "<code>tilefarm report</code> of a folder" in text
    read = Page(text)
    assert_navigation_names_headings(read)
    assert_offline(read)
    assert not any("onerror" in attrs for _, attrs in read.tags)


def test_report_knows_which_folder_it_is_given(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--out", str(tmp_path / "a.html")]) == 0
    assert "Which settings mattered" in (tmp_path / "a.html").read_text()
    capsys.readouterr()
    assert main(["status", str(folder)]) == 0
    assert "trials done  24 of 24" in capsys.readouterr().out
    index(tmp_path / "sweep", ("done",))
    assert main(["report", str(tmp_path / "sweep")]) == 0
    assert "Speed-up by seed" in (tmp_path / "sweep" / "report.html").read_text()
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    assert "expected a folder that `tilefarm tune`, `study` or `sweep` wrote" in capsys.readouterr().err


def test_what_has_not_begun_has_no_page(tmp_path: Path) -> None:
    index(tmp_path / "sweep", ("waiting",))
    with pytest.raises(BadInputError, match=naming("1 runs")):
        sweep_page(LocalPath(tmp_path / "sweep"))
    with pytest.raises(BadInputError, match="not there; a study writes it"):
        study_page(LocalPath(tmp_path))
    (tmp_path / "summary.json").write_text('{"version": 1}')
    with pytest.raises(BadInputError, match=naming("version 1", 3)):
        study_page(LocalPath(tmp_path))
