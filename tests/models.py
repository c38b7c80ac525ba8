"""Models for tests: the nine light networks that onnx ships, with seeded random weights, and small random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.frontend import load_model, lower
from compiler.ir.graph import Graph

LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19", "zfnet512")
SMALL = ("densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet")  # those without huge Gemm weights
Floats = NDArray[np.float32]


def light_path(name: str) -> Path:
    """The file of one of LIGHT."""
    return LIGHT_FOLDER / f"light_{name}.onnx"


@lru_cache(maxsize=4)
def light_model(name: str, seed: int = 0) -> ModelProto:
    """One of LIGHT with weights drawn from `seed`."""
    return load_model(light_path(name), random_weights=seed)


@lru_cache(maxsize=4)
def light_graph(name: str, seed: int = 0) -> Graph:
    """One of LIGHT after the rewrites."""
    return lower(light_model(name, seed))


def random_feeds(model: ModelProto, seed: int = 0) -> dict[str, Floats]:
    """Input name -> standard normal values of the input's shape."""
    rng = np.random.default_rng(seed)
    return {
        item.name: rng.standard_normal([d.dim_value for d in item.type.tensor_type.shape.dim], dtype=np.float32)
        for item in model.graph.input
    }


def reference_outputs(model: ModelProto, feeds: dict[str, Floats]) -> dict[str, Floats]:
    """onnxruntime's answer, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def without_final_softmax(model: ModelProto) -> ModelProto:
    """The model up to what its last Softmax reads, where it ends in one: softmax saturates and hides errors."""
    softmax = [node for node in model.graph.node if node.op_type == "Softmax"]
    if not softmax:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    before = softmax[-1].input[0]
    shapes = {item.name: item for item in model.graph.value_info}
    del copy.graph.output[:]
    copy.graph.output.append(shapes[before])
    producer = {name: node for node in copy.graph.node for name in node.output}
    needed, todo = {before}, [before]
    while todo:
        node = producer.get(todo.pop())
        fresh = [name for name in (node.input if node is not None else ()) if name not in needed]
        needed.update(fresh)
        todo += fresh
    kept = [node for node in copy.graph.node if any(name in needed for name in node.output)]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


class Builder:
    """Writes a small ONNX model: each method appends a node and answers with its output's name.  Weights come from `rng`."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], opset: int = 17) -> None:
        self.rng = rng
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.shape = {"x": tuple(shape)}
        self.count = 0

    def constant(self, values: NDArray[np.generic]) -> str:
        self.count += 1
        name = f"c{self.count}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def normal(self, shape: tuple[int, ...], std: float = 1.0, mean: float = 0.0) -> str:
        return self.constant((self.rng.standard_normal(shape) * std + mean).astype(np.float32))

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """Any node of one output; its shape is inferred."""
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.shape[name] = self._infer(name)
        return name

    def _infer(self, name: str) -> tuple[int, ...]:
        model = onnx.shape_inference.infer_shapes(self._model([name], typed=False), data_prop=True)
        (item,) = model.graph.output
        if not item.type.tensor_type.HasField("shape"):  # onnx has no rule for GroupNormalization
            return self.shape[self.nodes[-1].input[0]]
        return tuple(d.dim_value for d in item.type.tensor_type.shape.dim)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        pads: tuple[int, ...] = (1, 1, 1, 1),
        groups: int = 1,
        dilation: tuple[int, int] = (1, 1),
        bias: bool = True,
    ) -> str:
        c = self.shape[x][1] // groups
        std = 1 / float(np.sqrt(c * kernel[0] * kernel[1]))
        inputs = [x, self.normal((channels, c, *kernel), std)] + ([self.normal((channels,), 0.1)] if bias else [])
        return self.node("Conv", inputs, kernel_shape=kernel, strides=stride, pads=pads, group=groups, dilations=dilation)

    def batch_norm(self, x: str) -> str:
        c = self.shape[x][1]
        variance = self.constant(self.rng.uniform(0.5, 1.5, c).astype(np.float32))
        return self.node("BatchNormalization", [x, self.normal((c,), 0.1, 1.0), self.normal((c,), 0.1), self.normal((c,), 0.1), variance])

    def relu(self, x: str) -> str:
        return self.node("Relu", [x])

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b])

    def max_pool(self, x: str, kernel: int = 2, stride: int = 2, pads: tuple[int, ...] = (0, 0, 0, 0), **attributes: object) -> str:
        return self.node("MaxPool", [x], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads, **attributes)

    def average_pool(self, x: str, kernel: int = 2, stride: int = 2, pads: tuple[int, ...] = (0, 0, 0, 0), **attributes: object) -> str:
        return self.node("AveragePool", [x], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads, **attributes)

    def concat(self, *tensors: str) -> str:
        return self.node("Concat", list(tensors), axis=1)

    def lrn(self, x: str, size: int = 5, alpha: float = 1e-4) -> str:
        return self.node("LRN", [x], size=size, alpha=alpha, beta=0.75, bias=1.0)

    def shuffle(self, x: str, groups: int) -> str:
        n, c, h, w = self.shape[x]
        split = self.node("Reshape", [x, self.constant(np.array([n, groups, c // groups, h, w], np.int64))])
        moved = self.node("Transpose", [split], perm=[0, 2, 1, 3, 4])
        return self.node("Reshape", [moved, self.constant(np.array([n, c, h, w], np.int64))])

    def gemm(self, x: str, outputs: int) -> str:
        """Flatten (where needed), then Gemm with a transposed weight."""
        if len(self.shape[x]) != 2:
            x = self.node("Flatten", [x], axis=1)
        inputs = self.shape[x][1]
        return self.node("Gemm", [x, self.normal((outputs, inputs), 1 / float(np.sqrt(inputs))), self.normal((outputs,), 0.1)], transB=1)

    def softmax(self, x: str, axis: int = 1) -> str:
        return self.node("Softmax", [x], axis=axis)

    def _model(self, outputs: list[str], typed: bool = True) -> ModelProto:
        def info(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape[name])

        results = [info(name) if typed else onnx.ValueInfoProto(name=name) for name in outputs]
        inputs = [info("x")]
        graph = helper.make_graph(self.nodes, "small", inputs, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def model(self, *outputs: str) -> ModelProto:
        """The model with these outputs (the last node's where none is named), checked."""
        model = self._model(list(outputs) or [self.nodes[-1].output[0]])
        onnx.checker.check_model(model, full_check=True)
        return model


def conv_chain(rng: np.random.Generator) -> ModelProto:
    """Conv-BN-ReLU twice, a max pool between, global average, Gemm, Softmax."""
    b = Builder(rng, (1, 3, 20, 24))
    x = b.relu(b.batch_norm(b.conv("x", 20, stride=(2, 2))))
    x = b.max_pool(x, 3, 2, (1, 1, 1, 1))
    x = b.relu(b.batch_norm(b.conv(x, 40)))
    x = b.node("GlobalAveragePool", [x])
    return b.model(b.softmax(b.gemm(x, 10)))


def residual_block(rng: np.random.Generator) -> ModelProto:
    """Two residual blocks, the first with a projection."""
    b = Builder(rng, (1, 16, 12, 12))
    y = b.conv(b.relu(b.conv("x", 32, stride=(2, 2))), 32)
    x = b.relu(b.add(y, b.conv("x", 32, (1, 1), (2, 2), (0, 0, 0, 0))))
    return b.model(b.relu(b.add(b.conv(b.relu(b.conv(x, 32)), 32), x)))


def inception_block(rng: np.random.Generator) -> ModelProto:
    """Four branches into a Concat whose parts are no multiples of 16, then a Conv that reads it."""
    b = Builder(rng, (1, 24, 14, 14))
    one = b.relu(b.conv("x", 20, (1, 1), pads=(0, 0, 0, 0)))
    three = b.relu(b.conv(b.relu(b.conv("x", 12, (1, 1), pads=(0, 0, 0, 0))), 28))
    five = b.relu(b.conv(b.relu(b.conv("x", 8, (1, 1), pads=(0, 0, 0, 0))), 10, (5, 5), pads=(2, 2, 2, 2)))
    pooled = b.relu(b.conv(b.max_pool("x", 3, 1, (1, 1, 1, 1)), 6, (1, 1), pads=(0, 0, 0, 0)))
    return b.model(b.conv(b.max_pool(b.concat(one, three, five, pooled)), 32))


def dense_block(rng: np.random.Generator) -> ModelProto:
    """Nested Concats with BN-ReLU between, as in DenseNet."""
    b = Builder(rng, (1, 3, 12, 12))
    x = b.conv("x", 20)
    for _ in range(3):
        y = b.relu(b.batch_norm(b.conv(b.relu(b.batch_norm(x)), 24, (1, 1), pads=(0, 0, 0, 0))))
        x = b.concat(x, b.conv(y, 12))
    return b.model(b.average_pool(b.conv(b.relu(b.batch_norm(x)), 28, (1, 1), pads=(0, 0, 0, 0))))


def shuffle_block(rng: np.random.Generator) -> ModelProto:
    """Grouped 1x1, shuffle, depthwise, grouped 1x1, residual sum; then the strided unit with a Concat."""
    b = Builder(rng, (1, 24, 8, 8))
    y = b.shuffle(b.relu(b.conv("x", 12, (1, 1), pads=(0, 0, 0, 0), groups=3)), 3)
    x = b.relu(b.add("x", b.conv(b.conv(y, 12, groups=12), 24, (1, 1), pads=(0, 0, 0, 0), groups=3)))
    y = b.shuffle(b.relu(b.conv(x, 12, (1, 1), pads=(0, 0, 0, 0), groups=3)), 3)
    y = b.conv(b.conv(y, 12, stride=(2, 2), groups=12), 36, (1, 1), pads=(0, 0, 0, 0), groups=3)
    return b.model(b.relu(b.concat(b.average_pool(x, 3, 2, (1, 1, 1, 1)), y)))


def lrn_chain(rng: np.random.Generator) -> ModelProto:
    """Conv-ReLU-LRN-pool, flattened into two Gemms and a Softmax, as in AlexNet."""
    b = Builder(rng, (1, 3, 27, 28))
    x = b.lrn(b.relu(b.conv("x", 24, (5, 5), (4, 4), (0, 0, 0, 0))), alpha=0.1)  # large enough that one channel less shows in float16
    x = b.max_pool(x, 3, 2)
    return b.model(b.softmax(b.gemm(b.relu(b.gemm(b.relu(b.conv(x, 32, groups=2)), 20)), 10)))


def vector_chain(rng: np.random.Generator) -> ModelProto:
    """Element-wise operators of every kind on one tensor."""
    b = Builder(rng, (1, 20, 6, 6))
    x = b.node("Sigmoid", ["x"])
    x = b.node("Mul", [x, "x"])
    x = b.node("Add", [x, b.normal((20, 1, 1))])
    x = b.node("Clip", [x, b.constant(np.array(-0.5, np.float32)), b.constant(np.array(2.0, np.float32))])
    y = b.node("LeakyRelu", [b.conv(x, 20)], alpha=0.1)
    return b.model(b.node("Sub", [y, b.node("Max", [x, b.batch_norm("x")])]))


SMALL_MODELS: dict[str, Callable[[np.random.Generator], ModelProto]] = {
    "conv_chain": conv_chain,
    "residual_block": residual_block,
    "inception_block": inception_block,
    "dense_block": dense_block,
    "shuffle_block": shuffle_block,
    "lrn_chain": lrn_chain,
    "vector_chain": vector_chain,
}


def small_model(name: str, seed: int = 0) -> ModelProto:
    """One of SMALL_MODELS, its weights drawn from `seed`."""
    return SMALL_MODELS[name](np.random.default_rng(seed))


def small_graph(name: str, seed: int = 0) -> Graph:
    return lower(small_model(name, seed))


def random_model(seed: int) -> ModelProto:
    """A small random network: branches, sums, concatenations, pools, groups; one input, one output, at least one Conv."""
    rng = np.random.default_rng(seed)
    channels = int(rng.integers(1, 40))
    b = Builder(rng, (1, channels, int(rng.integers(5, 18)), int(rng.integers(5, 18))))
    tensors = ["x"]
    for _ in range(int(rng.integers(3, 12))):
        tensors.append(_random_node(b, rng, tensors))
    last = b.conv(tensors[-1], int(rng.integers(1, 33)), (1, 1), pads=(0, 0, 0, 0))
    return b.model(last)


def _random_node(b: Builder, rng: np.random.Generator, tensors: list[str]) -> str:
    x = tensors[int(rng.integers(max(0, len(tensors) - 4), len(tensors)))]
    _, c, h, w = b.shape[x]
    alike = [t for t in tensors if b.shape[t] == b.shape[x]]
    images = [t for t in tensors if b.shape[t][2:] == (h, w)]
    kind = int(rng.integers(0, 10))
    if kind <= 2:
        kernel = (int(rng.integers(1, min(4, h + 1))), int(rng.integers(1, min(4, w + 1))))
        pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
        divisors = [g for g in (1, 1, 2, 3, c) if c % g == 0]
        groups = divisors[int(rng.integers(len(divisors)))]
        outputs = c if groups == c else groups * int(rng.integers(1, 1 + max(1, 40 // groups)))
        stride = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
        return b.conv(x, outputs, kernel, stride, pads, groups)
    if kind == 3:
        return b.relu(x)
    if kind == 4:
        return b.batch_norm(x)
    if kind == 5 and min(h, w) >= 3:
        pooled = b.max_pool if rng.integers(2) else b.average_pool
        # with pads, onnx and onnxruntime disagree on the size of some ceil-mode outputs
        pads = (1, 0, 1, 1) if rng.integers(2) else (0, 0, 0, 0)
        return pooled(x, int(rng.integers(2, 4)), int(rng.integers(1, 3)), pads, ceil_mode=int(not any(pads)))
    if kind == 6:
        return b.concat(*(images[int(rng.integers(len(images)))] for _ in range(int(rng.integers(2, 4)))))
    if kind == 7:
        return b.add(x, alike[int(rng.integers(len(alike)))])
    if kind == 8:
        groups = next((g for g in (4, 3, 2) if c % g == 0), 1)
        return b.shuffle(x, groups)
    return b.conv(x, c, (1, 1), pads=(0, 0, 0, 0))
