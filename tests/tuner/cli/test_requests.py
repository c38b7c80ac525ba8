"""`tune` and `study`: every option reaches the driver, and an interrupted run says how to go on."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.runs.list_runs import SUMMARY_VERSION
from tuner.tune_request import StudyRequest, TuneRequest


def bound(cycles: int) -> dict[str, object]:
    """What a level of a summary says of its bound."""
    return {"bound": {"cycles": cycles, "engines": cycles, "prefetch": 1, "traffic": 9, "ddr_bytes": 8}, "ddr_bytes": 16}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    """Requests that a driver in place of the real one was given; it leaves a summary."""
    requests: list[TuneRequest] = []

    def drive(request: TuneRequest) -> None:
        requests.append(request)
        ddr = {"share": 1.0, "latency_cycles": 0}
        level = {"ddr": ddr, "cycles": 50, "latency_us": 0.05, "plan": "a" * 32, "same_as": None, "roofline_cycles": 10, **bound(20)}
        request.out.mkdir(parents=True, exist_ok=True)
        summary = {
            "status": "done",
            "unconfirmed": [],
            "target": None,
            "model": "m",
            "machine": "edge",
            "robust": None,
            "stopped": ["budget"],
            "levels": {"none": {**level, "baseline_layerwise_cycles": 100}},
        }
        (request.out / "summary.json").write_text(json.dumps(summary))

    module = types.ModuleType("tuner.driver")
    module.tune = drive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.driver", module)
    return requests


def test_tune_hands_over_every_option(cli, asked, tmp_path):
    text = (
        f"tune m.onnx --machine edge --out {tmp_path / 'run'} --candidates 7 --seed 3 --config quick --set search.generation=8 "
        "--set a.b=c --level-weights none=1,severe=3 --backend serial --address auto --workers 2 --wait 5 --resume --style epcontext "
        "--tag b=2 --tag a=1 --dtype float32 --shape x=1,3,8,8 --random-weights 4 --mirror s3://b/run --store s3://b/store "
        "--runner m:f --target n:T --max-core-hours 1.5 "
        "--resource npu --variants 2 --quiet --json"
    )
    code, out, err = cli(*text.split())
    assert (code, err) == (0, "")
    assert json.loads(out)["status"] == "done"
    assert asked == [
        TuneRequest(
            model=Path("m.onnx"), machine="edge", out=tmp_path / "run", candidates=7, max_core_hours=1.5, seed=3, config="quick",
            overrides=("search.generation=8", "a.b=c"), level_weights={"none": 1.0, "severe": 3.0}, backend="serial", address="auto",
            workers={"min": 2, "max": 2}, wait_s=5.0, resume=True, style="epcontext", tag="a=1,b=2", dtype="float32",
            shapes={"x": (1, 3, 8, 8)}, random_weights=4, quiet=True, mirror="s3://b/run", store="s3://b/store", target="n:T",
            runner="m:f", resource="npu", variants=2,
        )
    ]  # fmt: skip
    other = tmp_path / "an other"
    out = cli("tune", "m.onnx", "--machine", "edge", "--out", other)[1]
    assert out.splitlines()[1].split() == ["none", "1", "aaaaaaaa", "50", "0.1", "us", "100", "2.00x", "10"]
    assert f"next: tilefarm report '{other}'; tilefarm run '{other}/best.onnx' --input random --check" in out  # as a shell takes it
    assert asked[1] == TuneRequest(model=Path("m.onnx"), machine="edge", out=other, quiet=False)
    code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "c", "--candidates", 1, "--seconds", 1)
    assert code == 2
    assert "give one of them" in err
    for hours in ("0", "-1", "nan", "inf"):
        code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "c", "--max-core-hours", hours)
        assert (code, err) == (2, f"tilefarm: --max-core-hours {hours}: expected a number of hours above 0\n")
    code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "c", "--workers", "4:2")
    assert (code, err) == (2, "tilefarm: --workers 4:2: expected N, or MIN:MAX, with 1 or more and MAX not below MIN\n")


def test_study_hands_over_every_option(cli, monkeypatch, tmp_path):
    requests: list[StudyRequest] = []

    def drive(request: StudyRequest, say: Callable[[str], None]) -> dict[str, object]:
        requests.append(request)
        say("batch 1 of 1")
        best = {"trial": 1, "ratio_to_baseline": 0.5, "params": {"search.generation": 8, "search.order": "file"}}
        return {"trials_done": 2, "best": best, "models": ["a"], "seeds": [0, 1], "cpu_s": 1800.0}

    module = types.ModuleType("tuner.study.run_study")
    module.study = drive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.study.run_study", module)
    text = (
        f"study a.onnx b.onnx --machine edge --out {tmp_path} --trials 4 --seeds 2 --seed 3 --storage sqlite:///s.db --measurements 5 "
        "--config quick --set study.batch=2 --backend serial --address auto --workers 2:5 --wait 5 --resume --dtype float32 "
        "--random-weights 1 --quiet --json"
    )
    code, out, err = cli(*text.split())
    assert (code, err) == (0, "")
    assert json.loads(out)["trials_done"] == 2
    assert requests == [
        StudyRequest(
            models=(Path("a.onnx"), Path("b.onnx")), machine="edge", out=tmp_path, trials=4, seeds=2, seed=3, storage="sqlite:///s.db",
            measurements=5, config="quick", overrides=("study.batch=2",), backend="serial", address="auto",
            workers={"min": 2, "max": 5}, wait_s=5.0, resume=True, dtype="float32", random_weights=1, quiet=True,
        )
    ]  # fmt: skip
    code, out, err = cli("study", "a.onnx", "--machine", "edge", "--out", tmp_path)
    assert (code, err) == (0, "batch 1 of 1\n")
    assert "best is trial 1, 2.00x the untuned plan in the mean over log(readings)" in out
    assert "0.50 CPU hours" in out
    assert "search.order" in out
    assert requests[1] == StudyRequest((Path("a.onnx"),), "edge", out=tmp_path)


def test_an_interrupted_run_says_how_to_go_on(cli, monkeypatch, tmp_path):
    def stop(request: TuneRequest) -> None:
        request.out.mkdir()
        (request.out / "run.json").write_text("{}")
        raise KeyboardInterrupt

    module = types.ModuleType("tuner.driver")
    module.tune = stop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tuner.driver", module)
    code, _, err = cli("tune", "m.onnx", "--machine", "edge", "--out", tmp_path / "run")
    assert code == 130
    assert "--resume continues it" in err


@pytest.mark.parametrize(("cycles", "latency_us"), [(129_935, 129.935), (99_999_999, 99_999.999)])
def test_the_result_fits_eighty_columns(cli, monkeypatch, tmp_path, cycles, latency_us):
    ddr = {"share": 0.125, "latency_cycles": 40}
    level = {"ddr": ddr, "cycles": cycles, "latency_us": latency_us, "plan": "a" * 32, "roofline_cycles": cycles, **bound(cycles)}
    rows = {name: {**level, "same_as": same, "baseline_layerwise_cycles": cycles} for name, same in (("none", None), ("severe", "none"))}
    (tmp_path / "run.json").write_text(json.dumps({"run": "r", "model": "m", "machine": "edge", "levels": list(rows), "seed": 0}))
    each = dict.fromkeys(rows, cycles)
    robust = {"plan": "b" * 32, "cycles": each, "own_cycles": each, "own_plan": dict.fromkeys(rows, "a" * 32), "one_level": "none"}
    robust |= {"one_level_cycles": each, "displaced": [], "not_judged": None, "says": "Variants do not pay for m on edge: so be it."}
    summary = {"schema_version": SUMMARY_VERSION, "status": "done", "run": "r", "unconfirmed": [], "robust": robust, "levels": rows}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    code, out, _ = cli("best", tmp_path)
    assert code == 0
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert out.splitlines()[-2] == robust["says"]
    assert f"{cycles:,}" in out
