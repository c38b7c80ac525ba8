"""Q/DQ around one product, drawn: views on either side, scales of several types, axes and values, biases of several types.

Whatever cannot be integers is floats, and all of it gives what onnxruntime gives where it changes no graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from compiler.frontend import load_model
from compiler.frontend.handlers.qdq_propagation import propagate_conversions
from compiler.frontend.lower import lower_partition
from simulator.exact_onnxruntime import exact_session
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from tests.compiler.frontend.test_quantised_pieces import pieces_of
from tests.messages import naming

EDGE = load_machine("edge")
STEP = 0.05
SIZES = {"Conv": ((1, 8, 3, 4), (6, 8, 1, 1)), "MatMul": ((5, 8), (8, 6)), "Gemm": ((5, 8), (8, 6)), "square": ((5, 6), (6, 6))}


class Case(NamedTuple):
    """axis: of several scales of weights, None for one.  views: of activations, weights, result.  bias: its type, None for none."""

    kind: str
    floats: type
    axis: int | None
    zero_scale: bool
    views: tuple[str, str, str]
    bias: type | None
    seed: int

    @property
    def operator(self) -> str:
        return "MatMul" if self.kind == "square" else self.kind

    @property
    def refused(self) -> bool:
        """Scales that onnxruntime takes for those of output channels."""
        return self.operator == "Conv" and self.axis == 1 and not self.zero_scale

    @property
    def integers(self) -> bool:
        along = self.axis is None or self.axis == (0 if self.operator == "Conv" else 1)
        return along and self.floats is np.float32 and not self.zero_scale and self.bias is not np.int8


VIEWS = ("none", "Unsqueeze", "Reshape", "Transpose", "two")
CASES = st.builds(
    Case, st.sampled_from(list(SIZES)), st.sampled_from([np.float32, np.float32, np.float16]), st.sampled_from([None, 0, 1]), st.booleans(),
    st.tuples(*[st.sampled_from(VIEWS)] * 3), st.sampled_from([None, np.int32, np.int8]), st.integers(0, 99),
).map(lambda case: case if case.operator != "MatMul" else case._replace(bias=None))  # fmt: skip


@dataclass
class Made:
    """A model under construction."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, NDArray]

    def constant(self, name: str, value) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def node(self, kind: str, inputs: list[str], name: str, **attributes) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def seen(self, name: str, how: str, shape: tuple[int, ...]) -> str:
        """Views that lead to a tensor of that shape."""
        if how == "Transpose":
            return self.node("Transpose", [name], f"{name}.t", perm=list(range(len(shape)))[::-1])
        if how in ("Reshape", "two"):
            name = self.node("Reshape", [name, self.constant(f"{name}.shape", np.array(shape, np.int64))], f"{name}.r")
        if how in ("Unsqueeze", "two"):
            axis = self.constant(f"{name}.axis", np.array([0], np.int64))
            name = self.node("Squeeze", [self.node("Unsqueeze", [name, axis], f"{name}.u"), axis], f"{name}.s")
        return name


def before(how: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of which `Made.seen` makes another one."""
    return {"Transpose": shape[::-1], "Reshape": (*shape[:1], 1, *shape[1:]), "two": (*shape, 1)}.get(how, shape)


def drawn(case: Case) -> ModelProto:
    rng, made = np.random.default_rng(case.seed), Made([], {})
    (shape, weights), floats = SIZES[case.kind], case.floats
    given, stored = before(case.views[0], shape), before(case.views[1], weights)
    for name, scale, zero in (("x", 0.02, np.uint8(128)), ("y", STEP, np.uint8(120))):
        made.constant(f"{name}s", floats(scale)), made.constant(f"{name}z", zero)
    xd = made.node("DequantizeLinear", [made.node("QuantizeLinear", ["x", "xs", "xz"], "xq"), "xs", "xz"], "xd")
    scales = rng.uniform(0.002, 0.02, 1 if case.axis is None else weights[case.axis]).astype(floats)
    scales[0] *= not case.zero_scale
    axis = {} if case.axis is None else {"axis": (len(weights) - 1 - case.axis) if case.views[1] == "Transpose" else case.axis}
    if case.axis == 1 and case.views[1] == "Reshape":
        axis = {"axis": 2}
    made.constant("w", rng.integers(-99, 100, stored).astype(np.int8))
    made.constant("ws", scales if case.axis is not None else scales[0]), made.constant("wz", np.zeros_like(made.constants["ws"], np.int8))
    wd = made.node("DequantizeLinear", ["w", "ws", "wz"], "wd", **axis)
    inputs = [made.seen(xd, case.views[0], shape), made.seen(wd, case.views[1], weights)]
    if case.bias is not None:
        out = weights[0 if case.operator == "Conv" else 1]
        along = case.axis == (0 if case.operator == "Conv" else 1)
        of_products = made.constants["xs"].astype(np.float32) * np.broadcast_to(
            scales if along or case.axis is None else floats(0.01), out
        ).astype(np.float32)
        made.constant("b", rng.integers(-99, 100, out).astype(case.bias)), made.constant("bs", of_products.astype(floats))
        inputs.append(made.node("DequantizeLinear", ["b", "bs"], "bd", axis=0))
    result = made.node(case.operator, inputs, "c")
    result = made.seen(result, case.views[2], (*shape[:-1], weights[1]) if case.operator != "Conv" else (1, 6, *shape[2:]))
    made.node("DequantizeLinear", [made.node("QuantizeLinear", [result, "ys", "yz"], "yq"), "ys", "yz"], "y")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(floats))
    graph = helper.make_graph(
        made.nodes, "one", [helper.make_tensor_value_info("x", kind, given)], [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in made.constants.items()],
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def plain(model: ModelProto, feeds) -> NDArray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@settings(max_examples=60)
@given(CASES)
def test_what_cannot_be_integers_is_floats_and_right(case: Case) -> None:
    model = load_model(drawn(case))
    if case.refused:
        with pytest.raises(BadInputError, match=naming("weights", "axis 1", "axis 0")):
            lower_partition(model)
        return
    x = model.graph.input[0].type.tensor_type
    shape = [dim.dim_value for dim in x.shape.dim]
    feeds = {"x": np.random.default_rng(case.seed).normal(0, 1, shape).astype(case.floats)}
    wanted = plain(model, feeds).astype(np.float32)
    graphs, _, session = pieces_of(model, EDGE)
    kinds = [type(op).__name__ for graph in graphs for op in graph.operators]
    assert ("QuantisedConv" in kinds) is case.integers
    assert ("Conv" in kinds) is not case.integers
    (mine,) = session.run(None, feeds)
    assert mine.dtype == case.floats
    assert np.abs(mine.astype(np.float32) - wanted).max() <= 1.1 * STEP
    moved = propagate_conversions(model)  # for the host, whose onnxruntime may group what it likes
    assert np.abs(exact_session(moved).run(None, feeds)[0].astype(np.float32) - wanted).max() <= 1.1 * STEP
