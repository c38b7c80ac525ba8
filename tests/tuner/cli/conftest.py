"""A small model for the command line: as it is, compiled, planned, and as a run leaves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from compiler.build import build_variants, default_plan, package
from compiler.model import ModelSpec, lower_model
from compiler.plan.plan import Plan
from simulator.npu.machine_file import load_machine
from tests.models import small_model
from tuner.cli import main
from tuner.platform.local_files import LocalPath
from tuner.runs.model_source import write_source

LEVELS = ("none", "slight", "severe")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Run:
    """cli(arguments...) -> exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "conv_chain.onnx"
    onnx.save(small_model("conv_chain"), path)
    return path


@pytest.fixture(scope="session")
def compiled(model: Path) -> Path:
    path = model.parent / "compiled.onnx"
    assert main(["compile", str(model), "--machine", "edge", "--layerwise", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def plans(model: Path) -> tuple[Plan, Plan]:
    """Two plans of the model on edge: the default one, and one with a segment in two blocks."""
    plan = default_plan(lower_model(ModelSpec(model, load_machine("edge"))).target_graph)
    first = plan.segments[0].model_copy(update={"blocks": 2})
    return plan, plan.model_copy(update={"segments": (first, *plan.segments[1:])})


@pytest.fixture
def run_folder(model: Path, tmp_path: Path, plans: tuple[Plan, Plan]) -> Path:
    """What a run leaves: plans, the source, the compiled file."""
    run = tmp_path / "run"
    (run / "plans").mkdir(parents=True)
    chosen = dict(zip(LEVELS, (plans[0], plans[1], plans[0]), strict=True))
    for level, plan in chosen.items():
        (run / "plans" / f"{level}.json").write_text(plan.to_json())
    copied = tmp_path / model.name
    copied.write_bytes(model.read_bytes())
    opened = lower_model(ModelSpec(copied, load_machine("edge")))
    write_source(LocalPath(run), opened.source, opened.target_graph.graph.digest)
    package(opened, [build_variants(opened.packed[0], chosen)], run / "best.onnx")
    return run


@pytest.fixture(autouse=True)
def quiet_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress of plans in these tests: a busy computer takes longer than the seconds after which it begins."""
    monkeypatch.setattr("tuner.cli.predicted_plans._FIRST_LINE_S", 3600.0)
