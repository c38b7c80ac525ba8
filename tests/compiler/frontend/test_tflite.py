"""A `.tflite` file as ONNX: onnxruntime's integers are those of LiteRT, but for roundings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.frontend.onnx_io.load import load_model
from compiler.frontend.tflite.network import read_network
from compiler.frontend.tflite.to_onnx import NODE, to_onnx
from simulator.exact_onnxruntime import exact_session
from simulator.npu.errors import BadInputError, UnsupportedError
from tests.compiler.ethosu.models import model, models

OTHERWISE = {"TRANSPOSE_CONV", "TRANSPOSE_CONV stride 1", "SLICE", "PAD"}
"""Whose scales ONNX has not, and that have no nodes."""
STEPS = {"keyword_spotting": 3, "table_activations": 6}
"""Largest difference of a network, whose roundings add up."""


@pytest.mark.parametrize("source", [item for item in models() if item.name not in OTHERWISE], ids=lambda item: item.name)
def test_integers_are_those_of_litert_but_for_roundings(source):
    network = read_network(source.data)
    session = exact_session(to_onnx(network))
    feeds = {}
    for port, value in zip(session.get_inputs(), source.inputs, strict=True):
        feeds[port.name] = value.transpose(0, 3, 1, 2) if value.ndim == 4 else value
    for output, expected in zip(session.run(None, feeds), source.outputs, strict=True):
        values = output.transpose(0, 2, 3, 1) if output.ndim == 4 else output
        assert np.abs(values.astype(int) - expected).max() <= STEPS.get(source.name, 1)


def test_nodes_have_the_numbers_of_operators():
    network = read_network(model("keyword_spotting").data)
    numbers = {int(node.name.removeprefix(NODE).split(".")[0]) for node in to_onnx(network).graph.node}
    assert numbers == set(range(len(network.operators)))


def test_a_file_is_loaded_by_its_suffix(tmp_path: Path):
    path = tmp_path / "m.tflite"
    path.write_bytes(model("CONV_2D").data)
    assert load_model(path).graph.name == "tflite"
    path.write_bytes(model("PAD").data)
    with pytest.raises(UnsupportedError, match=r"m\.tflite: operator 0, PAD: expected one of ABS, ADD, "):
        load_model(path)
    path.write_bytes(b"no such file of a model")
    with pytest.raises(BadInputError, match=r"m\.tflite: begins with "):
        load_model(path)
