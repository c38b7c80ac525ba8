"""One node on integers as a model between floats: quantised in front of it, as floats again behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.ir.quantised import linear
from compiler.ir.quantised.parameters import Quantisation
from tests.quantised_kernels import Array, Batch

_RESULT = {"QLinearConcat": 0, "QLinearAveragePool": 3, "QLinearGlobalAveragePool": 3, "QLinearSigmoid": 3, "QLinearLeakyRelu": 3}
_RESULT |= {"QLinearSoftmax": 3, "QGemm": 7, "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6}


class Single(NamedTuple):
    """A model, floats that stand for the integers which its node reads, and the integers that onnxruntime makes of them."""

    model: ModelProto
    feeds: dict[str, Array]
    expected: Array


def singles(batch: Batch) -> list[Single]:
    """The nodes of a batch whose result has a scale, each alone."""
    made = zip(batch.nodes, batch.run(), strict=True)
    return [_model(batch, [node], value) for node, value in made if node.op_type in _RESULT and value.dtype in (np.int8, np.uint8)]


def chain(batch: Batch) -> Single:
    """All nodes of a batch, of which the last makes the result."""
    return _model(batch, batch.nodes, batch.run()[-1])


def _model(batch: Batch, chosen: list[NodeProto], expected: Array) -> Single:
    constants = {item.name: numpy_helper.to_array(item) for item in batch.constants}
    inputs, feeds, nodes, known = [], {}, [], list(batch.constants)
    for node, i, name in [(each, i, name) for each in chosen for i, name in enumerate(each.input)]:
        if name in batch.feeds and f"f_{name}" not in feeds:
            scale, zero = node.input[i + 1], node.input[i + 2]
            if (node.op_type == "QLinearConv" and i > 0) or constants[scale].size > 1:  # weights
                known.append(numpy_helper.from_array(batch.feeds[name], name))
                continue
            q = Quantisation.of(constants[scale].reshape(()), constants[zero].reshape(()), constants[zero].dtype)
            feeds[f"f_{name}"] = linear.dequantize(batch.feeds[name], q)
            inputs.append(helper.make_tensor_value_info(f"f_{name}", TensorProto.FLOAT, batch.feeds[name].shape))
            nodes.append(helper.make_node("QuantizeLinear", [f"f_{name}", scale, zero], [name]))
    last = chosen[-1]
    at = _RESULT[last.op_type]
    nodes += [*chosen, helper.make_node("DequantizeLinear", [last.output[0], *last.input[at : at + 2]], ["y"], name="last")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, expected.shape)
    graph = helper.make_graph(nodes, "single", inputs, [output], known)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    q = Quantisation.of(constants[last.input[at]].reshape(()), constants[last.input[at + 1]].reshape(()), expected.dtype)
    return Single(helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds, linear.dequantize(expected, q))
