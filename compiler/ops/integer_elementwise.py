"""Element-wise operators on integers, and between integers and floats, in the order of operations of `ir.quantised`.

All computations are in float32.  Adding and subtracting 1.5 * 2^23 rounds a value to an integer, because the sum has no fraction bits.
VCONVERT rounds too, but too late: the zero point is added to the rounded value.

A quantised gate is one multiply-add if a scale and a shift give onnxruntime's integers for all 65,536 pairs; else two multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.instructions.conversion import WIDE
from compiler.ir.layout import Placement
from compiler.ir.operators import Dequantise, LookUp, Operator, Quantise, QuantisedAffine, QuantisedPair
from compiler.ir.quantised import linear
from compiler.ir.quantised.affine import fit_affine, fit_gated_affine
from compiler.ir.quantised.elementwise import add_factors
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from compiler.ir.quantised.tables import all_stored_integers, fit_line
from compiler.ops.base import Lowering
from compiler.ops.tile_program import Extent, ProgramSpec, ProgramWriter
from compiler.ops.tile_program_emitter import BESIDE, CONVERT, COPIED, FLAT, GATHER, PIXEL_BLOCKS, SPREAD, TWICE
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType

ROUNDER = 1.5 * 2**23
MOST = 2.0**31  # limit of values before rounding
_F32 = DataType.float32
_OF_PIXEL = Extent(plane=PIXEL_BLOCKS)  # a buffer of one pixel in float32
_Bytes = NDArray[np.uint8]


def _planes(dtype: DataType) -> int:
    """Planes of `dtype` that hold the channels of one plane of bytes."""
    return WIDE * dtype.size_bytes // _F32.size_bytes


class _Writer(ProgramWriter):
    """Writer of an operator's steps.  takes, gives: data types of the inputs and of the result.  pixels: whether each input is one pixel.

    constants: whole blocks of bytes, in sequence.  channels: constants per channel, each float32 [channels].
    """

    def __init__(self, takes: Sequence[DataType], gives: DataType, pixels: Sequence[bool]) -> None:
        super().__init__(_planes(gives))
        self.takes, self.gives = takes, gives
        self.constants, self.channels = list[_Bytes](), list[NDArray[np.float32]]()
        self.inputs = [
            self.buffer(Extent(plane=_planes(dtype)) if pixel else Extent(_planes(dtype)), dtype=dtype)
            for dtype, pixel in zip(takes, pixels, strict=True)
        ]

    def of_pixel(self, place: int) -> bool:
        return self.extent(place).plane > 0

    def single(self, values: NDArray[Any]) -> int:
        """A new constant operand: a value for every lane of a block, or a table."""
        block = sum(map(len, self.constants)) // BLOCK_BYTES
        self.constants.append(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        return self.constant(Extent(alike=block))

    def all_lanes(self, value: ArrayLike) -> int:
        return self.single(np.full(_F32.lanes, value, np.float32))

    def by_channel(self, constants: Sequence[NDArray[np.float32]]) -> list[int]:
        """New buffers of one pixel, each with a value for every channel."""
        self.channels, targets = list(constants), []
        for i in range(len(constants)):
            source = self.constant(Extent(alike=WIDE * i), WIDE * len(constants))
            targets.append(self.buffer(_OF_PIXEL))
            self.step(COPIED, Op.VCOPY, _F32, targets[-1], source)
        return targets

    def flat(self, op: Op, target: int, source: int, immediate: float = 0.0, s1: int = -1, s2: int = -1) -> None:
        beside = not self.of_pixel(target) and any(self.is_buffer(place) and self.of_pixel(place) for place in (source, s1, s2))
        self.step(BESIDE if beside else FLAT, op, _F32, target, source, s1, s2, imm=float_bits(immediate))

    def convert(self, source: int, target: int, dtype: DataType, source_dtype: DataType) -> None:
        """target = source; a conversion to integers rounds and saturates."""
        self.step(CONVERT, Op.VCONVERT, dtype, target, source, imm=int(source_dtype))

    def floats(self, index: int) -> int:
        """A new buffer with input `index` as float32."""
        dtype, source, pixel = self.takes[index], self.inputs[index], self.of_pixel(self.inputs[index])
        target = self.buffer(_OF_PIXEL if pixel else Extent(WIDE))
        if pixel:
            assert not dtype.is_float
            self.step(TWICE, Op.VCONVERT, _F32, target, source, imm=int(dtype))
        elif dtype == _F32:
            self.step(SPREAD, Op.VCOPY, _F32, target, source)
        elif dtype.is_float:
            self.step(SPREAD, Op.VCONVERT, _F32, target, source, imm=int(dtype))
        else:
            self.convert(source, target, _F32, dtype)
        return target

    def integers(self, source: int) -> int:
        """The place of an operator's result: `source`, whole numbers in float32, converted to integers."""
        free = [place for place, dtype in zip(self.inputs, self.takes, strict=True) if not dtype.is_float and not self.of_pixel(place)]
        target = free[0] if free else self.buffer(Extent(1))
        self.convert(source, target, self.gives, _F32)
        return target

    def clamped(self, buffer: int, y_q: Quantisation, ends: tuple[int, int] | None = None) -> int:
        """Clamp and round as `ir.quantised.rounding.round_to_integers`.  ends: narrower limits, counted from the zero point."""
        _, zero = y_q.single("y")
        least, greatest = (limit - zero for limit in y_q.limits) if ends is None else ends
        self.flat(Op.VMAXS, buffer, buffer, least)
        self.flat(Op.VMINS, buffer, buffer, greatest)
        self.flat(Op.VADDS, buffer, buffer, ROUNDER)
        self.flat(Op.VADDS, buffer, buffer, zero - ROUNDER)
        return self.integers(buffer)


