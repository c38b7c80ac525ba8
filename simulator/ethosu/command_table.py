"""Commands of the Ethos-U65 as data: opcode, name, fields with their bits and legal values.

A command is one word (`cmd0`: opcode in bits 0 to 9, parameter in bits 16 to 31) or two (`cmd1`: bit 14 is set, a payload word follows).
Opcodes, widths and values are those of the public register interface, version 1.0.6 (`ethosu65_interface.h`, Arm, Apache-2.0).
A bit that no field has is reserved and has to be 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

ELEMENTWISE = ("MUL", "ADD", "SUB", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL")
"""Names of the modes of NPU_OP_ELEMENTWISE, by number."""
POOLING = ("MAX", "AVERAGE", "REDUCE_SUM")
"""Names of the modes of NPU_OP_POOL, by number."""
PAYLOAD = 16
"""Number of the payload's lowest bit, where bits of a parameter are 0 to 15."""


class Field(NamedTuple):
    """Some bits of a command.  low: lowest bit, from `PAYLOAD` on in the payload.  legal: values, all of the width where empty."""

    name: str
    low: int
    width: int
    legal: tuple[int, ...] = ()
    signed: bool = False


class Command(NamedTuple):
    """An opcode with its fields.  words: 1 or 2.  meaning: what the operation does, or what the register's value means."""

    name: str
    opcode: int
    words: int
    fields: tuple[Field, ...]
    meaning: str

    @property
    def starts(self) -> bool:
        """Whether it is an operation (`NPU_OP_...`), not the setting of a register."""
        return self.name.startswith("NPU_OP_")


def _set(name: str, opcode: int, meaning: str, *fields: Field) -> Command:
    return Command(f"NPU_SET_{name}", opcode, 1, fields, meaning)


def _number(name: str, opcode: int, meaning: str, width: int = 16, signed: bool = False) -> Command:
    return _set(name, opcode, meaning, Field("value", 0, width, signed=signed))


def _long(name: str, opcode: int, meaning: str, *fields: Field) -> Command:
    return Command(f"NPU_SET_{name}", opcode, 2, fields, meaning)


def _address(name: str, opcode: int, meaning: str, signed: bool = False) -> Command:
    """40 bits: the payload, and the low byte of the parameter above it."""
    return _long(name, opcode, meaning, Field("low", PAYLOAD, 32), Field("high", 0, 8, signed=signed))


def _feature_map(name: str, opcode: int) -> tuple[Command, ...]:
    """Addresses of the four tiles and strides of a feature map."""
    bases = tuple(_address(f"{name}_BASE{tile}", opcode + tile, f"address of tile {tile}, in bytes") for tile in range(4))
    strides = tuple(
        _address(f"{name}_STRIDE_{axis}", opcode + 4 + number, f"bytes from one {step} to the next", signed=True)
        for number, (axis, step) in enumerate((("X", "column"), ("Y", "row"), ("C", "brick of 16 channels")))
    )
    return bases + strides


_PRECISION_IFM = (Field("signed", 0, 1), Field("bytes_log2", 2, 2, (0, 1, 2)), Field("bricks", 6, 2, (0, 1)))
_REGION = Field("value", 0, 3)

