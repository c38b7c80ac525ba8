"""Operations on blocks as their registers have them: result, kernel, padding, and the input that they need.

The extent of an input is no register: it is what the kernel reaches from the result's extent, without padding, and half of that where the
input is upscaled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_table import ELEMENTWISE, POOLING
from simulator.ethosu.command_words import Operation
from simulator.ethosu.feature_map import FeatureMap, feature_map
from simulator.ethosu.memory_regions import RegionMemory

HIGHEST_CONV, HIGHEST_POOL, LONGEST_PADDED_AVERAGE, LONGEST_STRIDE = 64, 256, 8, 3
"""Limits of kernels: rows, whose square is the most elements; and rows and columns of a mean with padding."""
NEAREST, ZEROS = 1, 2


class Result(NamedTuple):
    """The result and its blocks, [rows, columns, channels] of both."""

    map: FeatureMap
    rows: int
    columns: int
    channels: int
    block_rows: int
    block_columns: int
    block_channels: int
    global_scale: bool
    round_mode: int


class Kernel(NamedTuple):
    """rows, columns: without dilation.  upscale: of the input, 1 or 2."""

    rows: int
    columns: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    part_first: bool
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int
    upscale: int
    zeros: bool

    @property
    def padded(self) -> bool:
        """Whether a side has padding."""
        return bool(self.pad_top or self.pad_left or self.pad_bottom or self.pad_right)

    def input_rows(self, rows: int) -> int:
        """Rows of the input, upscaled, for so many rows of the result."""
        return (rows - 1) * self.stride_y + (self.rows - 1) * self.dilation_y + 1 - self.pad_top - self.pad_bottom

    def input_columns(self, columns: int) -> int:
        """Columns, in the same way."""
        return (columns - 1) * self.stride_x + (self.columns - 1) * self.dilation_x + 1 - self.pad_left - self.pad_right


class Source(NamedTuple):
    """An input and its extent in memory."""

    map: FeatureMap
    rows: int
    columns: int
    channels: int

    def read(self, memory: RegionMemory) -> NDArray[Any]:
        """Values, [rows, columns, channels]."""
        return self.map.read(memory, self.rows, self.columns, self.channels)


def result_of(operation: Operation) -> Result:
    """The result of an operation."""
    field = operation.field
    sizes = (field("OFM_HEIGHT_M1") + 1, field("OFM_WIDTH_M1") + 1, field("OFM_DEPTH_M1") + 1)
    blocks = (field("OFM_BLK_HEIGHT_M1") + 1, field("OFM_BLK_WIDTH_M1") + 1, field("OFM_BLK_DEPTH_M1") + 1)
    if blocks[2] % 8:
        raise operation.refuse(f"NPU_SET_OFM_BLK_DEPTH_M1 = {blocks[2] - 1}: expected a multiple of 8, less 1")
    return Result(
        feature_map(operation, "OFM"), *sizes, *blocks, bool(field("OFM_PRECISION", "global_scale")), field("OFM_PRECISION", "round_mode")
    )


def kernel_of(operation: Operation) -> Kernel:
    """The kernel of an operation, within the limits of its kind."""
    field = operation.field
    dilation_y, dilation_x = field("KERNEL_STRIDE", "dilation_y_m1") + 1, field("KERNEL_STRIDE", "dilation_x_m1") + 1
    for axis, dilation in (("HEIGHT", dilation_y), ("WIDTH", dilation_x)):
        if field(f"KERNEL_{axis}_M1") % dilation:
            raise operation.refuse(
                f"NPU_SET_KERNEL_{axis}_M1 = {field(f'KERNEL_{axis}_M1')}: expected a multiple of the dilation {dilation}"
            )
    stride_y, stride_x = (
        field("KERNEL_STRIDE", f"stride_{axis}_low") + 2 * field("KERNEL_STRIDE", f"stride_{axis}_high") + 1 for axis in "yx"
    )
    if max(stride_y, stride_x) > LONGEST_STRIDE:
        raise operation.refuse(f"NPU_SET_KERNEL_STRIDE: a stride of {max(stride_y, stride_x)}: expected 1 to {LONGEST_STRIDE}")
    pad_top, pad_left, pad_bottom, pad_right = (field(f"IFM_PAD_{side}") for side in ("TOP", "LEFT", "BOTTOM", "RIGHT"))
    mode = field("IFM_UPSCALE")
    kernel = Kernel(
        field("KERNEL_HEIGHT_M1") // dilation_y + 1, field("KERNEL_WIDTH_M1") // dilation_x + 1, stride_y, stride_x, dilation_y, dilation_x,
        bool(field("KERNEL_STRIDE", "part_kernel_first")), pad_top, pad_left, pad_bottom, pad_right, 2 if mode else 1, mode == ZEROS,
    )  # fmt: skip
    _check_size(operation, kernel)
    return kernel


def _check_size(operation: Operation, kernel: Kernel) -> None:
    highest, average = HIGHEST_CONV, False
    if operation.name == "NPU_OP_POOL":
        highest, average = HIGHEST_POOL, POOLING[operation.values["mode"]] == "AVERAGE"
        if max(kernel.dilation_x, kernel.dilation_y) > 1:
            raise operation.refuse("NPU_SET_KERNEL_STRIDE: a dilation: expected none")
    reach_rows, reach_columns = (kernel.rows - 1) * kernel.dilation_y + 1, (kernel.columns - 1) * kernel.dilation_x + 1
    if reach_rows > highest or reach_rows * reach_columns > highest**2:
        raise operation.refuse(f"a kernel of {reach_rows}x{reach_columns}: expected at most {highest} rows and {highest**2} elements")
    if average and kernel.padded and max(kernel.rows, kernel.columns) > LONGEST_PADDED_AVERAGE:
        raise operation.refuse(
            f"a mean of {kernel.rows}x{kernel.columns} with padding: expected at most {LONGEST_PADDED_AVERAGE} rows and columns"
        )
    if kernel.upscale > 1 and max(kernel.stride_x, kernel.stride_y) > 1:
        raise operation.refuse(f"NPU_SET_IFM_UPSCALE with strides {kernel.stride_y}x{kernel.stride_x}: expected 1x1")
    if max(kernel.pad_top, kernel.pad_bottom) >= reach_rows or max(kernel.pad_left, kernel.pad_right) >= reach_columns:
        pads = f"{kernel.pad_top},{kernel.pad_left},{kernel.pad_bottom},{kernel.pad_right}"
        raise operation.refuse(f"padding {pads}: expected less than the kernel of {reach_rows}x{reach_columns}")


def source_of(operation: Operation, result: Result, kernel: Kernel) -> Source:
    """The input of a convolution or pooling."""
    rows, columns = kernel.input_rows(result.rows), kernel.input_columns(result.columns)
    if min(rows, columns) < 1:
        raise operation.refuse(f"an input of {rows}x{columns}: padding leaves none of it")
    scale = kernel.upscale
    return Source(feature_map(operation, "IFM"), -(-rows // scale), -(-columns // scale), operation.field("IFM_DEPTH_M1") + 1)


def operand_of(operation: Operation, result: Result, name: str, broadcast: tuple[bool, bool, bool]) -> Source:
    """An operand of an elementwise operation: the result's extent, 1 on axes that are broadcast."""
    sizes = (result.rows, result.columns, result.channels)
    return Source(feature_map(operation, name), *(1 if single else size for size, single in zip(sizes, broadcast, strict=True)))


def mode_of(operation: Operation) -> str:
    """The mode of a pooling or an elementwise operation by name."""
    return (POOLING if operation.name == "NPU_OP_POOL" else ELEMENTWISE)[operation.values["mode"]]


def upscaled(values: NDArray[Any], kernel: Kernel, rows: int, columns: int, zero: int) -> NDArray[Any]:
    """An input [rows, columns, channels] as the kernel sees it: with its upscaling, cut at what the kernel reaches."""
    if kernel.upscale == 1:
        return values
    if not kernel.zeros:
        return values.repeat(2, axis=0).repeat(2, axis=1)[:rows, :columns]
    out = np.full((2 * values.shape[0], 2 * values.shape[1], values.shape[2]), zero, values.dtype)
    out[::2, ::2] = values
    return out[:rows, :columns]
