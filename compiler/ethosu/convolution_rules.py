"""Convolutions, depthwise and transposed ones, and fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.lowering import NetworkLowering, Rule
from compiler.ethosu.scaling import product_scaling
from compiler.ethosu.step import DOUBLE, NATURAL, ZEROS, ChannelScales, KernelWindow
from compiler.ethosu.window_rules import HIGHEST_KERNEL, check_kernel, padding_before, window_of
from compiler.frontend.tflite.file_schema import SAME
from compiler.frontend.tflite.network import TfliteOperator

_LARGEST_BIAS = 1 << 39


def _convolution(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    weights = _weights(lowering, operator.inputs[1])
    image = lowering.tensor(operator.inputs[0]).image
    if weights.shape[3] != image[2]:
        raise lowering.refuse(f"{image[2]} channels in {image[2] // max(1, weights.shape[3])} groups: expected one group")
    _add(lowering, operator, "CONV", weights, window_of(lowering, operator, *weights.shape[1:3]))


def _depthwise(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    weights = _weights(lowering, operator.inputs[1]).transpose(3, 1, 2, 0)
    inputs, window = lowering.tensor(operator.inputs[0]).image[2], window_of(lowering, operator, *weights.shape[1:3])
    if weights.shape[0] == inputs:
        _add(lowering, operator, "DEPTHWISE", weights, window)
        return
    multiplier = weights.shape[0] // inputs
    dense = np.zeros((*weights.shape[:3], inputs), np.int16)
    dense[np.arange(len(dense)), :, :, np.arange(len(dense)) // multiplier] = weights[..., 0]
    _add(lowering, operator, "CONV", dense, window)  # the part's depthwise unit has one result for each channel


def _dense(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    if operator.options["weights_format"]:
        raise lowering.refuse(f"weights of format {operator.options['weights_format']}: expected 0")
    weights = _weights(lowering, operator.inputs[1])
    if lowering.tensor(operator.inputs[0]).image != (1, 1, weights.shape[1]):
        raise lowering.refuse(f"an input of {list(lowering.tensor(operator.inputs[0]).shape)}: expected [1, {weights.shape[1]}]")
    _add(lowering, operator, "CONV", weights[:, None, None, :], KernelWindow(), NATURAL)  # that kernel of TFLite rounds once


def _transposed(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    options, (_, kernel, source, *further) = operator.options, operator.inputs
    strides = (options["stride_y"], options["stride_x"])
    if strides not in ((1, 1), (2, 2)):
        raise lowering.refuse(f"strides {strides[0]}x{strides[1]}: expected 1x1 or 2x2")
    weights = _weights(lowering, kernel)[:, ::-1, ::-1]
    image, result, reach = lowering.tensor(source).image, lowering.tensor(operator.outputs[0]).image, weights.shape[1:3]
    pads = [
        padding_before(extent, size, taps, stride) if options["padding"] == SAME else 0
        for size, extent, taps, stride in zip(image, result, reach, strides, strict=False)
    ]
    window = KernelWindow(
        reach[0], reach[1], pad_top=reach[0] - 1 - pads[0], pad_left=reach[1] - 1 - pads[1], upscale=ZEROS if strides == (2, 2) else 0
    )
    check_kernel(lowering, window, HIGHEST_KERNEL)
    moved = TfliteOperator(operator.kind, (source, kernel, *further), operator.outputs, options)
    _add(lowering, moved, "CONV", weights, window)


def _weights(lowering: NetworkLowering, number: int) -> NDArray[np.int16]:
    values, tensor = lowering.constant(number, "weights"), lowering.tensor(number)
    if np.any(tensor.zeros):
        raise lowering.refuse(f"weights of zero point {int(tensor.zeros[np.flatnonzero(tensor.zeros)[0]])}: expected 0")
    return values.astype(np.int16)


def _add(
    lowering: NetworkLowering, operator: TfliteOperator, unit: str, weights: NDArray[np.int16], window: KernelWindow, rounding: int = DOUBLE
) -> None:
    x, kernel, *further = operator.inputs
    result = operator.outputs[0]
    records = _records(lowering, operator, kernel, further[0] if further else -1, len(weights))
    bounds = lowering.bounds(operator.options["activation"], result)
    fields: dict[str, Any] = {"weights": weights, "records": records, "window": window, "rounding": rounding}
    lowering.add(unit, (lowering.view(x),), lowering.view(result), **fields, **bounds)


def _records(lowering: NetworkLowering, operator: TfliteOperator, weights: int, bias: int, channels: int) -> ChannelScales:
    """Biases and scales of channels."""
    x, y, scales = lowering.tensor(operator.inputs[0]).scale, lowering.tensor(operator.outputs[0]).scale, lowering.tensor(weights).scales
    if len(scales) not in (1, channels):
        raise lowering.refuse(f"{len(scales)} scales of weights: expected 1 or {channels}")
    scalings = np.array([product_scaling(x, scale, y) for scale in scales], np.int64)
    factor, shift = np.broadcast_to(scalings, (channels, 2)).T
    biases = np.zeros(channels, np.int64) if bias < 0 else lowering.constant(bias, "biases").astype(np.int64).ravel()
    if len(biases) != channels or np.abs(biases).max(initial=0) >= _LARGEST_BIAS:
        raise lowering.refuse(f"{len(biases)} biases up to {np.abs(biases).max(initial=0)}: expected {channels} below {_LARGEST_BIAS}")
    return ChannelScales(biases, factor, shift)


RULES: Mapping[str, Rule] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _dense,
    "TRANSPOSE_CONV": _transposed,
}
