"""Convolutions, depthwise and transposed ones, and fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.lowering import Lowering, Rule
from compiler.ethosu.scaling import product_scaling
from compiler.ethosu.step import DOUBLE, NATURAL, ZEROS, Records, Window
from compiler.ethosu.window_rules import HIGHEST_KERNEL, check_kernel, padding_before, window_of
from compiler.frontend.tflite.network import NetworkOperator
from compiler.frontend.tflite.schema import SAME

_LARGEST_BIAS = 1 << 39


def _convolution(lowering: Lowering, operator: NetworkOperator) -> None:
    weights = _weights(lowering, operator.inputs[1])
    image = lowering.tensor(operator.inputs[0]).image
    if weights.shape[3] != image[2]:
        raise lowering.refuse(f"{image[2]} channels in {image[2] // max(1, weights.shape[3])} groups: expected one group")
    _add(lowering, operator, "CONV", weights, window_of(lowering, operator, *weights.shape[1:3]))


def _depthwise(lowering: Lowering, operator: NetworkOperator) -> None:
    weights = _weights(lowering, operator.inputs[1]).transpose(3, 1, 2, 0)
    inputs, window = lowering.tensor(operator.inputs[0]).image[2], window_of(lowering, operator, *weights.shape[1:3])
    if weights.shape[0] == inputs:
        _add(lowering, operator, "DEPTHWISE", weights, window)
        return
    multiplier = weights.shape[0] // inputs
    dense = np.zeros((*weights.shape[:3], inputs), np.int16)
    dense[np.arange(len(dense)), :, :, np.arange(len(dense)) // multiplier] = weights[..., 0]
    _add(lowering, operator, "CONV", dense, window)  # the part's depthwise unit has one result for each channel


def _dense(lowering: Lowering, operator: NetworkOperator) -> None:
    if operator.options["weights_format"]:
        raise lowering.refuse(f"weights of format {operator.options['weights_format']}: expected 0")
    weights = _weights(lowering, operator.inputs[1])
    if lowering.tensor(operator.inputs[0]).image != (1, 1, weights.shape[1]):
        raise lowering.refuse(f"an input of {list(lowering.tensor(operator.inputs[0]).shape)}: expected [1, {weights.shape[1]}]")
    _add(lowering, operator, "CONV", weights[:, None, None, :], Window(), NATURAL)  # that kernel of TFLite rounds once


def _transposed(lowering: Lowering, operator: NetworkOperator) -> None:
    options, (_, kernel, source, *rest) = operator.options, operator.inputs
    strides = (options["stride_y"], options["stride_x"])
    if strides not in ((1, 1), (2, 2)):
        raise lowering.refuse(f"strides {strides[0]}x{strides[1]}: expected 1x1 or 2x2")
    weights = _weights(lowering, kernel)[:, ::-1, ::-1]
    image, result, reach = lowering.tensor(source).image, lowering.tensor(operator.outputs[0]).image, weights.shape[1:3]
    pads = [
        padding_before(made, size, taps, stride) if options["padding"] == SAME else 0
        for size, made, taps, stride in zip(image, result, reach, strides, strict=False)
    ]
    window = Window(reach[0], reach[1], top=reach[0] - 1 - pads[0], left=reach[1] - 1 - pads[1], upscale=ZEROS if strides == (2, 2) else 0)
    check_kernel(lowering, window, HIGHEST_KERNEL)
    moved = NetworkOperator(operator.kind, (source, kernel, *rest), operator.outputs, options)
    _add(lowering, moved, "CONV", weights, window)


def _weights(lowering: Lowering, number: int) -> NDArray[np.int16]:
    values, tensor = lowering.constant(number, "weights"), lowering.tensor(number)
    if np.any(tensor.zeros):
        raise lowering.refuse(f"weights of zero point {int(tensor.zeros[np.flatnonzero(tensor.zeros)[0]])}: expected 0")
    return values.astype(np.int16)


def _add(
    lowering: Lowering, operator: NetworkOperator, unit: str, weights: NDArray[np.int16], window: Window, rounding: int = DOUBLE
) -> None:
    x, kernel, *rest = operator.inputs
    result = operator.outputs[0]
    records = _records(lowering, operator, kernel, rest[0] if rest else -1, len(weights))
    bounds = lowering.bounds(operator.options["activation"], result)
    fields: dict[str, Any] = {"weights": weights, "records": records, "window": window, "rounding": rounding}
    lowering.add(unit, (lowering.view(x),), lowering.view(result), **fields, **bounds)


def _records(lowering: Lowering, operator: NetworkOperator, weights: int, bias: int, channels: int) -> Records:
    """Biases and scales of channels."""
    x, y, scales = lowering.tensor(operator.inputs[0]).scale, lowering.tensor(operator.outputs[0]).scale, lowering.tensor(weights).scales
    if len(scales) not in (1, channels):
        raise lowering.refuse(f"{len(scales)} scales of weights: expected 1 or {channels}")
    scalings = np.array([product_scaling(x, scale, y) for scale in scales], np.int64)
    factor, shift = np.broadcast_to(scalings, (channels, 2)).T
    biases = np.zeros(channels, np.int64) if bias < 0 else lowering.constant(bias, "biases").astype(np.int64).ravel()
    if len(biases) != channels or np.abs(biases).max(initial=0) >= _LARGEST_BIAS:
        raise lowering.refuse(f"{len(biases)} biases up to {np.abs(biases).max(initial=0)}: expected {channels} below {_LARGEST_BIAS}")
    return Records(biases, factor, shift)


RULES: Mapping[str, Rule] = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _dense,
    "TRANSPOSE_CONV": _transposed,
}
