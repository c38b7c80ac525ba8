"""Handlers of operators on integers, from QDQ fusion (`compiler.frontend.handlers.qdq_fusion`) and of QOperator models.

Scales and zero points are constants, so the quantisation of every tensor is known at compile time (`Graph.types`).

Operands of element-wise sums and products have one shape, or one is a constant or broadcast to the other.  An operand of one pixel stays
one pixel; an operand with size 1 along rows, columns or channels is expanded there, which moves integers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from compiler.frontend.handlers.handlers import concat, softmax_view
from compiler.frontend.handlers.pooling import pool_window
from compiler.frontend.handlers.quantised_inputs import integers_read, quantisation_at, read_column_tensors, shift_of, shifted_input
from compiler.frontend.handlers.sequence import heads_of, over_axis
from compiler.frontend.handlers.to_graph import Handler, Translator, graph_shape
from compiler.frontend.handlers.views import View, constant_as
from compiler.frontend.handlers.window import axis_pair, finish_image, fit_fields, resolve_padding
from compiler.frontend.onnx_io.attributes import Attributes, label
from compiler.frontend.onnx_io.scales import GROUP_DOMAIN, MS
from compiler.ir.operators import (
    Dequantise,
    LookUp,
    Quantise,
    QuantisedAffine,
    QuantisedAverage,
    QuantisedConv,
    QuantisedMatMul,
    QuantisedPair,
    QuantisedSoftmax,
    Resample,
    Shape,
)  # fmt: skip
from compiler.ir.operators.quantised_products import quantised_identity_conv
from compiler.ir.operators.quantised_values import PairMode
from compiler.ir.quantised import products, tables
from compiler.ir.quantised.affine import Affine, fit_affine
from compiler.ir.quantised.elementwise import repeats
from compiler.ir.quantised.parameters import RAW_SUMS, STORED, Integers, Quantisation
from compiler.ir.quantised.tables import all_stored_integers
from compiler.ir.taps import Taps
from simulator.npu.errors import BadInputError


def quantised_binary(mode: PairMode, state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a sum or product, with operands in the order of onnxruntime's rounding."""
    del values
    constant = [i for i in (0, 3) if node.input[i] in state.constants]
    computed = [i for i in (0, 3) if i not in constant]
    shapes = {i: state.constants[node.input[i]].shape for i in constant} | {i: state.view(node, i).shape for i in computed}
    if mode == "add" and repeats(shapes[0], shapes[3]):
        mode = "radd"
    views = {i: integers_read(state, node, i) for i in computed}
    largest = max(computed, key=lambda i: math.prod(shapes[i]), default=0)
    # the larger computed operand defines the view; constants become a table, multiply-adds, or a tensor
    view, x_q = views[largest] if views else integers_read(state, node)
    y_q = quantisation_at(state, node, 6, x_q.dtype)
    rank = max(map(len, shapes.values()))
    view = view.of_rank(rank)
    if constant and math.prod(shapes[constant[0]]) == 1:
        _with_one_value(mode, state, node, view, constant[0], x_q, y_q)
        return
    same = all(operand_view.of_rank(rank).axes == view.axes for operand_view, _ in views.values())
    tensors = {i: state.in_rows_of(views[i][0].tensor, view.tensor) if same else _aligned(state, node, i, rank) for i in computed}
    types = {i: views[i][1] for i in computed}
    for i in constant:
        multiply_add = _per_channel(mode, state, node, view, i, x_q, y_q)
        if multiply_add is not None:
            state.finish_as(node, multiply_add, view.axes)
            return
        tensors[i], types[i] = _constant(state, node, i, view)
    full = tensors[largest]
    for i in tensors:
        if i != largest:
            tensors[i] = _spread(state, node, tensors[i], types[i], state.shapes[full])
    first, second = (0, 3) if state.shapes[tensors[0]] == state.shapes[full] else (3, 0)
    if first == 3 and mode != "mul":
        mode = "radd" if mode == "add" else "add"
    op = QuantisedPair(state.name(node), tensors[first], tensors[second], node.output[0], mode, types[first], types[second], y_q)
    dims = [state.shapes[name] for name in op.inputs]
    if op.unfit(dims) or dims[0][:2] != dims[1][:2] or op.output_shape(dims) != state.shapes[full]:
        raise state.refuse(node, f"{list(shapes[0])} and {list(shapes[3])}; one of the two has to have the shape of the result")
    if same:
        state.finish_as(node, op, view.axes)
    else:  # both are images with channels in order
        state.finish(node, op, view.shape)


