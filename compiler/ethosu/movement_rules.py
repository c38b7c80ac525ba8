"""Operators that move values: reshaping, concatenation, slices, padding, resizing, changes of scale, and activations by bounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ethosu.lowering import SMALL, NetworkLowering, Rule, concatenated_axis
from compiler.ethosu.scaling import POINT, quotient_scaling
from compiler.ethosu.step import NEAREST, ChannelScales, KernelWindow, StoreView
from compiler.ethosu.window_rules import HIGHEST_KERNEL, check_kernel
from compiler.frontend.tflite.network import TfliteOperator


def _copy(lowering: NetworkLowering, source: StoreView, result: StoreView) -> None:
    lowering.add("POOL", (source._replace(zero=0),), result._replace(zero=0), mode="AVERAGE")


def _reshape(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    source, result = operator.inputs[0], operator.outputs[0]
    x, y = lowering.tensor(source), lowering.tensor(result)
    if (x.scale, x.zero) != (y.scale, y.zero):
        raise lowering.refuse("another scale: expected that of the input")
    if lowering.home(source) == lowering.home(result):
        return
    target = lowering.view(result)
    if x.image != y.image:
        if not lowering.whole(result) or target.flat:
            raise lowering.refuse("a part of a concatenation: expected a tensor with a place for itself")
        target = target._replace(rows=x.image[0], columns=x.image[1], channels=x.image[2], flat=True)
    _copy(lowering, lowering.view(source), target)


def _concatenate(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    if operator.options["activation"]:
        raise lowering.refuse(f"activation {operator.options['activation']}: expected none")
    full, axis, place = lowering.view(operator.outputs[0]), concatenated_axis(lowering, operator), 0
    y = lowering.tensor(operator.outputs[0])
    for number in operator.inputs:
        x = lowering.tensor(number)
        if (x.scale, x.zero) != (y.scale, y.zero):
            raise lowering.refuse(f"scale {x.scale:g} beside {y.scale:g}: expected one scale and zero point")
        first = [full.first_row, full.first_column, full.first_channel]
        first[axis] += place
        rows, columns, channels = x.image
        part = StoreView(full.store, rows, columns, channels, 0, first[0], first[1], first[2])
        if lowering.home(number)[:2] != (full.store, tuple(first)):
            _copy(lowering, lowering.view(number), part)
        place += x.image[axis]


def _slice(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    source, result = lowering.view(operator.inputs[0], 0), lowering.view(operator.outputs[0], 0)
    begin = [0, 0, 0, *lowering.constant(operator.inputs[1], "beginnings").ravel().tolist()][-3:]
    part = source._replace(
        rows=result.rows, columns=result.columns, channels=result.channels, first_row=source.first_row + begin[0],
        first_column=source.first_column + begin[1], first_channel=source.first_channel + begin[2],
    )  # fmt: skip
    if source.flat:
        raise lowering.refuse("a slice of a tensor that is reshaped: expected one with its own shape")
    _copy(lowering, part, result)


def _pad(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    """A depthwise convolution whose kernel has a single 1, as its padding is the zero point."""
    pads = lowering.constant(operator.inputs[1], "widths").reshape(-1, 2).tolist()
    *images, (top, bottom), (front, back), channels = [[0, 0], [0, 0], [0, 0], *pads][-4:]
    if any(map(any, [*images, channels])):
        raise lowering.refuse(f"padding {pads}: expected only rows and columns")
    kernel = np.zeros((top + bottom + 1, front + back + 1), np.int16)
    kernel[bottom, back] = 1
    window = KernelWindow(top + bottom + 1, front + back + 1, pad_top=top + bottom, pad_left=front + back)
    check_kernel(lowering, window, HIGHEST_KERNEL)
    source, result = lowering.view(operator.inputs[0]), lowering.view(operator.outputs[0])
    weights = np.broadcast_to(kernel[None, :, :, None], (source.channels, *kernel.shape, 1))
    records = ChannelScales(*(np.full(source.channels, value, np.int64) for value in (0, 1 << 30, 30)))
    lowering.add("DEPTHWISE", (source,), result, window=window, weights=weights, records=records)


def _clip(activation: int) -> Rule:
    def rule(lowering: NetworkLowering, operator: TfliteOperator) -> None:
        x, y = operator.inputs[0], operator.outputs[0]
        scaling = quotient_scaling(lowering.tensor(x).scale, lowering.tensor(y).scale)
        bounds = lowering.bounds(activation, y)
        lowering.add("POOL", (lowering.view(x),), lowering.view(y), mode="AVERAGE", scaling=scaling, **bounds)

    return rule


def _requantise(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    """Another scale, or the other type of 8 bits."""
    x, y = operator.inputs[0], operator.outputs[0]
    scaling = quotient_scaling(lowering.tensor(x, SMALL).scale, lowering.tensor(y, SMALL).scale)
    views = lowering.view(x, None, SMALL), lowering.view(y, None, SMALL)
    lowering.add("POOL", views[:1], views[1], mode="AVERAGE", scaling=scaling, **lowering.bounds(0, y))


def _doublings(lowering: NetworkLowering, operator: TfliteOperator) -> int:
    """How often both sides are doubled."""
    image, result = (lowering.tensor(number).image for number in (operator.inputs[0], operator.outputs[0]))
    power = (result[0] // image[0]).bit_length() - 1
    if result[:2] != (image[0] << power, image[1] << power) or power < 1:
        raise lowering.refuse(f"from {image[0]}x{image[1]} to {result[0]}x{result[1]}: expected both doubled, or doubled again")
    if operator.options["align_corners"]:
        raise lowering.refuse("align_corners: expected none")
    return power


def _nearest(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    power, source, result = _doublings(lowering, operator), lowering.view(operator.inputs[0], 0), lowering.view(operator.outputs[0], 0)
    for number in range(1, power + 1):
        rows, columns, channels = (2 * source.rows, 2 * source.columns, source.channels)
        target = result if number == power else lowering.temporary(rows, columns, channels)
        lowering.add("POOL", (source,), target, mode="AVERAGE", window=KernelWindow(upscale=NEAREST))
        source = target


_Span = tuple[int, int, int, list[int]]
"""First result, how many, first input, and weights of neighbouring inputs."""
_LARGEST_FACTOR = 4


def _bilinear(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    """Results of each phase by themselves, and of each those at the border, where one input counts for two.

    Raw integers are weighted, halves away from zero.  Weights are doubled, as the first of two roundings drops a bit.
    """
    factor = 1 << _doublings(lowering, operator)
    if factor > _LARGEST_FACTOR:
        raise lowering.refuse(f"{factor} times the rows: expected at most {_LARGEST_FACTOR}")
    source, result = lowering.view(operator.inputs[0], 0), lowering.view(operator.outputs[0], 0)
    phases = [_taps(phase, factor, operator.options["half_pixel_centers"]) for phase in range(factor)]
    for y, row_taps in enumerate(phases):
        for x, column_taps in enumerate(phases):
            for rows in _runs(row_taps, source.rows):
                for columns in _runs(column_taps, source.columns):
                    _add_phase(lowering, source, result, (y, x), rows, columns, factor)


def _taps(phase: int, factor: int, half: bool) -> list[tuple[int, int]]:
    """Inputs beside its own that a result of a phase reads, with weights whose sum is twice the factor."""
    unit = 2 * factor
    first, weight = divmod(2 * phase + 1 - factor if half else 2 * phase, unit)
    return [tap for tap in ((first, unit - weight), (first + 1, weight)) if tap[1]]


def _runs(taps: list[tuple[int, int]], size: int) -> list[_Span]:
    """Results of a phase: where all inputs are there, and those at either border."""
    low, high, single = max(0, -taps[0][0]), size - max(0, taps[-1][0]), [sum(weight for _, weight in taps)]
    runs: list[_Span] = [(0, 1, 0, single)] if low else []
    if low < high:
        runs.append((low, high - low, low + taps[0][0], [weight for _, weight in taps]))
    return runs + ([(size - 1, 1, size - 1, single)] if high < size else [])


def _add_phase(
    lowering: NetworkLowering, source: StoreView, result: StoreView, phase: tuple[int, int], rows: _Span, columns: _Span, factor: int
) -> None:
    kernel = 2 * np.outer(rows[3], columns[3]).astype(np.int16)
    read = source._replace(
        rows=rows[1] + len(rows[3]) - 1, columns=columns[1] + len(columns[3]) - 1,
        first_row=source.first_row + rows[2], first_column=source.first_column + columns[2],
    )  # fmt: skip
    target = result._replace(
        rows=rows[1], columns=columns[1], first_row=result.first_row + factor * rows[0] + phase[0],
        first_column=result.first_column + factor * columns[0] + phase[1], step=factor,
    )  # fmt: skip
    shift = POINT + 2 * factor.bit_length()
    records = ChannelScales(*(np.full(source.channels, value, np.int64) for value in (0, 1 << 30, shift)))
    weights = np.broadcast_to(kernel[None, :, :, None], (source.channels, *kernel.shape, 1))
    lowering.add("DEPTHWISE", (read,), target, window=KernelWindow(*kernel.shape), weights=weights, records=records)


RULES: Mapping[str, Rule] = {
    "RESHAPE": _reshape,
    "SQUEEZE": _reshape,
    "CONCATENATION": _concatenate,
    "SLICE": _slice,
    "PAD": _pad,
    "QUANTIZE": _requantise,
    "RELU": _clip(1),
    "RELU_N1_TO_1": _clip(2),
    "RELU6": _clip(3),
    "RESIZE_NEAREST_NEIGHBOR": _nearest,
    "RESIZE_BILINEAR": _bilinear,
}
