"""Rules by which the driver of Linux accepts or refuses a stream and a job, with a decoder of their own.

The driver knows words by opcode and keeps the last parameter of each.  It looks at the last element of every feature map, and so counts
the bytes of each region that a stream touches.

| rule | source, in `drivers/accel/ethosu` of Linux |
|---|---|
| a stream has words, and an object has bytes | `ethosu_drv.c`: `ethosu_ioctl_cmdstream_bo_create`, `ethosu_ioctl_bo_create` |
| an operation has its stride, regions, addresses and lengths set | `ethosu_gem.c`: `calc_sizes`, `calc_sizes_elemwise` |
| a region has the bytes of its last element, copy, weights and scales | `ethosu_gem.c`: `feat_matrix_length`, `dma_length`, `calc_sizes` |
| region 2 is SRAM, has no object, and no more bytes than the device | `ethosu_job.c`: `ethosu_ioctl_submit_job` |
| a region that is used has an object of its bytes, one that is not has none | the same |

Where the driver counts otherwise than the part, this follows the driver: inputs that are upscaled count as if they were not, for up to
four times their bytes; the first operand of an elementwise operation counts for its beginning; a scalar second operand counts as a map of
its registers; addresses have 32 bits; the rounding mode of a map is taken for its kind of tiles.

The driver leaves alignment to the part.  Those rules are Vela's (`register_command_stream_util.py` and its generator, Apache-2.0) and the
executor's; `check_alignment` has them once more, from words alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simulator.ethosu.stream_error import StreamError

SRAM_REGION, REGIONS = 2, 8
"""The region without a buffer object, and the number of regions."""
_BRICK, _ALIGN = 16, 16
_TWO_WORDS, _OPCODE, _ADDRESS, _EXTENT = 0x4000, 0xFFFF, 0xFFFF_FFFF, 0xFFFF
_GLOBAL_SCALE, _INTERNAL, _SCALAR_OF_LATER_PARTS = 0x100, 0x100, 8
_CONV, _DEPTHWISE, _POOL, _ELEMENTWISE, _DMA, _STOP = 0x002, 0x003, 0x005, 0x006, 0x010, 0x000
_NAMES = {_CONV: "CONV", _DEPTHWISE: "DEPTHWISE", _POOL: "POOL", _ELEMENTWISE: "ELEMENTWISE", _DMA: "DMA_START"}
_ONE_OPERAND = (5, 6, 7, 0x24)

_SHORT = {
    0x100: "PAD_TOP", 0x101: "PAD_LEFT", 0x102: "PAD_RIGHT", 0x103: "PAD_BOTTOM", 0x104: "IFM_DEPTH", 0x105: "IFM_PRECISION",
    0x10A: "IFM_WIDTH0", 0x10B: "IFM_HEIGHT0", 0x10C: "IFM_HEIGHT1", 0x10F: "IFM_REGION", 0x111: "OFM_WIDTH", 0x112: "OFM_HEIGHT",
    0x113: "OFM_DEPTH", 0x114: "OFM_PRECISION", 0x11A: "OFM_WIDTH0", 0x11B: "OFM_HEIGHT0", 0x11C: "OFM_HEIGHT1", 0x11F: "OFM_REGION",
    0x120: "KERNEL_WIDTH", 0x121: "KERNEL_HEIGHT", 0x122: "KERNEL_STRIDE", 0x128: "WEIGHT_REGION", 0x129: "SCALE_REGION",
    0x130: "DMA0_SRC_REGION", 0x131: "DMA0_DST_REGION", 0x180: "IFM2_BROADCAST", 0x185: "IFM2_PRECISION", 0x18A: "IFM2_WIDTH0",
    0x18B: "IFM2_HEIGHT0", 0x18C: "IFM2_HEIGHT1", 0x18F: "IFM2_REGION",
}  # fmt: skip
_MAP_REGISTERS = ("BASE0", "BASE1", "BASE2", "BASE3", "STRIDE_X", "STRIDE_Y", "STRIDE_C")
_LONG = {
    **{first + step: f"{name}_{register}" for name, first in (("IFM", 0), ("OFM", 0x10), ("IFM2", 0x80))
       for step, register in enumerate(_MAP_REGISTERS)},
    0x020: "WEIGHT_BASE", 0x021: "WEIGHT_LENGTH", 0x022: "SCALE_BASE", 0x023: "SCALE_LENGTH", 0x030: "DMA0_SRC", 0x031: "DMA0_DST",
    0x032: "DMA0_LEN",
}  # fmt: skip
"""Registers that the driver keeps, by opcode; those of extents are less 1."""


class DriverJob(NamedTuple):
    """A job as `DRM_IOCTL_ETHOSU_SUBMIT` has it.  objects: bytes by region.  sram: bytes that it wants.  device_sram: that there are."""

    objects: Mapping[int, int]
    sram: int
    device_sram: int


class _Operation(NamedTuple):
    """An operation as the driver sees it: number of its word, opcode, parameter, and parameters of registers by name."""

    word: int
    code: int
    parameter: int
    registers: Mapping[str, int]

    def needed(self, register: str) -> int:
        """A register without which the driver refuses the stream."""
        if register not in self.registers:
            raise self.refuse(f"NPU_SET_{register} is not set")
        return self.registers[register]

    def get(self, register: str, mask: int = _EXTENT) -> int:
        """A register that counts as all ones where it is not set."""
        return self.registers.get(register, mask) & mask

    def refuse(self, why: str) -> StreamError:
        """The error for this operation."""
        return StreamError(f"word {self.word}: NPU_OP_{_NAMES[self.code]}: the driver of Linux refuses it: {why}")


def check_job(words: Sequence[int], job: DriverJob) -> dict[int, int]:
    """Bytes by region of a stream that the driver accepts with a job; an error, of one line, where it refuses one of them."""
    if job.objects.get(SRAM_REGION) and job.sram:
        raise StreamError(f"job: an object for region {SRAM_REGION} beside {job.sram} bytes of SRAM: expected one of them")
    if job.sram > job.device_sram:
        raise StreamError(f"job: {job.sram} bytes of SRAM: expected at most {job.device_sram}, which the device has")
    sizes = driver_region_sizes(words)
    for region in range(REGIONS):
        used, given = sizes.get(region, 0), job.objects.get(region)
        if given is None and region == SRAM_REGION:
            given = job.device_sram
        elif given is not None and not used:
            raise StreamError(f"job: an object for region {region}, which the stream does not use: expected none")
        if used and given is None:
            raise StreamError(f"job: no object for region {region}: expected one of {used} bytes")
        if given is not None and used > given:
            raise StreamError(f"job: {given} bytes of region {region}: expected at least {used}")
    return sizes


def driver_region_sizes(words: Sequence[int]) -> dict[int, int]:
    """Bytes by region, of those that a stream uses.  Raises `StreamError` for a stream that the driver refuses."""
    if not words:
        raise StreamError("a stream of 0 words: the driver of Linux refuses it: expected at least one")
    sizes = dict[int, int]()
    for operation in _operations(words):
        for region, size in _ends(operation):
            sizes[region] = max(size, sizes.get(region, 0))
    return {region: size for region, size in sorted(sizes.items()) if size}


def check_alignment(words: Sequence[int]) -> None:
    """An error where an address, stride or length is none of the multiples that the part takes."""
    for operation in _operations(words):
        for register, step in _alignments(operation):
            value = operation.get(register, _ADDRESS)
            if register in operation.registers and value % step:
                raise StreamError(
                    f"word {operation.word}: NPU_OP_{_NAMES[operation.code]}: NPU_SET_{register} = {value}: expected a multiple of {step}"
                )


def _operations(words: Sequence[int]) -> Iterator[_Operation]:
    registers, place = dict[str, int](), 0
    while place < len(words):
        code, parameter = words[place] & _OPCODE, words[place] >> 16
        if code & _TWO_WORDS:
            if place + 1 == len(words):
                raise StreamError(f"word {place}: 0x{words[place]:08x} at the end of the stream: expected a payload word behind it")
            name = _LONG.get(code & ~_TWO_WORDS)
            value = words[place + 1]
        else:
            name, value = _SHORT.get(code), parameter
        if name:
            registers[name] = value
        elif code in _NAMES:
            yield _Operation(place, code, parameter, registers)
        place += 2 if code & _TWO_WORDS else 1


def _ends(operation: _Operation) -> list[tuple[int, int]]:
    """Regions that an operation touches, each with the byte behind the last."""
    if operation.code == _DMA:
        ends = []
        for side in ("SRC", "DST"):
            region = operation.needed(f"DMA0_{side}_REGION")
            if not region & _INTERNAL:
                ends.append((region & 7, operation.needed(f"DMA0_{side}") + operation.needed("DMA0_LEN")))
        return ends
    if operation.code == _ELEMENTWISE:
        return _elementwise(operation)
    ends = [_map_end(operation, "IFM", *_input_corner(operation), operation.get("IFM_DEPTH")), _result_end(operation)]
    kinds = ["WEIGHT"] if operation.code != _POOL else []
    kinds += [] if operation.get("OFM_PRECISION") & _GLOBAL_SCALE else ["SCALE"]
    for kind in kinds:
        region, base, length = (operation.needed(f"{kind}_{part}") for part in ("REGION", "BASE", "LENGTH"))
        ends.append((region & 7, base + length))
    return ends


def _input_corner(operation: _Operation) -> tuple[int, int]:
    """Last row and column that windows reach."""
    strides, corner = operation.needed("KERNEL_STRIDE"), []
    for low, high, extent, front, back in ((1, 9, "HEIGHT", "TOP", "BOTTOM"), (0, 6, "WIDTH", "LEFT", "RIGHT")):
        stride = 1 + (strides >> low & 1) + 2 * (strides >> high & 1)
        padding = operation.get(f"PAD_{front}", 0x7F) + operation.get(f"PAD_{back}", 0xFF)
        corner.append(operation.get(f"OFM_{extent}") * stride + operation.get(f"KERNEL_{extent}") - padding & _ADDRESS)
    return corner[0], corner[1]


def _elementwise(operation: _Operation) -> list[tuple[int, int]]:
    """Operands have the result's extent but on axes that are broadcast; of the first one all are, as only later parts have its register."""
    ends = [_map_end(operation, "IFM", 0, 0, 0), _result_end(operation)]
    broadcast = operation.get("IFM2_BROADCAST", 0xFF)
    if operation.parameter not in _ONE_OPERAND and broadcast != _SCALAR_OF_LATER_PARTS:
        last = [0 if broadcast >> bit & 1 else operation.get(f"OFM_{axis}") for bit, axis in enumerate(("HEIGHT", "WIDTH", "DEPTH"))]
        ends.append(_map_end(operation, "IFM2", last[0], last[1], last[2]))
    return ends


