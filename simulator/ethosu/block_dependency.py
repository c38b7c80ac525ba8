"""Overlap of an operation with the one before it: how many blocks of that may be unfinished when its own first block begins.

Blocks of a result are made channels first, then columns, then rows.  `BLOCKDEP` of an operation is that number, 0 to 3: its block 0 may
begin while the last `BLOCKDEP` blocks of the operation before are under way, block 1 while one fewer are, and so on.  A convolution takes
its input in slices of channels, each of which counts as a block.  Blocks are read, computed and written in order, so nothing but a block
that reads what an unfinished one writes is a hazard.

Source: Vela's `calc_blockdep` (`register_command_stream_util.py`, Apache-2.0), whose streams run on the part.  Here a block needs all rows
and columns that its kernel reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simulator.ethosu.block_operation import Kernel, Result, Source, kernel_of, mode_of, result_of, source_of
from simulator.ethosu.command_words import Operation
from simulator.ethosu.feature_map import BRICK, FeatureMap
from simulator.ethosu.operand_values import operands_of

LONGEST = 3
_SLICE_BYTES, _FAR = 32, 1 << 20


class _Area(NamedTuple):
    """Rows, columns and channels [first, last) of a map."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    channels: tuple[int, int]


def longest_overlap(previous: Operation | None, operation: Operation) -> int:
    """The greatest `BLOCKDEP` that is no hazard; 0 behind nothing."""
    if previous is None:
        return 0
    before, result = result_of(previous), result_of(operation)
    kernel, sources = _inputs(operation, result)
    everything = _Area((0, before.rows), (0, before.columns), (0, before.channels))
    reading = [source for source in sources if _overlap(source.map, _all_of(source), before.map, everything)]
    if not reading:
        return LONGEST
    if len(reading) > 1 or (len(sources) > 1 and reading[0] is sources[1] and _size(sources[1]) < _size(sources[0])):
        return 0
    (source,) = reading
    longest = LONGEST
    for job in range(LONGEST):
        area = _input_area(operation, result, kernel, source, job)
        if area is None:
            break
        free = 0
        for block in _last_blocks(before):
            if _overlap(source.map, area, before.map, block):
                break
            free += 1
        longest = min(longest, job + free)
    return longest


def _inputs(operation: Operation, result: Result) -> tuple[Kernel | None, list[Source]]:
    if operation.name == "NPU_OP_ELEMENTWISE":
        operands = operands_of(operation, result)
        return None, [source for source in (operands.first, operands.second) if source is not None]
    kernel = kernel_of(operation)
    return kernel, [source_of(operation, result, kernel)]


def _all_of(source: Source) -> _Area:
    return _Area((0, source.rows), (0, source.columns), (0, source.channels))


def _size(source: Source) -> int:
    return source.rows * source.columns * source.channels