def _aligned(state: Translator, node: NodeProto, index: int, rank: int) -> str:
    """Operand as an image.  Raises UnsupportedError where its axes, aligned at the last one, differ from those of the image."""
    shape, tensor = state.view(node, index).shape, state.image(node, index)
    if state.shapes[tensor] != graph_shape((1,) * (rank - len(shape)) + shape):
        raise state.refuse(node, f"input {node.input[index]!r} of shape {list(shape)} beside {rank} axes; one of as many axes is supported")
    return tensor


def _with_one_value(
    mode: PairMode, state: Translator, node: NodeProto, view: View, constant: int, x_q: Quantisation, y_q: Quantisation
) -> None:
    """Emit an operation with a constant of one value as a table."""
    value = state.constants[node.input[constant]].reshape(1, 1, 1, 1)
    q, integers = quantisation_at(state, node, constant + 1, value.dtype), all_stored_integers(x_q).reshape(1, -1, 1, 1)
    (first, a_q), (second, b_q) = ((value, q), (integers, x_q)) if constant == 0 else ((integers, x_q), (value, q))
    entries = QuantisedPair("", "", "", "", mode, a_q, b_q, y_q).apply([first, second]).reshape(-1)
    state.finish_as(node, LookUp(state.name(node), view.tensor, node.output[0], entries, x_q, y_q), view.axes)


def _per_channel(
    mode: PairMode, state: Translator, node: NodeProto, view: View, constant: int, x_q: Quantisation, y_q: Quantisation
) -> QuantisedAffine | None:
    """Multiply-add for a constant with one value per channel, where it is exact for every integer; else None."""
    array = state.constants[node.input[constant]]
    values = constant_as(view, state.shapes[view.tensor], array)
    if values is None or values.shape[0] > 1 or values.shape[2:] != (1, 1):
        return None
    q = quantisation_at(state, node, constant + 1, array.dtype)
    channel_values = np.broadcast_to(values, (1, state.shapes[view.tensor][1], 1, 1)).astype(array.dtype)
    integers = np.broadcast_to(all_stored_integers(x_q), (1, channel_values.shape[1], 1, 256))
    (first, a_q), (second, b_q) = ((channel_values, q), (integers, x_q)) if constant == 0 else ((integers, x_q), (channel_values, q))
    targets = QuantisedPair("", "", "", "", mode, a_q, b_q, y_q).apply([first, second]).reshape(-1, 256)
    (sx, _), (s, zero), (sy, _) = (quantisation.single(label(node)) for quantisation in (x_q, q, y_q))
    factors = (channel_values.reshape(-1).astype(np.float32) - zero) * s if mode == "mul" else np.ones(len(targets), np.float32)
    fit = fit_affine(all_stored_integers(x_q), targets, sx * factors / sy)
    return None if fit is None else QuantisedAffine(state.name(node), view.tensor, node.output[0], ((fit, y_q),), x_q)


def _spread(state: Translator, node: NodeProto, tensor: str, quantisation: Quantisation, shape: Shape) -> str:
    """Tensor expanded to the channels, rows and columns of `shape`; one pixel stays one pixel."""
    n, c, h, w = state.shapes[tensor]
    if n != shape[0] or any(own_size not in (1, other_size) for own_size, other_size in zip((c, h, w), shape[1:], strict=True)):
        return tensor
    if c < shape[1]:
        name = state.name(node, ".channels")
        tensor = state.emit(quantised_identity_conv(name, tensor, name, quantisation, [0] * shape[1], 1))
    if (h, w) not in ((1, 1), shape[2:]):
        name = state.name(node, ".pixels")
        rows, columns = (Taps(tuple(((i if size > 1 else 0, 1.0),) for i in range(stop))) for size, stop in ((h, shape[2]), (w, shape[3])))
        tensor = state.emit(Resample(name, tensor, name, rows, columns))
    return tensor


def _constant(state: Translator, node: NodeProto, index: int, reference: View) -> tuple[str, Quantisation]:
    """Constant of integers as a tensor with the channels of the reference: all pixels, or one."""
    array = state.constants[node.input[index]]
    shape = state.shapes[reference.tensor]
    values = constant_as(reference, shape, array)
    if values is None:
        raise state.refuse(node, f"a constant of shape {list(array.shape)} beside {list(reference.shape)}; one that fits is supported")
    name = state.constant_tensor(node, values, (*shape[:2], *values.shape[2:]))
    state.tensors[name] = state.tensors[name].astype(array.dtype)
    state.types[name] = quantisation_at(state, node, index + 1, array.dtype)
    return name, state.types[name]


Array = NDArray[Any]


