"""Models as `onnxruntime.quantization.quantize_dynamic` writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from compiler.frontend import load_model

SHAPE = (1, 16, 32)


class _Net:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def constant(self, *shape: int, mean: float = 0.0) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(self.rng.normal(mean, shape[0] ** -0.5, shape).astype(np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def dense(self, x: str, k: int, n: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.constant(k, n, mean=0.02)), self.constant(n))

    def model(self, last: str) -> ModelProto:
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", last)]
        graph = helper.make_graph(self.nodes, "net", ports[:1], ports[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mlp() -> ModelProto:
    net = _Net()
    return net.model(net.dense(net.node("Relu", net.dense("x", 32, 72)), 72, 32))


def transformer() -> ModelProto:
    """A layer with one head."""
    net = _Net()
    q, k, v = (net.dense("x", 32, 32) for _ in range(3))
    scores = net.node("Softmax", net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1])), axis=-1)
    y = net.node("Add", "x", net.dense(net.node("MatMul", scores, v), 32, 32))
    y = net.node("LayerNormalization", y, net.constant(32), net.constant(32))
    y = net.node("Add", y, net.dense(net.node("Relu", net.dense(y, 32, 72)), 72, 32))
    return net.model(net.node("LayerNormalization", y, net.constant(32), net.constant(32)))


def dynamic(floats: ModelProto, folder: Path, per_channel: bool = False) -> ModelProto:
    onnx.save(floats, folder / "floats.onnx")
    quantize_dynamic(folder / "floats.onnx", folder / "dynamic.onnx", weight_type=QuantType.QInt8, per_channel=per_channel)
    return load_model(folder / "dynamic.onnx")
