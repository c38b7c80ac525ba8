"""Windows of convolutions and poolings: one number for each axis of an image, and padding."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from compiler.frontend.to_graph import Translator
from compiler.ir.graph import Conv, Pool, output_shape

Values = dict[str, Any]
Pads = tuple[int, int, int, int]  # top, left, bottom, right


def pair(state: Translator, node: NodeProto, values: Values, key: str) -> tuple[int, int]:
    """One number per axis of the image; a signal [n, c, l] is an image of one column."""
    numbers = values.get(key, [1, 1])
    if len(numbers) > 2:
        raise state.refuse(node, f"{key} {numbers}; windows of one or two axes are supported")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (int(numbers[0]), 1)


def finish_image(state: Translator, node: NodeProto, op: Conv | Pool) -> None:
    """The output has as many axes as the input."""
    n, c, h, w = output_shape(op, [state.shapes[op.x]])
    state.finish(node, op, (n, c, h) if len(state.view(node).shape) == 3 else (n, c, h, w))


def padding(values: Values, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """(top, left, bottom, right), auto_pad resolved: SAME gives ceil(size / stride) outputs."""
    auto = values.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return (0, 0, 0, 0)
    if auto == "NOTSET":
        given = [int(pad) for pad in values.get("pads", [0, 0, 0, 0])]
        return (given[0], given[1], given[2], given[3]) if len(given) == 4 else (given[0], 0, given[1], 0)
    before, after = [], []
    for axis in range(2):
        outputs = -(-size[axis] // stride[axis])
        total = max(0, (outputs - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - size[axis])
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (before[0], before[1], after[0], after[1])
