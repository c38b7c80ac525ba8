"""Bytes of DRAM that a plan moves in one inference, from tensors, weights and blocks, without a look at words.

Loaded tensors are read once, row by row, and what leaves a segment is written once.  Weights are read once where they are copied, or where
one block has all rows and columns.  Tensors that are read where they are count as the part's blocks read them.
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.ethosu.block_choice import Block
from compiler.ethosu.cascade import LoadRows, RunRows
from compiler.ethosu.segment_layout import SegmentLayout
from compiler.ethosu.segments import SegmentedNetwork
from compiler.ethosu.step import BlockStep, StoreView
from compiler.ethosu.store_places import row_bytes

_WORD, _TABLE = 4, 256


class PlannedBytes(NamedTuple):
    """Bytes by what moves them, under the names of the executor's channels."""

    commands: int
    inputs: int
    weights: int
    scales: int
    copies_read: int
    results: int
    copies_written: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def planned_bytes(network: SegmentedNetwork, layouts: tuple[SegmentLayout, ...], words: int, tables: int) -> PlannedBytes:
    """Of a network in segments.  words: of its stream.  tables: that are loaded."""
    counts = dict.fromkeys(PlannedBytes._fields, 0)
    counts["commands"], counts["copies_read"] = _WORD * words, _TABLE * tables
    for layout in layouts:
        for channel, count in segment_bytes(network, layout).items():
            counts[channel] += count
    return PlannedBytes(**counts)


def segment_bytes(network: SegmentedNetwork, layout: SegmentLayout) -> dict[str, int]:
    """Of a segment, by channel."""
    counts = dict.fromkeys(PlannedBytes._fields, 0)
    stores = network.lowered.stores
    for action in layout.actions:
        if not isinstance(action, RunRows):
            size = (action.last - action.first) * row_bytes(stores[action.store], action.store in network.bricks)
            counts["copies_read" if isinstance(action, LoadRows) else "copies_written"] += size
            continue
        step, block = network.lowered.steps[action.step], layout.blocks[action.step]
        rows = action.last - action.first
        fast = layout.plan.rings | network.held
        if step.result.store not in fast:
            counts["results"] += rows * step.result.columns * step.result.channels
        for place, view in enumerate(step.reads):
            if view.store not in fast:
                counts["inputs"] += _read_bytes(step, block, view, place, action.first, action.last)
        weights = layout.weights.get(action.step)
        if weights:
            blocks = -(-rows // block.rows) * -(-step.result.columns // block.columns)
            direct = [blob for blob, copied in zip(weights.blobs, weights.copied, strict=True) if not copied]
            counts["weights"] += blocks * sum(len(blob.weights) for blob in direct)
            counts["scales"] += blocks * sum(len(blob.scales) for blob in direct)
    for weights in layout.weights.values():
        counts["copies_read"] += sum(blob.nbytes for blob, copied in zip(weights.blobs, weights.copied, strict=True) if copied)
    return counts


def _read_bytes(step: BlockStep, block: Block, view: StoreView, place: int, first: int, last: int) -> int:
    """Bytes of an input that blocks of rows [first, last) read where it is."""
    result = step.result
    if step.unit == "ELEMENTWISE":
        sizes = zip((last - first, result.columns, result.channels), (view.rows, view.columns, view.channels), block[:3], strict=True)
        extents = (result.rows, result.columns, result.channels)
        count = 1
        for axis, (size, extent, part) in enumerate(sizes):
            count *= size if extent == extents[axis] else -(-size // part)
        return count
    scale = 2 if step.window.upscale else 1
    window = step.window
    high = _reached(first, last, block.rows, window.stride_y, window.pad_top, window.reach_rows, view.rows, scale)
    wide = _reached(0, result.columns, block.columns, window.stride_x, window.pad_left, window.reach_columns, view.columns, scale)
    passes = -(-result.channels // block.channels) if step.unit == "CONV" else 1
    return high * wide * view.channels * passes


def _reached(first: int, last: int, block: int, stride: int, before: int, reach: int, size: int, scale: int) -> int:
    """Rows or columns of an input, those that blocks share counted for each."""
    count = 0
    for begin in range(first, last, block):
        end = min(begin + block, last)
        low, high = max(0, begin * stride - before), min(size * scale, (end - 1) * stride - before + reach)
        count += -(-high // scale) - low // scale
    return count