COMMANDS: tuple[Command, ...] = (
    Command("NPU_OP_STOP", 0x000, 1, (Field("mask", 0, 16),), "end of the stream, with an interrupt"),
    Command("NPU_OP_IRQ", 0x001, 1, (Field("mask", 0, 16),), "an interrupt"),
    Command("NPU_OP_CONV", 0x002, 1, (), "a convolution"),
    Command("NPU_OP_DEPTHWISE", 0x003, 1, (), "a depthwise convolution"),
    Command("NPU_OP_POOL", 0x005, 1, (Field("mode", 0, 3, (0, 1, 2)),), "a pooling: " + ", ".join(POOLING)),
    Command("NPU_OP_ELEMENTWISE", 0x006, 1, (Field("mode", 0, 6, tuple(range(10))),), "by element: " + ", ".join(ELEMENTWISE)),
    Command("NPU_OP_DMA_START", 0x010, 1, (), "a copy"),
    Command("NPU_OP_DMA_WAIT", 0x011, 1, (Field("pending", 0, 4),), "a wait until so many copies are pending"),
    Command("NPU_OP_KERNEL_WAIT", 0x012, 1, (Field("pending", 0, 2),), "a wait until so many operations are pending"),
    Command("NPU_OP_PMU_MASK", 0x013, 1, (Field("enable", 0, 1),), "counters on or off"),
    _number("IFM_PAD_TOP", 0x100, "rows of padding above", 7),
    _number("IFM_PAD_LEFT", 0x101, "columns of padding at the left", 7),
    _number("IFM_PAD_RIGHT", 0x102, "columns of padding at the right", 8),
    _number("IFM_PAD_BOTTOM", 0x103, "rows of padding below", 8),
    _number("IFM_DEPTH_M1", 0x104, "channels - 1"),
    _set(
        "IFM_PRECISION", 0x105, "type and format", *_PRECISION_IFM, Field("scale_mode", 8, 2, (0, 1, 2)),
        Field("round_mode", 14, 2, (0, 1, 2)),
    ),
    _set("IFM_UPSCALE", 0x107, "none, nearest, zeros between", Field("value", 0, 2, (0, 1, 2))),
    _number("IFM_ZERO_POINT", 0x109, "integer that stands for 0", signed=True),
    _number("IFM_WIDTH0_M1", 0x10A, "columns of tiles 0 and 2, - 1"),
    _number("IFM_HEIGHT0_M1", 0x10B, "rows of tile 0, - 1"),
    _number("IFM_HEIGHT1_M1", 0x10C, "rows of tile 1, - 1"),
    _number("IFM_IB_END", 0x10D, "bank behind the input buffer", 6),
    _set("IFM_REGION", 0x10F, "region", _REGION),
    _number("OFM_WIDTH_M1", 0x111, "columns - 1"),
    _number("OFM_HEIGHT_M1", 0x112, "rows - 1"),
    _number("OFM_DEPTH_M1", 0x113, "channels - 1"),
    _set(
        "OFM_PRECISION", 0x114, "type, format, scaling and rounding", Field("signed", 0, 1), Field("bytes_log2", 1, 2, (0, 1, 2)),
        Field("bricks", 6, 2, (0, 1)), Field("global_scale", 8, 1), Field("round_mode", 14, 2, (0, 1, 2)),
    ),
    _number("OFM_BLK_WIDTH_M1", 0x115, "columns of a block, - 1", 6),
    _number("OFM_BLK_HEIGHT_M1", 0x116, "rows of a block, - 1", 5),
    _number("OFM_BLK_DEPTH_M1", 0x117, "channels of a block, - 1", 7),
    _number("OFM_ZERO_POINT", 0x118, "integer that stands for 0", signed=True),
    _number("OFM_WIDTH0_M1", 0x11A, "columns of tiles 0 and 2, - 1"),
    _number("OFM_HEIGHT0_M1", 0x11B, "rows of tile 0, - 1"),
    _number("OFM_HEIGHT1_M1", 0x11C, "rows of tile 1, - 1"),
    _set("OFM_REGION", 0x11F, "region", _REGION),
    _number("KERNEL_WIDTH_M1", 0x120, "columns of the dilated kernel, - 1"),
    _number("KERNEL_HEIGHT_M1", 0x121, "rows of the dilated kernel, - 1"),
    _set(
        "KERNEL_STRIDE", 0x122, "strides - 1 in two bits each, order of the weights, dilations - 1", Field("stride_x_low", 0, 1),
        Field("stride_y_low", 1, 1), Field("part_kernel_first", 2, 1), Field("dilation_x_m1", 3, 1), Field("dilation_y_m1", 4, 1),
        Field("small_parts", 5, 1, (0,)), Field("stride_x_high", 6, 1), Field("stride_y_high", 9, 1),
    ),
    _set("PARALLEL_MODE", 0x123, "cores - 1", Field("value", 0, 1)),
    _set("ACC_FORMAT", 0x124, "accumulators: int32, int40, float16", Field("value", 0, 2, (0, 1, 2))),
    _set(
        "ACTIVATION", 0x125, "function and range of its input", Field("function", 0, 5, (0, 3, 4, *range(16, 24))),
        Field("clip_range", 12, 3, (0, 2, 3, 5)),
    ),
    _number("ACTIVATION_MIN", 0x126, "least value", signed=True),
    _number("ACTIVATION_MAX", 0x127, "greatest value", signed=True),
    _set("WEIGHT_REGION", 0x128, "region", _REGION),
    _set("SCALE_REGION", 0x129, "region", _REGION),
    _number("AB_START", 0x12D, "bank where accumulators begin", 6),
    _number("BLOCKDEP", 0x12F, "blocks that may overlap with the operation before", 2),
    _set("DMA0_SRC_REGION", 0x130, "region, or the shared buffer", _REGION, Field("internal", 8, 1), Field("stride_mode", 9, 2, (0,))),
    _set("DMA0_DST_REGION", 0x131, "region, or the shared buffer", _REGION, Field("internal", 8, 1), Field("stride_mode", 9, 2, (0,))),
    _set(
        "IFM2_BROADCAST", 0x180, "axes of one element, order of the operands, a scalar", Field("rows", 0, 1), Field("columns", 1, 1),
        Field("channels", 2, 1), Field("reversed", 6, 1), Field("scalar", 7, 1),
    ),
    _number("IFM2_SCALAR", 0x181, "second operand", signed=True),
    _set("IFM2_PRECISION", 0x185, "type and format", *_PRECISION_IFM),
    _number("IFM2_ZERO_POINT", 0x189, "integer that stands for 0", signed=True),
    _number("IFM2_WIDTH0_M1", 0x18A, "columns of tiles 0 and 2, - 1"),
    _number("IFM2_HEIGHT0_M1", 0x18B, "rows of tile 0, - 1"),
    _number("IFM2_HEIGHT1_M1", 0x18C, "rows of tile 1, - 1"),
    _number("IFM2_IB_START", 0x18D, "bank where the input buffer begins", 6),
    _set("IFM2_REGION", 0x18F, "region", _REGION),
    *_feature_map("IFM", 0x000),
    *_feature_map("OFM", 0x010),
    _address("WEIGHT_BASE", 0x020, "address of the weights of core 0"),
    _long("WEIGHT_LENGTH", 0x021, "their bytes", Field("value", PAYLOAD, 32)),
    _address("SCALE_BASE", 0x022, "address of the biases and scales of core 0"),
    _long("SCALE_LENGTH", 0x023, "their bytes", Field("value", PAYLOAD, 20)),
    _long("OFM_SCALE", 0x024, "factor and right shift of results", Field("factor", PAYLOAD, 32), Field("shift", 0, 6)),
    _long("OPA_SCALE", 0x025, "factor and right shift of an operand", Field("factor", PAYLOAD, 32), Field("shift", 0, 6)),
    _long("OPB_SCALE", 0x026, "factor of the other operand", Field("factor", PAYLOAD, 16)),
    _address("DMA0_SRC", 0x030, "address of the source"),
    _address("DMA0_DST", 0x031, "address of the destination"),
    _address("DMA0_LEN", 0x032, "bytes"),
    *_feature_map("IFM2", 0x080),
    _address("WEIGHT1_BASE", 0x090, "address of the weights of core 1"),
    _long("WEIGHT1_LENGTH", 0x091, "their bytes", Field("value", PAYLOAD, 32)),
    _address("SCALE1_BASE", 0x092, "address of the biases and scales of core 1"),
    _long("SCALE1_LENGTH", 0x093, "their bytes", Field("value", PAYLOAD, 20)),
)  # fmt: skip
"""All commands that are executed.

Copies of two or three axes (`DMA0_SIZE0`, `DMA0_SKIP0` and their like), kernels in parts of 4x4 and regions of a custom DMA are not among
them: no public text says what they do.
"""

BY_OPCODE: Mapping[tuple[int, int], Command] = MappingProxyType({(command.words, command.opcode): command for command in COMMANDS})
BY_NAME: Mapping[str, Command] = MappingProxyType({command.name: command for command in COMMANDS})