def _result_end(operation: _Operation) -> tuple[int, int]:
    return _map_end(operation, "OFM", *(operation.get(f"OFM_{axis}") for axis in ("HEIGHT", "WIDTH", "DEPTH")))


def _map_end(operation: _Operation, name: str, row: int, column: int, channel: int) -> tuple[int, int]:
    """The region of a map, and the byte behind the first of an element."""
    region, precision, tile = operation.needed(f"{name}_REGION"), operation.get(f"{name}_PRECISION"), 0
    heights = [operation.get(f"{name}_HEIGHT{number}") + 1 for number in (0, 1)]
    columns = operation.get(f"{name}_WIDTH0") + 1
    if precision >> 14 == 0:
        if column >= columns:
            column, tile = column - columns, 1
        if row >= heights[tile]:
            row, tile = row - heights[tile], tile + 2
    elif precision >> 14 == 1:
        if row >= heights[1]:
            row, tile = row - heights[1], 2
        elif row >= heights[0]:
            row, tile = row - heights[0], 1
    place = operation.needed(f"{name}_BASE{tile}") + row * operation.get(f"{name}_STRIDE_Y", _ADDRESS)
    if precision >> 6 & 3 == 1:
        element = 1 << (precision >> 1 & 3)
        place += channel // _BRICK * operation.get(f"{name}_STRIDE_C", _ADDRESS) + (_BRICK * column + channel % _BRICK) * element
    else:
        place += column * operation.get(f"{name}_STRIDE_X", _ADDRESS) + channel
    return region & 7, place + 1


