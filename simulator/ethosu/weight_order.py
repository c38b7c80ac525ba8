"""The order of weights in a stream: blocks of results, blocks of channels, parts of the kernel, and groups of 8 by 8 channels in them.

In a stream, blocks are padded with zeros to whole groups.
Source: the public encoder of Vela (`mlw_encode.c`, Arm, Apache-2.0).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.stream_error import StreamError

GROUP = 8
"""Channels of a group, of inputs and of results: `ifm_ublock` and `ofm_ublock` of all Ethos-U65."""
PART = 8
"""Rows and columns of a part of a kernel without dilation."""
LARGEST_KERNEL_BYTES = 1 << 28


class KernelShape(NamedTuple):
    """Weights of one core.  outputs, rows, columns, inputs: of the kernel.  block: results of a block.

    depthwise: one input for each result.  part_kernel_first: all elements of a part of the kernel come before the next group of inputs;
    else all groups come before the next element.  input_bits: bits of the input's type.
    """

    outputs: int
    rows: int
    columns: int
    inputs: int
    block: int
    depthwise: bool
    part_kernel_first: bool
    input_bits: int
    dilation_rows: int
    dilation_columns: int


def kernel_of_stream(flat: NDArray[np.int16], shape: KernelShape) -> NDArray[np.int16]:
    """The kernel [outputs, rows, columns, inputs] of the weights of a stream.  Raises `StreamError`."""
    size = f"{shape.outputs}x{shape.rows}x{shape.columns}x{shape.inputs}"
    if 2 * shape.outputs * shape.rows * shape.columns * shape.inputs > LARGEST_KERNEL_BYTES:
        raise StreamError(f"a kernel of {size} weights: expected at most {LARGEST_KERNEL_BYTES} bytes")
    places = stream_places(shape)
    if len(flat) != len(places):
        raise StreamError(f"weight stream: {len(flat)} weights: expected {len(places)} for {size}")
    kernel = np.zeros(shape.outputs * shape.rows * shape.columns * shape.inputs + 1, np.int16)  # the last one takes the padding
    kernel[places] = flat
    return kernel[:-1].reshape(shape.outputs, shape.rows, shape.columns, shape.inputs)


@lru_cache(maxsize=64)
def stream_places(shape: KernelShape) -> NDArray[np.int64]:
    """For each weight of a stream its index in [outputs, rows, columns, inputs], or -1 for padding."""
    depth = 16 if shape.part_kernel_first or shape.input_bits == 16 else 32
    places = list[NDArray[np.int64]]()
    for output in range(0, shape.outputs, shape.block):
        for source in range(0, 1 if shape.depthwise else shape.inputs, depth):
            for row in range(0, shape.rows, PART // shape.dilation_rows):
                for column in range(0, shape.columns, PART // shape.dilation_columns):
                    places.append(_part(shape, output, source, row, column, depth))
    return np.concatenate(places)


def _part(shape: KernelShape, output: int, source: int, row: int, column: int, depth: int) -> NDArray[np.int64]:
    """Places of one part of the kernel of one block of results and inputs."""
    part_rows = min(PART // shape.dilation_rows, shape.rows - row)
    part_columns = min(PART // shape.dilation_columns, shape.columns - column)
    elements = part_rows * part_columns
    if shape.part_kernel_first:
        elements = _rounded(elements, 2 if shape.input_bits == 16 else 4)
    elif shape.depthwise:
        elements = _rounded(elements, 4)
    inputs = min(depth, shape.inputs - source) if shape.part_kernel_first else GROUP if shape.depthwise else depth
    groups = np.arange(0, inputs, GROUP)
    # one of the two loops over groups of inputs has a single step
    outside, inside = (groups, np.zeros(1, int)) if shape.part_kernel_first else (np.zeros(1, int), groups)
    lanes = np.zeros(1, int) if shape.depthwise else np.arange(GROUP)
    blocks = np.arange(0, min(shape.block, shape.outputs - output), GROUP)
    # axes: groups of inputs outside, groups of results, elements of the part, groups of inputs inside, results, inputs
    axes = (outside, blocks, np.arange(elements), inside, np.arange(GROUP), lanes)
    group, block, element, inner, result, lane = np.meshgrid(*axes, indexing="ij", sparse=True)
    channel, out, y, x = source + group + inner + lane, output + block + result, element // part_columns, element % part_columns
    index = ((out * shape.rows + row + y) * shape.columns + column + x) * shape.inputs + channel
    inside_kernel = (channel < shape.inputs) & (out < shape.outputs) & (y < part_rows)
    return np.where(inside_kernel, index, -1).ravel()


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
