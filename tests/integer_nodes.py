"""One node on integers as a model between floats: quantised in front of it, as floats again behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.ir.quantised import linear
from compiler.ir.quantised.parameters import Quantisation
from simulator.exact_onnxruntime import exact_session
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


def sums(batch: Batch) -> list[Single]:
    """The nodes of a batch whose result is int32, each alone, of integers as they are."""
    found = []
    constants = {item.name: item for item in batch.constants}
    for node, value in zip(batch.nodes, batch.run(), strict=True):
        if value.dtype != np.int32:
            continue
        feeds = {name: batch.feeds[name] for name in node.input if name in batch.feeds}
        ports = [(feeds, list(feeds)), ({node.output[0]: value}, ["y"])]
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(names, arrays.values(), strict=True)
            ]
            for arrays, names in ports
        )
        named = NodeProto()
        named.CopyFrom(node)
        named.output[0] = "y"
        graph = helper.make_graph([named], "sums", inputs, outputs, [constants[name] for name in node.input if name in constants])
        found.append(Single(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), feeds, value))
    return found


def columned(batch: Batch, rng: np.random.Generator) -> list[Single]:
    """The products by constants of a batch without a zero point of theirs, each with columns that are inputs, some with scales of those."""
    found = []
    constants = {item.name: item for item in batch.constants}
    for node in batch.nodes:
        if node.op_type not in ("ConvInteger", "MatMulInteger") or node.input[1] not in constants or node.input[0] not in batch.feeds:
            continue
        x, w = batch.feeds[node.input[0]], numpy_helper.to_array(constants[node.input[1]])
        if node.op_type == "MatMulInteger" and w.ndim != 2:
            continue
        shape = (w.shape[-1],) if node.op_type == "MatMulInteger" else (1, len(w), *(1,) * (w.ndim - 2))
        product = NodeProto()
        product.CopyFrom(node)
        product.input[:], product.output[:] = ["x", node.input[1], "", *node.input[3:]], ["sums"]
        feeds = {"x": x, "columns": rng.integers(-(2**20), 2**20, shape).astype(np.int32)}
        scaled = bool(rng.random() < 0.7)
        nodes = [product, helper.make_node("Add", ["sums", "columns"], ["added" if scaled else "y"])]
        if scaled:
            feeds["scales"] = rng.uniform(1e-5, 1e-2, shape).astype(np.float32)
            nodes += [helper.make_node("Cast", ["added"], ["floats"], to=TensorProto.FLOAT)]
            nodes += [helper.make_node("Mul", ["floats", "scales"], ["y"])]
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in feeds.items()
        ]
        known = [constants[name] for name in node.input[1:] if name in constants]
        rank = x.ndim if node.op_type == "ConvInteger" else max(x.ndim, 2)
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT if scaled else TensorProto.INT32, [None] * rank)
        graph = helper.make_graph(nodes, "columns", inputs, [output], known)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        (expected,) = exact_session(model).run(None, feeds)
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", output.type.tensor_type.elem_type, expected.shape))
        found.append(Single(model, feeds, expected))
    return found


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
