"""A decoder's step with a cache: all of it on the NPU, each head of the cache read once, values of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiler.frontend import lower
from compiler.frontend.lower import lower_partition
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, LayerNorm, MatMul, Relayout, Softmax
from tests.models import random_feeds, reference_outputs
from tuner.cli import main
from tuner.zoo.load import load_network

STEPS = {
    "decode": "past=15",
    "prefill": "tokens=8,past=0",
    "some tokens": "tokens=3,past=8",
    "as many keys as queries": "past=15,kv_heads=4",
    "heads of runs": "past=15,width=128,layers=2",
}


@pytest.mark.parametrize("step", STEPS)
def test_step(step: str) -> None:
    model = load_network(Path(f"made:llama-small,{STEPS[step]}"))
    graphs, part = lower_partition(model)
    assert part.whole
    (graph,) = graphs
    feeds = random_feeds(model)
    values = evaluate(graph, feeds)
    for name, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(values[name], expected, rtol=1e-4, atol=1e-4)


def test_cache_is_read_once_per_head() -> None:
    """No copy of the keys for each query, and no weights that only move values where heads fill blocks."""
    model = load_network(Path("made:llama-small,past=63,width=128"))
    graph = lower(model)
    products = [op for op in graph.operators if isinstance(op, MatMul)]
    assert [op.heads for op in products] == [2, 2]
    moved = [int(np.prod(graph.shapes[op.y])) for op in graph.operators if isinstance(op, Relayout)]
    assert max(moved) == 2 * 32 * 64  # the keys of all tokens
    convolutions = [op for op in graph.operators if isinstance(op, Conv)]
    assert len(convolutions) == 7
    assert sum(isinstance(op, LayerNorm) and op.centred for op in graph.operators) == 3
    assert sum(isinstance(op, Softmax) for op in graph.operators) == 1


def test_programs_of_every_level(tmp_path: Path) -> None:
    assert main(["compile", "made:llama-small", "--machine", "edge", "--check", "--out", str(tmp_path / "out.onnx")]) == 0
