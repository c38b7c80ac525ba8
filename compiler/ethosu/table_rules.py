"""Functions of one integer, by a table of 256 results that TFLite's reference kernels would give."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.lowering import NetworkLowering, Rule
from compiler.ethosu.scaling import POINT, Scaling, quantize_multiplier
from compiler.frontend.tflite.network import TfliteOperator, TfliteTensor

_CODES = np.arange(-128, 128)


def _by_table(make: Callable[[TfliteTensor, TfliteTensor, TfliteOperator], NDArray[np.int64]]) -> Rule:
    def rule(lowering: NetworkLowering, operator: TfliteOperator) -> None:
        x, y = operator.inputs[0], operator.outputs[0]
        table = np.clip(make(lowering.tensor(x), lowering.tensor(y), operator), -128, 127).astype(np.int8)
        lowering.add("POOL", (lowering.view(x, 0),), lowering.view(y, 0), mode="AVERAGE", table=table)

    return rule


def _rounded(reals: NDArray[np.float64], y: TfliteTensor) -> NDArray[np.int64]:
    scaled = reals / float(y.scale)
    return (np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64) + y.zero


def _reals(x: TfliteTensor) -> NDArray[np.float64]:
    return np.asarray((_CODES - x.zero) * float(x.scale), np.float64)


def _logistic(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    return _rounded(1 / (1 + np.exp(-_reals(x))), y)


def _tanh(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    return _rounded(np.tanh(_reals(x)), y)


def _leaky_relu(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    """QuantizeLeakyRelu: one factor below the zero point, another above; both quotients in float32."""
    positive = quantize_multiplier(float(x.scale / y.scale))
    negative = quantize_multiplier(float(np.float32(x.scale * np.float32(operator.options["alpha"])) / y.scale))
    return np.array([_scaled(int(v), positive if v >= 0 else negative) for v in _CODES - x.zero]) + y.zero


def _absolute(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    """The quotient of scales is in float32; nothing is scaled where both are equal."""
    values = np.abs(_CODES - x.zero)
    if x.scale == y.scale:
        return values + y.zero
    scaling = quantize_multiplier(float(x.scale / y.scale))
    return np.array([_scaled(int(v), scaling) for v in values]) + y.zero


def _hard_swish(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    """HardSwish in fixed point of 16 bits: a product of the input and of its part between -3 and 3."""
    fine = np.float32(1 / 128) * x.scale
    output, slope = (_narrow(quantize_multiplier(float(fine / scale))) for scale in (y.scale, np.float32(3 / 32768)))
    return np.array([_hard_swish_of(int(v), output, slope) for v in _CODES - x.zero]) + y.zero


def _hard_swish_of(value: int, output: tuple[int, int], slope: tuple[int, int]) -> int:
    """output, slope: factors of 16 bits with exponents."""
    fine = value * 128
    scaled = _high(fine, output[0], 1 << 14)
    ramp = _saturated(fine << max(0, slope[1] - 1))
    ramp = _high(ramp, slope[0], 1 << 14)
    ramp = _saturated(ramp << 1) if slope[1] > 0 else _shifted(ramp, -slope[1])
    ramp = (ramp + (1 << 15)) >> 1
    return _shifted(_high(ramp, scaled, 0), -output[1])


def _high(a: int, b: int, half: int) -> int:
    """The upper half of twice a product of 16 bits; quotients go toward zero."""
    product = a * b + (half if a * b >= 0 else 1 - half if half else 0)
    return min(32767, abs(product) // (1 << 15) * (1 if product >= 0 else -1))


def _narrow(scaling: Scaling) -> tuple[int, int]:
    """A factor of 16 bits, and its exponent."""
    return min(32767, (scaling.factor + (1 << 15)) >> 16), POINT - scaling.shift


def _saturated(value: int) -> int:
    return max(-32768, min(32767, value))


def _shifted(value: int, power: int) -> int:
    """RoundingDivideByPOT."""
    half = (1 << power) >> 1
    return (value + half - (value < 0 < power)) >> power


def _scaled(value: int, scaling: Scaling) -> int:
    """MultiplyByQuantizedMultiplier, with two roundings."""
    power = POINT - scaling.shift
    high = ((value << max(0, power)) * scaling.factor + (1 << POINT - 1)) >> POINT
    return _shifted(high, max(0, -power))


def _entries(x: TfliteTensor, y: TfliteTensor, operator: TfliteOperator) -> NDArray[np.int64]:
    """Results that are given."""
    return np.asarray(operator.options["entries"], np.int64)


RULES: Mapping[str, Rule] = {
    "TABLE": _by_table(_entries),
    "LOGISTIC": _by_table(_logistic),
    "TANH": _by_table(_tanh),
    "LEAKY_RELU": _by_table(_leaky_relu),
    "ABS": _by_table(_absolute),
    "HARD_SWISH": _by_table(_hard_swish),
}
