"""Handlers of Reduce*: pooling over digits of the pixels, a 1x1 convolution over digits of the channels.

The convolution adds in float32.  A sum over pixels is the mean times their number, so that float16 intermediates stay in range.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from onnx import NodeProto

from compiler.frontend.handlers.arrange import arrange, without_images
from compiler.frontend.handlers.axis_digits import ROWS, check_product, image_axis_of, reflow_to_stride
from compiler.frontend.handlers.pooling import Mode, whole_image
from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.views import Atom, Atoms, C, N, P, View, merge_atoms
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.operators import Conv, Pool, Step, Vector


class Reduction(NamedTuple):
    """Reduction as steps `before` on every value, a `core` reduction, and steps `after` on the results."""

    before: tuple[Step, ...]
    core: Literal["mean", "sum", "max"]
    after: tuple[Step, ...] = ()


_MAGNITUDE = (Step("keep", register=0), Step("muls", -1.0), Step("max", register=0))
_MINUS = (Step("muls", -1.0),)
REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": Reduction(_MAGNITUDE, "sum"),
    "ReduceL2": Reduction((Step("square"),), "sum", (Step("sqrt"),)),
    "ReduceLogSum": Reduction((), "sum", (Step("ln"),)),
    "ReduceMax": Reduction((), "max"),
    "ReduceMean": Reduction((), "mean"),
    "ReduceMin": Reduction(_MINUS, "max", _MINUS),
    "ReduceSum": Reduction((), "sum"),
    "ReduceSumSquare": Reduction((Step("square"),), "sum"),
}


def reduce(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    rank = len(view.shape)
    axes = [int(a) % rank for a in _axes(state, node, values, rank)]
    if REDUCTIONS[node.op_type].core == "max" and any(atom.axis == C for axis in axes for atom in view.axes[axis]):
        remaining = [axis for axis in without_images(view) if axis not in axes]
        view = arrange(state, view, remaining, [axis for axis in without_images(view) if axis in axes]) or view
    reduced_atoms = dict.fromkeys((atom for axis in axes for atom in view.axes[axis]), 1)
    # the outermost first, so that inner strides stay valid
    batch, channels, pixels = (
        merge_atoms(sorted((atom for atom in reduced_atoms if atom.axis == kind), key=lambda atom: -atom.stride)) for kind in (N, C, P)
    )
    before, core, after = REDUCTIONS[node.op_type]
    if batch:
        raise state.refuse(node, f"axes {axes} of {list(view.shape)}; images are not reduced over the batch")
    if core == "max" and channels:
        raise state.refuse(node, f"axes {axes} of {list(view.shape)}; the largest of channels is not supported, that of pixels is")
    tensor = _chain(state, node, view.tensor, before, ".values")
    for atom in pixels:
        tensor = _over_pixels(state, node, tensor, atom, "max" if core == "max" else "average")
    if core == "sum" and pixels:
        tensor = _chain(state, node, tensor, (Step("muls", float(math.prod(atom.size for atom in pixels))),), ".count")
    if channels:
        tensor = _over_channels(state, node, tensor, channels, core)
    tensor = _chain(state, node, tensor, after, ".result")
    reduced = view.resized(tensor, reduced_atoms)
    keepdims = values.get("keepdims", 1)
    state.views[node.output[0]] = View(tensor, tuple(atoms for axis, atoms in enumerate(reduced.axes) if keepdims or axis not in axes))


def _over_pixels(state: Translator, node: NodeProto, tensor: str, atom: Atom, mode: Mode) -> str:
    """Tensor reduced over a digit of the pixels: by a window over rows, columns or the whole image."""
    _, _, h, w = state.shapes[tensor]
    name = state.name(node, ".pixels")
    if atom.size == h * w:
        return state.emit(whole_image(state, node, tensor, mode, name, state.fresh(name)))
    line = image_axis_of(state.shapes[tensor], atom)
    if line is None or line[1] > 1:
        tensor, line = reflow_to_stride(state, tensor, atom), (ROWS, 1)
    window, step = atom.size, atom.size if atom.size < state.shapes[tensor][2 + line[0]] else 1
    kernel, stride = ((window, 1), (step, 1)) if line[0] == ROWS else ((1, window), (1, step))
    return state.emit(Pool(name, tensor, state.fresh(name), mode, kernel, stride))


def _over_channels(state: Translator, node: NodeProto, tensor: str, digits: Atoms, core: str) -> str:
    """Tensor reduced over digits of the channels, by a product with zeros and ones."""
    _, size, _, _ = state.shapes[tensor]
    index = np.arange(size)
    for _, digit, stride in digits:
        index = index // (digit * stride) * stride + index % stride
    outputs = np.arange(int(index[-1]) + 1)
    check_product(state, node, len(outputs), size)
    weights = np.where(outputs[:, None] == index, len(outputs) / size if core == "mean" else 1.0, 0.0).astype(np.float32)
    name = state.name(node, ".channels")
    return state.emit(Conv(name, tensor, state.fresh(name), weights[:, :, None, None], np.zeros(len(outputs), np.float32)))


def _axes(state: Translator, node: NodeProto, values: Attributes, rank: int) -> list[int]:
    if state.has(node, 1):
        axes = state.constant(node, 1, "the axes").reshape(-1).tolist()
    else:
        axes = values.get("axes", [])
    return list(axes) if axes or values.get("noop_with_empty_axes", 0) else list(range(rank))


def _chain(state: Translator, node: NodeProto, tensor: str, steps: tuple[Step, ...], suffix: str) -> str:
    if not steps:
        return tensor
    name = state.name(node, suffix)
    return state.emit(Vector(name, (tensor,), state.fresh(name), steps))


REDUCING: dict[str, Handler] = dict.fromkeys(REDUCTIONS, reduce)