def _bias(state: Translator, node: NodeProto, index: int, size: int) -> products.Sums:
    """Bias int32 [size] from an optional input."""
    if not state.has(node, index):
        return np.zeros(size, np.int32)
    array = state.constant(node, index, "the bias")
    if array.dtype != np.int32:
        raise BadInputError(f"{label(node)}: bias of type {array.dtype}; expected int32")
    if array.size not in (1, size) or (array.ndim > 1 and array.shape[-1] != array.size):
        raise state.refuse(node, f"bias of shape {list(array.shape)}; one value or one per output ({size}) is supported")
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (size,)))


def quantize(state: Translator, node: NodeProto, values: Attributes) -> None:
    del values
    dtype = state.constant(node, 2, "the zero point").dtype if state.has(node, 2) else np.dtype(np.uint8)
    if dtype not in STORED:
        raise state.refuse(node, f"to {dtype}; int8 and uint8 are supported")
    _for_all(state, node)
    view = state.view(node)
    state.finish_as(node, Quantise(state.name(node), view.tensor, node.output[0], quantisation_at(state, node, 1, dtype)), view.axes)


def _for_all(state: Translator, node: NodeProto) -> None:
    """Raise UnsupportedError for several scales along an axis of a computed tensor."""
    if (count := max(state.constant(node, i, "the scale").size for i in (1, 2) if state.has(node, i))) > 1:
        raise state.refuse(node, f"{count} scales along an axis of a computed tensor; one for all of it is supported")


def dequantize(state: Translator, node: NodeProto, values: Attributes) -> None:
    del values
    _for_all(state, node)
    view, x_q = integers_read(state, node)
    state.finish_as(node, Dequantise(state.name(node), view.tensor, node.output[0], x_q), view.axes)


def conv(state: Translator, node: NodeProto, values: Attributes) -> None:
    _, x_q = integers_read(state, node)
    weights = state.constant(node, 3, "the weight")
    w_q = quantisation_at(state, node, 4, weights.dtype, weights.shape, 0)
    _convolution(state, node, values, weights, w_q, x_q, quantisation_at(state, node, 6, x_q.dtype), _bias(state, node, 8, len(weights)))


def conv_integer(state: Translator, node: NodeProto, values: Attributes) -> None:
    _, x_q = shifted_input(state, node, 0)
    weights = state.constant(node, 1, "the weight")
    w_q = shift_of(state, node, 1, weights, 0)
    _convolution(state, node, values, weights, w_q, x_q, RAW_SUMS, np.zeros(len(weights), np.int32))


def _convolution(
    state: Translator, node: NodeProto, values: Attributes, weights: Integers, w_q: Quantisation, x_q: Quantisation, y_q: Quantisation,
    bias: products.Sums,
) -> None:  # fmt: skip
    """Emit a convolution of input 0 with weights [c_out, c_in / groups, kernel..]."""
    if weights.ndim not in (3, 4):
        raise state.refuse(node, f"weights of shape {list(weights.shape)}; convolutions over one or two axes are supported")
    weights = weights[..., None] if weights.ndim == 3 else weights
    x = state.image(node)
    n, c, h, w = state.shapes[x]
    groups = int(values.get("group", 1))
    if c != weights.shape[1] * groups:
        raise BadInputError(f"{label(node)}: {c} input channels, but weights for {groups} groups of {weights.shape[1]}")
    products.check_bound(x_q, weights, w_q, 0, bias, label(node))
    kernel = (int(weights.shape[2]), int(weights.shape[3]))
    stride, dilation = axis_pair(state, node, values, "strides"), axis_pair(state, node, values, "dilations")
    pads = resolve_padding(values, (h, w), kernel, stride, dilation)
    op = QuantisedConv(state.name(node), x, node.output[0], weights, bias, x_q, w_q, y_q, stride, dilation, pads, groups)
    op = _with_columns(state, node, op)
    n, c, h, w = op.output_shape([(n, c, h, w)])
    op = fit_fields(state, node, op, float(x_q.single(label(node))[1]), w_q.zero_point.reshape(-1, 1, 1))
    state.finish(node, op, (n, c, h * w) if len(state.view(node).shape) == 3 else (n, c, h, w))


def _product(
    state: Translator, node: NodeProto, weights: Integers, w_q: Quantisation, x_q: Quantisation, y_q: Quantisation | None,
    bias: products.Sums, axis: int, alpha: float = 1.0,
) -> None:  # fmt: skip
    """Emit a product of input 0 with weights [m, k] along one of its axes."""
    products.check_bound(x_q, weights, w_q, 0, bias, label(node))
    axis_product = over_axis(state, node, axis, weights)
    op = QuantisedConv(state.name(node), axis_product.tensor, node.output[0], axis_product.kernel, bias, x_q, w_q, y_q, alpha=alpha)
    state.finish_as(node, _with_columns(state, node, op), axis_product.axes)


