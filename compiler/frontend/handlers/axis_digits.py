"""Operations along an ONNX axis, as operations on a digit of a tensor: an atom of its channels or of its pixels.

A digit of the channels is resampled by relabelling or by a 1x1 convolution.  A digit of the pixels is the rows or the columns of an image:
either the tensor itself, or the tensor reflowed to rows as long as the digit's stride.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto

from compiler.frontend.handlers.arrange import in_one_digit, window
from compiler.frontend.handlers.to_graph import Translator
from compiler.frontend.handlers.views import Atom, C, N, P, View, whole_axes
from compiler.ir.operators import Conv, Pool, Reflow, Resample, Shape, Shuffle
from compiler.ir.operators.quantised_products import quantised_identity_conv
from compiler.ir.taps import Taps, select_places

ROWS, COLUMNS = 0, 1


def image_axis_of(shape: Shape, atom: Atom) -> tuple[int, int] | None:
    """(image axis, stride along it) of a digit of the pixels; None where it is neither rows nor columns."""
    w = shape[3]
    if atom.stride % w == 0:
        return ROWS, atom.stride // w
    return (COLUMNS, atom.stride) if w % (atom.size * atom.stride) == 0 else None


def reflow_to_stride(state: Translator, tensor: str, atom: Atom) -> str:
    """Tensor with its pixels in rows as long as a digit's stride, so that the digit is rows of stride 1."""
    n, c, h, w = state.shapes[tensor]
    return state.in_rows(tensor, (n, c, h * w // atom.stride, atom.stride))


def resample_axes(state: Translator, node: NodeProto, view: View, axis_taps: Mapping[int, Taps], out: str, fill: float = 0.0) -> View:
    """View with some ONNX axes resampled, by axis -> taps, as tensor `out`.  Raises UnsupportedError."""
    for axis in axis_taps:
        atoms = view.axes[axis]
        if any(atom.axis == N for atom in atoms):
            raise state.refuse(node, f"axis {axis} of {list(view.shape)} is the batch, or has some of it; images are taken whole")
        if len(atoms) > 1:
            view = in_one_digit(state, view, axis) or view
    for axis in [axis for axis in axis_taps if _is_moved(state, view, axis)]:
        sources = [place_taps[0][0] if place_taps else None for place_taps in axis_taps[axis].taps]
        moved = window(state, view, axis, sources, fill) if axis_taps[axis] == select_places(sources) else None
        if moved is not None:
            view, axis_taps = moved, {i: taps for i, taps in axis_taps.items() if i != axis}
    for axis in axis_taps:
        if len(view.axes[axis]) != 1:
            raise state.refuse(node, f"axis {axis} of {list(view.shape)} is not one of channels or pixels of {state.shapes[view.tensor]}")
    channels, pixels = ([axis for axis in axis_taps if view.axes[axis][0].axis == kind] for kind in (C, P))
    for axis in channels:
        atom, last = view.axes[axis][0], axis == channels[-1] and not pixels
        taps = _over_digit(axis_taps[axis], atom.size, atom.stride, state.shapes[view.tensor][1])
        tensor = resample_channels(state, node, view.tensor, taps, fill, out if last else state.fresh(f"{out}.channels"))
        view = view.resized(tensor, {atom: len(axis_taps[axis])})
    for axis in pixels:
        atom, last = view.axes[axis][0], axis == pixels[-1]
        line = image_axis_of(state.shapes[view.tensor], atom)
        if line is None:
            view, line = view.of(reflow_to_stride(state, view.tensor, atom)), (ROWS, 1)
        along = [select_places(range(size)) for size in state.shapes[view.tensor][2:]]
        along[line[0]] = _over_digit(axis_taps[axis], atom.size, line[1], len(along[line[0]]))
        name, y = state.name(node, "" if last else ".pixels"), out if last else state.fresh(f"{out}.pixels")
        view = view.resized(state.emit(Resample(name, view.tensor, y, along[0], along[1], fill)), {atom: len(axis_taps[axis])})
    return view


def _is_moved(state: Translator, view: View, axis: int) -> bool:
    """Whether an axis is better cut by moving runs of channels: it has no digit, or one of several digits of the channels."""
    atoms = view.axes[axis]
    return not atoms or (atoms[0].axis == C and len(atoms) == 1 and atoms[0].size * atoms[0].stride < state.shapes[view.tensor][1])


def _over_digit(digit_taps: Taps, digit: int, stride: int, size: int) -> Taps:
    """Taps of all `size` places of an axis, one digit of which is resampled."""
    taps = []
    for before in range(0, size, digit * stride):
        for place_taps in digit_taps.taps:
            taps += [tuple((before + source * stride + i, weight) for source, weight in place_taps) for i in range(stride)]
    return Taps(tuple(taps))


def resample_channels(state: Translator, node: NodeProto, tensor: str, channel_taps: Taps, fill: float, out: str) -> str:
    """Tensor with resampled channels: by relabelling if each channel is read at most once, else by a 1x1 convolution."""
    name = state.name(node, ".channels")
    order = tuple(taps[0][0] for taps in channel_taps.taps if taps)
    if channel_taps == select_places(order) and len(set(order)) == len(channel_taps):
        return state.emit(Shuffle(name, tensor, out, order))
    _, channels, _, _ = state.shapes[tensor]
    quantisation = state.types.get(tensor)
    if quantisation is not None and channel_taps != select_places(order):
        raise state.refuse(node, "channels of integers are filled or weighted; integers can be taken as they are")
    check_product(state, node, len(channel_taps), channels)
    if quantisation is not None:
        return state.emit(quantised_identity_conv(name, tensor, out, quantisation, order, channels))
    bias = np.array([0.0 if taps else fill for taps in channel_taps.taps], np.float32)
    return state.emit(Conv(name, tensor, out, channel_taps.matrix(channels)[:, :, None, None], bias))


def check_product(state: Translator, node: NodeProto, outputs: int, channels: int) -> None:
    """Raise UnsupportedError where the weights of a product of all channels do not fit the budget."""
    if not state.budget.take(4 * outputs * channels):
        raise state.refuse(node, f"{outputs:,} sums of {channels:,} channels each; that many weights are not supported")


def is_all_pixels(state: Translator, view: View, axis: int) -> bool:
    return view.axes[axis] == whole_axes(state.shapes[view.tensor], P) and bool(view.axes[axis])


def slice_pixels(state: Translator, node: NodeProto, view: View, axis: int, start: int, size: int, suffix: str = "") -> View:
    """View of entries [start, start + size) of an ONNX axis that is all pixels."""
    _, _, h, w = state.shapes[view.tensor]
    tensor = view.tensor
    if w > 1:
        tensor = state.emit(Reflow(state.name(node, f"{suffix}.column"), tensor, state.fresh(f"{tensor}.column"), (h, w), (h * w, 1)))
    pads = (-start, 0, start + size - h * w, 0)
    new = state.emit(Pool(state.name(node, suffix), tensor, state.fresh(f"{tensor}.rows"), "max", (1, 1), (1, 1), pads))
    return view.resized(new, {view.axes[axis][0]: size})
