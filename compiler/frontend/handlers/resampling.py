"""Handlers that resample rows, columns and channels: Slice, Split, Gather, Pad, Resize, Upsample, ConvTranspose, DepthToSpace.

Rows and columns become a Resample, channels a Shuffle (or a copy); channels with fill values or duplicates become a 1x1 convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from onnx import NodeProto

from compiler.frontend.handlers.arrange import arrange
from compiler.frontend.handlers.axis_digits import is_all_pixels, resample_axes, resample_channels, slice_pixels
from compiler.frontend.handlers.to_graph import Handler, Translator, graph_shape
from compiler.frontend.handlers.views import View, reshape_view, row_major, transpose_view
from compiler.frontend.handlers.window import finish_conv
from compiler.frontend.onnx_io.attributes import Attributes, label
from compiler.ir.operators import Conv, Resample
from compiler.ir.taps import Tap, Taps, merge_taps, select_places
from simulator.npu.errors import BadInputError

Places = list[int | None]  # source of every place along an axis, None for fill values


def _numbers(state: Translator, node: NodeProto, index: int, description: str) -> list[int]:
    return [int(v) for v in state.constant(node, index, description).reshape(-1)]


def _finish(state: Translator, node: NodeProto, view: View, axis_taps: dict[int, Taps], index: int = 0) -> None:
    """Set the view of output `index`; identity taps are dropped, ranges of all-pixel axes are sliced."""
    changed = {axis: taps for axis, taps in axis_taps.items() if not taps.is_identity(view.shape[axis])}
    for axis in changed.keys() & {axis for axis in changed if is_all_pixels(state, view, axis)}:
        start = changed[axis].taps[0][0][0]
        if changed[axis] == select_places(range(start, start + len(changed[axis]))):
            view = slice_pixels(state, node, view, axis, start, len(changed.pop(axis)), f".{index}" if len(node.output) > 1 else "")
    state.views[node.output[index]] = resample_axes(state, node, view, changed, node.output[index])


def slice_(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    rank = len(view.shape)
    starts, ends = _numbers(state, node, 1, "the starts"), _numbers(state, node, 2, "the ends")
    axes = _numbers(state, node, 3, "the axes") if state.has(node, 3) else list(range(len(starts)))
    steps = _numbers(state, node, 4, "the steps") if state.has(node, 4) else [1] * len(starts)
    axis_taps = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = view.shape[axis % rank]
        axis_taps[axis % rank] = select_places(range(size)[start:end:step])
        if not len(axis_taps[axis % rank]):
            raise state.refuse(node, f"[{start}:{end}:{step}] of {size} is empty")
    _finish(state, node, view, axis_taps)


def split(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    axis = int(values.get("axis", 0)) % len(view.shape)
    size, parts = view.shape[axis], len(node.output)
    if state.has(node, 1):
        sizes = _numbers(state, node, 1, "the sizes")
    elif "split" in values:
        sizes = [int(v) for v in values["split"]]
    else:
        step = -(-size // parts)
        sizes = [step] * (parts - 1) + [size - step * (parts - 1)]
    if sum(sizes) != size or min(sizes) < 0:
        raise BadInputError(f"{label(node)}: parts {sizes} of {size}")
    begin = 0
    for index, length in enumerate(sizes):
        if node.output[index] and length:
            _finish(state, node, view, {axis: select_places(range(begin, begin + length))}, index)
        elif node.output[index]:
            state.constants[node.output[index]] = np.empty([0 if i == axis else d for i, d in enumerate(view.shape)], np.float32)
        begin += length


def gather(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    axis = int(values.get("axis", 0)) % len(view.shape)
    index = state.constant(node, 1, "the indices")
    size = view.shape[axis]
    if not index.size or index.min() < -size or index.max() >= size:
        raise state.refuse(node, f"indices of shape {list(index.shape)}; some of -{size} to {size - 1} are supported")
    _finish(state, node, view, {axis: select_places(int(i) % size for i in index.reshape(-1))})
    if index.ndim == 0:
        axis_view = state.views[node.output[0]]
        state.views[node.output[0]] = View(axis_view.tensor, (*axis_view.axes[:axis], *axis_view.axes[axis + 1 :]))
    elif index.ndim > 1:
        shape = (*view.shape[:axis], *index.shape, *view.shape[axis + 1 :])
        reshaped = state.reshape(state.views[node.output[0]], shape)
        if reshaped is None:
            raise state.refuse(node, f"{list(shape)} of {list(view.shape)}; images would have to move")
        state.views[node.output[0]] = reshaped


def _mirrored(place: int, size: int) -> int:
    """Source of a place outside [0, size), reflected at the first and the last place."""
    period = 2 * (size - 1)
    place = abs(place) % period if period else 0
    return min(place, period - place)


_OUTSIDE: dict[str, Callable[[int, int], int | None]] = {
    "constant": lambda i, size: i if 0 <= i < size else None,
    "edge": lambda i, size: min(max(i, 0), size - 1),
    "reflect": _mirrored,
    "wrap": lambda i, size: i % size,
}


def pad(state: Translator, node: NodeProto, values: Attributes) -> None:
    mode = str(values.get("mode", "constant"))
    if mode not in _OUTSIDE:
        raise state.refuse(node, f"mode {mode!r}; accepted: {', '.join(_OUTSIDE)}")
    view = state.view(node)
    rank = len(view.shape)
    pads = _numbers(state, node, 1, "the pads") if state.has(node, 1) else [int(v) for v in values.get("pads", ())]
    axes = [a % rank for a in _numbers(state, node, 3, "the axes")] if state.has(node, 3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise BadInputError(f"{label(node)}: {len(pads)} pads for {len(axes)} axes")
    fill = float(state.constant(node, 2, "the value").reshape(-1)[0]) if state.has(node, 2) else float(values.get("value", 0.0))
    axis_taps = {}
    for i, axis in enumerate(axes):
        size, before, after = view.shape[axis], pads[i], pads[i + len(axes)]
        if before or after:
            axis_taps[axis] = select_places(_OUTSIDE[mode](place, size) for place in range(-before, size + after))
    _finish_any_size(state, node, view, axis_taps, fill)


def _finish_any_size(state: Translator, node: NodeProto, view: View, axis_taps: dict[int, Taps], fill: float = 0.0) -> None:
    """Set the view of output 0 as `_finish`, also for axes of size 1, which no atom represents."""
    rank = len(view.shape)
    by_image = rank in (3, 4) and 0 not in axis_taps and graph_shape(view.shape) == state.shapes[view.tensor]
    if not by_image or all(view.axes[axis] for axis in axis_taps):
        state.views[node.output[0]] = resample_axes(state, node, view, axis_taps, node.output[0], fill)
        return
    x = state.image(node)
    _, _, h, w = state.shapes[x]
    if 1 in axis_taps:
        x = resample_channels(state, node, x, axis_taps[1], fill, state.fresh(f"{node.output[0]}.channels"))
    rows, columns = axis_taps.get(2, select_places(range(h))), axis_taps.get(3, select_places(range(w)))
    shape = [len(axis_taps[axis]) if axis in axis_taps else size for axis, size in enumerate(view.shape)]
    state.finish(node, Resample(state.name(node), x, node.output[0], rows, columns, fill), tuple(shape))


def resize(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.view(node)
    rank = len(view.shape)
    axes = [int(a) % rank for a in values.get("axes", range(rank))]
    old = node.op_type == "Upsample" or len(node.input) == 2
    if not old and state.has(node, 3):
        sizes = _numbers(state, node, 3, "the sizes")
        scales = [size / view.shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        if values.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise state.refuse(node, f"keep_aspect_ratio_policy {values['keep_aspect_ratio_policy']!r}; stretch is supported")
    else:
        scale_values = state.constant(node, 1, "the scales") if old and state.has(node, 1) else None
        scale_values = np.array(values["scales"]) if scale_values is None and "scales" in values else scale_values
        scales = [float(v) for v in (scale_values if scale_values is not None else state.constant(node, 2, "the scales")).reshape(-1)]
        sizes = [math.floor(np.float32(view.shape[axis]) * np.float32(scale)) for scale, axis in zip(scales, axes, strict=True)]
    if values.get("antialias", 0) and any(scale < 1 for scale in scales):
        raise state.refuse(node, "antialias where it shrinks; only antialias = 0 is supported")
    values = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", **values} if old else values
    axis_taps = {}
    for axis, size, scale in zip(axes, sizes, scales, strict=True):
        if size < 1:
            raise BadInputError(f"{label(node)}: axis {axis} of {view.shape[axis]} becomes {size}")
        if size != view.shape[axis] or scale != 1:
            axis_taps[axis] = _resized_axis(state, node, values, view.shape[axis], size, scale)
    _finish_any_size(state, node, view, axis_taps)


# float32 as in onnxruntime, because it decides ties between places
Number = np.float32
_HALF = Number(0.5)
_COORDINATES: dict[str, Callable[[Number, Number, Number, Number], Number]] = {
    "half_pixel": lambda i, size, out, scale: (i + _HALF) / scale - _HALF,
    "half_pixel_symmetric": lambda i, size, out, scale: size / 2 * (1 - out / (scale * size)) + (i + _HALF) / scale - _HALF,
    "pytorch_half_pixel": lambda i, size, out, scale: (i + _HALF) / scale - _HALF if out > 1 else Number(0),
    "align_corners": lambda i, size, out, scale: i * (size - 1) / (out - 1) if out > 1 else Number(0),
    "asymmetric": lambda i, size, out, scale: i / scale,
}
_ROUNDED: dict[str, Callable[[float], int]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def _resized_axis(state: Translator, node: NodeProto, values: Attributes, size: int, out_size: int, scale: float) -> Taps:
    """Taps of one axis of `size` places resized to `out_size` (ONNX's Resize: coordinate, then nearest, linear or cubic)."""
    transformation = str(values.get("coordinate_transformation_mode", "half_pixel"))
    mode, rounding = str(values.get("mode", "nearest")), str(values.get("nearest_mode", "round_prefer_floor"))
    if transformation not in _COORDINATES or rounding not in _ROUNDED:
        choices = f"{', '.join(_COORDINATES)}; nearest_mode: {', '.join(_ROUNDED)}"
        raise state.refuse(node, f"coordinate_transformation_mode {transformation!r}, nearest_mode {rounding!r}; accepted: {choices}")
    coordinates = [float(_COORDINATES[transformation](Number(i), Number(size), Number(out_size), Number(scale))) for i in range(out_size)]
    if mode == "nearest":
        return select_places(min(max(_ROUNDED[rounding](x), 0), size - 1) for x in coordinates)
    if mode == "linear":
        return merge_taps(_linear(min(max(x, 0.0), size - 1.0), size) for x in coordinates)
    if mode == "cubic":
        outside = bool(values.get("exclude_outside", 0))
        return merge_taps(_cubic(x, size, float(values.get("cubic_coeff_a", -0.75)), outside) for x in coordinates)
    raise state.refuse(node, f"mode {mode!r}; accepted: nearest, linear, cubic")


def _linear(coordinate: float, size: int) -> Iterable[Tap]:
    first = math.floor(coordinate)
    return ((first, 1 - (coordinate - first)), (min(first + 1, size - 1), coordinate - first))


def _cubic(coordinate: float, size: int, coeff_a: float, exclude_outside: bool) -> Iterable[Tap]:
    """Taps of cubic interpolation (Keys 1981): four places around the coordinate, outer ones clamped to the border or dropped."""
    first = math.floor(coordinate)
    t = coordinate - first
    weights = [
        ((coeff_a * (t + 1) - 5 * coeff_a) * (t + 1) + 8 * coeff_a) * (t + 1) - 4 * coeff_a,
        ((coeff_a + 2) * t - (coeff_a + 3)) * t * t + 1,
        ((coeff_a + 2) * (1 - t) - (coeff_a + 3)) * (1 - t) * (1 - t) + 1,
        ((coeff_a * (2 - t) - 5 * coeff_a) * (2 - t) + 8 * coeff_a) * (2 - t) - 4 * coeff_a,
    ]
    taps = [(first - 1 + k, weight) for k, weight in enumerate(weights)]
    if exclude_outside:
        taps = [(place, weight) for place, weight in taps if 0 <= place < size]
        total = sum(weight for _, weight in taps)
        taps = [(place, weight / total) for place, weight in taps]
    return [(min(max(place, 0), size - 1), weight) for place, weight in taps]


def conv_transpose(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Emit a convolution of the input with stride - 1 zeros between its pixels, with the flipped kernel."""
    weights = np.asarray(state.constant(node, 1, "the weight"), np.float32)
    if weights.ndim == 3:  # a signal is an image of one column
        weights, values = weights[..., None], _of_columns(values)
    x = state.image(node)
    _, c, h, w = state.shapes[x]
    groups = int(values.get("group", 1))
    if weights.ndim != 4 or weights.shape[0] != c or c % groups:
        expected = f"[{c}, c_out / {groups}, kh, kw] is expected"
        raise state.refuse(node, f"weights of shape {list(weights.shape)} for {c} channels in {groups} groups; {expected}")
    per_group, kernel = weights.shape[1], weights.shape[2:]
    turned = weights.reshape(groups, c // groups, per_group, *kernel).transpose(0, 2, 1, 3, 4)[:, :, :, ::-1, ::-1]
    turned = np.ascontiguousarray(turned.reshape(groups * per_group, c // groups, *kernel))
    bias = np.zeros(len(turned), np.float32)
    if state.has(node, 2):
        bias = np.asarray(state.constant(node, 2, "the bias"), np.float32)
    spread, pads = [], []
    # the padding of the convolution is the reach of the kernel minus the node's pads; negative padding crops the taps
    dilations = tuple(int(d) for d in values.get("dilations", (1, 1)))
    for axis, size in enumerate((h, w)):
        stride, reach = int(values.get("strides", (1, 1))[axis]), (kernel[axis] - 1) * dilations[axis]
        before, after = _transposed_pads(state, node, values, axis, size, stride, reach)
        begin, end = reach - before, reach - after
        taps: Places = [i // stride if i % stride == 0 else None for i in range((size - 1) * stride + 1)]
        taps = taps[max(0, -begin) : len(taps) - max(0, -end)]
        if not taps:
            raise state.refuse(node, f"pads leave nothing of axis {axis + 2}")
        spread.append(select_places(taps))
        pads.append((max(0, begin), max(0, end)))
    rows, columns = spread
    if not (rows.is_identity(h) and columns.is_identity(w)):
        x = state.emit(Resample(state.name(node, ".zeros"), x, state.fresh(f"{node.output[0]}.zeros"), rows, columns))
    window = (pads[0][0], pads[1][0], pads[0][1], pads[1][1])
    finish_conv(state, node, Conv(state.name(node), x, node.output[0], turned, bias, (1, 1), dilations, window, groups))  # type: ignore[arg-type]


_SECOND_AXIS = {"strides": [1], "dilations": [1], "output_padding": [0], "output_shape": [1], "kernel_shape": [1]}


def _of_columns(values: Attributes) -> Attributes:
    """Attributes of a one-axis window, as those of a window one column wide."""
    out = {key: [*value, *_SECOND_AXIS[key]] if key in _SECOND_AXIS else value for key, value in values.items()}
    return out | {"pads": [values["pads"][0], 0, values["pads"][1], 0]} if "pads" in values else out


def _transposed_pads(
    state: Translator, node: NodeProto, values: Attributes, axis: int, size: int, stride: int, reach: int
) -> tuple[int, int]:
    """Pads (before, after) of a transposed convolution along one axis; output_padding reduces the second."""
    extra = int(values.get("output_padding", (0, 0))[axis])
    auto = values.get("auto_pad", "NOTSET")
    if "output_shape" in values or auto in ("SAME_UPPER", "SAME_LOWER"):
        output_size = int(values["output_shape"][axis]) if "output_shape" in values else size * stride
        total = stride * (size - 1) + extra + reach + 1 - output_size
        small, large = total // 2, total - total // 2
        return (large, small - extra) if auto != "SAME_UPPER" else (small, large - extra)
    if auto == "VALID":
        return (0, -extra)
    pads = [int(v) for v in values.get("pads", (0, 0, 0, 0))]
    return (pads[axis], pads[axis + 2] - extra)


def depth_to_space(state: Translator, node: NodeProto, values: Attributes) -> None:
    block, mode = int(values["blocksize"]), values.get("mode", "DCR")
    x = state.image(node)
    _, channels, *_ = state.shapes[x]
    if block < 1 or channels % block**2:
        raise BadInputError(f"{label(node)}: blocksize {block} of {channels} channels; they are expected to be a multiple of its square")
    n, _, h, w = state.shapes[x]
    size = channels // block**2
    blocks = (size, block, block) if mode == "CRD" else (block, block, size)  # CRD: the pixels of a channel are neighbouring channels
    view = row_major(x, state.shapes[x], (n, *blocks, h, w))
    if mode == "CRD":
        view = state.in_order(transpose_view(view, (0, 2, 3, 1, 4, 5)))
    spread = reshape_view(transpose_view(view, (0, 3, 4, 1, 5, 2)), (n, size, h * block, w * block))
    assert spread is not None, "neighbouring axes are joined"
    arranged = arrange(state, spread, [1], [2, 3], w * block)
    if arranged is None:
        raise state.refuse(node, f"blocksize {block} of {channels} channels; their product with the identity does not fit the budget")
    state.views[node.output[0]] = arranged


def space_to_depth(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Copy a view in which the pixels of a block are channels: those of a pixel are neighbours, or in mode CRD those of a channel."""
    block, view = int(values["blocksize"]), state.view(node)
    n, channels, h, w = view.shape
    if block < 1 or h % block or w % block:
        raise BadInputError(f"{label(node)}: blocksize {block} of {h} x {w} pixels; they are expected to be multiples of it")
    perm = (0, 1, 3, 5, 2, 4) if values.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    blocks = state.reshape(view, (n, channels, h // block, block, w // block, block))
    shape = n, channels * block**2, h // block, w // block
    gathered = None if blocks is None else state.reshape(transpose_view(blocks, perm), shape)
    if gathered is None:
        raise state.refuse(node, f"{list(view.shape)}: images would have to move")
    state.views[node.output[0]] = gathered


RESAMPLING: dict[str, Handler] = {
    "ConvTranspose": conv_transpose,
    "DepthToSpace": depth_to_space,
    "Gather": gather,
    "Pad": pad,
    "Resize": resize,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Upsample": resize,
}