def _alignments(operation: _Operation) -> Iterator[tuple[str, int]]:
    """Registers of an operation that have to be multiples, with what of."""
    if operation.code == _DMA:
        inside = {side: bool(operation.get(f"DMA0_{side}_REGION") & _INTERNAL) for side in ("SRC", "DST")}
        yield from ((f"DMA0_{side}", _ALIGN) for side, internal in inside.items() if internal)
        if inside["DST"]:
            yield "DMA0_LEN", _ALIGN
        return
    for name in ("IFM", "OFM", *(["IFM2"] if operation.code == _ELEMENTWISE and operation.parameter not in _ONE_OPERAND else [])):
        precision = operation.get(f"{name}_PRECISION")
        bricks, shift = precision >> 6 & 1, 1 if name == "OFM" else 2
        step = _ALIGN if bricks else 1 << (precision >> shift & 3)
        registers = ("BASE0", "BASE1", "BASE2", "BASE3", "STRIDE_Y", "STRIDE_C" if bricks else "STRIDE_X")
        yield from ((f"{name}_{register}", step) for register in registers)
    if operation.code in (_CONV, _DEPTHWISE):
        yield from ((register, _ALIGN) for register in ("WEIGHT_BASE", "WEIGHT_LENGTH", "SCALE_LENGTH"))
