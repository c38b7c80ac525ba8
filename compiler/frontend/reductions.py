"""Reduce* over axes of an image: pooling over rows and columns, a 1x1 convolution with one output over channels.

The convolution adds in float32.  A sum over pixels is the mean times their number, so that what float16 holds in between stays in range.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from onnx import NodeProto

from compiler.frontend.attributes import Attributes
from compiler.frontend.pooling import Mode, whole_image
from compiler.frontend.resampling import CHANNELS, COLUMNS, ROWS, axis_of, resized_atoms
from compiler.frontend.to_graph import Handler, Translator
from compiler.frontend.views import P, View, whole
from compiler.ir.operators import Conv, Pool, Step, Vector


class Reduction(NamedTuple):
    """before: steps on every value; core: how they are reduced; after: steps on what is left."""

    before: tuple[Step, ...]
    core: Literal["mean", "sum", "max"]
    after: tuple[Step, ...] = ()


_MAGNITUDE = (Step("keep", kept=0), Step("muls", -1.0), Step("max", kept=0))
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
    pixels = whole(state.shapes[view.tensor], P)
    places: set[int] = set()
    for axis in axes:
        if view.axes[axis] == pixels:
            places |= {ROWS, COLUMNS}
        elif view.axes[axis]:
            places.add(axis_of(state, node, view, axis))
    if not places <= {CHANNELS, ROWS, COLUMNS}:
        raise state.refuse(node, f"axes {axes} of {list(view.shape)}; images are not reduced over the batch")
    before, core, after = REDUCTIONS[node.op_type]
    if core == "max" and CHANNELS in places:
        raise state.refuse(node, f"axes {axes} of {list(view.shape)}; the largest of all channels is not supported, that of all pixels is")
    old = state.shapes[view.tensor]
    tensor = _chain(state, node, view.tensor, before, ".values")
    if ROWS in places or COLUMNS in places:
        kernel = (old[2] if ROWS in places else 1, old[3] if COLUMNS in places else 1)
        mode: Mode = "max" if core == "max" else "average"
        name = state.name(node, ".pixels")
        y = state.fresh(name)
        op = whole_image(state, node, tensor, mode, name, y) if kernel == old[2:] else Pool(name, tensor, y, mode, kernel)
        tensor = state.emit(op)
        if core == "sum":
            tensor = _chain(state, node, tensor, (Step("muls", float(kernel[0] * kernel[1])),), ".count")
    if CHANNELS in places:
        weights = np.full((1, old[1], 1, 1), 1 / old[1] if core == "mean" else 1.0, np.float32)
        name = state.name(node, ".channels")
        tensor = state.emit(Conv(name, tensor, state.fresh(name), weights, np.zeros(1, np.float32)))
    tensor = _chain(state, node, tensor, after, ".result")
    kept = values.get("keepdims", 1)
    left = [resized_atoms(atoms, old, state.shapes[tensor]) for axis, atoms in enumerate(view.axes) if kept or axis not in axes]
    state.views[node.output[0]] = View(tensor, tuple(left))


def _axes(state: Translator, node: NodeProto, values: Attributes, rank: int) -> list[int]:
    if state.has(node, 1):
        given = state.constant(node, 1, "the axes").reshape(-1).tolist()
    else:
        given = values.get("axes", [])
    return list(given) if given or values.get("noop_with_empty_axes", 0) else list(range(rank))


def _chain(state: Translator, node: NodeProto, x: str, steps: tuple[Step, ...], suffix: str) -> str:
    if not steps:
        return x
    name = state.name(node, suffix)
    return state.emit(Vector(name, (x,), state.fresh(name), steps))


REDUCING: dict[str, Handler] = dict.fromkeys(REDUCTIONS, reduce)
