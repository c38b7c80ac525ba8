"""`tilefarm doctor` says what is there, what is missing, and how long it will last."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnx
import pytest

import compiler
from compiler import CompiledModel
from compiler.build import containers_of, package
from compiler.package import onnx_out
from simulator.bundle.write import write_bundle
from simulator.compiled import read_compiled
from simulator.npu.container import Container
from simulator.npu.parts import BLOCK_BYTES
from simulator.npu.program import DdrBuffer
from simulator.onnx_names import Style
from tests.models import Builder
from tests.ray_heads import ray_head
from tests.tuning import ROOT, quick, save_small
from tuner import plugins
from tuner.cli import doctor, main
from tuner.measure import simulator_runner
from tuner.platform import ray_info as facts
from tuner.platform.ray_info import RayNode, ray_facts


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """told(words...) -> exit code, checks by name."""
    monkeypatch.setattr(doctor, "_whole_way", lambda: doctor.CheckResult("left out"))

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["doctor", *words, "--json"])
        return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}

    return run


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """A head with a custom resource; its address."""
    with ray_head(cpus=3, resources={"board": 2}) as head:
        yield head.address


def test_what_ray_has_is_asked_and_left_alone(head: str, told: Any) -> None:
    facts = ray_facts(head)
    assert facts is not None
    assert (facts.cpus, facts.free_cpus, facts.address) == (3, 3, head)
    assert facts.nodes == (RayNode(facts.nodes[0].name, 3, {"board": 2.0}),)
    code, checks = told("--address", head)
    assert code == 0
    assert checks["ray"]["values"]["nodes"][0]["resources"] == {"board": 2.0}
    assert "3 of 3 CPUs free" in checks["ray"]["detail"]
    assert ray_facts(head) == facts, "it is still there"


def test_ray_is_asked_where_its_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with subprocess.Popen([sys.executable, "-c", "input()", "--gcs-address=127.0.0.1:1"], stdin=subprocess.PIPE) as told:
        assert facts._runs_here()
        told.communicate(b"\n")
    asked: list[list[str]] = []
    monkeypatch.setattr(facts, "_runs_here", lambda: False)
    monkeypatch.setattr(facts.subprocess, "run", lambda command, **_: asked.append(command))
    assert ray_facts(None) is None
    assert not asked


def test_a_ray_that_does_not_answer(told: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        start = time.monotonic()
        code, checks = told("--address", f"127.0.0.1:{closed.getsockname()[1]}")
    assert code == 1
    assert checks["ray"]["state"] == "FAILED"
    assert "no Ray head answers there" in checks["ray"]["detail"]
    assert time.monotonic() - start < 20
    assert {name for name, check in checks.items() if check["state"] != "ok"} == {"ray"}


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "ray_facts", lambda address: None)


@pytest.mark.usefixtures("no_ray")
def test_what_is_missing_is_named(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> str:
        if name in ("ray", "xgboost"):
            raise PackageNotFoundError(name)
        return version(name)

    assert told()[1]["libraries"]["values"]["numba"] == version("numba")
    monkeypatch.setattr(doctor, "version", without)
    code, checks = told()
    assert code == 1
    assert checks["libraries"]["detail"].startswith("not installed: ray, xgboost (python ")
    assert checks["ray"]["values"] == {"address": None}


@pytest.mark.usefixtures("no_ray")
def test_how_fast_a_log_grows(told: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick(save_small("conv_chain", tmp_path), run, 8)
    parts = sorted(path for name in ("log", "tasks") for path in (run / name).glob("*.parquet"))
    now = time.time()
    for part in parts:
        os.utime(part, (now, now))
    values = told(str(run))[1]["log of RUN"]["values"]
    assert values == {"bytes": sum(p.stat().st_size for p in parts), "parts": len(parts), "bytes_per_day": None, "days_until_full": None}
    for name in ("log", "tasks"):
        os.utime(run / name / "00000000.parquet", (now - 1800, now - 1800))
    code, checks = told(str(run))
    assert code == 0
    values = checks["log of RUN"]["values"]
    assert values["bytes_per_day"] == pytest.approx(48 * values["bytes"], rel=1e-4)
    assert values["days_until_full"] == pytest.approx(checks["disk of RUN"]["values"]["free_bytes"] / values["bytes_per_day"], rel=0.1)
    for name in ("log", "tasks"):  # a session of long ago says nothing about today's rate
        os.utime(run / name / "00000000.parquet", (now - 864_000, now - 864_000))
    assert told(str(run))[1]["log of RUN"]["values"]["bytes_per_day"] is None
    code, checks = told(str(tmp_path))
    assert code == 1
    assert "no run.json here" in checks["log of RUN"]["detail"]


@pytest.mark.usefixtures("no_ray")
def test_the_kernel_cache_is_found(told: Any) -> None:
    folder = Path(told()[1]["kernel cache"]["values"]["path"])
    assert folder.name.startswith("kernels-")

    def size() -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    before, said = size(), told()[1]["kernel cache"]["values"]["bytes"]
    assert before <= said <= size()  # others may compile meanwhile


@pytest.mark.usefixtures("no_ray")
def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    """By processes of their own: numba is told once where its kernels are."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    env = {key: value for key, value in os.environ.items() if key not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    env |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}

    def checks(before: str = "", **more: str) -> tuple[int, dict[str, Any]]:
        words = [sys.executable, "-c", f"import sys, tempfile\n{before}\nfrom tuner.cli import main\nsys.exit(main(['doctor', '--json']))"]
        done = subprocess.run(words, env={**env, **more}, capture_output=True, text=True, check=False)
        return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    code, told = checks()
    assert code == 0
    assert f"{tmp_path / 'file/.cache/tilefarm'} cannot be written" in told["kernel cache"]["detail"]
    assert Path(told["kernel cache"]["values"]["path"]).is_relative_to(tmp_path / "tmp")
    assert "token in the environment" in told["ray's folders"]["detail"]
    code, told = checks("tempfile._candidate_tempdir_list = lambda: []", RAY_TMPDIR=str(tmp_path / "file"))
    assert code == 1
    states = {name: (told[name]["state"], told[name]["detail"]) for name in ("temporary folder", "kernel cache", "ray's folders")}
    assert {state for state, _ in states.values()} == {"FAILED"}
    assert "set TMPDIR" in states["temporary folder"][1]
    assert "set NUMBA_CACHE_DIR" in states["kernel cache"][1]
    assert "RAY_TMPDIR" in states["ray's folders"][1]


