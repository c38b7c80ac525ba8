"""Every handler on every kind of view: the shapes and values of onnxruntime, or a refusal.  Interpreted, so that thousands take seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.load import prepare

Array = NDArray[Any]


# -- what is held when a graph is lowered ------------------------------------------------------------------------------


# -- digits ------------------------------------------------------------------------------------------------------------


# -- one by one --------------------------------------------------------------------------------------------------------


def test_vectors_whose_values_are_no_shapes() -> None:
    """onnx follows them as if they were, and finds that they do not fit."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["t"], axis=0),
        helper.make_node("Unsqueeze", ["x", "k"], ["u"]),
        helper.make_node("Add", ["u", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "vectors",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 12])],
        [numpy_helper.from_array(np.array([1], np.int64), "k")],
    )
    prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
