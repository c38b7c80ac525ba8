"""Errors by tensor: the operator that adds most is the faulty one, and errors behind it are its errors, not theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.frontend import load_model
from tests.tuner.verify.test_first_wrong import Capture, chain, plant
from tuner.cli import main
from tuner.zoo.quantise import quantise_model, random_samples
from tuner.zoo.quantiser import Quantiser


def layers(path: Path, given: str, capsys: Capture) -> list[dict[str, Any]]:
    capsys.readouterr()
    main(["run", str(path), "--input", given, "--check", "--layers", "--json"])
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["layers"]
    return rows


def test_faulty_operator_alone_adds_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    out = tmp_path / "out.onnx"
    plant(monkeypatch, fused=False)
    assert main(["compile", str(chain(tmp_path)), "--machine", "edge", "--layerwise", "--out", str(out)]) == 0
    rows = layers(out, "random", capsys)
    assert [row["operator"].partition(" ")[2] for row in rows] == [f"'op{k}'" for k in range(6)]
    assert [row["operator"] for row in rows if row["adds_most"]] == ["Sigmoid 'op3'"]
    accumulated, alone = ([row[key]["max_rel_error"] for row in rows] for key in ("accumulated", "alone"))
    assert max(accumulated[:3]) < 0.01 < min(accumulated[3:])
    assert all((error > 0.01) == (k == 3) for k, error in enumerate(alone))
    capsys.readouterr()
    main(["run", str(out), "--input", "random", "--check", "--layers"])
    marked = [line for line in capsys.readouterr().out.splitlines() if line.endswith("adds most")]
    assert [line.startswith("Sigmoid 'op3'") for line in marked] == [True]


@pytest.mark.parametrize("form", ["qdq", "qop"])
def test_quantised_tensors_against_float32(form: str, tmp_path: Path, capsys: Capture) -> None:
    """Integers of QDQ are compared by their numbers: values beyond the ranges of the samples are clipped, which float32 is not."""
    floats = load_model(chain(tmp_path))
    (tmp_path / "q.onnx").write_bytes(quantise_model(floats, random_samples(floats, 4, 0), Quantiser(form, "uint8")))
    assert main(["compile", str(tmp_path / "q.onnx"), "--machine", "edge", "--layerwise", "--out", str(tmp_path / "out.onnx")]) == 0
    sample, first = random_samples(floats, 1, 0), []
    for factor in (1, 20):
        given = tmp_path / f"x{factor}.npz"
        np.savez(given, **{name: factor * value[0] for name, value in sample.items()})
        rows = layers(tmp_path / "out.onnx", str(given), capsys)
        first.append(rows[0]["accumulated"]["max_rel_error"])
    if form == "qdq":
        assert 0.002 < first[0] < 0.1 < 0.5 < first[1]
    else:
        assert first == [0, 0]  # onnxruntime's own integers


def test_layers_without_a_check_are_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", str(chain(tmp_path)), "--input", "random", "--layers"]) == 2
    assert capsys.readouterr().err == "tilefarm: --layers: expected together with --check\n"
