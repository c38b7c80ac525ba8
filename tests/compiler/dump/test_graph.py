"""Graphs as text: goldens, and that what matters shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.dump.graph import graph_lines
from compiler.ir.operators import Conv
from tests.lines import text
from tests.models import light_graph, small_graph


@pytest.mark.parametrize("name", ["inception_block", "shuffle_block"])
def test_small_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.graph", text(graph_lines(small_graph(name), fingerprints=False)))


def test_squeezenet_golden(golden: Callable[[str, str], None]) -> None:
    golden("squeezenet.graph", text(graph_lines(light_graph("squeezenet"), fingerprints=False)))


def test_fingerprints_see_one_changed_weight() -> None:
    graph = small_graph("residual_block")
    first = graph.operators[0]
    assert isinstance(first, Conv)
    weights = first.weights.copy()
    weights[0, 0, 0, 0] = np.nextafter(weights[0, 0, 0, 0], np.float32(1))
    changed = replace(graph, operators=(replace(first, weights=weights), *graph.operators[1:]))
    assert graph_lines(changed) != graph_lines(graph)
    assert graph_lines(changed, fingerprints=False) == graph_lines(graph, fingerprints=False)
