"""`compiler.load`, `compiler.compile`, and `python -m compiler`: a file as `tilefarm compile` writes it, without the tuner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import compiler
import simulator
from compiler.__main__ import app as compiling
from simulator.__main__ import app as simulating
from simulator.command import run_command
from simulator.compiled import read_compiled
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuning import ROOT, save_small
from tuner.cli import main as tilefarm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("face"))


def test_the_file_is_the_command_s(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layer by layer and with a plan; the cycles are those that the file says."""
    compiled = compiler.compile(model, machine="edge")
    compiled.save(tmp_path / "a.onnx")
    assert tilefarm(["compile", str(model), "--machine", "edge", "--out", str(tmp_path / "b.onnx")]) == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    said = read_compiled(tmp_path / "a.onnx")
    assert {level: compiled.cycles(level) for level in compiled.levels} == {level: said.cycles(level)[level] for level in said.levels}
    (tmp_path / "plan.json").write_text(compiled.plan("none").to_json())
    words = [str(model), "--machine", "edge", "--out", str(tmp_path / "c.onnx"), "--plan", str(tmp_path / "plan.json")]
    capsys.readouterr()
    assert run_command(compiling, "python -m compiler", words) == 0
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()
    assert capsys.readouterr().out.splitlines() == [f"{level}: {compiled.cycles(level):,} cycles" for level in compiled.levels]


def test_a_model_is_loaded_once_for_many_plans(model: Path, tmp_path: Path) -> None:
    opened = compiler.load(model, "edge")
    plan = compiler.compile(opened).plan("none")
    segments = tuple(segment.model_copy(update={"prefetch": 1}) for segment in plan.segments)
    changed = plan.model_copy(update={"segments": segments})
    other = compiler.compile(opened, plan={"none": plan, "severe": changed})
    other.save(tmp_path / "x.onnx", style="epcontext")
    made = read_compiled(tmp_path / "x.onnx")
    assert made.levels == other.levels == ("none", "severe")
    assert [made.plan(level) for level in made.levels] == [plan.digest, changed.digest]


def test_model_is_a_path_bytes_or_a_proto(model: Path, tmp_path: Path) -> None:
    """A name is none of them: those are the tuner's."""
    for i, each in enumerate((model, str(model), model.read_bytes(), onnx.load(model))):
        compiler.compile(each, "edge").save(tmp_path / f"{i}.onnx")
    assert len({(tmp_path / f"{i}.onnx").read_bytes() for i in range(4)}) == 1
    with pytest.raises(BadInputError, match="made:mobilenet_v2-small: no such file"):
        compiler.load("made:mobilenet_v2-small", "edge")
    with pytest.raises(BadInputError, match="model: not an ONNX file"):
        compiler.load(b"no model", "edge")
    with pytest.raises(BadInputError, match="model: no machine given"):
        compiler.compile(model.read_bytes())


def test_what_is_wrong_is_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = compiler.compile(model, "edge")
    with pytest.raises(BadInputError, match=naming("level 'heavy'", "none, slight, severe")):
        compiled.cycles("heavy")
    with pytest.raises(BadInputError, match="no machine given"):
        compiler.compile(model)
    with pytest.raises(BadInputError, match="made for machine"):
        compiler.compile(model, "tiny", compiled.plan("none"))
    with pytest.raises(BadInputError, match=r"nowhere\.json: cannot be read"):
        compiler.Plan.load("nowhere.json")
    capsys.readouterr()
    assert run_command(compiling, "python -m compiler", [str(model), "--machine", "edgy", "--out", str(tmp_path / "x.onnx")]) == 2
    assert run_command(compiling, "python -m compiler", [str(model)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("python -m compiler: machine 'edgy': no such preset or file")
    assert "see python -m compiler --help" in lines[1]
    assert len(lines) == 2


def test_a_file_is_timed_and_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = compiler.compile(model, "edge")
    compiled.save(tmp_path / "a.onnx")
    session = simulator.InferenceSession(tmp_path / "a.onnx")
    (port,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)
    np.savez(tmp_path / "x.npz", **{port.name: x})
    words = [str(tmp_path / "a.onnx"), "--level", "severe", "--input", str(tmp_path / "x.npz"), "--out", str(tmp_path / "y.npz")]
    assert run_command(simulating, "python -m simulator", words) == 0
    assert capsys.readouterr().out.startswith(f"severe: {compiled.cycles('severe'):,} cycles, ")
    with np.load(tmp_path / "y.npz") as made:
        for name, value in zip(made.files, session.run(made.files, {port.name: x}, level="severe"), strict=True):
            assert np.array_equal(made[name], value)
    assert run_command(simulating, "python -m simulator", [str(tmp_path / "x.npz")]) == 2
    assert run_command(simulating, "python -m simulator", [str(tmp_path / "a.onnx"), "--out", "y.npz"]) == 2
    assert "y.npz: goes with --input" in capsys.readouterr().err


def test_a_bug_is_told_from_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.outputs.check_out", lambda *_: 1 // 0)
    words = ["model.onnx", "--machine", "edge", "--out", "x.onnx"]
    assert run_command(compiling, "python -m compiler", words) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setattr("simulator.outputs.check_out", interrupted)
    assert run_command(compiling, "python -m compiler", words) == 130


def test_compiling_imports_no_tuner(model: Path, tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['compiler', {str(model)!r}, '--machine', 'edge', '--out', {str(tmp_path / 'x.onnx')!r}]\n"
        "try:\n    runpy.run_module('compiler', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'tuner']"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
