"""`tilefarm quantize`: what it writes, and every answer to samples that cannot be right."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from compiler.frontend import load_model
from tuner.verify.integers import compare_integers, isolated_integers
from tuner.zoo.quantise import random_samples


@pytest.fixture
def samples(model, tmp_path):
    path = tmp_path / "samples.npz"
    np.savez(path, **random_samples(load_model(model), 3, 0))
    return path


@pytest.mark.parametrize(("form", "activations"), [("qdq", "uint8"), ("qdq", "int8"), ("qop", "uint8"), ("qop", "int8")])
def test_the_model_is_quantised(cli, model, samples, tmp_path, form, activations):
    asked = ["quantize", model, "--data", samples, "--format", form, "--activations", activations, "--per-channel"]
    code, out, err = cli(*asked, "--out", tmp_path / "q.onnx", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["samples"] == 3
    assert told["bytes"] == (tmp_path / "q.onnx").stat().st_size
    assert ("QLinearConv" in told["operators"]) == (form == "qop")
    made = onnx.load(tmp_path / "q.onnx")
    zeros = [item for item in made.graph.initializer if item.name.endswith("zero_point")]
    assert {item.data_type for item in zeros} - {onnx.TensorProto.INT32, onnx.TensorProto.INT8} == (
        {onnx.TensorProto.UINT8} if activations == "uint8" else set()
    )
    assert any(item.dims and item.dims[0] > 1 for item in zeros)  # per channel
    feeds = {name: array[0] for name, array in random_samples(load_model(model), 1, 1).items()}
    found = compare_integers(isolated_integers(made, feeds))
    assert found
    assert [one for one in found if one.differing] == []
    assert cli(*asked, "--out", tmp_path / "again.onnx")[0] == 0
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()


def test_what_was_made_is_told(cli, model, samples, tmp_path):
    code, out, _ = cli("quantize", model, "--data", samples, "--out", tmp_path / "q.onnx")
    assert code == 0
    assert "ranges of 3 samples; " in out
    assert "QuantizeLinear" in out


def test_samples_are_asked_by_name_type_and_shape(cli, model, tmp_path):
    code, _, err = cli("quantize", model, "--out", tmp_path / "q.onnx")
    assert code == 2
    assert "--data: missing; expected an .npz file with 'x' float32 [samples, 1, " in err
    assert not (tmp_path / "q.onnx").exists()


# what becomes of the samples -> what the error says
WRONG = {
    "no array 'x'; expected 'x' float32 [samples, 1, ": lambda x: {},
    "an array 'z'; expected 'x' float32": lambda x: {"x": x, "z": x},
    "'x' is float64 [3, 1, ": lambda x: {"x": x.astype(np.float64)},
    "'x' is float32 [1, ": lambda x: {"x": x[0]},
    "'x' is float32 []": lambda x: {"x": np.float32(0)},
    "'x' has values that are not finite": lambda x: {"x": np.where(x == x.max(), np.float32("nan"), x)},
    "no samples; expected one at least": lambda x: {"x": x[:0]},
}


@pytest.mark.parametrize("said", WRONG)
def test_samples_that_cannot_be_right(cli, model, samples, tmp_path, said):
    with np.load(samples) as arrays:
        np.savez(tmp_path / "wrong.npz", **WRONG[said](arrays["x"]))
    code, out, err = cli("quantize", model, "--data", tmp_path / "wrong.npz", "--out", tmp_path / "q.onnx")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "q.onnx").exists()


def test_what_is_no_file_of_arrays(cli, model, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"nothing")
    code, _, err = cli("quantize", model, "--data", tmp_path / "x.npz", "--out", tmp_path / "q.onnx")
    assert code == 2
    assert "not an .npz file of plain arrays" in err
    code, _, err = cli("quantize", model, "--data", tmp_path / "x.npz", "--out", tmp_path / "nowhere" / "q.onnx")
    assert code == 2
    assert "does not exist" in err
