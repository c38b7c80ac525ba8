"""The target of the page on targets: it keeps the contract, and a whole run is searched with it, without a record."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from compiler.plan.plan import Plan
from simulator.npu.errors import BadInputError
from tests.docs.fences import ROOT, example_files
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.log.read import read_log
from tuner.measure.npu_target import Npu
from tuner.plugins import files_digest
from tuner.runs.folder import read_json
from tuner.testing.target import TargetContract

PAGE = ROOT / "docs/targets.md"
NAME = "estimate:Estimate"
FEW = ("use.cost_model=false", "segments.measured=2")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from example_files(PAGE, tmp_path, monkeypatch)


@pytest.fixture
def contract(files: Path, monkeypatch: pytest.MonkeyPatch) -> TargetContract:
    monkeypatch.syspath_prepend(files)
    found: TargetContract = importlib.import_module("test_estimate").TestEstimate()
    return found


def test_it_keeps_the_contract(contract: TargetContract) -> None:
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) > 5
    for name in tests:
        getattr(contract, name)()


def test_a_run_is_searched_with_it(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model, run = save_small("residual_block", files), files / "RUN"

    def none(*_: object) -> None:
        raise AssertionError("records were asked for")

    with monkeypatch.context() as patched:
        patched.setattr(Npu, "__init__", none)
        summary = quick(model, run, 12, *FEW, target=NAME)
    log = read_log(run)
    assert set(log["runner"]) == {f"target {NAME}"}
    assert set(log["kind"]) >= {"operator", "program"}
    assert (log["status"] == "ok").mean() > 0.5
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")].groupby("level", observed=True)["cycles"].min()
    assert summary.target is not None
    assert summary.target.name == NAME
    assert summary.target.cycles == {level: int(programs[level]) for level in summary.levels}
    assert (programs >= log.groupby("level", observed=True)["roofline_cycles"].max()).all()
    assert read_json(run / "run.json")["plugins"] == [
        {"kind": "target", "name": NAME, "version": "1", "digest": files_digest(str(files / "estimate.py"))}
    ]
    for level, row in summary.levels.items():  # figures are those of the program that was written
        assert Plan.load(run / "plans" / f"{level}.json").digest == row.plan
    assert main(["run", str(run / "best.onnx"), "--input", "random", "--check"]) == 0
    assert main(["report", str(run)]) == 0
    assert "of another runner" in " ".join(quick(model, files / "NEXT", 4, *FEW, warm_start=(run,)).warm_start)
    capsys.readouterr()
    words = ["tune", str(model), "--machine", "edge", "--target", NAME, "--backend", "serial", "--candidates", "4", "--out"]
    assert main([*words, str(files / "CLI"), "--set", "segments.measured=1"]) == 0
    assert f"searched with target {NAME}, which says none " in capsys.readouterr().out


def test_what_is_no_target_is_refused(files: Path) -> None:
    model = save_small("conv_chain", files)
    for options, why in (
        ({"target": "nobody"}, "--target nobody: unknown; known: npu; or module:name"),
        ({"target": "estimate:results"}, "--target estimate:results: results of estimate has no alone, stage, program"),
        (
            {"target": NAME, "runner": "board:measure"},
            f"runner.name: 'board:measure' runs programs of the NPU, and target.name is '{NAME}'",
        ),
    ):
        with pytest.raises(BadInputError) as caught:
            quick(model, files / "RUN", 4, **options)
        assert why in str(caught.value)
    assert not (files / "RUN").exists()


def test_target_times_are_of_the_simulators_order(contract: TargetContract) -> None:
    """Which is what makes it worth asking: of the segments of the sample, none is more than four times off."""
    mine, npu = (contract.times(target(contract.target_graph, contract.levels)) for target in (contract.target, Npu))
    octaves = [np.abs(np.log2(a[:, 0] / b[:, 0])).max() for a, b in zip(mine, npu, strict=True)]
    assert max(octaves) < 2, octaves
