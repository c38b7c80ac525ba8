"""From scaled sums to the integers that are written: zero point, least and greatest value, a table, the result's type.

Results of 32 bits have no zero point and no limits but those of their type, unless the range of 8 bits is forced, as for a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.block_operation import Result
from simulator.ethosu.command_words import Operation
from simulator.ethosu.memory_regions import SHARED, TABLE_BYTES, TABLES, RegionMemory, Span, flat_span

FIRST_TABLE, LAST_TABLE = 16, 23
_RANGES: dict[int, np.dtype[Any]] = {2: np.dtype("u1"), 3: np.dtype("i1"), 5: np.dtype("i2")}
"""Types that `clip_range` forces."""
_SLOPE_BITS = 7


def table_of(operation: Operation, result: Result) -> Span | None:
    """The table of an operation in the shared buffer; None without one."""
    function = operation.field("ACTIVATION", "function")
    if function == 0:
        return None
    if function < FIRST_TABLE:
        raise operation.refuse(f"NPU_SET_ACTIVATION: function {function} (TANH is 3, SIGMOID is 4): no public text defines its values")
    element = result.map.dtype.itemsize
    size = {1: 256, 2: 2048, 4: 1024}[element]
    first = TABLES + (function - FIRST_TABLE) * TABLE_BYTES
    if (first - TABLES) % min(size, 1024):
        raise operation.refuse(
            f"NPU_SET_ACTIVATION: table {function - FIRST_TABLE} of {size} bytes: expected a multiple of {size // TABLE_BYTES}"
        )
    return flat_span(SHARED, first, size)


def finish(operation: Operation, result: Result, memory: RegionMemory, values: NDArray[np.int64]) -> NDArray[Any]:
    """Integers of the result's type, of scaled values without zero point."""
    dtype = result.map.dtype
    forced = operation.field("ACTIVATION", "clip_range")
    kind = _RANGES.get(forced, dtype)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    if kind.itemsize < 4:
        values = values + result.map.zero_point
        bounds = (operation.field("ACTIVATION_MIN"), operation.field("ACTIVATION_MAX"))
        if kind == np.dtype("u2"):
            bounds = (bounds[0] & 0xFFFF, bounds[1] & 0xFFFF)
        if bounds[0] > bounds[1]:
            raise operation.refuse(f"NPU_SET_ACTIVATION_MIN = {bounds[0]}: expected at most NPU_SET_ACTIVATION_MAX = {bounds[1]}")
        low, high = max(low, bounds[0]), min(high, bounds[1])
    values = np.clip(values, low, high)
    table = table_of(operation, result)
    return values.astype(dtype) if table is None else _looked_up(operation, memory, table, kind, dtype, values)


def _looked_up(
    operation: Operation, memory: RegionMemory, table: Span, kind: np.dtype[Any], dtype: np.dtype[Any], values: NDArray[np.int64]
) -> NDArray[Any]:
    """Values of a table.  With 16 bits an entry is a base and a slope for the 128 values from it on."""
    data = memory.read_bytes(table)
    index = values - np.iinfo(kind).min
    if dtype.itemsize == 2:
        if kind.itemsize != 2:
            raise operation.refuse(f"NPU_SET_ACTIVATION: a range of {kind} for a table of 16 bits: expected 16 bits")
        entries = np.frombuffer(data, "<i2").reshape(-1, 2).astype(np.int64)
        base, slope = entries[index >> _SLOPE_BITS].transpose(-1, *range(values.ndim))
        fraction = index & (1 << _SLOPE_BITS) - 1
        return np.asarray(base + ((slope * fraction + (1 << _SLOPE_BITS - 1)) >> _SLOPE_BITS)).astype(dtype)
    if kind.itemsize != 1:
        raise operation.refuse(f"NPU_SET_ACTIVATION: a range of {kind} for a table of 256 entries: expected 8 bits")
    return np.frombuffer(data, dtype)[index]
