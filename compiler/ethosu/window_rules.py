"""Windows of convolutions and poolings, within the part's limits."""

from __future__ import annotations

from compiler.ethosu.lowering import NetworkLowering
from compiler.ethosu.step import KernelWindow
from compiler.frontend.tflite.file_schema import SAME
from compiler.frontend.tflite.network import TfliteOperator

LONGEST_STRIDE, LONGEST_DILATION = 3, 2
HIGHEST_KERNEL, HIGHEST_POOL = 64, 256
"""Most rows of a kernel with its dilation.  The square is the most elements."""


def window_of(lowering: NetworkLowering, operator: TfliteOperator, rows: int, columns: int) -> KernelWindow:
    """The window of an operator from its first input to its result."""
    options = operator.options
    image, result = (lowering.network.tensors[number].image for number in (operator.inputs[0], operator.outputs[0]))
    strides, dilations = (options["stride_y"], options["stride_x"]), (options.get("dilation_y", 1), options.get("dilation_x", 1))
    if not 1 <= min(strides) <= max(strides) <= LONGEST_STRIDE:
        if result[:2] != (1, 1):
            raise lowering.refuse(f"strides {strides[0]}x{strides[1]}: expected 1 to {LONGEST_STRIDE}")
        strides = (1, 1)  # unused: there is one window
    if not 1 <= min(dilations) <= max(dilations) <= LONGEST_DILATION:
        raise lowering.refuse(f"dilations {dilations[0]}x{dilations[1]}: expected 1 to {LONGEST_DILATION}")
    window = KernelWindow(rows, columns, *strides, *dilations)
    check_kernel(lowering, window, HIGHEST_POOL if "POOL" in operator.kind else HIGHEST_KERNEL)
    if "pads" in options:
        return window._replace(pad_top=options["pads"][0], pad_left=options["pads"][1])
    if options["padding"] != SAME:
        return window
    top = padding_before(image[0], result[0], window.reach_rows, strides[0])
    return window._replace(pad_top=top, pad_left=padding_before(image[1], result[1], window.reach_columns, strides[1]))


def padding_before(size: int, result: int, reach: int, stride: int) -> int:
    """Rows or columns of padding before the image, by the rule SAME."""
    return max(0, (result - 1) * stride + reach - size) // 2


def check_kernel(lowering: NetworkLowering, window: KernelWindow, highest: int) -> None:
    """Check the size of a kernel.  Raises an error if it is too large."""
    if window.reach_rows > highest or window.reach_rows * window.reach_columns > highest**2:
        size = f"{window.reach_rows}x{window.reach_columns}"
        raise lowering.refuse(f"a kernel of {size}: expected at most {highest} rows and {highest**2} elements")
