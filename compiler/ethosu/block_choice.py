"""The block of a step: the size in which the part computes a result, such that blocks fit into the shared buffer.

Of all that fit, the one whose operation takes the fewest cycles is taken, of its units or of its bytes, and of those the one that moves
the fewest, by the rule that a block reads all that it needs again.
Banks are divided as in `simulator.ethosu.shared_buffer`, in granules of 8 banks for inputs and 16 for accumulators, as Vela divides them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.ethosu.step import BlockStep
from simulator.ethosu.block_cycles import UnitWork, block_shapes, burst_bytes, elementwise_kind, result_eighths
from simulator.npu.errors import UnsupportedError

BANK_BYTES, RESULT_BANKS, TABLE_BANK = 1024, 2, 46
_INPUT_GRANULE, _SUM_GRANULE, _SUM_BYTES = 8, 16, 4
_SRAM, _DRAM = (32, 16), ((500, 12), (250, 12))
"""Cycles to the first byte and bytes in a cycle: of SRAM; of DRAM, of a read and of a write."""
_BURSTS, _BRICK, _SCARCE = (32, 128), 16, 3
"""Bytes of a burst of SRAM and of DRAM; channels of a brick; bytes of DRAM in a cycle where it is scarce, as blocks suit all levels."""
_LATE = 16
"""Results of the operation before in a cycle, times four."""
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


class MapSide(NamedTuple):
    """Place of a feature map: in DRAM or SRAM, in bricks of 16 channels or not."""

    outside: bool
    bricks: bool


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
    eighths: int
    sides: tuple[MapSide, MapSide]


def part_kernel_first(step: BlockStep) -> bool:
    """Whether weights come with parts of the kernel outside of channels: where channels would leave most of a block empty."""
    return step.unit == "CONV" and step.reads[0].channels <= _SHALLOW and step.window.rows * step.window.columns > 1


def choose_block(
    step: BlockStep, rows: int, channels: int, weight_bytes: int, sides: tuple[MapSide, MapSide], depths: frozenset[int] = frozenset()
) -> Block:
    """The block for so many rows and channels of a result.

    sides: where the input and the result are.  depths: channels of a block that are taken where one of them fits.
    """
    window, source = step.window, step.reads[0]
    needs = BlockNeeds(
        step.unit, len(step.reads) > 1, rows, step.result.columns, channels, source.channels, window.reach_rows, window.reach_columns,
        window.stride_y, window.stride_x, 2 if window.upscale else 1, part_kernel_first(step), weight_bytes, _eighths(step), sides,
    )  # fmt: skip
    block = (_best(needs, depths) if depths else None) or _best(needs, frozenset(_CHANNELS))
    if block is None:
        raise UnsupportedError(f"{step.label} {window.rows}x{window.columns}: no block fits the shared buffer of {TABLE_BANK} banks")
    return block


@lru_cache(maxsize=4096)
def _best(needs: BlockNeeds, depths: frozenset[int]) -> Block | None:
    best, least = None, None
    for rows in _sizes(_ROWS, needs.rows):
        for columns in _sizes(_COLUMNS, needs.columns):
            for channels in _sizes(_CHANNELS, needs.channels):
                block = _divided(needs, rows, columns, channels) if channels in depths else None
                if block:
                    moved = _moved(needs, rows, columns, channels)
                    ports = max(_port_cycles(needs, rows, columns, channels, moved))
                    if least is not None and ports > least[0]:
                        continue
                    cycles = max(ports, _cycles(needs, rows, columns, channels))
                    cost = (cycles, moved, -rows * columns * channels, columns)
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


def _cycles(needs: BlockNeeds, rows: int, columns: int, channels: int) -> int:
    """Cycles of an operation in blocks of a size, from its begin to its end.

    One that reads channels of its own begins late where its first block needs the last rows of its input: some of the cycles of the
    operation before it are not hidden then, for which a fourth of what its results take stands.
    """
    flat = needs.unit in ("CONV", "DEPTHWISE") and needs.rows == 1 and needs.columns % 2 == 0 and needs.kernel_rows == 1
    kind = "ELEMENTWISE" if needs.unit == "ELEMENTWISE" else needs.unit
    work = UnitWork(
        kind, needs.kernel_rows, needs.kernel_columns, needs.stride_y, needs.stride_x, needs.inputs, 1, needs.part_first, flat,
        needs.eighths,
    )  # fmt: skip
    (latency, rate), (write_latency, write_rate) = (_DRAM[place] if side.outside else _SRAM for place, side in enumerate(needs.sides))
    total, drain = 0, 0
    for block in block_shapes((needs.rows, needs.columns, needs.channels), (rows, columns, channels)):
        way = latency + write_latency + -(-work.input_bytes(*block[:3]) // rate) + -(-block.elements // write_rate)
        sums, out = work.stages(*block[:3], way, 0 if needs.unit in ("POOL", "ELEMENTWISE") else _SRAM[0])
        total, drain = total + max(sums, out) * block.blocks, min(sums, out)
    if needs.unit in ("DEPTHWISE", "POOL") and rows >= needs.rows:
        drain += needs.rows * needs.columns * needs.inputs // _LATE
    return total + drain


def _port_cycles(needs: BlockNeeds, rows: int, columns: int, channels: int, moved: int) -> tuple[int, int]:
    """Cycles of the ports of SRAM and DRAM.  moved: bytes of inputs and weights; weights count as of SRAM, by their weight."""
    source, result = needs.sides
    inputs = needs._replace(weight_bytes=0)
    read, written = _moved(inputs, rows, columns, channels), needs.rows * needs.columns * needs.channels
    read_run = (_BRICK if source.bricks else needs.inputs) * columns
    write_run = _BRICK * columns if result.bricks else needs.channels * columns if needs.channels <= min(_BRICK, channels) else _BRICK
    ports = [moved - read, 0]
    for side, count, run in ((source, read, read_run), (result, written, write_run)):
        ports[side.outside] += burst_bytes(count, run, _BURSTS[side.outside])
    return ports[0] // _SRAM[1], ports[1] // _SCARCE


def _eighths(step: BlockStep) -> int:
    """Eighths of a cycle for a result of a step."""
    kind = elementwise_kind(step.mode) if step.unit == "ELEMENTWISE" else "greatest" if step.mode == "MAX" else "any"
    return result_eighths(kind, step.table is not None, (step.low, step.high) != (-128, 127))


def _granules(banks: int, granule: int) -> int:
    return -(-banks // granule) * granule
