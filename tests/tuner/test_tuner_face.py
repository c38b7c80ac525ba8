"""`import tuner`: a run and a search in a few lines, their results as frames and figures, and nothing paid for before it is used."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import compiler
import simulator
import tuner
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuning import QUICK, ROOT, VOLATILE, save_small
from tuner.config import load_config
from tuner.log.read import read_log

PROGRAMS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("inception_block", tmp_path_factory.mktemp("face"))


@pytest.fixture(scope="module")
def ran(model: Path) -> tuple[tuner.Summary, Path, list[tuner.Snapshot]]:
    """A run, its folder, and what its progress was told."""
    seen, out = list[tuner.Snapshot](), model.parent / "RUN"
    summary = tuner.tune(
        str(model), machine="edge", out=str(out), candidates=PROGRAMS, backend="serial", overrides=QUICK, progress=seen.append
    )
    return summary, out, seen


def test_a_search_is_the_run_s_own(model: Path, ran: tuple[tuner.Summary, Path, list[tuner.Snapshot]]) -> None:
    """The same champions and the same rows as a run of the same seed and settings, and the caller's own units and levels."""
    summary, out, _ = ran
    result = tuner.Search(model, "edge", candidates=PROGRAMS, settings=QUICK).run()
    assert result.cycles == summary.own_cycles
    pd.testing.assert_frame_equal(result.champions, tuner.open_view(out).champions)
    mine, theirs = (frame.drop(columns=[*VOLATILE, "run"]) for frame in (result.log, read_log(out)))
    pd.testing.assert_frame_equal(mine, theirs, check_categorical=False)
    assert result.tasks == summary.tasks
    assert result.plan("severe") == compiler.Plan.load(out / "plans/own/severe.json")
    assert result.robust == compiler.Plan.load(out / "plans/robust.json")
    alone = tuner.Search(compiler.load(model, "edge").target_graph, candidates=4, settings=QUICK, levels=["severe"]).run()
    assert list(alone.cycles) == ["severe"]
    with pytest.raises(BadInputError, match=naming("level 'none'", "severe")):
        alone.plan("none")


def test_progress_is_told_and_nothing_is_printed(
    model: Path, tmp_path: Path, ran: tuple[tuner.Summary, Path, list[tuner.Snapshot]], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = ran[2]
    assert [snapshot.measured for snapshot in seen] == sorted(snapshot.measured for snapshot in seen)
    assert seen[-1].measured == PROGRAMS
    assert dict(seen[-1].best) == ran[0].own_cycles
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].measured = 0  # type: ignore[misc]
    tuner.tune(model, "edge", tmp_path / "quiet", candidates=2, backend="serial", overrides=QUICK)
    assert capfd.readouterr() == ("", "")


def test_results_as_frames_and_a_figure(ran: tuple[tuner.Summary, Path, list[tuner.Snapshot]]) -> None:
    summary, out, _ = ran
    run = tuner.open_view(str(out))
    champions = run.champions.set_index("level")
    assert champions["cycles"].to_dict() == summary.own_cycles
    baseline = {level: row.baseline_layerwise_cycles for level, row in summary.levels.items()}
    assert champions["speedup"].to_dict() == pytest.approx(
        {level: baseline[level] / cycles for level, cycles in summary.own_cycles.items()}
    )
    curves = run.over_time()
    assert curves.groupby("level")["program"].max().to_dict() == dict.fromkeys(summary.levels, PROGRAMS)
    assert curves.groupby("level")["cycles"].last().to_dict() == champions["cycles"].to_dict()
    assert all(mine["cycles"].is_monotonic_decreasing for _, mine in curves.groupby("level"))
    drawn = tuner.best_so_far(run)
    assert [line.name for line in drawn.data] == list(summary.levels)
    assert [line.y[-1] for line in drawn.data] == pytest.approx(champions["speedup"].tolist())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"machine": "edgy"}, "machine 'edgy': no such preset or file"),
        ({"dtype": "int8"}, "dtype 'int8': expected one of float16, float32"),
        ({"style": "elf"}, "style 'elf': expected one of function, epcontext, epcontext-external"),
        ({"model": "light:nothing"}, "light:nothing: no such network"),
        ({"candidates": 1, "seconds": 1.0}, "give one of candidates, measurements and seconds"),
    ],
)
def test_what_is_wrong_is_a_typed_error(model: Path, tmp_path: Path, wrong: dict[str, object], text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        tuner.tune(**{"model": model, "machine": "edge", "out": tmp_path / "RUN", "backend": "serial", **wrong})  # type: ignore[arg-type]
    assert not (tmp_path / "RUN").exists()


def test_options_are_those_of_the_request() -> None:
    """Declared once: what help() shows is what is taken, and a name that is none is Python's own error."""
    fields = [field.name for field in dataclasses.fields(tuner.TuneRequest)]
    assert sorted(tuner.tune.__signature__.parameters) == sorted(fields)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="candidate"):
        tuner.tune("model.onnx", "edge", "RUN", candidate=3)
    assert tuner.TuneRequest("m.onnx", "edge", "RUN", warm_start=["a"]).warm_start == (Path("a"),)  # type: ignore[arg-type]


def test_a_search_takes_the_budget_of_its_settings(model: Path) -> None:
    result = tuner.Search(model, "edge", settings=[*QUICK, "budget.candidates=3"]).run()
    assert (result.log["kind"] == "program").sum() == 3 * len(result.levels)
    assert load_config(None, ()).budget.candidates != 3


def test_process_of_the_caller_is_unchanged(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for garbage more rarely, and not among what they begin with."""
    monkeypatch.setattr(gc, "get_freeze_count", inspect.unwrap(gc.get_freeze_count))  # see `tests/conftest.py`
    before = gc.get_threshold()
    gc.freeze()  # a caller may have
    tuner.Search(model, "edge", settings=QUICK, candidates=1).run()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count()
    gc.unfreeze()
    tuner.Search(model, "edge", settings=QUICK, candidates=1).run()
    frozen = gc.get_freeze_count()
    gc.freeze()  # as `tests/conftest.py` does
    assert (gc.get_threshold(), frozen) == (before, 0)


def test_a_model_without_a_machine() -> None:
    with pytest.raises(BadInputError, match=r"m\.onnx: no machine given"):
        tuner.Search("m.onnx").run()


def test_importing_costs_nothing() -> None:
    """Names are there, nothing behind them is, until one is used."""
    code = (
        "import sys, tuner, compiler, simulator\n"
        "import json; print(json.dumps([sorted(sys.modules), [m.__all__ for m in (tuner, compiler, simulator)]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules, names = json.loads(done.stdout)
    assert not {"numpy", "numba", "pandas", "onnx", "pydantic", "rich", "typer", "tuner.driver", "compiler.build"} & set(modules)
    assert {"tune", "Search", "TuneRequest", "Summary"} <= set(names[0])
    for module in (tuner, compiler, simulator):
        assert all(getattr(module, name) is not None for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("package", ["compiler", "simulator", "tuner"])
def test_types_are_said_to_be_there(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