def _with_columns(state: Translator, node: NodeProto, op: QuantisedConv) -> QuantisedConv:
    """Operator with its column tensors; with scales among them its results are floats."""
    column_tensors = read_column_tensors(state, node, len(op.weights))
    return replace(op, of_columns=column_tensors, y_q=None if len(column_tensors) > 1 else op.y_q) if column_tensors else op


def gemm(state: Translator, node: NodeProto, values: Attributes) -> None:
    if values.get("transA", 0):
        raise state.refuse(node, "transA = 1 transposes a computed tensor; only transA = 0 is supported")
    _, x_q = integers_read(state, node)
    right = state.constant(node, 3, "the right side")
    if right.ndim != 2:
        raise BadInputError(f"{label(node)}: weights of shape {list(right.shape)}; expected two dimensions")
    weights = right if values.get("transB", 0) else right.T
    w_q = quantisation_at(state, node, 4, weights.dtype, weights.shape, 0)
    if state.has(node, 7) != state.has(node, 8):
        raise BadInputError(f"{label(node)}: one of y_scale and y_zero_point; expected both, or neither for a result in floats")
    y_q = quantisation_at(state, node, 7, x_q.dtype) if state.has(node, 7) else None
    _product(state, node, weights, w_q, x_q, y_q, _bias(state, node, 6, len(weights)), 1, float(values.get("alpha", 1.0)))


def matmul(state: Translator, node: NodeProto, values: Attributes) -> None:
    del values
    _, a_q = integers_read(state, node)
    y_q = quantisation_at(state, node, 6, a_q.dtype)
    if node.input[3] not in state.constants:
        _matrices(state, node, 3, a_q, integers_read(state, node, 3)[1], y_q)
        return
    matrix = state.constant(node, 3, "the right side")
    _matrices(state, node, 3, a_q, quantisation_at(state, node, 4, matrix.dtype, matrix.shape, -1), y_q)


def matmul_integer(state: Translator, node: NodeProto, values: Attributes) -> None:
    del values
    _, a_q = shifted_input(state, node, 0)
    if node.input[1] not in state.constants:
        _matrices(state, node, 1, a_q, shifted_input(state, node, 1)[1], RAW_SUMS)
        return
    _matrices(state, node, 1, a_q, shift_of(state, node, 1, state.constant(node, 1, "the right side"), -1), RAW_SUMS)


def _matrices(state: Translator, node: NodeProto, right: int, a_q: Quantisation, b_q: Quantisation, y_q: Quantisation) -> None:
    """Emit a product of input 0 [.., s, k] with input `right`: a constant matrix [k, m], or a computed tensor, head by head."""
    a = state.view(node)
    if node.input[right] not in state.constants:
        heads = heads_of(state, node, (0, right))
        if (deep := a.shape[-1]) * 255 * 255 > products.MAX_SUM:
            raise BadInputError(f"{label(node)}: sums of {deep:,} products; int32 holds {products.MAX_SUM // 255**2:,} of them")
        op = QuantisedMatMul(state.name(node), heads.a, heads.b, node.output[0], heads.heads, heads.transposed, a_q, b_q, y_q)
        state.finish_as(node, op, heads.axes)
        return
    matrix = state.constant(node, right, "the right side")
    if matrix.ndim != 2:
        raise state.refuse(node, f"a constant of shape {list(matrix.shape)}; a matrix is supported")
    w_q = b_q if b_q.axis is None else replace(b_q.of_channels(1, label(node)), axis=0)
    _product(state, node, matrix.T, w_q, a_q, y_q, np.zeros(matrix.shape[1], np.int32), len(a.shape) - 1)


