"""The block of a step: the size in which the part computes a result, such that blocks fit into the shared buffer.

Of all that fit, the one whose operation moves the fewest bytes is taken, by the rule that a block reads all that it needs again.
Banks are divided as in `simulator.ethosu.shared_buffer`, in granules of 8 banks for inputs and 16 for accumulators, as Vela divides them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.ethosu.step import BlockStep
from simulator.npu.errors import UnsupportedError

BANK_BYTES, RESULT_BANKS, TABLE_BANK = 1024, 2, 46
_INPUT_GRANULE, _SUM_GRANULE, _SUM_BYTES = 8, 16, 4
_PART, _DEEP, _SHALLOW = 8, 32, 16
"""Rows and columns of a part of a kernel; channels of an input block, of either order of weights."""
_ROWS, _COLUMNS, _CHANNELS = (32, 16, 8, 4, 2), (64, 32, 16, 8, 4, 2), tuple(range(128, 0, -8))


class Block(NamedTuple):
    """Rows, columns and channels of a block of a result, and the banks where inputs end and accumulators begin."""

    rows: int
    columns: int
    channels: int
    input_end: int
    second_start: int
    sums_start: int


class BlockNeeds(NamedTuple):
    """Facts that a block depends on; sizes are those of the result.  weight_bytes: weight of a byte of weights beside 1 of inputs."""

    unit: str
    pair: bool
    rows: int
    columns: int
    channels: int
    inputs: int
    kernel_rows: int
    kernel_columns: int
    stride_y: int
    stride_x: int
    scale: int
    part_first: bool
    weight_bytes: int


def part_kernel_first(step: BlockStep) -> bool:
    """Whether weights come with parts of the kernel outside of channels: where channels would leave most of a block empty."""
    return step.unit == "CONV" and step.reads[0].channels <= _SHALLOW and step.window.rows * step.window.columns > 1


def choose_block(step: BlockStep, rows: int, channels: int, weight_bytes: int) -> Block:
    """The block for so many rows and channels of a result."""
    window, source = step.window, step.reads[0]
    needs = BlockNeeds(
        step.unit, len(step.reads) > 1, rows, step.result.columns, channels, source.channels, window.reach_rows, window.reach_columns,
        window.stride_y, window.stride_x, 2 if window.upscale else 1, part_kernel_first(step), weight_bytes,
    )  # fmt: skip
    block = _best(needs)
    if block is None:
        raise UnsupportedError(f"{step.label} {window.rows}x{window.columns}: no block fits the shared buffer of {TABLE_BANK} banks")
    return block


@lru_cache(maxsize=4096)
def _best(needs: BlockNeeds) -> Block | None:
    best, least = None, None
    for rows in _sizes(_ROWS, needs.rows):
        for columns in _sizes(_COLUMNS, needs.columns):
            for channels in _sizes(_CHANNELS, needs.channels):
                block = _divided(needs, rows, columns, channels)
                if block:
                    cost = (_moved(needs, rows, columns, channels), -rows * columns * channels, columns)
                    if least is None or cost < least:
                        best, least = block, cost
    return best


def _sizes(sizes: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """Sizes up to the first that is no less than an extent."""
    enough = min((size for size in sizes if size >= extent), default=max(sizes))
    return tuple(size for size in sizes if size <= enough)


def _divided(needs: BlockNeeds, rows: int, columns: int, channels: int) -> Block | None:
    """Banks of a block; None where it has no room."""
    if needs.unit == "ELEMENTWISE":
        banks = _granules(2 * -(-rows * columns * channels // BANK_BYTES), _INPUT_GRANULE)
        end = RESULT_BANKS + banks * (2 if needs.pair else 1)
        return Block(rows, columns, channels, end, RESULT_BANKS + banks, TABLE_BANK) if end <= TABLE_BANK else None
    sums = _granules(2 * -(-rows * columns * channels * _SUM_BYTES // BANK_BYTES), _SUM_GRANULE)
    high = -(-((rows - 1) * needs.stride_y + min(needs.kernel_rows, _PART)) // needs.scale)
    wide = -(-((columns - 1) * needs.stride_x + min(needs.kernel_columns, _PART)) // needs.scale)
    deep = min(needs.inputs, _DEEP if needs.unit == "CONV" and not needs.part_first else _SHALLOW)
    banks = _granules(2 * -(-high * wide * (-(-deep // 8) * 8) // BANK_BYTES), _INPUT_GRANULE)
    start = TABLE_BANK - sums
    return Block(rows, columns, channels, RESULT_BANKS + banks, 0, start) if RESULT_BANKS + banks <= start else None


def _moved(needs: BlockNeeds, rows: int, columns: int, channels: int) -> int:
    """Bytes that an operation moves in blocks of a size, but for its result."""
    high, wide, deep = -(-needs.rows // rows), -(-needs.columns // columns), -(-needs.channels // channels)
    if needs.unit == "ELEMENTWISE":
        return 0
    reach_rows = needs.rows * needs.stride_y + high * max(0, needs.kernel_rows - needs.stride_y)
    reach_columns = needs.columns * needs.stride_x + wide * max(0, needs.kernel_columns - needs.stride_x)
    inputs = reach_rows * reach_columns // needs.scale**2 * needs.inputs * (deep if needs.unit == "CONV" else 1)
    kernel = needs.kernel_rows * needs.kernel_columns * (needs.inputs if needs.unit == "CONV" else 1)
    weights = 0 if needs.unit == "POOL" else kernel * needs.channels * high * wide
    return inputs + needs.weight_bytes * weights


def _granules(banks: int, granule: int) -> int:
    return -(-banks // granule) * granule
