"""A few lines per layer: ONNX nodes with their shapes, and weights that are not there yet.

A weight is a ConstantOfShape node, as in the light networks that the onnx package ships: a model without its weights is some kilobytes,
and `compiler.frontend.onnx_io.random_weights.seed_weights` draws them so that values stay near 1 through the whole network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # of that opset
PLACEHOLDER = 0.02  # what the weights are until they are drawn
Pair = tuple[int, int]


class Tensor(NamedTuple):
    """A computed tensor and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[1]


class Net:
    """Collects the nodes of one model; methods append a layer and answer with its output."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shapes: dict[tuple[int, ...], str] = {}
        self.counts: dict[str, int] = {}

    # -- the parts of a model ---------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> Tensor:
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return Tensor(name, tuple(shape))

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> Tensor:
        """Any node with one output of a known shape."""
        self.counts[op] = self.counts.get(op, 0) + 1
        name = f"{op.lower()}_{self.counts[op]}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return Tensor(name, tuple(shape))

    def weight(self, *shape: int) -> str:
        """A weight still to be drawn."""
        value = numpy_helper.from_array(np.array([PLACEHOLDER], np.float32))
        return self.node("ConstantOfShape", [self.integers(shape)], shape, value=value).name

    def integers(self, values: Sequence[int]) -> str:
        """An int64 constant: a shape, axes, pads."""
        key = tuple(int(v) for v in values)
        return self.shapes.setdefault(key, f"ints_{'_'.join(map(str, key)).replace('-', 'm')}")

    def number(self, value: float) -> str:
        """A constant that is part of the architecture, and so is never drawn."""
        return self.node("Constant", [], (), value=numpy_helper.from_array(np.array(value, np.float32))).name

    def model(self, *outputs: Tensor) -> ModelProto:
        """The finished model, checked."""
        infos = [helper.make_tensor_value_info(item.name, TensorProto.FLOAT, list(item.shape)) for item in outputs]
        constants = [numpy_helper.from_array(np.array(values, np.int64), name) for values, name in self.shapes.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, infos, constants)
        model = helper.make_model(graph, producer_name="tilefarm", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model

    # -- layers -----------------------------------------------------------------------------------------------------

    def conv(self, x: Tensor, channels: int, kernel: int | Pair, stride: int = 1, pad: int | Pair | None = None, *, groups: int = 1,
             bias: bool = False) -> Tensor:  # fmt: skip
        """pad: None keeps the size at stride 1 (an odd kernel)."""
        kh, kw = _pair(kernel)
        ph, pw = (kh // 2, kw // 2) if pad is None else _pair(pad)
        inputs = [x.name, self.weight(channels, x.channels // groups, kh, kw)]
        if bias:
            inputs.append(self.weight(channels))
        n, _, h, w = x.shape
        return self.node(
            "Conv", inputs, (n, channels, _size(h, kh, stride, ph), _size(w, kw, stride, pw)),
            kernel_shape=[kh, kw], strides=[stride, stride], pads=[ph, pw, ph, pw], group=groups,
        )  # fmt: skip

    def batch_norm(self, x: Tensor, epsilon: float = 1e-3) -> Tensor:
        statistics = [self.weight(x.channels) for _ in range(4)]
        return self.node("BatchNormalization", [x.name, *statistics], x.shape, epsilon=epsilon)

    def relu(self, x: Tensor) -> Tensor:
        return self.node("Relu", [x.name], x.shape)

    def relu6(self, x: Tensor) -> Tensor:
        return self.node("Clip", [x.name, self.number(0), self.number(6)], x.shape)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.node("Sigmoid", [x.name], x.shape)

    def silu(self, x: Tensor) -> Tensor:
        """As exporters write it."""
        return self.mul(x, self.sigmoid(x))

    def max_pool(self, x: Tensor, kernel: int, stride: int, pad: int = 0) -> Tensor:
        return self._pool("MaxPool", x, kernel, stride, pad)

    def average_pool(self, x: Tensor, kernel: int, stride: int, pad: int = 0, *, include_pad: bool = False) -> Tensor:
        return self._pool("AveragePool", x, kernel, stride, pad, count_include_pad=int(include_pad))

    def _pool(self, op: str, x: Tensor, kernel: int, stride: int, pad: int, **attributes: int) -> Tensor:
        n, c, h, w = x.shape
        return self.node(
            op, [x.name], (n, c, _size(h, kernel, stride, pad), _size(w, kernel, stride, pad)),
            kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4, **attributes,
        )  # fmt: skip

    def concat(self, *parts: Tensor, axis: int = 1) -> Tensor:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", [part.name for part in parts], shape, axis=axis)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self.node("Add", [a.name, b.name], a.shape)

    def mul(self, a: Tensor, b: Tensor | str) -> Tensor:
        return self.node("Mul", [a.name, b if isinstance(b, str) else b.name], a.shape)

    def classifier(self, x: Tensor, classes: int) -> Tensor:
        """Mean of each channel, then a fully connected layer: logits."""
        n, c = x.shape[:2]
        pooled = self.node("GlobalAveragePool", [x.name], (n, c, 1, 1))
        flat = self.node("Flatten", [pooled.name], (n, c), axis=1)
        return self.node("Gemm", [flat.name, self.weight(classes, c), self.weight(classes)], (n, classes), transB=1)

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        assert math.prod(shape) == math.prod(x.shape), f"{x.shape} -> {shape}"
        return self.node("Reshape", [x.name, self.integers(shape)], shape)

    def transpose(self, x: Tensor, *perm: int) -> Tensor:
        return self.node("Transpose", [x.name], [x.shape[a] for a in perm], perm=list(perm))


def _pair(value: int | Pair) -> Pair:
    return value if isinstance(value, tuple) else (value, value)


def _size(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1
