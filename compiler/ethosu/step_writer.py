"""Words of a step for some rows and channels of its result."""

from __future__ import annotations

from typing import NamedTuple

from compiler.ethosu.block_choice import Block, part_kernel_first
from compiler.ethosu.command_writer import SHARED, ByteAccesses, ByteRange, CommandWriter
from compiler.ethosu.step import DOUBLE, BlockStep, KernelWindow, Store, StoreView
from compiler.ethosu.store_places import MapRows, Place, locate_rows, set_map
from simulator.ethosu.command_table import ELEMENTWISE, POOLING

FIRST_TABLE, TABLE_BYTES, TABLES = 16, 256, 46 * 1024
"""Number of the first table of an activation, bytes of a table, and place of the first in the shared buffer."""


class WeightPlace(NamedTuple):
    """Weights, and the biases and scales behind them.  last: the byte behind all."""

    region: int
    weights: int
    scales: int
    last: int


class StepRun(NamedTuple):
    """A step with its places.  rows, channels: [first, last) of the result.  table: slot of its table."""

    step: BlockStep
    rows: tuple[int, int]
    channels: tuple[int, int]
    block: Block
    reads: tuple[tuple[Place, Store], ...]
    result: tuple[Place, Store]
    weights: WeightPlace | None
    table: int | None


def write_run(writer: CommandWriter, run: StepRun) -> None:
    """Registers and the operation."""
    step, (first, last), (low, high) = run.step, run.rows, run.channels
    result = locate_rows(*run.result, step.result, first, last, (low, high))
    reads = _write_reads(writer, run)
    for name, value in (("WIDTH", step.result.columns), ("HEIGHT", last - first), ("DEPTH", high - low)):
        writer.set(f"OFM_{name}_M1", value - 1)
    set_map(writer, "OFM", run.result[0], step.result, result)
    scaled = step.unit in ("POOL", "ELEMENTWISE")
    writer.set(
        "OFM_PRECISION",
        signed=int(step.result.signed),
        bricks=int(run.result[0].bricks),
        global_scale=int(scaled),
        round_mode=step.rounding,
    )
    if scaled:
        writer.set("OFM_SCALE", factor=step.scaling.factor, shift=step.scaling.shift)
    for name, value in (("WIDTH", run.block.columns), ("HEIGHT", run.block.rows), ("DEPTH", run.block.channels)):
        writer.set(f"OFM_BLK_{name}_M1", value - 1)
    writer.set("IFM_IB_END", run.block.input_end)
    writer.set("AB_START", run.block.sums_start)
    writer.set("ACC_FORMAT", 0)
    writer.set("PARALLEL_MODE", 0)
    writer.set("ACTIVATION", function=0 if run.table is None else FIRST_TABLE + run.table, clip_range=0)
    writer.set("ACTIVATION_MIN", step.low)
    writer.set("ACTIVATION_MAX", step.high)
    if run.weights:
        reads += _write_weights(writer, run.weights)
    if run.table is not None:
        place = TABLES + run.table * TABLE_BYTES
        reads += (ByteRange(SHARED, place, place + TABLE_BYTES),)
    mode = {"POOL": POOLING, "ELEMENTWISE": ELEMENTWISE}.get(step.unit, ())
    writer.operate(step.unit, ByteAccesses(reads, result.ranges), mode.index(step.mode) if mode else None)


def _write_reads(writer: CommandWriter, run: StepRun) -> tuple[ByteRange, ...]:
    """Inputs; the bytes that they are."""
    step, (first, last), view = run.step, run.rows, run.step.reads[0]
    low, high = step.input_rows(first, last)
    pair = step.unit == "ELEMENTWISE"
    part = run.channels if step.unit != "CONV" else (0, view.channels)
    rows = locate_rows(*run.reads[0], view, low, high, part)
    set_map(writer, "IFM", run.reads[0][0], view, rows)
    writer.set("IFM_DEPTH_M1", part[1] - part[0] - 1)
    writer.set("IFM_UPSCALE", step.window.upscale)
    writer.set(
        "IFM_PRECISION", signed=int(view.signed), bricks=int(run.reads[0][0].bricks), scale_mode=step.operand_scale.mode, round_mode=DOUBLE
    )
    if not pair:
        _write_window(writer, step, view, first, last)
        return rows.ranges
    scaling = step.operand_scale.scaling
    writer.set("OPA_SCALE", factor=scaling.factor, shift=scaling.shift)
    writer.set("OPB_SCALE", factor=0)
    second = _write_second(writer, run)
    return rows.ranges + second.ranges


def _write_second(writer: CommandWriter, run: StepRun) -> MapRows:
    """The second operand, with the axes on which it is broadcast."""
    step, view, (place, store) = run.step, run.step.reads[1], run.reads[1]
    result = step.result
    first, last = (0, 1) if view.rows < result.rows else run.rows
    part = run.channels if view.channels == result.channels else (0, 1)
    rows = locate_rows(place, store, view, first, last, part)
    set_map(writer, "IFM2", place, view, rows)
    writer.set("IFM2_PRECISION", signed=1, bricks=int(place.bricks))
    writer.set("IFM2_IB_START", run.block.second_start)
    writer.set(
        "IFM2_BROADCAST", rows=int(view.rows < result.rows), columns=int(view.columns < result.columns),
        channels=int(view.channels < result.channels), reversed=int(step.reversed),
    )  # fmt: skip
    return rows


def _write_window(writer: CommandWriter, step: BlockStep, view: StoreView, first: int, last: int) -> None:
    """The kernel, and the padding of these rows."""
    window, scale = step.window, 2 if step.window.upscale else 1
    top, bottom = _padding(first, last, window.stride_y, window.pad_top, window.reach_rows, scale * view.rows)
    first_column, last_column = _padding(
        0, step.result.columns, window.stride_x, window.pad_left, window.reach_columns, scale * view.columns
    )
    for side, value in (("TOP", top), ("LEFT", first_column), ("BOTTOM", bottom), ("RIGHT", last_column)):
        writer.set(f"IFM_PAD_{side}", value)
    writer.set("KERNEL_HEIGHT_M1", window.reach_rows - 1)
    writer.set("KERNEL_WIDTH_M1", window.reach_columns - 1)
    writer.set("KERNEL_STRIDE", **_strides(window), part_kernel_first=int(part_kernel_first(step)))


def _padding(first: int, last: int, stride: int, before: int, reach: int, size: int) -> tuple[int, int]:
    """Padding in front of and behind what results [first, last) read."""
    return max(0, before - first * stride), max(0, (last - 1) * stride - before + reach - size)


def _strides(window: KernelWindow) -> dict[str, int]:
    y, x = window.stride_y - 1, window.stride_x - 1
    return {
        "stride_x_low": x & 1, "stride_x_high": x >> 1, "stride_y_low": y & 1, "stride_y_high": y >> 1,
        "dilation_x_m1": window.dilation_x - 1, "dilation_y_m1": window.dilation_y - 1,
    }  # fmt: skip


def _write_weights(writer: CommandWriter, place: WeightPlace) -> tuple[ByteRange, ...]:
    """Weights, biases and scales; the bytes that they are."""
    for name, first, last in (("WEIGHT", place.weights, place.scales), ("SCALE", place.scales, place.last)):
        writer.set(f"{name}_REGION", place.region)
        writer.set_address(f"{name}_BASE", first)
        writer.set(f"{name}_LENGTH", last - first)
    return (ByteRange(place.region, place.weights, place.last),)
