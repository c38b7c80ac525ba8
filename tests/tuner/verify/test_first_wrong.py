"""A check that fails says which operator is to blame, whether it is wrong alone or only where it runs together with others."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.build import containers_of, default_by_level, measure, package
from compiler.ir.operators import Operator, Step, Vector
from compiler.model import ModelSpec, lower_model
from compiler.rewrites.engine import GraphView, Match, RewriteRule
from compiler.rewrites.rules import RULES
from simulator.npu.machine_file import load_machine
from tests.models import Builder
from tuner.cli import main

Capture = pytest.CaptureFixture[str]


def chain(folder: Path) -> Path:
    """Operators `op0` to `op5`: three times a convolution and a function behind it."""
    b = Builder(np.random.default_rng(0), (1, 16, 4, 4))
    y = "x"
    for function in ("Tanh", "Sigmoid", "Tanh"):
        y = b.node(function, [b.conv(y, 16)])
    model = b.model(y)
    for k, node in enumerate(model.graph.node):
        node.name = f"op{k}"
    onnx.save(model, folder / "chain.onnx")
    return folder / "chain.onnx"


def plant(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """A rewrite that adds something to what op3 makes: where nothing but op3 reads what it reads, or always."""

    def fault(op: Operator, view: GraphView) -> Match | None:
        if op.name != "op3" or not isinstance(op, Vector) or (fused and not view.only_use(op.inputs[0])):
            return None
        return Match((op,), (replace(op, name="op3, planted", steps=(*op.steps, Step("adds", 0.5))),))

    monkeypatch.setattr(importlib.import_module("compiler.frontend.lower"), "RULES", (RewriteRule("planted", fault), *RULES))


def checked(path: Path, capsys: Capture) -> tuple[int, list[str]]:
    """Exit code of a check, and the lines that say FAILED."""
    capsys.readouterr()
    code = main(["run", str(path), "--input", "random", "--check"])
    return code, [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]


@pytest.mark.parametrize("fused", [False, True], ids=["alone", "fused"])
def test_first_operator_with_a_wrong_value_is_named(fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    out = tmp_path / "out.onnx"
    plant(monkeypatch, fused)
    assert main(["compile", str(chain(tmp_path)), "--machine", "edge", "--layerwise", "--out", str(out)]) == 0
    code, lines = checked(out, capsys)
    tensor = onnx.load(tmp_path / "chain.onnx").graph.node[3].output[0]
    assert (code, len(lines)) == (1, 2)
    assert lines[1].startswith(f"FAILED the first operator whose value is wrong is Sigmoid 'op3', which makes {tensor!r}: max|out-ref|")


def test_file_of_a_since_repaired_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    plant(monkeypatch, fused=False)
    words = ["compile", str(chain(tmp_path)), "--machine", "edge", "--layerwise", "--out", str(tmp_path / "out.onnx"), "--check", "--json"]
    assert main(words) == 1
    told = json.loads(capsys.readouterr().out)["check"]
    assert (told["ok"], told["first_wrong"]["operator"], list(told["levels"])) == (False, "Sigmoid 'op3'", ["none", "slight", "severe"])
    monkeypatch.undo()
    code, lines = checked(tmp_path / "out.onnx", capsys)
    assert (code, lines[1]) == (1, "FAILED no operator of it is found wrong where it is compiled anew; compile it again")


def test_a_shape_is_compared_before_values(tmp_path: Path, capsys: Capture) -> None:
    opened = lower_model(ModelSpec(chain(tmp_path), load_machine("edge")))
    (container,) = containers_of(opened, measure(opened, default_by_level(opened)))
    shapes = {"output": (1, 256), "input": (1, 16, 4, 4)}
    buffers = tuple(replace(b, onnx_shape=shapes[b.kind]) if b.kind in shapes else b for b in container.memory.buffers)
    package(opened, [replace(container, memory=replace(container.memory, buffers=buffers))], tmp_path / "out.onnx")
    name = onnx.load(tmp_path / "chain.onnx").graph.output[0].name
    assert checked(tmp_path / "out.onnx", capsys) == (
        1,
        [
            f"FAILED Partition0: output {name!r} has shape [1, 256], in the model [1, 16, 4, 4]",
            f"FAILED {name!r}: shape [1, 256], onnxruntime's [1, 16, 4, 4]",
            "FAILED no operator of it is found wrong where it is compiled anew; compile it again",
        ],
    )
