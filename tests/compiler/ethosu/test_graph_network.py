"""Streams of the frontend's graphs of integers: a step off the graph's own arithmetic at most, tables and greatest values not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ethosu.graph_network import network_of_graph
from compiler.ethosu.network_parts import compile_network
from compiler.ethosu.segments import single_operators
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Concat, LookUp, Operator, Pool, QuantisedAverage, QuantisedConv, QuantisedPair, Reflow
from compiler.ir.operators.quantised_products import Residual
from compiler.ir.quantised.parameters import Quantisation
from scripts.our_streams import OurStream
from simulator.npu.errors import UnsupportedError

EXACT = (LookUp, Pool, Concat)


def graph_of(operator: Operator, shapes: dict[str, tuple[int, int, int, int]], types: dict[str, Quantisation]) -> Graph:
    """A graph of one operator."""
    shapes = shapes | {operator.y: operator.output_shape([shapes[name] for name in operator.inputs])}
    inputs = tuple(Port(name, name, shapes[name]) for name in dict.fromkeys(operator.inputs))
    result = operator.output_type([types[name] for name in operator.inputs])
    assert result is not None
    graph = Graph("g", inputs, (Port(operator.y, operator.y, shapes[operator.y]),), (operator,), shapes, types=types | {operator.y: result})
    graph.verify()
    return graph


def differences(graph: Graph, seed: int) -> np.ndarray:
    """Steps between the stream's results and the graph's."""
    network, _ = network_of_graph(graph)
    stream = OurStream(compile_network(network, single_operators(len(network.operators)), 384 << 10))
    rng = np.random.default_rng(seed)
    feeds = {}
    for port in graph.inputs:
        limits = np.iinfo(graph.types[port.tensor].dtype)
        feeds[port.tensor] = rng.integers(limits.min, limits.max + 1, graph.shapes[port.tensor]).astype(limits.dtype)
    ((port, expected),) = ((port, evaluate(graph, feeds)[port.tensor]) for port in graph.outputs)
    (output,), _ = stream.run([feeds[item.tensor].transpose(0, 2, 3, 1).copy().view(np.int8) for item in graph.inputs])
    assert output is not None
    values = output.view(graph.types[port.tensor].dtype).transpose(0, 3, 1, 2)
    return np.abs(values.astype(int) - expected)


@st.composite
def quantisations(draw: st.DrawFn, least: float = 0.02, most: float = 0.06) -> Quantisation:
    dtype = draw(st.sampled_from((np.int8, np.uint8)))
    limits = np.iinfo(dtype)
    return Quantisation.of(np.float32(draw(st.floats(least, most))), dtype(draw(st.integers(limits.min, limits.max))), dtype)


@st.composite
def operators(draw: st.DrawFn) -> Graph:
    """A graph of one operator of any kind."""
    seed = draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    channels, rows, columns = draw(st.sampled_from((1, 3, 8, 16))), draw(st.integers(2, 9)), draw(st.integers(2, 9))
    shape, x_q, y_q = (1, channels, rows, columns), draw(quantisations()), draw(quantisations())
    kernel = draw(st.integers(1, min(3, rows, columns)))
    pads = tuple(draw(st.integers(0, kernel - 1)) for _ in range(4))
    stride = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    kind = draw(st.sampled_from(("conv", "residual", "average", "whole", "max", "table", "pair", "concat")))
    if kind in ("conv", "residual"):
        groups = draw(st.sampled_from([groups for groups in (1, 2, channels) if channels % groups == 0]))
        outputs = groups * draw(st.integers(1, 4))
        weights = rng.integers(-127, 128, (outputs, channels // groups, kernel, kernel)).astype(np.int8)
        w_q = Quantisation.of(rng.uniform(0.001, 0.004, outputs).astype(np.float32), np.zeros(outputs, np.int8), np.int8, weights.shape, 0)
        bias = rng.integers(-500, 500, outputs).astype(np.int32)
        conv = QuantisedConv("c", "x", "y", weights, bias, x_q, w_q, y_q, stride, (1, 1), pads, groups, fixed_point=True)
        if kind == "conv":
            return graph_of(conv, {"x": shape}, {"x": x_q})
        added, result = draw(quantisations()), draw(quantisations())
        conv = QuantisedConv(
            "c",
            "x",
            "y",
            weights,
            bias,
            x_q,
            w_q,
            y_q,
            stride,
            (1, 1),
            pads,
            groups,
            1.0,
            Residual("r", added, result, True),
            fixed_point=True,
        )
        return graph_of(conv, {"x": shape, "r": conv.output_shape([shape])}, {"x": x_q, "r": added})
    if kind == "average":
        return graph_of(QuantisedAverage("a", "x", "y", (kernel, kernel), x_q, x_q, stride, pads), {"x": shape}, {"x": x_q})
    if kind == "whole":
        return graph_of(QuantisedAverage("a", "x", "y", (rows, columns), x_q, y_q), {"x": shape}, {"x": x_q})
    if kind == "max":
        return graph_of(Pool("m", "x", "y", "max", (kernel, kernel), stride, pads), {"x": shape}, {"x": x_q})
    if kind == "table":
        limits = np.iinfo(y_q.dtype)
        entries = rng.integers(limits.min, limits.max + 1, 256).astype(y_q.dtype)
        return graph_of(LookUp("t", "x", "y", entries, x_q, y_q), {"x": shape}, {"x": x_q})
    if kind == "pair":
        b_q, mode = draw(quantisations()), draw(st.sampled_from(("add", "radd", "mul")))
        second = (1, channels, 1, 1) if draw(st.booleans()) else shape
        wide = Quantisation.of(np.float32(0.2), np.int8(3), np.int8)
        return graph_of(QuantisedPair("p", "x", "b", "y", mode, x_q, b_q, wide), {"x": shape, "b": second}, {"x": x_q, "b": b_q})
    return graph_of(Concat("k", ("x", "b"), "y"), {"x": shape, "b": (1, 5, rows, columns)}, {"x": x_q, "b": x_q})


@settings(max_examples=70, deadline=None)
@given(operators(), st.integers(0, 1 << 30))
def test_results_are_a_step_off_at_most(graph, seed):
    steps = differences(graph, seed)
    fused = isinstance(graph.operators[0], QuantisedConv) and graph.operators[0].added is not None
    assert steps.max() <= (0 if isinstance(graph.operators[0], EXACT) else 3 if fused else 1)
    assert (steps > 0).mean() <= 0.5 or steps.size < 40


def test_what_has_no_rule_is_named():
    x_q = Quantisation.of(np.float32(0.1), np.int8(0), np.int8)
    operator = Reflow("r", "x", "y", (2, 8), (8, 1))
    graph = Graph("g", (Port("x", "x", (1, 3, 4, 4)),), (), (operator,), {"x": (1, 3, 4, 4), "y": (1, 3, 2, 8)}, types={"x": x_q, "y": x_q})
    with pytest.raises(UnsupportedError, match="operator 'r': Reflow: expected one of Concat, LookUp, Pool, Quantised"):
        network_of_graph(graph)
    floats = Graph("g", (Port("x", "x", (1, 3, 4, 4)),), (), (), {"x": (1, 3, 4, 4)})
    with pytest.raises(UnsupportedError, match="input 'x' of floats"):
        network_of_graph(floats)
