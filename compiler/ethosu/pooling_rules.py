"""Poolings by the greatest value and the mean, and means over an image."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ethosu.lowering import NetworkLowering, Rule
from compiler.ethosu.scaling import average_scaling, mean_scaling
from compiler.ethosu.step import KernelWindow
from compiler.ethosu.window_rules import HIGHEST_POOL, check_kernel, window_of
from compiler.frontend.tflite.network import TfliteOperator

_LONGEST_PADDED = 8
_LARGEST_MEAN = 1 << 11
"""Elements of a window whose quotient the factor of 32 bits has exactly."""


def _greatest(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    _same_scale(lowering, operator)
    x, y = operator.inputs[0], operator.outputs[0]
    window = window_of(lowering, operator, operator.options["rows"], operator.options["columns"])
    bounds = lowering.bounds(operator.options["activation"], y)
    lowering.add("POOL", (lowering.view(x, 0),), lowering.view(y, 0), mode="MAX", window=window, **bounds)


def _average(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    """Quotients of raw integers, whatever the zero point."""
    _same_scale(lowering, operator)
    x, y = operator.inputs[0], operator.outputs[0]
    window = window_of(lowering, operator, operator.options["rows"], operator.options["columns"])
    if window.rows * window.columns > _LARGEST_MEAN:
        raise lowering.refuse(f"a window of {window.rows}x{window.columns}: expected at most {_LARGEST_MEAN} elements")
    image, result = lowering.tensor(x).image, lowering.tensor(y).image
    padded = any(
        front or (extent - 1) * stride + taps > size
        for size, extent, stride, taps, front in (
            (image[0], result[0], window.stride_y, window.rows, window.pad_top),
            (image[1], result[1], window.stride_x, window.columns, window.pad_left),
        )
    )
    if padded and max(window.rows, window.columns) > _LONGEST_PADDED:
        raise lowering.refuse(
            f"a window of {window.rows}x{window.columns} with padding: expected at most {_LONGEST_PADDED} rows and columns"
        )
    bounds, scaling = lowering.bounds(operator.options["activation"], y), average_scaling(window.rows * window.columns)
    lowering.add("POOL", (lowering.view(x, 0),), lowering.view(y, 0), mode="AVERAGE", window=window, scaling=scaling, **bounds)


def _mean(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    x, y = lowering.tensor(operator.inputs[0]), lowering.tensor(operator.outputs[0])
    axes = {int(axis) % len(x.shape) for axis in lowering.constant(operator.inputs[1], "axes").ravel()}
    if len(x.shape) != 4 or axes != {1, 2}:
        raise lowering.refuse(f"axes {sorted(axes)} of {list(x.shape)}: expected rows and columns, 1 and 2")
    rows, columns, channels = x.image
    window = KernelWindow(rows, columns)
    check_kernel(lowering, window, HIGHEST_POOL)
    result = lowering.view(operator.outputs[0])
    if result[1:4] != (1, 1, channels):
        raise lowering.refuse(f"a result of {list(y.shape)}: expected one row and column")
    scaling = mean_scaling(x.scale, y.scale, rows * columns)
    lowering.add("POOL", (lowering.view(operator.inputs[0]),), result, mode="AVERAGE", window=window, scaling=scaling)


def _same_scale(lowering: NetworkLowering, operator: TfliteOperator) -> None:
    x, y = lowering.tensor(operator.inputs[0]), lowering.tensor(operator.outputs[0])
    if (x.scale, x.zero) != (y.scale, y.zero):
        raise lowering.refuse(f"scale {x.scale:g} and zero point {x.zero}, of the result {y.scale:g} and {y.zero}: expected the same")


RULES: Mapping[str, Rule] = {"MAX_POOL_2D": _greatest, "AVERAGE_POOL_2D": _average, "MEAN": _mean}
