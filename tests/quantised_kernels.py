"""onnxruntime's kernels on random integers, scales and zero points, beside the formulas: many nodes in one session.

Scales are small multiples of powers of two, some units in the last place away.  So many results lie next to a half, where another order
of operations gives another integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.ir.quantised import elementwise, linear, pooling, products, tables
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.products import SlidingWindow
from simulator.exact_onnxruntime import exact_model, read_tensors

Array = NDArray[Any]
Rng = np.random.Generator
MS = "com.microsoft"


@dataclass
class Batch:
    """Nodes, each with what is expected of it."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    expected: list[tuple[str, Array]] = field(default_factory=list)

    def constant(self, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def fed(self, value: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.ascontiguousarray(value)
        return name

    def parameters(self, q: Quantisation) -> list[str]:
        """Scale and zero point as two inputs of a node."""
        return [self.constant(part if q.axis is not None else part[0]) for part in (q.scale, q.zero_point)]

    def node(self, kind: str, inputs: list[str], expected: Array, domain: str = "", **attributes: Any) -> None:
        name = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        self.outputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(expected.dtype), None))
        said = {key: value for key, value in attributes.items() if value not in (0, 1)}
        self.expected.append((f"{kind} {expected.dtype} {list(expected.shape)} {said}", expected))

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.feeds.items()
        ]
        graph = helper.make_graph(self.nodes, "batch", inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def run(self) -> list[Array]:
        """By the kernels as they are written here."""
        return list(read_tensors(exact_model(self.model(), group=False), self.feeds, [item.name for item in self.outputs]).values())

    def differing(self) -> list[str]:
        """A line for each node with another value than expected."""
        out = []
        for (what, mine), theirs in zip(self.expected, self.run(), strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                out.append(f"{what}: {mine.dtype} {mine.shape}, onnxruntime {theirs.dtype} {theirs.shape}")
            elif mine.tobytes() != theirs.tobytes() and (count := int((mine != theirs).sum())):
                out.append(f"{what}: {count} of {mine.size}")
        return out


def near(rng: Rng, base: float, least: int = 1, most: int = 40) -> np.float32:
    """base times a small multiple of a power of two, up to three units in the last place away."""
    scale = np.float32(base * rng.integers(least, most) / 2.0 ** rng.integers(0, 6))
    toward = np.float32(rng.choice([0, np.inf]))
    for _ in range(rng.integers(0, 4)):
        scale = np.nextafter(scale, toward)
    return scale


def spread(count: int) -> float:
    """About the spread of sums of so many products of random integers over 60, as a power of two."""
    return float(2.0 ** np.round(np.log2(60 * np.sqrt(count))))


def some(rng: Rng, dtype: Any, shape: tuple[int, ...]) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def zero(rng: Rng, dtype: Any) -> Any:
    """A zero point: often at an end or in the middle of the range, as quantisers choose it."""
    limits = np.iinfo(dtype)
    return np.dtype(dtype).type(rng.choice([limits.min, limits.max, 0, int(rng.integers(limits.min, limits.max + 1))]))


def single(rng: Rng, dtype: Any, scale: np.float32) -> Quantisation:
    return Quantisation.of(scale, zero(rng, dtype), dtype)


def kind(rng: Rng) -> Any:
    return (np.uint8, np.int8)[int(rng.integers(2))]


def pair(rng: Rng) -> tuple[Any, Any]:
    """Types of activations and weights, as onnxruntime has kernels for them."""
    return ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))[int(rng.integers(3))]


def sizes(rng: Rng, least: int, most: int, count: int) -> tuple[int, ...]:
    return tuple(int(size) for size in rng.integers(least, most, count))


