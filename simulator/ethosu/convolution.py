"""Convolutions and depthwise convolutions: sums over windows, biases and scales of channels.

Products are summed in floats, by a library for matrices.  That is exact where no sum can reach the integers that a float has no room for:
float32 is taken below 2^24, float64 below 2^53, as the greatest input and the weights of a channel say.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.block_operation import Kernel, Result, Source, upscaled
from simulator.ethosu.command_words import Operation
from simulator.ethosu.memory_regions import RegionMemory, Span, flat_span
from simulator.ethosu.requantise import requantise
from simulator.ethosu.scale_records import ScaleRecords, read_scales
from simulator.ethosu.weight_order import KernelShape, kernel_of_stream
from simulator.ethosu.weight_stream import decode_weights

ACCUMULATOR_BITS = {0: 32, 1: 40}
_WIDE = 16


def weight_spans(operation: Operation) -> tuple[Span, ...]:
    """Bytes of the weights, by core."""
    return _streams(operation, "WEIGHT", _WIDE)


def scale_spans(operation: Operation) -> tuple[Span, ...]:
    """Bytes of biases and scales, by core."""
    return _streams(operation, "SCALE", 1)


def _streams(operation: Operation, name: str, step: int) -> tuple[Span, ...]:
    region, spans = operation.field(f"{name}_REGION"), []
    for core in range(operation.field("PARALLEL_MODE") + 1):
        key = name if core == 0 else f"{name}{core}"
        length = operation.field(f"{key}_LENGTH")
        if length % _WIDE:
            raise operation.refuse(f"NPU_SET_{key}_LENGTH = {length}: expected a multiple of {_WIDE}")
        first = operation.address(f"{key}_BASE") if length else 0
        if first % step:
            raise operation.refuse(f"NPU_SET_{key}_BASE = {first}: expected a multiple of {step}")
        spans.append(flat_span(region, first, length))
    return tuple(spans)


def convolve(operation: Operation, memory: RegionMemory, result: Result, kernel: Kernel, source: Source) -> NDArray[np.int64]:
    """Scaled sums of an NPU_OP_CONV or NPU_OP_DEPTHWISE, [rows, columns, channels], without zero point and limits."""
    depthwise = operation.name == "NPU_OP_DEPTHWISE"
    if depthwise and source.channels != result.channels:
        raise operation.refuse(f"{source.channels} channels of the input: expected {result.channels}, as of the result")
    if result.global_scale:
        raise operation.refuse("NPU_SET_OFM_PRECISION: a global scale: expected scales of channels")
    weights = _weights(operation, memory, result, kernel, 1 if depthwise else source.channels, source.map.dtype.itemsize * 8)
    values = padded_input(source.read(memory).astype(np.int32) - source.map.zero_point, kernel, result)
    sums = _sums(values, weights, kernel, result, depthwise)
    records = _records(operation, memory, result.channels)
    sums = np.rint(sums).astype(np.int64) + records.bias
    check_sums(operation, sums)
    return requantise(sums, records.factor, records.shift, result.round_mode)


def padded_input(values: NDArray[Any], kernel: Kernel, result: Result, padding: int = 0) -> NDArray[Any]:
    """The input with its padding, as large as the kernel reaches."""
    rows, columns = kernel.input_rows(result.rows), kernel.input_columns(result.columns)
    values = upscaled(values, kernel, rows, columns, padding)
    sides = ((kernel.pad_top, kernel.pad_bottom), (kernel.pad_left, kernel.pad_right), (0, 0))
    return np.pad(values, sides, constant_values=padding) if kernel.padded else values


def check_sums(operation: Operation, sums: NDArray[np.int64]) -> None:
    """An error where an accumulator cannot hold a sum: what the part does then is not public."""
    format = operation.field("ACC_FORMAT")
    if format not in ACCUMULATOR_BITS:
        raise operation.refuse(f"NPU_SET_ACC_FORMAT = {format}: floats: expected {', '.join(map(str, ACCUMULATOR_BITS))}")
    bits = ACCUMULATOR_BITS[format]
    if len(sums) and (sums.min() < -(1 << bits - 1) or sums.max() >= 1 << bits - 1):
        raise operation.refuse(
            f"a sum of {max(sums.max(), -sums.min())}: expected at most {(1 << bits - 1) - 1}, an accumulator of {bits} bits"
        )


def _weights(operation: Operation, memory: RegionMemory, result: Result, kernel: Kernel, inputs: int, bits: int) -> NDArray[np.int16]:
    """[channels, rows, columns, inputs]; cores take turns at channels."""
    spans = weight_spans(operation)
    out = np.zeros((result.channels, kernel.rows, kernel.columns, inputs), np.int16)
    for core, span in enumerate(spans):
        outputs = len(range(core, result.channels, len(spans)))
        if not outputs:
            continue
        block = result.block_channels // len(spans)
        shape = KernelShape(
            outputs, kernel.rows, kernel.columns, inputs, block, operation.name == "NPU_OP_DEPTHWISE", kernel.part_first, bits,
            kernel.dilation_y, kernel.dilation_x,
        )  # fmt: skip
        out[core :: len(spans)] = _arranged(memory.read_bytes(span), shape)
    return out


@lru_cache(maxsize=256)
def _arranged(data: bytes, shape: KernelShape) -> NDArray[np.int16]:
    """Weights of a stream; the same bytes are decoded once."""
    weights = kernel_of_stream(decode_weights(data), shape)
    weights.flags.writeable = False
    return weights


def _records(operation: Operation, memory: RegionMemory, channels: int) -> ScaleRecords:
    spans = scale_spans(operation)
    out = ScaleRecords(*(np.zeros(channels, np.int64) for _ in range(3)))
    for core, span in enumerate(spans):
        records = read_scales(memory.read_bytes(span), len(range(core, channels, len(spans))))
        for target, values in zip(out, records, strict=True):
            target[core :: len(spans)] = values
    return out


def _sums(values: NDArray[np.int32], weights: NDArray[np.int16], kernel: Kernel, result: Result, depthwise: bool) -> NDArray[Any]:
    bound = int(np.abs(values).max()) * int(np.abs(weights.astype(np.int64)).sum(axis=(1, 2, 3)).max())
    kind = np.float32 if bound < 1 << 24 else np.float64
    floats, taps = values.astype(kind), weights.astype(kind)
    out = np.zeros((result.rows, result.columns, result.channels), kind)
    for row in range(kernel.rows):
        for column in range(kernel.columns):
            window = window_of(floats, kernel, result, row, column)
            if depthwise:
                out += window * taps[:, row, column, 0]
            else:
                out += (window.reshape(-1, window.shape[2]) @ taps[:, row, column].T).reshape(out.shape)
    return out


def window_of(values: NDArray[Any], kernel: Kernel, result: Result, row: int, column: int) -> NDArray[Any]:
    """The element of each window at a row and column of the kernel, [rows, columns, channels] of the result."""
    first_row, first_column = row * kernel.dilation_y, column * kernel.dilation_x
    high, wide = (result.rows - 1) * kernel.stride_y + 1, (result.columns - 1) * kernel.stride_x + 1
    return values[first_row : first_row + high : kernel.stride_y, first_column : first_column + wide : kernel.stride_x]
