"""The nine light networks with random weights: values, and weights that suit float16."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.dump.graph import graph_lines
from compiler.frontend import load_model, lower, lower_with_report, model_digest, seed_weights
from compiler.frontend.onnx_io.load import load
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv
from tests.models import LIGHT, SMALL, light_path, random_feeds, reference_outputs, without_final_softmax

NAMES = [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in LIGHT]


@pytest.mark.parametrize("name", NAMES)
def test_values_and_range(name: str) -> None:
    model = without_final_softmax(load_model(light_path(name), random_weights=7))
    graph, report = lower_with_report(model)
    feeds = random_feeds(model, 2)
    values = evaluate(graph, feeds, keep=True)
    (port,) = graph.outputs
    actual = values[port.tensor].reshape(port.onnx_shape)
    expected = reference_outputs(model, feeds)[port.onnx_name]
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()
    # far from float16's limits, and logits that tell classes apart without saturating
    assert max(float(np.abs(v).max()) for v in values.values()) < 1000
    assert 0.3 < actual.std() < 10
    assert report.fired["fuse-relu"] > 0


def test_seeds() -> None:
    model = load_model(light_path("squeezenet"))
    once, again, other = (seed_weights(model, seed).SerializeToString() for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_weights_beside_a_model_are_those_in_it() -> None:
    """Digest and graph are the same, whichever of the two is lowered."""
    hollow = load(light_path("squeezenet"), random_weights=1)
    tensors = hollow.model.graph.initializer
    assert {tensor.name for tensor in tensors if not tensor.HasField("raw_data")} == hollow.data.keys()
    model = load_model(light_path("squeezenet"), random_weights=1)
    graph, other = lower(hollow.model, data=hollow.data), lower(model)
    assert graph.digest == other.digest == model_digest(model)
    assert graph_lines(graph) == graph_lines(other)
    assert hollow.filled().SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_channels_differ() -> None:
    """The files' own weights are constant: every channel computes the same, and a wrong channel would not be seen."""
    graph, _ = lower_with_report(load_model(light_path("squeezenet"), random_weights=0))
    for op in graph.operators:
        if isinstance(op, Conv):
            rows = op.weights.reshape(op.weights.shape[0], -1)
            assert len(np.unique(rows, axis=0)) == len(rows)