def broadcasting(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a = sizes(rng, 1, 7, int(rng.integers(1, 5)))
    b = tuple(1 if rng.random() < 0.5 else size for size in a)[int(rng.integers(0, len(a))) :]
    return ((a, a), (a, b), (b, a))[int(rng.integers(3))]


# each adds the nodes of one case to a batch


def linear_case(batch: Batch, rng: Rng) -> None:
    dtype, channels = kind(rng), int(rng.integers(2, 9))
    q = single(rng, dtype, near(rng, 10 ** rng.uniform(-4, 2)))
    x = np.asarray(rng.integers(-300, 300, (5, 67)) * q.scale[0] / rng.choice([1, 2, 4]), np.float32)
    x.flat[:4] = [np.nan, np.inf, -np.inf, 1e38]
    batch.node("QuantizeLinear", [batch.fed(x), *batch.parameters(q)], linear.quantize(x, q))
    integers = some(rng, dtype, (4, 33))
    batch.node("DequantizeLinear", [batch.fed(integers), *batch.parameters(q)], linear.dequantize(integers, q))
    shape = (3, channels, 5)
    several = Quantisation.of(np.array([near(rng, 0.01) for _ in range(channels)]), some(rng, dtype, (channels,)), dtype, shape, 1)
    x = np.asarray(rng.integers(-300, 300, shape) * 0.005, np.float32)
    batch.node("QuantizeLinear", [batch.fed(x), *batch.parameters(several)], linear.quantize(x, several), axis=1)
    integers = some(rng, dtype, shape)
    batch.node("DequantizeLinear", [batch.fed(integers), *batch.parameters(several)], linear.dequantize(integers, several), axis=1)


def conv_case(batch: Batch, rng: Rng) -> None:
    dtype, weight_type = pair(rng)
    rank, groups = int(rng.choice([1, 2, 2, 2, 3])), int(rng.choice([1, 1, 1, 2, 3]))
    c_in, c_out = int(rng.integers(1, 9)), int(rng.integers(1, 9)) * groups
    if rng.random() < 0.3:  # depthwise
        groups = c_out = int(rng.integers(2, 24))
        c_in = 1
    window = SlidingWindow(sizes(rng, 1, 4, rank), sizes(rng, 1, 3, rank), sizes(rng, 0, 3, 2 * rank), sizes(rng, 1, 3, rank), groups)
    x, w = (
        some(rng, dtype, (int(rng.integers(1, 3)), c_in * groups, *sizes(rng, 5, 9, rank))),
        some(rng, weight_type, (c_out, c_in, *window.kernel)),
    )
    x_q, w_q = single(rng, dtype, near(rng, 0.01)), single(rng, weight_type, near(rng, 0.01))
    if rng.random() < 0.5:  # onnxruntime wants one zero point of all channels
        w_q = Quantisation.of(np.array([near(rng, 0.01) for _ in range(c_out)]), w_q.zero_point, weight_type, w.shape, 0)
    y_q = single(rng, dtype, near(rng, 1e-4 * spread(w[0].size), 20, 60))
    bias = rng.integers(-5000, 5000, c_out).astype(np.int32) if rng.random() < 0.6 else None
    attributes = {
        "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads, "dilations": window.dilations, "group": groups,
    }  # fmt: skip
    kernel = batch.constant(w) if rng.random() < 0.6 else batch.fed(w)
    scales = [batch.constant(w_q.scale), batch.constant(w_q.zero_point)]
    rest = [*batch.parameters(x_q), kernel, *scales, *batch.parameters(y_q), *([] if bias is None else [batch.constant(bias)])]
    expected = products.conv(x, x_q, w, w_q, y_q, window, bias)
    batch.node("QLinearConv", [batch.fed(x), *rest], expected, **attributes)
    moved = np.ascontiguousarray(np.moveaxis(expected, 1, -1))
    batch.node("QLinearConv", [batch.fed(np.moveaxis(x, 1, -1)), *rest], moved, MS, channels_last=1, **attributes)
    if dtype == np.uint8 and w_q.axis is None:
        sums = products.conv_sums(x, x_q, w, w_q, window)
        zeros = [batch.constant(q.zero_point[0]) for q in (x_q, w_q)]
        batch.node("ConvInteger", [batch.fed(x), batch.constant(w), *zeros], sums, **attributes)


def product_case(batch: Batch, rng: Rng) -> None:
    dtype, weight_type = pair(rng)
    m, k, n = sizes(rng, 1, 70, 3)
    lead: tuple[int, ...] = ((), (2,), (2, 3))[int(rng.integers(3))]
    batched = lead if rng.random() < 0.3 else ()
    a, b = some(rng, dtype, (*lead, m, k)), some(rng, weight_type, (*batched, k, n))
    a_q, b_q = single(rng, dtype, near(rng, 0.01)), single(rng, weight_type, near(rng, 0.01))
    if rng.random() < 0.5 and not batched and n > 1:
        b_q = Quantisation.of(np.array([near(rng, 0.01) for _ in range(n)]), some(rng, weight_type, (n,)), weight_type, b.shape, -1)
    y_q = single(rng, dtype, near(rng, 1e-4 * spread(k), 20, 60))
    left, right = batch.fed(a), batch.constant(b) if rng.random() < 0.6 else batch.fed(b)
    scales, zeros = zip(batch.parameters(a_q), batch.parameters(b_q), strict=True)
    rest = [right, *batch.parameters(b_q), *batch.parameters(y_q)]
    batch.node("QLinearMatMul", [left, *batch.parameters(a_q), *rest], products.matmul(a, a_q, b, b_q, y_q))
    sums = products.matmul_sums(a, a_q, b, b_q)
    batch.node("MatMulInteger", [left, right, *zeros], sums)
    bias = rng.normal(0, 1, n).astype(np.float32) if rng.random() < 0.5 else None
    made = linear.scale_sums(sums, linear.output_scale(a_q, b_q, None), bias)
    batch.node("MatMulIntegerToFloat", [left, right, *scales, *zeros, *([] if bias is None else [batch.constant(bias)])], made, MS)
    if not lead:
        gemm_case(batch, rng, a, a_q, b, b_q)


def gemm_case(batch: Batch, rng: Rng, a: Array, a_q: Quantisation, b: Array, b_q: Quantisation) -> None:
    (m, k), n = a.shape, b.shape[1]
    flip_a, flip_b, alpha = bool(rng.random() < 0.3), bool(rng.random() < 0.3), float(rng.choice([1.0, 0.3, 2.5]))
    shape = ((n,), (1, n), (m, n), (1,), (m, 1))[int(rng.integers(5))]
    bias = rng.integers(-3000, 3000, shape).astype(np.int32) if rng.random() < 0.7 else None
    y_q = single(rng, a.dtype, near(rng, alpha * 1e-4 * spread(k), 20, 60))
    inputs = [batch.fed(a.T if flip_a else a), *batch.parameters(a_q), batch.constant(np.ascontiguousarray(b.T if flip_b else b))]
    inputs += [*batch.parameters(b_q), "" if bias is None else batch.constant(bias)]
    attributes = {"transA": int(flip_a), "transB": int(flip_b), "alpha": alpha}
    batch.node("QGemm", [*inputs, *batch.parameters(y_q)], products.gemm(a, a_q, b, b_q, y_q, bias, alpha), MS, **attributes)
    made = linear.scale_sums(products.gemm_sums(a, a_q, b, b_q, bias), linear.output_scale(a_q, b_q, None, alpha))
    batch.node("QGemm", inputs, made, MS, **attributes)


def outer_case(batch: Batch, rng: Rng) -> None:
    """Products of every two integers, by scales that make many of them halves."""
    dtype, weight_type = pair(rng)
    a_q, b_q = single(rng, dtype, near(rng, 0.01)), single(rng, weight_type, near(rng, 0.01))
    a, b = tables.all_stored_integers(a_q)[:, None], tables.all_stored_integers(b_q)[None, :: int(rng.integers(5, 20))]
    if rng.random() < 0.5:
        scales = np.array([near(rng, 0.01) for _ in range(b.size)])
        b_q = Quantisation.of(scales, b_q.zero_point, weight_type, b.shape, 1)
    y_q = single(rng, dtype, near(rng, float(a_q.scale[0] * b_q.scale[0]), 30, 900))
    rest = [*batch.parameters(b_q), *batch.parameters(y_q)]
    expected = products.matmul(a, a_q, b, b_q, y_q)
    batch.node("QLinearMatMul", [batch.fed(a), *batch.parameters(a_q), batch.constant(b), *rest], expected)
    image, kernel = batch.fed(a.reshape(1, 1, 16, 16)), batch.constant(b.reshape(-1, 1, 1, 1))
    batch.node("QLinearConv", [image, *batch.parameters(a_q), kernel, *rest], expected.T.reshape(1, -1, 16, 16))


def dynamic_case(batch: Batch, rng: Rng) -> None:
    m, k, n = sizes(rng, 1, 30, 3)
    x = np.asarray(rng.normal(rng.choice([-5, 0, 0, 5]), 1, (m, k)), np.float32)
    q, b = linear.dynamic_quantisation(x), some(rng, np.int8, (k, n))
    b_q = single(rng, np.int8, near(rng, 0.01))
    made = linear.scale_sums(products.matmul_sums(linear.quantize(x, q), q, b, b_q), linear.output_scale(q, b_q, None))
    batch.node("DynamicQuantizeMatMul", [batch.fed(x), batch.constant(b), *batch.parameters(b_q)], made, MS)


def elementwise_case(batch: Batch, rng: Rng) -> None:
    """Every pair of integers of one type, or random ones that broadcast."""
    dtype, base = kind(rng), 10 ** rng.uniform(-4, 0)
    a_q, b_q, y_q = (single(rng, dtype, near(rng, base)) for _ in range(3))
    if rng.random() < 0.4:
        every = tables.all_stored_integers(a_q)
        a, b = every[:: int(rng.integers(3, 20)), None], every[None]
        shapes = (a.shape[0], 256)
        a, b = ((np.broadcast_to(a, shapes), np.broadcast_to(b, shapes)), (a, np.broadcast_to(b, shapes)), (np.broadcast_to(b, shapes), a))[
            int(rng.integers(3))
        ]
    else:
        a, b = (some(rng, dtype, shape) for shape in broadcasting(rng))
    left, right = [batch.fed(a), *batch.parameters(a_q)], [batch.fed(b), *batch.parameters(b_q)]
    batch.node("QLinearAdd", [*left, *right, *batch.parameters(y_q)], elementwise.add(a, a_q, b, b_q, y_q), MS)
    y_q = single(rng, dtype, near(rng, float(a_q.scale[0] * b_q.scale[0]), 30, 900))
    batch.node("QLinearMul", [*left, *right, *batch.parameters(y_q)], elementwise.mul(a, a_q, b, b_q, y_q), MS)


def pool_case(batch: Batch, rng: Rng) -> None:
    dtype, rank, last = kind(rng), int(rng.choice([1, 2, 2, 3])), int(rng.random() < 0.4)
    kernel = sizes(rng, 1, 4, rank)
    pads = tuple(int(rng.integers(0, size)) for size in (*kernel, *kernel))
    window = SlidingWindow(kernel, sizes(rng, 1, 3, rank), pads, (1,) * rank)
    x = some(rng, dtype, (int(rng.integers(1, 3)), int(rng.integers(1, 20)), *sizes(rng, 3, 12, rank)))
    scale, padded = near(rng, 0.01), int(rng.random() < 0.5)
    x_q, y_q = single(rng, dtype, scale), single(rng, dtype, near(rng, float(scale) / 8, 4, 12))
    inputs = [batch.fed(np.moveaxis(x, 1, -1) if last else x), *batch.parameters(x_q), *batch.parameters(y_q)]

    def laid(values: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(values, 1, -1)) if last else values

    attributes = {"kernel_shape": kernel, "strides": window.strides, "pads": pads}
    average = pooling.average_pool(x, x_q, y_q, window, bool(padded))
    batch.node("QLinearAveragePool", inputs, laid(average), MS, channels_last=last, count_include_pad=padded, **attributes)
    batch.node("QLinearGlobalAveragePool", inputs, laid(pooling.global_average_pool(x, x_q, y_q)), MS, channels_last=last)
    batch.node("MaxPool", [batch.fed(x)], pooling.max_pool(x, window), **attributes)


def table_case(batch: Batch, rng: Rng) -> None:
    dtype = kind(rng)
    x_q, y_q = single(rng, dtype, near(rng, 10 ** rng.uniform(-3, 0))), single(rng, dtype, near(rng, 10 ** rng.uniform(-3, -1.5)))
    every = tables.all_stored_integers(x_q)
    inputs = [batch.fed(every), *batch.parameters(x_q)]
    batch.node("QLinearSigmoid", [*inputs, *batch.parameters(y_q)], tables.sigmoid(every, x_q, y_q), MS)
    real = np.asarray(rng.uniform(-20, 20, 999), np.float32)
    batch.node("Sigmoid", [batch.fed(real)], tables.logistic(real))
    y_q, alpha = single(rng, dtype, near(rng, float(x_q.scale[0]))), float(rng.uniform(0, 1))
    batch.node("QLinearLeakyRelu", [*inputs, *batch.parameters(y_q)], tables.leaky_relu(every, x_q, y_q, alpha), MS, alpha=alpha)
    parts = [(some(rng, dtype, (2, int(rng.integers(1, 9)), 3)), q) for q in (x_q, y_q, single(rng, dtype, near(rng, 0.01)))]
    listed = [name for x, q in parts for name in (batch.fed(x), *batch.parameters(q))]
    batch.node("QLinearConcat", [*batch.parameters(y_q), *listed], tables.concat(parts, y_q, 1), MS, axis=1)
    axis, x = int(rng.choice([1, 2])), some(rng, dtype, (3, int(rng.integers(1, 40)), 4))
    x_q = single(rng, dtype, near(rng, 10 ** rng.uniform(-2, 0)))
    y_q = Quantisation.of(np.float32(1 / 256), np.dtype(dtype).type(np.iinfo(dtype).min), dtype)
    y_q = y_q if rng.random() < 0.5 else single(rng, dtype, np.float32(1 / rng.integers(32, 400)))
    inputs = [batch.fed(x), *batch.parameters(x_q), *batch.parameters(y_q)]
    batch.node("QLinearSoftmax", inputs, tables.softmax(x, x_q, y_q, axis), MS, axis=axis, opset=13)


# name of a group of kernels -> a case of it, and how many a fast test has
CASES: dict[str, tuple[Callable[[Batch, Rng], None], int]] = {
    "linear": (linear_case, 150),
    "conv": (conv_case, 250),
    "product": (product_case, 150),
    "outer": (outer_case, 100),
    "dynamic": (dynamic_case, 60),
    "elementwise": (elementwise_case, 250),
    "pool": (pool_case, 200),
    "table": (table_case, 200),
}
