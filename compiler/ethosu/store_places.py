"""Places of stores in memory, and the registers of a feature map for some rows of a view.

A store in SRAM may be a ring of fewer rows than it has.  Rows of a feature map that go over the ring's end are two of its tiles.
Layouts are rows of pixels of channels (NHWC), and bricks of 16 channels (NHCWB16).
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.ethosu.command_writer import ByteRange, CommandWriter, byte_ranges
from compiler.ethosu.step import Store, StoreView

BRICK = 16
CONSTANTS, ARENA, FAST = 0, 1, 2
"""Regions: constants, tensors in DRAM, and SRAM."""


class Place(NamedTuple):
    """A store in a region.  ring_rows: rows of it that are there at a time, all or fewer.  bricks: whether channels are in bricks."""

    region: int
    address: int
    ring_rows: int
    bricks: bool


class MapRows(NamedTuple):
    """Rows of a view in memory, from address `base` on.  ranges: their bytes.

    before: number of rows before the ring's end.  wrapped: address of the others; 0 if there are none.
    """

    base: int
    wrapped: int
    before: int
    stride_y: int
    stride_x: int
    stride_c: int
    ranges: tuple[ByteRange, ...]


def row_bytes(store: Store, bricks: bool) -> int:
    """Bytes of a row."""
    channels = -(-store.channels // BRICK) * BRICK if bricks else store.channels
    return store.columns * channels


def locate_rows(place: Place, store: Store, view: StoreView, first: int, last: int, channels: tuple[int, int] | None = None) -> MapRows:
    """Rows [first, last) of a view.  channels: range of the view's channels; None: all.

    Of a store with a flat view, or one with a step, all rows are in memory; it is not in bricks (`lowering`, `cascade`).
    """
    low, high = channels or (0, view.channels)
    if view.flat:
        step, columns, depth, ring, row = 1, view.columns, view.channels, view.rows, first
        size = columns * depth
    else:
        step, columns, depth, ring, row = view.step, store.columns, store.channels, place.ring_rows, view.first_row + view.step * first
        size = row_bytes(store, place.bricks)
    channel = low + (0 if view.flat else view.first_channel)
    column = 0 if view.flat else view.first_column
    if place.bricks:
        inside, stride_x, stride_c = channel // BRICK * columns * BRICK + column * BRICK, BRICK, columns * BRICK
        width = columns * BRICK * (-(-(high - low) // BRICK) - 1) + view.columns * BRICK
    else:
        inside, stride_x, stride_c = column * depth + channel, step * depth, 0
        width = ((view.columns - 1) * step) * depth + high - low
    # in two parts if they go over the end of the ring
    count, row = last - first, row % ring
    before = min(count, ring - row) if step == 1 else count
    start = place.address + inside
    spans = [(start + row * size, start + (row + (before - 1) * step) * size + width)]
    if before < count:
        spans.append((start, start + (count - before - 1) * size + width))
    ranges = byte_ranges(place.region, spans)
    return MapRows(start + row * size, start if before < count else 0, before, size * step, stride_x, stride_c, ranges)


def set_map(writer: CommandWriter, name: str, place: Place, view: StoreView, rows: MapRows) -> None:
    """Set the registers of a feature map, except its precision.  name: IFM, IFM2 or OFM."""
    writer.set(f"{name}_REGION", place.region)
    writer.set(f"{name}_WIDTH0_M1", view.columns - 1)
    writer.set(f"{name}_HEIGHT0_M1", rows.before - 1)
    writer.set(f"{name}_HEIGHT1_M1", rows.before - 1)
    for tile, base in enumerate((rows.base, 0, rows.wrapped, 0)):
        writer.set_address(f"{name}_BASE{tile}", base)
    for axis, stride in (("Y", rows.stride_y), ("X", rows.stride_x), ("C", rows.stride_c)):
        writer.set_address(f"{name}_STRIDE_{axis}", stride)
    writer.set(f"{name}_ZERO_POINT", view.zero)


def copy_rows(writer: CommandWriter, store: Store, source: Place, target: Place, first: int, last: int) -> int:
    """Copy rows between two places of a store, which have one layout; returns the bytes that are moved."""
    size, row = row_bytes(store, source.bricks), first
    while row < last:
        count = min(last - row, *(place.ring_rows - row % place.ring_rows for place in (source, target)))
        ends = []
        for place in (source, target):
            begin = place.address + row % place.ring_rows * size
            ends.append(ByteRange(place.region, begin, begin + count * size))
        writer.copy(*ends)
        row += count
    return size * (last - first)
