"""Feature maps: type, layout, four tiles, and the bytes of their elements.

Rows and columns are divided between four tiles with an address each: tile 0 at the upper left with `rows0` and `columns0`, tile 1 at its
right with `rows1`, tiles 2 and 3 below them.  Layouts are NHWC, with a stride between rows and between columns, and NHCWB16, bricks of 16
channels with a stride between rows and between bricks.
Source: the driver of Linux (`drivers/accel/ethosu/ethosu_gem.c`), which checks addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_words import Operation
from simulator.ethosu.memory_regions import RegionMemory, Span

BRICK = 16
"""Channels of a brick."""


class FeatureMap(NamedTuple):
    """A tensor [rows, columns, channels] in a region; addresses and strides in bytes."""

    region: int
    bases: tuple[int, int, int, int]
    rows0: int
    rows1: int
    columns0: int
    stride_y: int
    stride_x: int
    stride_c: int
    bricks: bool
    dtype: np.dtype[Any]
    zero_point: int

    def spans(self, rows: int, columns: int, channels: int) -> Iterator[tuple[slice, slice, Span]]:
        """Parts of the map by tile: its rows, its columns, its bytes as [rows, columns, channels] or [rows, columns, bricks, 16]."""
        split = min(self.columns0, columns)
        for first, last, upper, tiles in ((0, split, self.rows0, (0, 2)), (split, columns, self.rows1, (1, 3))):
            middle = min(upper, rows)
            for top, bottom, tile in ((0, middle, tiles[0]), (middle, rows, tiles[1])):
                if first < last and top < bottom:
                    yield from self._tile(slice(top, bottom), slice(first, last), channels, self.bases[tile])

    def _tile(self, rows: slice, columns: slice, channels: int, base: int) -> Iterator[tuple[slice, slice, Span]]:
        element, high, wide = self.dtype.itemsize, rows.stop - rows.start, columns.stop - columns.start
        if not self.bricks:
            yield rows, columns, Span(self.region, base, (high, wide, channels), (self.stride_y, self.stride_x, element), element)
            return
        strides = (self.stride_y, BRICK * element, self.stride_c, element)
        full = channels // BRICK
        if full:
            yield rows, columns, Span(self.region, base, (high, wide, full, BRICK), strides, element)
        if channels % BRICK:
            yield rows, columns, Span(self.region, base + full * self.stride_c, (high, wide, 1, channels % BRICK), strides, element)

    def read(self, memory: RegionMemory, rows: int, columns: int, channels: int) -> NDArray[Any]:
        """A copy of the values, [rows, columns, channels]."""
        out = np.empty((rows, columns, channels), self.dtype)
        for high, wide, span, lanes in self._parts(rows, columns, channels):
            out[high, wide, lanes] = memory.view(span, self.dtype).reshape(*span.sizes[:2], -1)
        return out

    def write(self, memory: RegionMemory, values: NDArray[Any]) -> None:
        """Put values [rows, columns, channels] there."""
        for high, wide, span, lanes in self._parts(*values.shape):
            memory.view(span, self.dtype, writes=True)[...] = values[high, wide, lanes].reshape(span.sizes)

    def _parts(self, rows: int, columns: int, channels: int) -> Iterator[tuple[slice, slice, Span, slice]]:
        full = channels // BRICK * BRICK
        for high, wide, span in self.spans(rows, columns, channels):
            partial = self.bricks and span.sizes[-1] != BRICK
            yield high, wide, span, slice(full, channels) if partial else slice(0, full if self.bricks else channels)


_KINDS = {(True, 0): "i1", (False, 0): "u1", (True, 1): "<i2", (False, 1): "<u2", (True, 2): "<i4"}


def feature_map(operation: Operation, name: str) -> FeatureMap:
    """The map of registers `IFM`, `IFM2` or `OFM`, with its alignment checked."""
    signed, size = operation.field(f"{name}_PRECISION", "signed"), operation.field(f"{name}_PRECISION", "bytes_log2")
    if (bool(signed), size) not in _KINDS:
        raise operation.refuse(f"NPU_SET_{name}_PRECISION: 32 bits without sign: expected a sign")
    dtype = np.dtype(_KINDS[bool(signed), size])
    bricks = bool(operation.field(f"{name}_PRECISION", "bricks"))
    zero = operation.field(f"{name}_ZERO_POINT")
    base0, base1, base2, base3 = (operation.address(f"{name}_BASE{tile}") for tile in range(4))
    stride_y, stride_x, stride_c = (operation.address(f"{name}_STRIDE_{axis}") for axis in "YXC")
    rows0, rows1 = operation.field(f"{name}_HEIGHT0_M1") + 1, operation.field(f"{name}_HEIGHT1_M1") + 1
    out = FeatureMap(
        operation.field(f"{name}_REGION"), (base0, base1, base2, base3), rows0, rows1, operation.field(f"{name}_WIDTH0_M1") + 1,
        stride_y, stride_x, stride_c, bricks, dtype, zero & 0xFFFF if dtype == "u2" else zero,
    )  # fmt: skip
    step = 16 if bricks else dtype.itemsize
    for number, base in enumerate(out.bases):
        if base % step:
            raise operation.refuse(f"NPU_SET_{name}_BASE{number} = {base}: expected a multiple of {step}")
    strides = (("Y", out.stride_y), ("C", out.stride_c)) if bricks else (("Y", out.stride_y), ("X", out.stride_x))
    for axis, stride in strides:
        if stride % step:
            raise operation.refuse(f"NPU_SET_{name}_STRIDE_{axis} = {stride}: expected a multiple of {step}")
    return out
