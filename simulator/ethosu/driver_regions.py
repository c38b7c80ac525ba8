"""Bytes of each region that the driver of Linux counts for a stream, by which it accepts or refuses a job.

It looks at the last element of each feature map.  Inputs that are upscaled count as if they were not, for up to four times their bytes.
A region has to have that many: SRAM as the device has it, others as their buffer objects have them; a region of none has no object.
Source: `ethosu_gem.c` and `ethosu_job.c` of Linux (`drivers/accel/ethosu`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.ethosu.block_operation import mode_of
from simulator.ethosu.command_words import Operation, decode_operations
from simulator.ethosu.operand_values import ONE_OPERAND

SRAM_REGION = 2
"""The region without a buffer object."""
_BRICK = 16
_WINDOWS = ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL")


def driver_region_sizes(words: Sequence[int]) -> dict[int, int]:
    """Bytes by region, of those that a stream uses."""
    sizes = dict[int, int]()
    for operation in decode_operations(words):
        for region, size in _ends(operation):
            sizes[region] = max(size, sizes.get(region, 0))
    return dict(sorted(sizes.items()))


def _ends(operation: Operation) -> list[tuple[int, int]]:
    """Regions that an operation touches, each with the byte behind the last."""
    if operation.name == "NPU_OP_DMA_START":
        sides = [side for side in ("SRC", "DST") if not operation.field(f"DMA0_{side}_REGION", "internal")]
        length = operation.address("DMA0_LEN")
        return [(operation.field(f"DMA0_{side}_REGION"), operation.address(f"DMA0_{side}") + length) for side in sides]
    if operation.name == "NPU_OP_ELEMENTWISE":
        return _elementwise(operation)
    if operation.name not in _WINDOWS:
        return []
    ends = [_map_end(operation, "IFM", *_input_corner(operation), operation.field("IFM_DEPTH_M1")), _result_end(operation)]
    if operation.name != "NPU_OP_POOL":
        ends.append((operation.field("WEIGHT_REGION"), operation.address("WEIGHT_BASE") + operation.field("WEIGHT_LENGTH")))
    if not operation.field("OFM_PRECISION", "global_scale"):
        ends.append((operation.field("SCALE_REGION"), operation.address("SCALE_BASE") + operation.field("SCALE_LENGTH")))
    return ends


def _input_corner(operation: Operation) -> tuple[int, int]:
    """Last row and column that windows reach."""
    corner = []
    for axis, extent, front, back in (("y", "HEIGHT", "TOP", "BOTTOM"), ("x", "WIDTH", "LEFT", "RIGHT")):
        stride = 1 + operation.field("KERNEL_STRIDE", f"stride_{axis}_low") + 2 * operation.field("KERNEL_STRIDE", f"stride_{axis}_high")
        padding = operation.field(f"IFM_PAD_{front}") + operation.field(f"IFM_PAD_{back}")
        corner.append(operation.field(f"OFM_{extent}_M1") * stride + operation.field(f"KERNEL_{extent}_M1") - padding)
    return corner[0], corner[1]


def _elementwise(operation: Operation) -> list[tuple[int, int]]:
    """Operands have the result's extent but on axes that are broadcast; the first one counts for its beginning alone."""
    ends = [_map_end(operation, "IFM", 0, 0, 0), _result_end(operation)]
    if mode_of(operation) not in ONE_OPERAND and not operation.field("IFM2_BROADCAST", "scalar"):
        axes = (("rows", "HEIGHT"), ("columns", "WIDTH"), ("channels", "DEPTH"))
        last = [0 if operation.field("IFM2_BROADCAST", axis) else operation.field(f"OFM_{extent}_M1") for axis, extent in axes]
        ends.append(_map_end(operation, "IFM2", last[0], last[1], last[2]))
    return ends


def _result_end(operation: Operation) -> tuple[int, int]:
    last = [operation.field(f"OFM_{extent}_M1") for extent in ("HEIGHT", "WIDTH", "DEPTH")]
    return _map_end(operation, "OFM", last[0], last[1], last[2])


def _map_end(operation: Operation, name: str, row: int, column: int, channel: int) -> tuple[int, int]:
    """The region of a map, and the byte behind the first of an element."""
    tile, field = 0, operation.field
    divided = name == "IFM2" or field(f"{name}_PRECISION", "round_mode") == 0  # the driver has those bits for the kind of tiles
    if divided:
        if column > field(f"{name}_WIDTH0_M1"):
            column, tile = column - field(f"{name}_WIDTH0_M1") - 1, 1
        if row > field(f"{name}_HEIGHT{tile}_M1"):
            row, tile = row - field(f"{name}_HEIGHT{tile}_M1") - 1, tile + 2
    place = operation.address(f"{name}_BASE{tile}") + row * operation.address(f"{name}_STRIDE_Y")
    if field(f"{name}_PRECISION", "bricks"):
        element = 1 << field(f"{name}_PRECISION", "bytes_log2")
        place += channel // _BRICK * operation.address(f"{name}_STRIDE_C") + (_BRICK * column + channel % _BRICK) * element
    else:
        place += column * operation.address(f"{name}_STRIDE_X") + channel
    return field(f"{name}_REGION"), place + 1
