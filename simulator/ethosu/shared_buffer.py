"""The division of the shared buffer: two blocks of an input, two of accumulators, and tables have to fit behind each other.

Banks of 1 KiB: two for results, then inputs up to `IFM_IB_END`, accumulators from `AB_START` on, and tables in the last two.
Source: Vela's allocation of the shared buffer (`architecture_allocator.py`, Apache-2.0), without its granules.
"""

from __future__ import annotations

from simulator.ethosu.block_operation import Kernel, Result, Source
from simulator.ethosu.command_words import Operation
from simulator.ethosu.convolution import ACCUMULATOR_BITS
from simulator.ethosu.memory_regions import TABLES

BANK_BYTES, RESULT_BANKS = 1024, 2
TABLE_BANK = TABLES // BANK_BYTES
_UNIT_ROWS, _UNIT_COLUMNS = 2, 2
"""Rows and columns that the part computes at once: those of a block are multiples."""
_PART = 8


def check_shared_buffer(operation: Operation, result: Result, second: bool) -> None:
    """An error where borders of the shared buffer are not in order, or a block is not of whole units."""
    end, start = operation.field("IFM_IB_END"), operation.field("AB_START")
    if end > start:
        raise operation.refuse(f"NPU_SET_IFM_IB_END = {end}: expected at most NPU_SET_AB_START = {start}")
    if start > TABLE_BANK:
        raise operation.refuse(f"NPU_SET_AB_START = {start}: expected at most {TABLE_BANK}, where tables begin")
    if second and operation.field("IFM2_IB_START") > end:
        raise operation.refuse(f"NPU_SET_IFM2_IB_START = {operation.field('IFM2_IB_START')}: expected at most NPU_SET_IFM_IB_END = {end}")
    for axis, size, unit in (("HEIGHT", result.block_rows, _UNIT_ROWS), ("WIDTH", result.block_columns, _UNIT_COLUMNS)):
        if size % unit:
            raise operation.refuse(f"NPU_SET_OFM_BLK_{axis}_M1 = {size - 1}: expected a multiple of {unit}, less 1")
    operation.field("BLOCKDEP")
    operation.field("ACC_FORMAT")


def check_blocks(operation: Operation, result: Result, kernel: Kernel, source: Source) -> None:
    """An error where two blocks of the input, or of accumulators, have no room; of operations with windows."""
    flat = result.rows == 1 and kernel.rows == 1
    rows = 1 if flat else result.block_rows
    bits = ACCUMULATOR_BITS.get(operation.field("ACC_FORMAT"), 32)
    banks = 2 * -(-rows * result.block_columns * _rounded(result.block_channels, 8) * bits // (8 * BANK_BYTES))
    start = operation.field("AB_START")
    if start + banks > TABLE_BANK:
        raise operation.refuse(f"accumulators of {banks} banks from NPU_SET_AB_START = {start} on: expected an end at {TABLE_BANK}")
    size = source.map.dtype.itemsize
    high = _reach(result.block_rows, kernel.stride_y, (kernel.rows - 1) * kernel.dilation_y + 1, kernel)
    wide = _reach(result.block_columns, kernel.stride_x, (kernel.columns - 1) * kernel.dilation_x + 1, kernel)
    deep = min(source.channels, 32 // size) if operation.name == "NPU_OP_CONV" and not kernel.part_first else min(source.channels, 16)
    banks = 2 * -(-high * wide * _rounded(deep * size, 8) // BANK_BYTES)
    end = operation.field("IFM_IB_END")
    if operation.name != "NPU_OP_POOL" and RESULT_BANKS + banks > end:
        raise operation.refuse(f"inputs of {banks} banks behind {RESULT_BANKS} of results: expected an end at NPU_SET_IFM_IB_END = {end}")


def _reach(block: int, stride: int, taps: int, kernel: Kernel) -> int:
    """Rows of the input in memory that a block needs for one part of the kernel."""
    return -(-((block - 1) * stride + min(taps, _PART)) // kernel.upscale)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
