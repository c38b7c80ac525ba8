"""Poolings: the greatest value, the mean and the sum of channels.

A mean without padding is a sum with a global scale.  With padding it is a sum divided by the elements in the window that are not padding,
halves away from zero, as no factor could be right at all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.block_operation import Kernel, Result, Source, mode_of
from simulator.ethosu.command_words import Operation
from simulator.ethosu.convolution import check_sums, padded_input, window_of
from simulator.ethosu.memory_regions import RegionMemory
from simulator.ethosu.requantise import requantise


def pool(operation: Operation, memory: RegionMemory, result: Result, kernel: Kernel, source: Source) -> NDArray[np.int64]:
    """Scaled values of an NPU_OP_POOL, [rows, columns, channels], without zero point and limits."""
    mode, zero = mode_of(operation), source.map.zero_point
    if mode == "REDUCE_SUM":
        if result.channels != 1 or kernel.rows * kernel.columns != 1 or kernel.padded or kernel.upscale > 1:
            raise operation.refuse("more than one channel, a kernel, padding or upscaling: expected one channel and none of them")
        sums = (source.read(memory).astype(np.int64) - zero).sum(axis=2, keepdims=True)
        return _scaled(operation, result, sums)
    if source.channels != result.channels:
        raise operation.refuse(f"{source.channels} channels of the input: expected {result.channels}, as of the result")
    values = source.read(memory).astype(np.int64)
    if mode == "MAX":
        if zero != result.map.zero_point:
            raise operation.refuse(f"an input of zero point {zero}: expected {result.map.zero_point}, as of the result")
        return _greatest(values, kernel, result) - zero
    sums = _sums(padded_input(values - zero, kernel, result), kernel, result)
    if not kernel.padded:
        return _scaled(operation, result, sums)
    counts = _sums(padded_input(np.ones_like(values), kernel, result), kernel, result)
    check_sums(operation, sums)
    return np.where(sums < 0, -((-sums + counts // 2) // counts), (sums + counts // 2) // counts)


def _scaled(operation: Operation, result: Result, sums: NDArray[np.int64]) -> NDArray[np.int64]:
    if not result.global_scale:
        raise operation.refuse("NPU_SET_OFM_PRECISION: scales of channels: expected a global scale")
    check_sums(operation, sums)
    return requantise(sums, operation.field("OFM_SCALE", "factor"), operation.field("OFM_SCALE", "shift"), result.round_mode)


def _greatest(values: NDArray[np.int64], kernel: Kernel, result: Result) -> NDArray[np.int64]:
    values = padded_input(values, kernel, result, -(1 << 31))
    out = np.full((result.rows, result.columns, result.channels), -(1 << 31))
    for row in range(kernel.rows):
        for column in range(kernel.columns):
            out = np.maximum(out, window_of(values, kernel, result, row, column))
    return out


def _sums(values: NDArray[np.int64], kernel: Kernel, result: Result) -> NDArray[np.int64]:
    out = np.zeros((result.rows, result.columns, result.channels), np.int64)
    for row in range(kernel.rows):
        for column in range(kernel.columns):
            out += window_of(values, kernel, result, row, column)
    return out