def concat_quantised(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a Concat; inputs of another scale or zero point go through tables."""
    parts: list[str] = []
    y_q: Quantisation | None = None
    for i in range(2, len(node.input), 3):
        if node.input[i] in state.constants:
            array = state.constants[node.input[i]]
            y_q, x_q = quantisation_at(state, node, 0, array.dtype), quantisation_at(state, node, i + 1, array.dtype)
            parts.append(state.fresh(f"{node.output[0]}.part"))
            state.constants[parts[-1]] = tables.requantize_table(array, x_q, y_q)
            continue
        view, x_q = integers_read(state, node, i)
        y_q = quantisation_at(state, node, 0, x_q.dtype)
        if not x_q.same_as(y_q):
            name = state.fresh(f"{node.output[0]}.{len(parts)}")
            entries = tables.function_table(lambda real: real, x_q, y_q)
            view = view.of(state.emit(LookUp(name, view.tensor, name, entries, x_q, y_q)))
        parts.append(state.fresh(f"{node.output[0]}.part"))
        state.views[parts[-1]] = view
    concat(state, helper.make_node("Concat", parts, list(node.output), name=node.name), values)


def average(state: Translator, node: NodeProto, values: Attributes) -> None:
    _, x_q = integers_read(state, node)
    x, shape, one = state.image(node), state.view(node).shape, node.op_type == "QLinearGlobalAveragePool"
    if values.get("channels_last", 0) or (len(shape) > 4 and not one):
        raise state.refuse(node, f"{list(shape)}; windows over one or two axes behind the channels are supported")
    _, _, h, w = state.shapes[x]
    kernel, stride, pads, padded = ((h, w), (1, 1), (0, 0, 0, 0), False) if one else pool_window(state, node, values, (h, w))
    op = QuantisedAverage(
        state.name(node), x, node.output[0], kernel, x_q, quantisation_at(state, node, 3, x_q.dtype), stride, pads, padded
    )
    state.finish(node, op, shape[:2] + (1,) * len(shape[2:])) if one else finish_image(state, node, op)


def quantised_unary(function: tables.Function, state: Translator, node: NodeProto, values: Attributes) -> None:
    del values
    view, x_q = integers_read(state, node)
    y_q = quantisation_at(state, node, 3, x_q.dtype)
    op = LookUp(state.name(node), view.tensor, node.output[0], tables.function_table(function, x_q, y_q), x_q, y_q)
    state.finish_as(node, op, view.axes)


def look_up_table(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a table of `qdq_fusion`, whose entries are a constant."""
    del values
    view, x_q = integers_read(state, node)
    entries = state.constant(node, 5, "the table")
    op = LookUp(state.name(node), view.tensor, node.output[0], entries, x_q, quantisation_at(state, node, 3, entries.dtype))
    state.finish_as(node, op, view.axes)


def affine(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a multiply-add per channel of `qdq_fusion`."""
    del values
    _, x_q = integers_read(state, node)
    x, shape = state.image(node), state.view(node).shape
    scale, shift = (state.constant(node, i, "the factor") for i in (5, 6))
    if scale.shape != (state.shapes[x][1],):
        raise state.refuse(node, f"statistics of shape {list(scale.shape)} for {state.shapes[x][1]} channels")
    y_q = quantisation_at(state, node, 3, state.constant(node, 4, "the zero point").dtype if state.has(node, 4) else np.uint8)
    state.finish(node, QuantisedAffine(state.name(node), x, node.output[0], ((Affine(scale, shift), y_q),), x_q), shape)


def leaky_relu(state: Translator, node: NodeProto, values: Attributes) -> None:
    quantised_unary(partial(tables.leaky_relu_floats, alpha=float(values.get("alpha", 0.01))), state, node, values)


def softmax(state: Translator, node: NodeProto, values: Attributes) -> None:
    view, x_q = integers_read(state, node)
    view, groups = softmax_view(state, node, values, int(values["opset"]))
    op = QuantisedSoftmax(state.name(node), view.tensor, node.output[0], x_q, quantisation_at(state, node, 3, x_q.dtype), groups)
    state.finish_as(node, op, view.axes)


QUANTISED: dict[str, Handler] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "ConvInteger": conv_integer,
    "MatMulInteger": matmul_integer,
    f"{GROUP_DOMAIN}.ConvInteger": conv_integer,
    f"{GROUP_DOMAIN}.MatMulInteger": matmul_integer,
    "QLinearConv": conv,
    "QLinearMatMul": matmul,
    f"{GROUP_DOMAIN}.Affine": affine,
    f"{GROUP_DOMAIN}.Table": look_up_table,
    f"{MS}.QGemm": gemm,
    f"{MS}.QLinearAdd": partial(quantised_binary, "add"),
    f"{MS}.QLinearMul": partial(quantised_binary, "mul"),
    f"{MS}.QLinearConcat": concat_quantised,
    f"{MS}.QLinearAveragePool": average,
    f"{MS}.QLinearGlobalAveragePool": average,
    f"{MS}.QLinearSigmoid": partial(quantised_unary, tables.logistic),
    f"{MS}.QLinearLeakyRelu": leaky_relu,
    f"{MS}.QLinearSoftmax": softmax,
}