def _quantised(op: Quantise, writer: _Writer) -> int:
    v = writer.floats(0)
    if writer.takes[0] == DataType.float16:  # a multiply-add may equal the quotient for all 65,536 values
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        every = every[np.isfinite(every)]
        scale, _ = op.y_q.single(op.name)
        affine = fit_affine(every, linear.quantize(every, op.y_q), np.asarray(1 / scale))
        if affine is not None:
            writer.flat(Op.VMADD, v, v, s1=writer.all_lanes(affine.scale), s2=writer.all_lanes(affine.shift))
            return writer.integers(v)
    writer.flat(Op.VDIV, v, v, s1=writer.all_lanes(op.y_q.single(op.name)[0]))
    return writer.clamped(v, op.y_q)


def _dequantised(op: Dequantise, writer: _Writer) -> int:
    """Dequantise in the float type: the difference is exact in float16 too, and so is the product in float32 before rounding."""
    scale, zero = op.x_q.single(op.name)
    blocks = _planes(writer.gives)
    v, y = (writer.buffer(Extent(blocks)) for _ in range(2))
    writer.convert(writer.inputs[0], v, writer.gives, writer.takes[0])
    if zero:
        writer.step(FLAT, Op.VADDS, writer.gives, v, v, imm=float_bits(-zero))
    writer.step(GATHER, Op.VMULS, writer.gives, y, v, imm=float_bits(float(scale)))
    return y


def _affine(op: QuantisedAffine, writer: _Writer) -> int:
    v = writer.floats(0)
    last = len(op.steps) - 1
    factors = writer.by_channel([constants for affine, _ in op.steps for constants in (affine.scale, affine.shift)])
    for i, (_, q) in enumerate(op.steps):
        writer.flat(Op.VMADD, v, v, s1=factors[2 * i], s2=factors[2 * i + 1])
        if i < last:
            dtype = DataType[q.dtype.name]
            writer.convert(v, writer.inputs[0], dtype, _F32)
            writer.convert(writer.inputs[0], v, _F32, dtype)
    return writer.integers(v)