def _counts(result: Result) -> tuple[int, int, int]:
    """Blocks on each axis."""
    extents = ((result.rows, result.block_rows), (result.columns, result.block_columns), (result.channels, result.block_channels))
    high, wide, deep = (-(-extent // size) for extent, size in extents)
    return high, wide, deep


def _block(result: Result, index: int) -> _Area | None:
    """A block by its number; None behind the last."""
    high, wide, deep = _counts(result)
    if not 0 <= index < high * wide * deep:
        return None
    first = (index // (deep * wide) * result.block_rows, index // deep % wide * result.block_columns, index % deep * result.block_channels)
    return _Area(
        (first[0], min(result.rows, first[0] + result.block_rows)), (first[1], min(result.columns, first[1] + result.block_columns)),
        (first[2], min(result.channels, first[2] + result.block_channels)),
    )  # fmt: skip


def _last_blocks(result: Result) -> Iterator[_Area]:
    """The last blocks, backwards."""
    high, wide, deep = _counts(result)
    count = high * wide * deep
    for index in range(count - 1, max(-1, count - 1 - LONGEST), -1):
        block = _block(result, index)
        assert block is not None
        yield block


def _input_area(operation: Operation, result: Result, kernel: Kernel | None, source: Source, job: int) -> _Area | None:
    """Input of a job: of a block, and of a slice of channels where there are any; None behind the last."""
    depth = _SLICE_BYTES // source.map.dtype.itemsize if operation.name == "NPU_OP_CONV" else source.channels
    slices = -(-source.channels // depth)
    block = _block(result, job // slices)
    if block is None:
        return None
    first = job % slices * depth
    channels = (first, min(source.channels, first + depth))
    if operation.name == "NPU_OP_DEPTHWISE" or (kernel is None and source.channels > 1) or _pools(operation):
        channels = block.channels
    if kernel is None:
        extents = (source.rows, source.columns)
        rows, columns = (block[axis] if extents[axis] > 1 else (0, 1) for axis in (0, 1))
        return _Area(rows, columns, channels)
    reach_rows, reach_columns = (kernel.rows - 1) * kernel.dilation_y + 1, (kernel.columns - 1) * kernel.dilation_x + 1
    return _Area(
        _reached(block.rows, kernel.stride_y, reach_rows, kernel.pad_top, source.rows, kernel.upscale),
        _reached(block.columns, kernel.stride_x, reach_columns, kernel.pad_left, source.columns, kernel.upscale), channels,
    )  # fmt: skip


def _pools(operation: Operation) -> bool:
    return operation.name == "NPU_OP_POOL" and mode_of(operation) != "REDUCE_SUM"


def _reached(block: tuple[int, int], stride: int, reach: int, padding: int, size: int, upscale: int) -> tuple[int, int]:
    first = max(0, block[0] * stride - padding)
    last = min(size * upscale, (block[1] - 1) * stride - padding + reach)
    return first // upscale, -(-last // upscale)


def _overlap(one: FeatureMap, area: _Area, other: FeatureMap, block: _Area) -> bool:
    """Whether areas of two maps share a byte."""
    if one.region != other.region:
        return False
    if one._replace(zero_point=0, dtype=other.dtype) == other._replace(zero_point=0) and one.dtype.itemsize == other.dtype.itemsize:
        return all(max(side[0], opposite[0]) < min(side[1], opposite[1]) for side, opposite in zip(area, block, strict=True))
    read, written = _runs(one, area), _runs(other, block)
    if not read or not written or read[0][0] >= max(end for _, end in written) or written[0][0] >= max(end for _, end in read):
        return False
    place = 0
    for first, last in read:  # both in order of their beginning
        while place < len(written) and written[place][1] <= first:
            place += 1
        if any(begin < last and first < end for begin, end in written[place:]):
            return True
    return False


def _runs(feature_map: FeatureMap, area: _Area) -> list[tuple[int, int]]:
    """Bytes [first, last) of an area, row by row and brick by brick, in order."""
    runs, element = list[tuple[int, int]](), feature_map.dtype.itemsize
    for rows, columns, tile in _tiles(feature_map, area):
        for row in range(*rows):
            base = feature_map.bases[tile] + row * feature_map.stride_y
            if not feature_map.bricks:
                first = base + columns[0] * feature_map.stride_x + area.channels[0] * element
                runs.append((first, base + (columns[1] - 1) * feature_map.stride_x + area.channels[1] * element))
                continue
            for brick in range(area.channels[0] // BRICK, -(-area.channels[1] // BRICK)):
                first = base + brick * feature_map.stride_c
                runs.append((first + columns[0] * BRICK * element, first + columns[1] * BRICK * element))
    return sorted((min(run), max(run)) for run in runs)


def _tiles(feature_map: FeatureMap, area: _Area) -> Iterator[tuple[tuple[int, int], tuple[int, int], int]]:
    """Rows and columns of an area in each tile, counted from the tile's own."""
    sides = ((0, feature_map.columns0, feature_map.rows0), (feature_map.columns0, _FAR, feature_map.rows1))
    for side, (low, high, upper) in enumerate(sides):
        columns = max(low, area.columns[0]) - low, min(high, area.columns[1]) - low
        for below, (top, bottom) in enumerate(((0, upper), (upper, _FAR))):
            rows = max(top, area.rows[0]) - top, min(bottom, area.rows[1]) - top
            if rows[0] < rows[1] and columns[0] < columns[1]:
                yield rows, columns, side + 2 * below
