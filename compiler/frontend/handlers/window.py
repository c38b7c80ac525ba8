"""Window attributes of convolutions and pools, within the limits of instruction fields.

Kernels, dilations and top padding may be of any size (`compiler.ir.im2col`).  Other leading padding beyond its field becomes rows or
columns of zeros (zero points for integers).  Strides beyond their field are supported for signals (`_in_rows_of_stride`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.handlers.to_graph import Translator
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.im2col import MAX_COLUMNS, MAX_PADDED_STRIDE, MAX_PIXELS, unencodable_window
from compiler.ir.operators import Conv, Pool, QuantisedAverage, QuantisedConv, Reflow, Resample, window_size
from compiler.ir.taps import select_places
from simulator.npu.isa import MAX_WINDOW

Pads = tuple[int, int, int, int]  # top, left, bottom, right
AnyConv = TypeVar("AnyConv", Conv, QuantisedConv)


def axis_pair(state: Translator, node: NodeProto, values: Attributes, key: str) -> tuple[int, int]:
    """(rows, columns) of an attribute, 1 by default; a signal [n, c, l] is an image of one column.  Raises an error for more axes."""
    numbers = values.get(key, [1, 1])
    if len(numbers) > 2:
        raise state.refuse(node, f"{key} {numbers}; windows of one or two axes are supported")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (int(numbers[0]), 1)


def finish_image(state: Translator, node: NodeProto, op: Pool | QuantisedAverage) -> None:
    """Append a pool whose output has as many axes as the input."""
    rank = len(state.view(node).shape)
    shape = op.output_shape([state.shapes[op.x]])[:rank]
    state.finish(node, op, shape)


def finish_conv(state: Translator, node: NodeProto, op: Conv) -> None:
    """Append a convolution, within the limits of instruction fields; its output has as many axes as the input."""
    n, c, h, w = op.output_shape([state.shapes[op.x]])
    if w > MAX_COLUMNS or h * w > MAX_PIXELS:
        raise state.refuse(node, f"a result of {h} x {w} pixels; at most {MAX_COLUMNS} columns, {MAX_PIXELS} pixels in all are supported")
    op = fit_fields(state, node, op)
    state.finish(node, op, (n, c, h * w) if len(state.view(node).shape) == 3 else (n, c, h, w))


def fit_fields(state: Translator, node: NodeProto, op: AnyConv, zero: float = 0.0, no_weight: NDArray[Any] | float = 0.0) -> AnyConv:
    """Equal convolution, on a padded or reflowed image where strides or leading padding exceed instruction fields.

    zero: padding value.  no_weight: weight without effect, of each output channel [c_out, 1, 1].
    """
    op = _drop_unused_strides(state, op)
    if max(op.stride) > MAX_WINDOW and _is_line(state, op):
        op = _in_rows_of_stride(state, node, op, zero, no_weight)
    if why := unencodable_window(replace(op, pads=(0, 0, 0, 0))):
        raise state.refuse(node, why)
    pad_top, pad_left, pad_bottom, pad_right = op.pads
    extra_rows, extra_columns = max(0, pad_top - MAX_WINDOW) if op.stride[0] > MAX_PADDED_STRIDE else 0, max(0, pad_left - MAX_WINDOW)
    if not extra_rows and not extra_columns:
        return op
    _, _, in_h, in_w = state.shapes[op.x]
    rows, columns = (select_places([None] * missing + list(range(size))) for missing, size in ((extra_rows, in_h), (extra_columns, in_w)))
    x = state.emit(Resample(state.name(node, ".padded"), op.x, state.fresh(f"{node.output[0]}.padded"), rows, columns, zero))
    return replace(op, x=x, pads=(pad_top - extra_rows, pad_left - extra_columns, pad_bottom, pad_right))


def _drop_unused_strides(state: Translator, op: AnyConv) -> AnyConv:
    """Equal convolution without unused large strides and dilations.

    A stride is unused if there is one output along its axis, a dilation if the kernel has one tap.
    """
    stride, dilation = list(op.stride), list(op.dilation)
    for axis in range(2):
        x = state.shapes[op.x][2 + axis]
        kernel, ends = op.weights.shape[2 + axis], (op.pads[axis], op.pads[axis + 2])
        if dilation[axis] > MAX_WINDOW and kernel == 1:
            dilation[axis] = 1
        if stride[axis] > MAX_WINDOW and window_size(x, kernel, MAX_WINDOW, dilation[axis], *ends) == 1:
            stride[axis] = MAX_WINDOW
    return replace(op, stride=(stride[0], stride[1]), dilation=(dilation[0], dilation[1]))


def _is_line(state: Translator, op: AnyConv) -> bool:
    """Whether the image, with padding, and the kernel are one row or one column."""
    _, _, h, w = state.shapes[op.x]
    kernel, (pad_top, pad_left, pad_bottom, pad_right) = op.weights.shape[2:], op.pads
    return (w == kernel[1] == 1 and pad_left == pad_right == 0) or (h == kernel[0] == 1 and pad_top == pad_bottom == 0)


def _in_rows_of_stride(state: Translator, node: NodeProto, op: AnyConv, zero: float, no_weight: NDArray[Any] | float) -> AnyConv:
    """Equal convolution of stride 1, for one along a line with a large stride.

    out[i] reads line[i * stride + tap * dilation].  The line is cut into rows of `stride` pixels: out[i] then reads row i and the rows
    behind it, at columns that do not depend on i.  So the kernel is dense, with weights of no effect between the taps.
    """
    n, c, h, w = state.shapes[op.x]
    axis = 0 if w == 1 and op.weights.shape[3] == 1 else 1
    stride, dilation, before = op.stride[axis], op.dilation[axis], op.pads[axis]
    _, _, *results = op.output_shape([(n, c, h, w)])
    c_out, c_in, *kernel = op.weights.shape
    span = (kernel[axis] - 1) * dilation + 1
    kernel_rows = -(-span // stride)
    dense_kernel = np.full((c_out, c_in, kernel_rows * stride), no_weight, op.weights.dtype)
    dense_kernel[:, :, :span:dilation] = op.weights.reshape(c_out, c_in, -1)
    name = state.name(node, ".strides")
    x = state.emit(Reflow(name, op.x, name, (h, w), (results[axis] - 1 + kernel_rows, stride), before, zero))
    weights = np.ascontiguousarray(dense_kernel.reshape(c_out, c_in, kernel_rows, stride))
    return replace(op, x=x, weights=weights, stride=(1, 1), dilation=(1, 1), pads=(0, 0, 0, 0))


def resolve_padding(
    values: Attributes, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Pads:
    """Padding (top, left, bottom, right) with auto_pad resolved: SAME gives ceil(size / stride) outputs."""
    auto = values.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return (0, 0, 0, 0)
    if auto == "NOTSET":
        pads = [int(pad) for pad in values.get("pads", [0, 0, 0, 0])]
        return (pads[0], pads[1], pads[2], pads[3]) if len(pads) == 4 else (pads[0], 0, pads[1], 0)
    before, after = [], []
    for axis in range(2):
        outputs = -(-size[axis] // stride[axis])
        total = max(0, (outputs - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - size[axis])
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (before[0], before[1], after[0], after[1])
