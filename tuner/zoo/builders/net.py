"""Builder of ONNX nodes with shapes, and placeholders for weights.

A weight is a ConstantOfShape node, as in the light networks of the onnx package: a model without its weights has some kilobytes, and
`compiler.frontend.onnx_io.random_weights.seed_weights` draws them so that values stay near 1 through the entire network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # version that belongs to the opset
PLACEHOLDER = 0.02  # value of weights before they are drawn
Pair = tuple[int, int]


class Tensor(NamedTuple):
    """Computed tensor and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[1]


class Net:
    """Collector of one model's nodes; methods append a layer and return its output."""

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
        """Append a node with one output of a known shape."""
        self.counts[op] = self.counts.get(op, 0) + 1
        name = f"{op.lower()}_{self.counts[op]}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return Tensor(name, tuple(shape))

    def weight(self, *shape: int) -> str:
        """Append a weight to be drawn later."""
        value = numpy_helper.from_array(np.array([PLACEHOLDER], np.float32))
        return self.node("ConstantOfShape", [self.integers(shape)], shape, value=value).name

    def integers(self, values: Sequence[int]) -> str:
        """Add an int64 constant: a shape, axes, pads."""
        key = tuple(int(v) for v in values)
        return self.shapes.setdefault(key, f"ints_{'_'.join(map(str, key)).replace('-', 'm')}")

    def number(self, value: float) -> str:
        """Append a constant of the architecture, which is never drawn."""
        return self.array(np.array(value, np.float32))

    def array(self, values: NDArray[np.float32]) -> str:
        """Append constants of the architecture, which are never drawn."""
        return self.node("Constant", [], (), value=numpy_helper.from_array(values)).name

    def model(self, *outputs: Tensor) -> ModelProto:
        """Finish and check the model."""
        infos = [helper.make_tensor_value_info(item.name, TensorProto.FLOAT, list(item.shape)) for item in outputs]
        constants = [numpy_helper.from_array(np.array(values, np.int64), name) for values, name in self.shapes.items()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, infos, constants)
        model = helper.make_model(graph, producer_name="tilefarm", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model

    # -- layers -----------------------------------------------------------------------------------------------------

    def conv(self, tensor: Tensor, channels: int, kernel: int | Pair, stride: int = 1, pad: int | Pair | None = None, *, groups: int = 1,
             bias: bool = False) -> Tensor:  # fmt: skip
        """Append a convolution.  pad: None keeps the size at stride 1 (an odd kernel)."""
        kh, kw = _pair(kernel)
        ph, pw = (kh // 2, kw // 2) if pad is None else _pair(pad)
        inputs = [tensor.name, self.weight(channels, tensor.channels // groups, kh, kw)]
        if bias:
            inputs.append(self.weight(channels))
        n, _, h, w = tensor.shape
        return self.node(
            "Conv", inputs, (n, channels, _size(h, kh, stride, ph), _size(w, kw, stride, pw)),
            kernel_shape=[kh, kw], strides=[stride, stride], pads=[ph, pw, ph, pw], group=groups,
        )  # fmt: skip

    def batch_norm(self, tensor: Tensor, epsilon: float = 1e-3) -> Tensor:
        statistics = [self.weight(tensor.channels) for _ in range(4)]
        return self.node("BatchNormalization", [tensor.name, *statistics], tensor.shape, epsilon=epsilon)

    def relu(self, tensor: Tensor) -> Tensor:
        return self.node("Relu", [tensor.name], tensor.shape)

    def relu6(self, tensor: Tensor) -> Tensor:
        return self.node("Clip", [tensor.name, self.number(0), self.number(6)], tensor.shape)

    def sigmoid(self, tensor: Tensor) -> Tensor:
        return self.node("Sigmoid", [tensor.name], tensor.shape)

    def silu(self, tensor: Tensor) -> Tensor:
        """Append x * sigmoid(x), as exporters write it."""
        return self.mul(tensor, self.sigmoid(tensor))

    def max_pool(self, tensor: Tensor, kernel: int, stride: int, pad: int = 0) -> Tensor:
        return self._pool("MaxPool", tensor, kernel, stride, pad)

    def average_pool(self, tensor: Tensor, kernel: int, stride: int, pad: int = 0, *, include_pad: bool = False) -> Tensor:
        return self._pool("AveragePool", tensor, kernel, stride, pad, count_include_pad=int(include_pad))

    def _pool(self, op: str, tensor: Tensor, kernel: int, stride: int, pad: int, **attributes: int) -> Tensor:
        n, c, h, w = tensor.shape
        return self.node(
            op, [tensor.name], (n, c, _size(h, kernel, stride, pad), _size(w, kernel, stride, pad)),
            kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4, **attributes,
        )  # fmt: skip

    def concat(self, *parts: Tensor, axis: int = 1) -> Tensor:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", [part.name for part in parts], shape, axis=axis)

    def split(self, tensor: Tensor, *channels: int) -> list[Tensor]:
        """Append a division of axis 1 into parts."""
        shapes = [(tensor.shape[0], part, *tensor.shape[2:]) for part in channels]
        first = self.node("Split", [tensor.name, self.integers(channels)], shapes[0], axis=1)
        parts = [first, *(Tensor(f"{first.name}_{i}", shape) for i, shape in enumerate(shapes[1:], 1))]
        self.nodes[-1].output.extend(part.name for part in parts[1:])
        return parts

    def softmax(self, tensor: Tensor, axis: int) -> Tensor:
        return self.node("Softmax", [tensor.name], tensor.shape, axis=axis)

    def resize(self, tensor: Tensor, sizes: Pair, **attributes: Any) -> Tensor:
        """Append an interpolation of an image to `sizes` rows and columns."""
        shape = *tensor.shape[:2], *sizes
        return self.node("Resize", [tensor.name, "", "", self.integers(shape)], shape, **attributes)

    def add(self, first: Tensor, second: Tensor) -> Tensor:
        return self.node("Add", [first.name, second.name], first.shape)

    def mul(self, first: Tensor, second: Tensor | str) -> Tensor:
        return self.node("Mul", [first.name, second if isinstance(second, str) else second.name], first.shape)

    def classifier(self, tensor: Tensor, classes: int) -> Tensor:
        """Append the mean of each channel and a fully connected layer: logits."""
        n, c = tensor.shape[:2]
        pooled = self.node("GlobalAveragePool", [tensor.name], (n, c, 1, 1))
        flat = self.node("Flatten", [pooled.name], (n, c), axis=1)
        return self.node("Gemm", [flat.name, self.weight(classes, c), self.weight(classes)], (n, classes), transB=1)

    def reshape(self, tensor: Tensor, *shape: int) -> Tensor:
        assert math.prod(shape) == math.prod(tensor.shape), f"{tensor.shape} -> {shape}"
        return self.node("Reshape", [tensor.name, self.integers(shape)], shape)

    def transpose(self, tensor: Tensor, *perm: int) -> Tensor:
        return self.node("Transpose", [tensor.name], [tensor.shape[a] for a in perm], perm=list(perm))


def _pair(value: int | Pair) -> Pair:
    return value if isinstance(value, tuple) else (value, value)


def _size(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1