def _looked_up(op: LookUp, machine: Machine, writer: _Writer) -> int:
    """Look up by VLUT.  Its index is unsigned: entries of negative int8 come last.  Machines without VLUT compute straight lines only."""
    (_, zero), (y_scale, _) = op.x_q.single(op.name), op.y_q.single(op.name)
    if machine.vector.lookup_cycles is not None:
        buffer, entries = writer.inputs[0], op.entries.view(np.uint8)
        s1 = writer.single(np.roll(entries, len(entries) // 2) if writer.takes[0] == DataType.int8 else entries)
        writer.step(FLAT, Op.VLUT, writer.gives, buffer, buffer, s1)
        return buffer
    straight = fit_line(op.entries, op.x_q, op.y_q)
    if straight is None:
        raise UnsupportedError(f"operator {op.name!r}: a table; machine {machine.name} has no look-up (vector.lookup_cycles)")
    v = writer.floats(0)
    writer.flat(Op.VADDS, v, v, -zero)
    writer.flat(Op.VMULS, v, v, float(straight.scale))
    writer.flat(Op.VDIV, v, v, s1=writer.all_lanes(y_scale))
    return writer.clamped(v, op.y_q, (straight.low, straight.high))


def _pair(op: QuantisedPair, writer: _Writer) -> int:
    """Steps in the order of `ir.quantised.elementwise`.  The result takes the buffer of an image, not that of a pixel."""
    if op.mode == "mul":
        return _product(op, writer)
    a, b = (0, 1) if op.mode == "add" else (1, 0)
    types = op.a_q, op.b_q
    ra, rb, fixed = add_factors(types[a], types[b], op.y_q)
    check_sum_range(op.name, op.a_q, op.b_q, op.y_q)
    floats = writer.floats(0), writer.floats(1)
    last, first = floats[a], floats[b]
    writer.flat(Op.VMADD, first, first, s1=writer.all_lanes(rb), s2=writer.all_lanes(fixed))
    y = _of_image(writer, first, last)
    writer.flat(Op.VMADD, y, last, s1=writer.all_lanes(ra), s2=first)
    return writer.integers(y)


def _product(op: QuantisedPair, writer: _Writer) -> int:
    (sa, za), (sb, zb), (sy, zy) = (q.single(op.name) for q in (op.a_q, op.b_q, op.y_q))
    scale = sa * sb / sy
    _check(op.name, 255 * 255 * float(scale) + abs(zy))
    a, b = writer.floats(0), writer.floats(1)
    writer.flat(Op.VADDS, b, b, -zb)
    y = _of_image(writer, a, b)
    every_a, every_b = all_stored_integers(op.a_q), all_stored_integers(op.b_q).astype(np.int64) - zb
    products = np.multiply.outer(every_b, every_a.astype(np.int64) - za)
    wanted = saturate(to_int32(products.astype(np.float32) * scale + np.float32(zy)), op.y_q)
    # a gate: one multiply-add per element, and all other steps on the gate's pixel
    if writer.of_pixel(b) and (gate := fit_gated_affine(every_a, every_b, za, wanted, np.asarray(scale))) is not None:
        shift = writer.buffer(_OF_PIXEL)
        writer.flat(Op.VMULS, b, b, float(gate.scale))
        writer.flat(Op.VMADD, shift, b, s1=writer.all_lanes(-za), s2=writer.all_lanes(gate.shift))
        writer.flat(Op.VMADD, y, a, s1=b, s2=shift)
        return writer.integers(y)
    if za:
        writer.flat(Op.VADDS, a, a, -za)
    writer.flat(Op.VMUL, y, a, s1=b)
    every, first = np.unique(products, return_index=True)
    affine = fit_affine(every.astype(np.float32), wanted.reshape(-1)[first], np.asarray(scale))
    if affine is not None:
        writer.flat(Op.VMADD, y, y, s1=writer.all_lanes(affine.scale), s2=writer.all_lanes(affine.shift))
    else:
        writer.flat(Op.VMULS, y, y, float(scale))
        writer.flat(Op.VADDS, y, y, zy)
    return writer.integers(y)


def _of_image(writer: _Writer, *places: int) -> int:
    """The first of the buffers `places` that has more than one pixel."""
    return min(places, key=lambda place: (writer.of_pixel(place), place))


def check_sum_range(name: str, a_q: Quantisation, b_q: Quantisation, y_q: Quantisation) -> None:
    """Check the range of a sum.  Raises `UnsupportedError` if int32 does not hold it."""
    ra, rb, fixed = map(float, add_factors(a_q, b_q, y_q))
    _check(name, 255 * (ra + rb) + abs(fixed))


def _check(name: str, largest: float) -> None:
    if largest >= MOST:
        raise UnsupportedError(f"operator {name!r}: values of up to {largest:.3g} times its scale; below {MOST:.3g} is supported")


def _result(op: Operator, machine: Machine, writer: _Writer) -> int:
    """The place of an operator's result, once its steps are written.  Raises `UnsupportedError`."""
    if isinstance(op, Quantise):
        return _quantised(op, writer)
    if isinstance(op, Dequantise):
        return _dequantised(op, writer)
    if isinstance(op, LookUp):
        return _looked_up(op, machine, writer)
    if isinstance(op, QuantisedAffine):
        return _affine(op, writer)
    assert isinstance(op, QuantisedPair)
    return _pair(op, writer)


def _by_planes(channels: Sequence[NDArray[np.float32]], placement: Placement) -> _Bytes:
    """Constants per channel as [planes of bytes][constants] of four float32 blocks."""
    packed = np.zeros((len(channels), placement.planes * WIDE * _F32.lanes), np.float32)
    packed[:, np.asarray(placement.lanes)] = channels
    by_planes = packed.reshape(len(channels), placement.planes, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(by_planes).view(np.uint8).reshape(-1)


@dataclass(frozen=True, eq=False)
class TypedSpec(ProgramSpec):
    """A program on integers, or between integers and floats.  A plane of the program is a plane of bytes."""

    word: ClassVar[str] = "typed"

    @classmethod
    def lower(cls, index: int, op: Operator, lowering: Lowering) -> Self:
        *shapes, shape = (lowering.layout.graph.shapes[name] for name in (*op.inputs, op.y))
        pixels = [input_shape != shape for input_shape in shapes]
        if pixels[0] or any(input_shape not in (shape, (*shape[:2], 1, 1)) for input_shape in shapes):
            raise UnsupportedError(
                f"operator {op.name!r}: shapes {', '.join(map(str, shapes))}; equal ones, or one pixel of every channel as the second"
            )
        writer = _Writer([lowering.type_of(name) for name in op.inputs], lowering.type_of(op.y), pixels)
        result, size = _result(op, lowering.machine, writer), Extent()
        # constants are stored per plane if channels have different constants
        parts = [_by_planes(writer.channels, lowering.layout.placements[op.y])] if writer.channels else writer.constants
        if parts:
            values = np.concatenate(parts)
            of_plane = WIDE * len(writer.channels)
            size = Extent(plane=of_plane) if of_plane else Extent(alike=len(values) // BLOCK_BYTES)
            writer.fetch(lowering.constants.add(f"{op.name}/constants", values), size)
        return cls(**lowering.fields(index, op), program=writer.program(result, size))

    def described(self) -> dict[str, object]:
        """Description.  steps: per step mode, opcode, data type, and blocks of result and first operand for one block of bytes."""
        rows = []
        for mode, op, dtype, target, source, *_ in self.program.steps.tolist():
            blocks = self.program.planes_of(target)
            rows.append([mode, op, dtype, blocks, {FLAT: blocks, BESIDE: blocks, COPIED: WIDE}.get(mode) or self.program.planes_of(source)])
        return {"steps": rows}

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("constants", ("p",)),) if len(self.program.constants) else ()
