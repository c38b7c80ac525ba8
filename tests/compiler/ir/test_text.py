"""Graphs as text: goldens, and that what matters shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.ir.operators import Conv
from tests.graph_text import print_graph
from tests.models import light_graph, small_graph


@pytest.mark.parametrize("name", ["inception_block", "shuffle_block"])
def test_small_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.graph", print_graph(small_graph(name), fingerprints=False))


def test_squeezenet_golden(golden: Callable[[str, str], None]) -> None:
    golden("squeezenet.graph", print_graph(light_graph("squeezenet"), fingerprints=False))


def test_fingerprints_see_one_changed_weight() -> None:
    graph = small_graph("residual_block")
    first = graph.operators[0]
    assert isinstance(first, Conv)
    weights = first.weights.copy()
    weights[0, 0, 0, 0] = np.nextafter(weights[0, 0, 0, 0], np.float32(1))
    changed = replace(graph, operators=(replace(first, weights=weights), *graph.operators[1:]))
    assert print_graph(changed) != print_graph(graph)
    assert print_graph(changed, fingerprints=False) == print_graph(graph, fingerprints=False)
