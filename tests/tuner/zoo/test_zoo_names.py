"""Networks under a name: the file that is meant, and weights that are worth computing with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.frontend import load_model, lower
from compiler.ir.operators import Conv
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tuner.cli import main
from tuner.zoo.load import load_network
from tuner.zoo.names import resolve_model, shipped_networks


def test_nine_networks():
    assert len(shipped_networks()) == 9
    assert all(path.is_file() for path in shipped_networks().values())


def test_weights_are_drawn_unless_a_path_is_given():
    path, seed = resolve_model(Path("light:squeezenet"), None)
    convs = [op for op in lower(load_network(Path("light:squeezenet"))).operators if isinstance(op, Conv)]
    assert len(convs) == 26
    assert all(np.unique(conv.weights).size > 100 for conv in convs)
    first, *_ = (op for op in lower(load_model(path, random_weights=seed)).operators if isinstance(op, Conv))
    np.testing.assert_array_equal(convs[0].weights, first.weights)
    (constant, *_), (other, *_) = (lower(load_network(path, random_weights=s)).operators for s in (None, 7))
    assert np.unique(constant.weights).size == 1
    assert np.unique(other.weights).size > 100
    assert resolve_model(path, None) == (path, None)
    assert resolve_model(Path("light:squeezenet"), 7) == (path, 7)


def test_a_name_that_stands_for_nothing(capsys, tmp_path):
    with pytest.raises(BadInputError, match=naming("light:resnet", "light:alexnet", "light:zfnet512")):
        resolve_model(Path("light:resnet"), None)
    with pytest.raises(BadInputError, match=naming("made:resnet", "bert_base")):
        resolve_model(Path("made:resnet"), None)
    assert main(["compile", "light:resnet", "--machine", "edge", "--out", str(tmp_path / "o.onnx")]) == 2
    assert "expected one of" in capsys.readouterr().err


def test_a_study_draws_all_weights_or_none(capsys, tmp_path):
    command = ["study", "light:squeezenet", "mine.onnx", "--machine", "edge", "--out", str(tmp_path / "s")]
    assert main(command) == 2
    assert "one seed for all" in capsys.readouterr().err
