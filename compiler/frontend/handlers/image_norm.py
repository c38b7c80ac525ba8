"""Handlers of InstanceNormalization and GroupNormalization (over the pixels of an image), as pools and chains.

    mean = average of x;  d = x - mean;  y = d / sqrt(average of d * d + epsilon) * scale + shift

The averages cover all pixels of a channel, or of all channels of a group, so each is one pixel (n, c, 1, 1).
A separate operator would need a whole image in UB; a pool needs a few rows.
The variance is computed from differences: E(x * x) - mean * mean would cancel in float16.
There d * d must stay below 65504, hence |d| below 256.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from compiler.frontend.handlers.pooling import whole_image
from compiler.frontend.handlers.sequence import floats
from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.views import Atom, C, N, View, merge_atoms, whole_axes
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.operators import Conv, Floats, Step, Vector


def image_norm(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.in_order(state.view(node))
    x, (_, channels, _, _) = view.tensor, state.shapes[view.tensor]
    groups = _groups(state, node, values, view)
    scale, shift = (_per_channel(state, node, i, role, view.shape[1], channels) for i, role in ((1, "the scale"), (2, "the shift")))
    mean = _average(state, node, x, groups, ".mean")
    name = state.name(node, ".squares")
    variance = _average(state, node, state.emit(Vector(name, (x, mean), name, (_CENTRED, Step("square")))), groups, ".variance")
    invert = (Step("adds", float(values.get("epsilon", 1e-5))), Step("sqrt"), Step("reciprocal"))
    name = state.name(node, ".factor")
    factor = state.emit(Vector(name, (variance,), name, invert))
    steps: tuple[Step, ...] = (_CENTRED, Step("mul", operand=2))
    if np.any(scale != 1) or np.any(shift != 0):
        steps = (*steps, Step("scale_shift", scale=scale, shift=shift))
    state.finish_as(node, Vector(state.name(node), (x, mean, factor), node.output[0], steps), view.axes)


_CENTRED = Step("sub", operand=1)


def _groups(state: Translator, node: NodeProto, values: Attributes, view: View) -> int:
    """Number of groups of neighbouring channels that are normalised together.

    A group of InstanceNormalization is an entry of axis 1: a channel, or several where an exporter writes a GroupNormalization as
    Reshape to [n, groups, -1], InstanceNormalization, Reshape.
    """
    shape, tensor_shape = list(view.shape), state.shapes[view.tensor]
    if len(shape) < 3:
        raise state.refuse(node, f"input of shape {shape}; images of one or more axes behind the channels are supported")
    entries = tensor_shape[1] if node.op_type == "GroupNormalization" else shape[1]
    if tensor_shape[1] % entries or view.axes[:2] != (
        whole_axes(tensor_shape, N),
        merge_atoms([Atom(C, entries, tensor_shape[1] // entries)]),
    ):
        raise state.refuse(node, f"axis 1 of {shape} is not the channels, or groups of them, of {tensor_shape}")
    groups = int(values.get("num_groups", entries))
    if groups < 1 or entries % groups:
        raise state.refuse(node, f"num_groups {groups}; a divisor of its {entries} channels is expected")
    return groups


def _per_channel(state: Translator, node: NodeProto, index: int, role: str, entries: int, channels: int) -> Floats:
    """Constant with one value per entry of axis 1, repeated for every channel."""
    values = state.constant(node, index, role)
    if values.shape != (entries,):
        raise state.refuse(node, f"{role} of shape {list(values.shape)}; [{entries}] is expected")
    return floats(np.repeat(values, channels // entries))


def _average(state: Translator, node: NodeProto, tensor: str, groups: int, suffix: str) -> str:
    """Average of every channel's group, [n, c, 1, 1], by a pool and, for groups of several channels, a product."""
    _, channels, h, w = state.shapes[tensor]
    if h * w > 1:
        name = state.name(node, suffix)
        tensor = state.emit(whole_image(state, node, tensor, "average", name, name))
    size = channels // groups
    if size > 1:
        name = state.name(node, f"{suffix}.groups")
        weights = np.full((channels, size, 1, 1), 1 / size, np.float32)
        tensor = state.emit(Conv(name, tensor, name, weights, np.zeros(channels, np.float32), groups=groups))
    return tensor


NORMALISING: dict[str, Handler] = {"GroupNormalization": image_norm, "InstanceNormalization": image_norm}