@pytest.fixture(scope="module")
def two_outputs(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    b = Builder(np.random.default_rng(0), (1, 16, 4, 4))
    y = b.conv("x", 16)
    return compiler.compile(b.model(b.node("Sigmoid", [y]), y), "edge", layerwise=True)


@pytest.fixture
def looked_at(two_outputs: CompiledModel, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """looked_at(change, style) -> exit code, states and details of the checks of a file whose container was changed."""
    monkeypatch.setattr(onnx_out, "_check_ports", lambda graph, container: None)

    def look(change: Callable[[Container], Container], style: Style = "function") -> tuple[int, list[tuple[str, str]]]:
        containers = containers_of(two_outputs.opened, two_outputs.measured)
        package(two_outputs.opened, [change(container) for container in containers], tmp_path / "out.onnx", style)
        code, checks = told(str(tmp_path / "out.onnx"))
        found = [(checks[name]["state"], checks[name]["detail"]) for name in ("ports of FILE", "values of FILE")]
        assert checks["values of FILE"]["values"]["faults"] == (None if found[1][0] == "unknown" else [] if found[1][0] == "ok" else ANY)
        return code, found

    return look


AGAIN = "; make it anew: `tilefarm compile MODEL`, or `tilefarm export RUN` where a run made it"


def with_buffers(container: Container, buffers: Sequence[DdrBuffer]) -> Container:
    return replace(container, memory=replace(container.memory, buffers=tuple(buffers)))


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("style", ["function", "epcontext"])
def test_a_compiled_file_that_is_right(looked_at: Any, style: Style) -> None:
    code, (ports, values) = looked_at(lambda container: container, style)
    assert (code, ports) == (0, ("ok", "in the model's order, of its shapes"))
    assert values[0] == ("ok" if style == "function" else "unknown")
    assert values[1].startswith("3 levels, random input; max|out-ref|" if style == "function" else "has no model to compare with")


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("style", ["function", "epcontext"])
def test_ports_in_another_order_or_of_another_shape(looked_at: Any, two_outputs: CompiledModel, style: Style) -> None:
    first, second = (port.name for port in two_outputs.opened.model.graph.output)

    def swapped(container: Container) -> Container:
        inputs, outputs = container.memory.of_kind("input"), container.memory.of_kind("output")
        rest = [b for b in container.memory.buffers if b not in (*inputs, *outputs)]
        return with_buffers(container, [*rest, *inputs, *reversed(outputs)])

    code, (ports, values) = looked_at(swapped, style)
    assert (code, ports) == (1, ("FAILED", f"Partition0: outputs are {second}, {first}; in the model {first}, {second}{AGAIN}"))
    assert values[0] == ("ok" if style == "function" else "unknown")

    def flat(container: Container) -> Container:
        return with_buffers(container, [replace(b, onnx_shape=(1, 256)) if b.name == second else b for b in container.memory.buffers])

    code, (ports, values) = looked_at(flat, style)
    assert (code, ports) == (1, ("FAILED", f"Partition0: output {second!r} has shape [1, 256], in the model [1, 16, 4, 4]{AGAIN}"))
    if style == "function":
        assert values == ("FAILED", f"{second!r}: shape [1, 256], onnxruntime's [1, 16, 4, 4]{AGAIN}")


@pytest.mark.usefixtures("no_ray")
def test_values_that_are_wrong(looked_at: Any, two_outputs: CompiledModel) -> None:
    def biased(container: Container) -> Container:
        constants = np.frombuffer(bytes(container.constants), np.uint8).copy()
        (bias,) = (b for b in container.memory.buffers if b.kind == "constant" and b.name.endswith("/bias"))
        constants[bias.offset_blocks * BLOCK_BYTES :][:64].view(np.float32)[0] += 1
        return replace(container, constants=constants)

    first, _ = (port.name for port in two_outputs.opened.model.graph.output)
    code, (ports, values) = looked_at(biased)
    assert (code, ports[0], values[0]) == (1, "ok", "FAILED")
    assert values[1].startswith(f"{first!r}: max|out-ref|/max|ref| 0.")
    assert values[1].endswith(f" (and 1 more){AGAIN}")


@pytest.mark.usefixtures("no_ray")
def test_a_file_that_the_host_runs(told: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 4, 4))
    onnx.save(b.model(b.node("Cos", ["x"])), tmp_path / "model.onnx")
    assert main(["compile", str(tmp_path / "model.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]) == 0
    capsys.readouterr()
    code, checks = told(str(tmp_path / "out.onnx"))
    assert (code, checks["values of FILE"]["state"]) == (0, "ok")
    assert checks["values of FILE"]["detail"] == "nothing of it runs on the NPU; onnxruntime runs the model as it is"


@pytest.mark.usefixtures("no_ray")
def test_what_is_no_compiled_file(two_outputs: CompiledModel, told: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(two_outputs.opened.model, tmp_path / "model.onnx")
    code, checks = told(str(tmp_path / "model.onnx"))
    assert (code, checks["values of FILE"]["detail"]) == (1, f"{tmp_path / 'model.onnx'}: holds no container: compile it first")
    two_outputs.save(tmp_path / "out.onnx")
    write_bundle(read_compiled(tmp_path / "out.onnx"), tmp_path / "bundle", "")
    assert main(["doctor", str(tmp_path / "bundle")]) == 2
    assert "a bundle has no model to be held against; expected the compiled ONNX file" in capsys.readouterr().err


def completed(line: str, tmp_path: Path) -> list[str]:
    words = line.split(" ")
    environment = {**os.environ, "_TILEFARM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([sys.executable, "-m", "tuner"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_shell_completes(tmp_path: Path) -> None:
    assert completed("tilefarm st", tmp_path) == ["study", "status", "store"]
    assert completed("tilefarm log mi", tmp_path) == ["migrate"]
    assert completed("tilefarm tune --mir", tmp_path) == ["--mirror"]
    assert completed("tilefarm tune m.onnx --machine ascend3", tmp_path) == ["ascend310", "ascend310-l2", "ascend310p"]


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "tuner", "--install-completion", "bash"]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "_TILEFARM_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "tilefarm.sh").read_text()
    assert "tilefarm.sh" in (tmp_path / ".bashrc").read_text()


@pytest.mark.usefixtures("no_ray")
def test_a_check_is_told_when_it_is_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not all at the end: what hangs, or dies, is the one that is missing."""

    def dies() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "_whole_way", dies)
    assert main(["doctor", "--whole"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["python", "libraries", "machines", "plug-ins", "temporary", "kernel", "ray's", "ray"]
    assert all(" ok " in line for line in lines)


def test_what_is_plugged_in_is_listed(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    points = {"tilefarm.runners": [EntryPoint("board", "tuner.measure.simulator_runner:measure", "tilefarm.runners")]}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.get(group, []))
    code, checks = told()
    assert code == 0
    (row,) = checks["plug-ins"]["values"]["plugins"]
    assert row == {"kind": "runner", "name": "board", "version": "", "from": simulator_runner.__file__}
    assert checks["plug-ins"]["values"]["built_in"]["cost model"] == ["boosted_trees"]
    points["tilefarm.cost_models"] = [EntryPoint("flat", "no_such_module:Flat", "tilefarm.cost_models")]
    code, checks = told()
    assert (code, checks["plug-ins"]["state"]) == (1, "FAILED")
    assert checks["plug-ins"]["detail"].startswith("model.name flat: no module no_such_module")
