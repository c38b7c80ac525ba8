"""The command that writes networks: files that are valid, and one line for a name that means nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_models.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_files_are_written_and_run(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--networks", "mobilenet_v2-small,vit_b16-small;heads=4", "--layers", "2", "--check")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mobilenet_v2-small.onnx", "vit_b16-small,heads=4,layers=2.onnx"]
    vit = onnx.load(tmp_path / "vit_b16-small,heads=4,layers=2.onnx")
    assert sum(node.op_type == "Softmax" for node in vit.graph.node) == 2
    assert len(done.stdout.splitlines()) == 3


def test_a_name_that_means_nothing(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--networks", "mobile")
    assert done.returncode == 2
    assert done.stderr.startswith("made:mobile: no such network is made; expected one of bert_base")
    assert "Traceback" not in done.stderr
