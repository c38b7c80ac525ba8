"""Handlers of pooling.  Large windows are pooled in stages: columns first, then rows; whole images in strips of whole rows.

UB has to hold the window of one output: a whole window in one stage; a column, then a row, in two.  Maxima of maxima are exact.  So are
means of means, since all columns of a window have equally many counted pixels.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from onnx import NodeProto

from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.window import Pads, axis_pair, finish_image, resolve_padding
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.operators import Pool, Step, Vector

Mode = Literal["max", "average"]

# Window size in pixels above which it is pooled in stages: below, a second operator costs more than it saves, some 1,500 cycles on `edge`
WIDE_WINDOW = 256
MAX_POOLED_PIXELS = 2048  # limit of pixels of an image that are pooled at once: 64 KiB per block of channels, twice in UB


class PoolWindow(NamedTuple):
    """Geometry of a pooling window.  pads: padding with ceil_mode resolved."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: Pads
    count_include_pad: bool


def pool_window(state: Translator, node: NodeProto, values: Attributes, image: tuple[int, int]) -> PoolWindow:
    """Window of a pooling node over an image of that size.  Raises UnsupportedError."""
    h, w = image
    kernel, stride = axis_pair(state, node, values, "kernel_shape"), axis_pair(state, node, values, "strides")
    if axis_pair(state, node, values, "dilations") != (1, 1):
        raise state.refuse(node, f"dilations {values['dilations']}; only windows without holes are supported")
    if len(node.output) > 1 and node.output[1]:
        raise state.refuse(node, "the indices of the maxima are asked for; only the values are supported")
    pads = list(resolve_padding(values, (h, w), kernel, stride, (1, 1)))
    include_pad = bool(values.get("count_include_pad", 0))
    if values.get("ceil_mode", 0):
        for axis, size in enumerate((h, w)):
            before, after = pads[axis], pads[axis + 2]
            outputs = -(-(size + before + after - kernel[axis]) // stride[axis]) + 1
            if (outputs - 1) * stride[axis] >= size + before:  # a window that starts in the trailing padding is dropped
                outputs -= 1
            needed = (outputs - 1) * stride[axis] + kernel[axis] - size - before
            if needed > after and include_pad:
                raise state.refuse(node, "ceil_mode with count_include_pad, where a window reaches beyond the padding")
            if (size + before + after - kernel[axis]) // stride[axis] + 1 != outputs:
                pads[axis + 2] = max(needed, 0)
    pad_top, pad_left, pad_bottom, pad_right = pads
    if max(pad_top, pad_bottom) >= kernel[0] or max(pad_left, pad_right) >= kernel[1]:
        raise state.refuse(node, f"pads {pads} not smaller than the kernel {list(kernel)}: a window would see padding only")
    return PoolWindow(kernel, stride, (pad_top, pad_left, pad_bottom, pad_right), include_pad)


def pool(state: Translator, node: NodeProto, values: Attributes) -> None:
    x = state.image(node)
    _, _, h, w = state.shapes[x]
    mode: Mode = "max" if node.op_type == "MaxPool" else "average"
    kernel, stride, pads, include_pad = pool_window(state, node, values, (h, w))
    pad_top, pad_left, pad_bottom, pad_right = pads
    if kernel == (h, w) and not any(pads):
        _finish_pixel(state, node, x, mode)
        return
    if kernel[0] * kernel[1] > WIDE_WINDOW and min(kernel) > 1:
        name = state.name(node, ".columns")
        x = state.emit(Pool(name, x, name, mode, (kernel[0], 1), (stride[0], 1), (pad_top, 0, pad_bottom, 0), include_pad))
        kernel, stride, (pad_top, pad_bottom) = (1, kernel[1]), (1, stride[1]), (0, 0)
    finish_image(
        state,
        node,
        Pool(state.name(node), x, node.output[0], mode, kernel, stride, (pad_top, pad_left, pad_bottom, pad_right), include_pad),
    )


def global_pool(state: Translator, node: NodeProto, values: Attributes) -> None:
    _finish_pixel(state, node, state.image(node), "max" if node.op_type == "GlobalMaxPool" else "average")


def _finish_pixel(state: Translator, node: NodeProto, tensor: str, mode: Mode) -> None:
    shape = state.view(node).shape
    last = whole_image(state, node, tensor, mode, state.name(node), node.output[0])
    state.finish(node, last, shape[:2] + (1,) * len(shape[2:]))


def whole_image(state: Translator, node: NodeProto, tensor: str, mode: Mode, name: str, output: str) -> Pool | Vector:
    """Pool over all pixels of an image: emits all operators except the last, which is returned with the given name and output."""
    _, _, h, w = state.shapes[tensor]
    scale = 1.0
    while h * w > MAX_POOLED_PIXELS and (rows := _rows_at_once(h, w)) > 1:
        parts = -(-h // rows)
        missing, stage = parts * rows - h, state.name(node, ".rows")
        tensor = state.emit(Pool(stage, tensor, stage, mode, (rows, w), (rows, w), (0, 0, missing, 0), count_include_pad=missing > 0))
        scale *= parts * rows / h  # zeros were counted
        h, w = parts, 1
    if mode == "max" or scale == 1:
        return Pool(name, tensor, output, mode, (h, w))
    mean = state.name(node, ".mean")
    tensor = state.emit(Pool(mean, tensor, mean, mode, (h, w)))
    return Vector(name, (tensor,), output, (Step("muls", scale),))


def _rows_at_once(height: int, width: int) -> int:
    """Number of rows that a stage pools at once; a stage leaves height / rows rows.

    For an image, the largest allowed number, preferably a divisor of the height.  For a signal of one column, about the square root, so
    that both stages are equal.
    """
    if width == 1:
        return _nearest_divisor(height, math.isqrt(height))
    max_rows = max(1, MAX_POOLED_PIXELS // width)
    divisor = max(rows for rows in range(1, height + 1) if height % rows == 0 and rows <= max_rows)
    return divisor if divisor > 1 else min(height, max_rows)


def _nearest_divisor(height: int, rows: int) -> int:
    """Smallest divisor of the height between `rows` and 4 * `rows`; `rows` without one."""
    return next((d for d in range(rows, min(4 * rows, height)) if height % d == 0), rows)


POOLING: dict[str, Handler] = {"MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": global_pool, "GlobalMaxPool": global_pool}
