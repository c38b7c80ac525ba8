"""Formulas of `compiler.ir.quantised` for nodes of a graph optimised by onnxruntime: arrays in, arrays out.

A table of kinds; other kinds compute in floating point, or are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from compiler.ir.quantised import elementwise, linear, pooling, products, tables
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.products import SlidingWindow
from simulator.npu.errors import BadInputError

Array = NDArray[Any]
Inputs = Sequence[Array | None]  # None for a missing optional input
Attributes = Mapping[str, Any]


def node_formula(node: NodeProto) -> Callable[[Inputs], list[Array]] | None:
    """Formula for the node's outputs, or None."""
    formula = FORMULAS.get((node.domain, node.op_type)) or FORMULAS.get(("", node.op_type))
    if formula is None:
        return None
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    location = node.name or node.output[0]
    return lambda inputs: formula(inputs, attributes, location)


def _required(inputs: Inputs, index: int) -> Array:
    value = inputs[index]
    assert value is not None, index
    return value


def _optional(inputs: Inputs, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _q(inputs: Inputs, index: int, tensor: Array, location: str, axis: int | None = None) -> Quantisation:
    """Quantisation from two inputs, for a present tensor."""
    return Quantisation.of(_required(inputs, index), _optional(inputs, index + 1), tensor.dtype, tensor.shape, axis, location)


def _output_quantisation(inputs: Inputs, index: int, dtype: Any, location: str) -> Quantisation:
    """Quantisation as `_q`, for an output of the node."""
    return Quantisation.of(_required(inputs, index), _optional(inputs, index + 1), dtype, where=location)


def _channels_first(array: Array, channels_last: Any) -> Array:
    """Array with channels moved from the last axis to axis 1, if they are last."""
    return np.moveaxis(array, -1, 1) if channels_last else array


def _restore_axes(array: Array, channels_last: Any) -> Array:
    return np.moveaxis(array, 1, -1) if channels_last else array


def _window(attributes: Attributes, spatial: Sequence[int], kernel: Sequence[int]) -> SlidingWindow:
    rank = len(spatial)
    kernel = tuple(int(size) for size in attributes.get("kernel_shape", kernel))
    strides, dilations = (tuple(attributes.get(name, (1,) * rank)) for name in ("strides", "dilations"))
    pads = list(attributes.get("pads", (0,) * (2 * rank)))
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto.startswith("SAME"):
        total = [max(0, (-(-size // step) - 1) * step + r - size) for size, step, r in zip(spatial, strides, reach, strict=True)]
        leading = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        pads = [*leading, *(t - part for t, part in zip(total, leading, strict=True))]
    if attributes.get("ceil_mode", 0):
        for axis in range(rank):
            free = spatial[axis] + pads[axis] + pads[rank + axis] - reach[axis]
            missing_rows = -free % strides[axis]
            if spatial[axis] + pads[axis] > (free + missing_rows) // strides[axis] * strides[axis]:  # a window must begin inside the image
                pads[rank + axis] += missing_rows
    return SlidingWindow(kernel, strides, tuple(pads), dilations, int(attributes.get("group", 1)))


def _quantize(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    x, zero = _required(inputs, 0), _optional(inputs, 2)
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    q = Quantisation.of(_required(inputs, 1), zero, dtype, x.shape, attributes.get("axis", 1), location)
    return [linear.quantize(x, q)]


def _dequantize(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    x = _required(inputs, 0)
    return [linear.dequantize(x, _q(inputs, 1, x, location, attributes.get("axis", 1)))]


def _conv(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    channels_last = attributes.get("channels_last", 0)
    x, w, bias = _channels_first(_required(inputs, 0), channels_last), _required(inputs, 3), _optional(inputs, 8)
    x_q, w_q = _q(inputs, 1, x, location), _q(inputs, 4, w, location, 0)
    products.check_bound(x_q, w, w_q, 0, bias, location)
    window = _window(attributes, x.shape[2:], w.shape[2:])
    return [_restore_axes(products.conv(x, x_q, w, w_q, _output_quantisation(inputs, 6, x.dtype, location), window, bias), channels_last)]


def _conv_integer(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    x, w = _required(inputs, 0), _required(inputs, 1)
    x_q, w_q = (Quantisation.of(np.float32(1), _optional(inputs, i), v.dtype, v.shape, 0, location) for i, v in ((2, x), (3, w)))
    return [products.conv_sums(x, x_q, w, w_q, _window(attributes, x.shape[2:], w.shape[2:]))]


def _matmul(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes
    a, b = _required(inputs, 0), _required(inputs, 3)
    a_q, b_q = _q(inputs, 1, a, location), _q(inputs, 4, b, location, -1)
    products.check_bound(a_q, b, b_q, -1, None, location)
    return [products.matmul(a, a_q, b, b_q, _output_quantisation(inputs, 6, a.dtype, location))]


def _matmul_integer(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes
    a, b = _required(inputs, 0), _required(inputs, 1)
    a_q = Quantisation.of(np.float32(1), _optional(inputs, 2), a.dtype, where=location)
    return [products.matmul_sums(a, a_q, b, Quantisation.of(np.float32(1), _optional(inputs, 3), b.dtype, b.shape, -1, location))]


def _matmul_to_float(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes
    a, b = _required(inputs, 0), _required(inputs, 1)
    a_q = Quantisation.of(_required(inputs, 2), _optional(inputs, 4), a.dtype, where=location)
    b_q = Quantisation.of(_required(inputs, 3), _optional(inputs, 5), b.dtype, b.shape, -1, location)
    return [linear.scale_sums(products.matmul_sums(a, a_q, b, b_q), linear.output_scale(a_q, b_q, None), _optional(inputs, 6))]


def _dynamic_matmul(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes
    x, b = _required(inputs, 0), _required(inputs, 1)
    q, b_q = linear.dynamic_quantisation(x), _q(inputs, 2, b, location, -1)
    sums = products.matmul_sums(linear.quantize(x, q), q, b, b_q)
    return [linear.scale_sums(sums, linear.output_scale(q, b_q, None), _optional(inputs, 4))]


def _dynamic_quantize(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes, location
    x = _required(inputs, 0)
    q = linear.dynamic_quantisation(x)
    return [linear.quantize(x, q), q.scale.reshape(()), q.zero_point.reshape(())]


def _gemm(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    a, b, bias = _required(inputs, 0), _required(inputs, 3), _optional(inputs, 6)
    a, b = a.T if attributes.get("transA", 0) else a, b.T if attributes.get("transB", 0) else b
    a_q, b_q, alpha = _q(inputs, 1, a, location), _q(inputs, 4, b, location, -1), attributes.get("alpha", 1.0)
    products.check_bound(a_q, b, b_q, -1, None, location)
    if _optional(inputs, 7) is None:
        return [linear.scale_sums(products.gemm_sums(a, a_q, b, b_q, bias), linear.output_scale(a_q, b_q, None, alpha))]
    return [products.gemm(a, a_q, b, b_q, _output_quantisation(inputs, 7, a.dtype, location), bias, alpha)]


def _binary(function: Callable[..., Array]) -> Callable[[Inputs, Attributes, str], list[Array]]:
    def compute(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
        del attributes
        a, b = _required(inputs, 0), _required(inputs, 3)
        return [function(a, _q(inputs, 1, a, location), b, _q(inputs, 4, b, location), _output_quantisation(inputs, 6, a.dtype, location))]

    return compute


def _unary(function: Callable[..., Array]) -> Callable[[Inputs, Attributes, str], list[Array]]:
    def compute(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
        x = _required(inputs, 0)
        return [function(x, _q(inputs, 1, x, location), _output_quantisation(inputs, 3, x.dtype, location), attributes)]

    return compute


def _softmax(array: Array, x_q: Quantisation, y_q: Quantisation, attributes: Attributes) -> Array:
    axis = attributes.get("axis", -1)
    if attributes["opset"] >= 13:
        return tables.softmax(array, x_q, y_q, axis)
    flat = array.reshape(int(np.prod(array.shape[: axis % array.ndim])), -1)  # older opsets: all later axes form one
    return tables.softmax(flat, x_q, y_q, 1).reshape(array.shape)


def _average(array: Array, x_q: Quantisation, y_q: Quantisation, attributes: Attributes) -> Array:
    channels_last = attributes.get("channels_last", 0)
    image = _channels_first(array, channels_last)
    window = _window(attributes, image.shape[2:], ())
    return _restore_axes(pooling.average_pool(image, x_q, y_q, window, bool(attributes.get("count_include_pad", 0))), channels_last)


def _global_average(array: Array, x_q: Quantisation, y_q: Quantisation, attributes: Attributes) -> Array:
    channels_last = attributes.get("channels_last", 0)
    return _restore_axes(pooling.global_average_pool(_channels_first(array, channels_last), x_q, y_q), channels_last)


def _concat(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    parts = [(_required(inputs, i), _q(inputs, i + 1, _required(inputs, i), location)) for i in range(2, len(inputs), 3)]
    return [tables.concat(parts, _output_quantisation(inputs, 0, parts[0][0].dtype, location), attributes["axis"])]


def _max_pool(channels_last: bool) -> Callable[[Inputs, Attributes, str], list[Array]]:
    def compute(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
        del location
        x = _channels_first(_required(inputs, 0), channels_last)
        return [_restore_axes(pooling.max_pool(x, _window(attributes, x.shape[2:], ())), channels_last)]

    return compute


def _transpose(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del location
    return [_required(inputs, 0).transpose(attributes.get("perm"))]


def _flatten(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del location
    x, axis = _required(inputs, 0), attributes.get("axis", 1)
    return [x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)]


def _reshape(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del location
    x = _required(inputs, 0)
    keep = not attributes.get("allowzero", 0)
    return [x.reshape([x.shape[i] if size == 0 and keep else int(size) for i, size in enumerate(_required(inputs, 1))])]


def _slice(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    del attributes, location
    x, starts, stops = (_required(inputs, i) for i in range(3))
    axes, steps = _optional(inputs, 3), _optional(inputs, 4)
    slices = [slice(None)] * x.ndim
    for i, axis in enumerate(range(len(starts)) if axes is None else axes.tolist()):
        step = 1 if steps is None else int(steps[i])
        end = int(stops[i])
        # backwards, an end before the first value means none; Python would count it from the end
        slices[axis] = slice(int(starts[i]), None if step < 0 and end < -x.shape[axis] else end, step)
    return [x[tuple(slices)]]


def _pad(inputs: Inputs, attributes: Attributes, location: str) -> list[Array]:
    x, pads, value, axes = _required(inputs, 0), _required(inputs, 1), _optional(inputs, 2), _optional(inputs, 3)
    mode = attributes.get("mode", b"constant")
    if mode != b"constant" or pads.min() < 0:
        raise BadInputError(f"{location}: pads {pads.tolist()}, mode {mode.decode()}; expected constants around the tensor")
    padding = [(0, 0)] * x.ndim
    for i, axis in enumerate(range(x.ndim) if axes is None else axes.tolist()):
        padding[axis] = (int(pads[i]), int(pads[len(pads) // 2 + i]))
    return [np.pad(x, padding, constant_values=0 if value is None else value.reshape(-1)[0])]


MS = "com.microsoft"
FORMULAS: dict[tuple[str, str], Callable[[Inputs, Attributes, str], list[Array]]] = {
    ("", "QuantizeLinear"): _quantize,
    ("", "DequantizeLinear"): _dequantize,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "QLinearConv"): _conv,
    ("", "ConvInteger"): _conv_integer,
    ("", "QLinearMatMul"): _matmul,
    ("", "MatMulInteger"): _matmul_integer,
    ("", "Transpose"): _transpose,
    ("", "Flatten"): _flatten,
    ("", "Reshape"): _reshape,
    ("", "Slice"): _slice,
    ("", "Pad"): _pad,
    ("", "MaxPool"): _max_pool(channels_last=False),
    (MS, "NhwcMaxPool"): _max_pool(channels_last=True),
    (MS, "MatMulIntegerToFloat"): _matmul_to_float,
    (MS, "DynamicQuantizeMatMul"): _dynamic_matmul,
    (MS, "QGemm"): _gemm,
    (MS, "QLinearAdd"): _binary(elementwise.add),
    (MS, "QLinearMul"): _binary(elementwise.mul),
    (MS, "QLinearConcat"): _concat,
    (MS, "QLinearAveragePool"): _unary(_average),
    (MS, "QLinearGlobalAveragePool"): _unary(_global_average),
    (MS, "QLinearSigmoid"): _unary(lambda x, x_q, y_q, _: tables.sigmoid(x, x_q, y_q)),
    (MS, "QLinearLeakyRelu"): _unary(lambda x, x_q, y_q, attributes: tables.leaky_relu(x, x_q, y_q, attributes.get("alpha", 0.01))),
    (MS, "QLinearSoftmax"): _unary(_softmax),
}
