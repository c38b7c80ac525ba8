"""Element-wise operators on integers, and between integers and floats, in the order of operations of `ir.quantised`.

All computations are in float32.  A value is rounded to an integer by adding 1.5 * 2^23, which leaves no room for fractions, and
taking it away again: VCONVERT rounds as well, but a zero point is added to what is rounded already.

A quantised gate is one multiply-add where a scale and a shift give the integers of onnxruntime for all 65,536 pairs, else two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.instructions.conversion import WIDE
from compiler.instructions.repeats import repeats_along
from compiler.ir.layout import Placement
from compiler.ir.operators import Dequantise, LookUp, Operator, Quantise, QuantisedAffine, QuantisedPair
from compiler.ir.quantised import linear
from compiler.ir.quantised.affine import fit_affine, fit_gated_affine
from compiler.ir.quantised.elementwise import add_factors
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from compiler.ir.quantised.tables import all_stored_integers, fit_line
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_or_zero, run_of_planes, streams_constants
from compiler.ops.integer_elementwise_emitter import (
    BESIDE,
    CHANNELS,
    CONVERT,
    COPIED,
    FLAT,
    GATHER,
    PIXEL_BLOCKS,
    PIXELS,
    SPREAD,
    TWICE,
    TypedJob,
)
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.target.target_op import EmitInputs, Fetch, Strip
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import MAX_REPEATS, Op, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

ROUNDER = 1.5 * 2**23
MOST = 2.0**31  # of a value that is rounded
_F32 = DataType.float32
_Bytes = NDArray[np.uint8]


class TypedSteps(NamedTuple):
    """Steps of an operator.

    buffers, pixels: blocks of each buffer for a block of bytes, of those of one pixel for a plane.  rows: see `TypedSpec`.

    constants: one after the other, whole blocks.  channels: float32 [constants, channels], of which each plane has its own.
    """

    buffers: tuple[int, ...]
    pixels: tuple[int, ...]
    rows: list[tuple[int, ...]]
    constants: _Bytes
    channels: Sequence[NDArray[np.float32]]
    result: int


def _planes(dtype: DataType) -> int:
    """Planes of a type that have the channels of a plane of bytes."""
    return WIDE * dtype.size_bytes // _F32.size_bytes


class _Writer:
    """Steps of an operator; buffers by number, in the order in which they are asked for.

    pixels: which inputs are one pixel of every channel.
    """

    def __init__(self, takes: Sequence[DataType], gives: DataType, pixels: Sequence[bool]) -> None:
        self.takes, self.gives = takes, gives
        self.buffers, self.of_pixels = list[int](), list[int]()
        self.rows, self.constants, self.of_channels = list[tuple[int, ...]](), list[_Bytes](), list[NDArray[np.float32]]()
        self.inputs = [self.buffer(_planes(dtype), pixel) for dtype, pixel in zip(takes, pixels, strict=True)]

    def buffer(self, blocks: int, pixel: bool = False) -> int:
        """Begin of a new buffer, in blocks for a block of bytes, or for a plane's pixel."""
        buffers = self.of_pixels if pixel else self.buffers
        buffers.append(blocks)
        return sum(buffers) - blocks + (PIXELS if pixel else 0)

    def constant(self, values: NDArray[Any]) -> int:
        """An operand that holds a value for every lane of a block, or a table."""
        block = sum(map(len, self.constants)) // BLOCK_BYTES
        self.constants.append(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        return -2 - block

    def all_lanes(self, value: ArrayLike) -> int:
        return self.constant(np.full(_F32.lanes, value, np.float32))

    def by_channel(self, values: NDArray[np.float32]) -> int:
        """A buffer of one pixel that holds a value for every channel."""
        self.of_channels.append(values)
        target = self.buffer(PIXEL_BLOCKS, pixel=True)
        source = CHANNELS - WIDE * (len(self.of_channels) - 1)
        self.rows.append((COPIED, int(Op.VCOPY), int(_F32), target, source, -1, -1, 0, PIXEL_BLOCKS, WIDE))
        return target

    def flat(self, op: Op, target: int, source: int, immediate: float = 0.0, s1: int = -1, s2: int = -1) -> None:
        mode, blocks = FLAT, PIXEL_BLOCKS if target >= PIXELS else WIDE
        if target < PIXELS <= max(source, s1, s2):
            mode = BESIDE
        self.rows.append((mode, int(op), int(_F32), target, source, s1, s2, float_bits(immediate), blocks, blocks))

    def bytes_of(self, source: int, target: int, dtype: DataType) -> None:
        """target = source, rounded and saturated."""
        self.rows.append((CONVERT, int(Op.VCONVERT), int(dtype), target, source, -1, -1, int(_F32), 1, WIDE))

    def floats_of(self, source: int, target: int, dtype: DataType) -> None:
        """target = source, from integers to floats."""
        self.rows.append((CONVERT, int(Op.VCONVERT), int(_F32), target, source, -1, -1, int(dtype), WIDE, 1))

    def floats(self, index: int) -> int:
        """A new buffer with input `index` as float32."""
        dtype, source, pixel = self.takes[index], self.inputs[index], self.inputs[index] >= PIXELS
        target = self.buffer(PIXEL_BLOCKS if pixel else WIDE, pixel)
        if pixel:
            assert not dtype.is_float
            self.rows.append((TWICE, int(Op.VCONVERT), int(_F32), target, source, -1, -1, int(dtype), PIXEL_BLOCKS, 1))
        elif dtype.is_float:
            op = Op.VCOPY if dtype == _F32 else Op.VCONVERT
            self.rows.append(
                (SPREAD, int(op), int(_F32), target, source, -1, -1, int(dtype) if op == Op.VCONVERT else 0, WIDE, _planes(dtype))
            )
        else:
            self.floats_of(source, target, dtype)
        return target

    def integers(self, source: int) -> TypedSteps:
        """The steps of an operator whose result is `source`, floats that are whole numbers."""
        free = [begin for begin, dtype in zip(self.inputs, self.takes, strict=True) if not dtype.is_float and begin < PIXELS]
        target = free[0] if free else self.buffer(1)
        self.bytes_of(source, target, self.gives)
        return self.done(target)

    def done(self, buffer: int) -> TypedSteps:
        constants = np.concatenate(self.constants) if self.constants else np.zeros(0, np.uint8)
        return TypedSteps(tuple(self.buffers), tuple(self.of_pixels), self.rows, constants, self.of_channels, buffer)

    def clamped(self, buffer: int, y_q: Quantisation, ends: tuple[int, int] | None = None) -> TypedSteps:
        """Clamp and round as `ir.quantised.rounding.round_to_integers`.  ends: limits inside those of the type, counted from the zero
        point."""
        _, zero = y_q.single("y")
        least, greatest = (limit - zero for limit in y_q.limits) if ends is None else ends
        self.flat(Op.VMAXS, buffer, buffer, least)
        self.flat(Op.VMINS, buffer, buffer, greatest)
        self.flat(Op.VADDS, buffer, buffer, ROUNDER)
        self.flat(Op.VADDS, buffer, buffer, zero - ROUNDER)
        return self.integers(buffer)


def _quantised(op: Quantise, writer: _Writer) -> TypedSteps:
    v = writer.floats(0)
    if writer.takes[0] == DataType.float16:  # which has few values: a multiply-add may be the quotient for all of them
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        every = every[np.isfinite(every)]
        scale, _ = op.y_q.single(op.name)
        affine = fit_affine(every, linear.quantize(every, op.y_q), np.asarray(1 / scale))
        if affine is not None:
            writer.flat(Op.VMADD, v, v, s1=writer.all_lanes(affine.scale), s2=writer.all_lanes(affine.shift))
            return writer.integers(v)
    writer.flat(Op.VDIV, v, v, s1=writer.all_lanes(op.y_q.single(op.name)[0]))
    return writer.clamped(v, op.y_q)


def _dequantised(op: Dequantise, writer: _Writer) -> TypedSteps:
    """Dequantise in the float type: the difference is exact in float16 too, and so is the product in float32 before rounding."""
    scale, zero = op.x_q.single(op.name)
    blocks = _planes(writer.gives)
    v = writer.buffer(blocks)
    writer.rows.append((CONVERT, int(Op.VCONVERT), int(writer.gives), v, writer.inputs[0], -1, -1, int(writer.takes[0]), blocks, 1))
    if zero:
        writer.rows.append((FLAT, int(Op.VADDS), int(writer.gives), v, v, -1, -1, float_bits(-zero), blocks, blocks))
    y = writer.buffer(blocks)
    writer.rows.append((GATHER, int(Op.VMULS), int(writer.gives), y, v, -1, -1, float_bits(float(scale)), blocks, blocks))
    return writer.done(y)


def _affine(op: QuantisedAffine, writer: _Writer) -> TypedSteps:
    v = writer.floats(0)
    last = len(op.steps) - 1
    factors = [(writer.by_channel(affine.scale), writer.by_channel(affine.shift)) for affine, _ in op.steps]
    for i, ((scale, shift), (_, q)) in enumerate(zip(factors, op.steps, strict=True)):
        writer.flat(Op.VMADD, v, v, s1=scale, s2=shift)
        if i < last:
            dtype = DataType[q.dtype.name]
            writer.bytes_of(v, writer.inputs[0], dtype)
            writer.floats_of(writer.inputs[0], v, dtype)
    return writer.integers(v)


def _looked_up(op: LookUp, machine: Machine, writer: _Writer) -> TypedSteps:
    """Look up by VLUT, which counts bytes from 0 on: negative int8 come last.  A machine without VLUT can only compute straight lines."""
    (_, zero), (y_scale, _) = op.x_q.single(op.name), op.y_q.single(op.name)
    if machine.vector.lookup_cycles is not None:
        buffer, entries = writer.inputs[0], op.entries.view(np.uint8)
        s1 = writer.constant(np.roll(entries, len(entries) // 2) if writer.takes[0] == DataType.int8 else entries)
        writer.rows.append((FLAT, int(Op.VLUT), int(writer.gives), buffer, buffer, s1, -1, 0, 1, 1))
        return writer.done(buffer)
    straight = fit_line(op.entries, op.x_q, op.y_q)
    if straight is None:
        raise UnsupportedError(f"operator {op.name!r}: a table; machine {machine.name} has no look-up (vector.lookup_cycles)")
    v = writer.floats(0)
    writer.flat(Op.VADDS, v, v, -zero)
    writer.flat(Op.VMULS, v, v, float(straight.scale))
    writer.flat(Op.VDIV, v, v, s1=writer.all_lanes(y_scale))
    return writer.clamped(v, op.y_q, (straight.low, straight.high))


def _pair(op: QuantisedPair, writer: _Writer) -> TypedSteps:
    """Steps in the order of `ir.quantised.elementwise`; the result is made in the buffer of an image, not of a pixel."""
    if op.mode == "mul":
        return _product(op, writer)
    a, b = (0, 1) if op.mode == "add" else (1, 0)
    types = op.a_q, op.b_q
    ra, rb, fixed = add_factors(types[a], types[b], op.y_q)
    check_sum_range(op.name, op.a_q, op.b_q, op.y_q)
    floats = writer.floats(0), writer.floats(1)
    last, first = floats[a], floats[b]
    writer.flat(Op.VMADD, first, first, s1=writer.all_lanes(rb), s2=writer.all_lanes(fixed))
    y = min(first, last)
    writer.flat(Op.VMADD, y, last, s1=writer.all_lanes(ra), s2=first)
    return writer.integers(y)


def _product(op: QuantisedPair, writer: _Writer) -> TypedSteps:
    (sa, za), (sb, zb), (sy, zy) = (q.single(op.name) for q in (op.a_q, op.b_q, op.y_q))
    scale = sa * sb / sy
    _check(op.name, 255 * 255 * float(scale) + abs(zy))
    a, b = writer.floats(0), writer.floats(1)
    writer.flat(Op.VADDS, b, b, -zb)
    y = min(a, b)
    every_a, every_b = all_stored_integers(op.a_q), all_stored_integers(op.b_q).astype(np.int64) - zb
    products = np.multiply.outer(every_b, every_a.astype(np.int64) - za)
    wanted = saturate(to_int32(products.astype(np.float32) * scale + np.float32(zy)), op.y_q)
    # a gate: one multiply-add per element, with the rest done on its pixel
    if b >= PIXELS and (gate := fit_gated_affine(every_a, every_b, za, wanted, np.asarray(scale))) is not None:
        shift = writer.buffer(PIXEL_BLOCKS, pixel=True)
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


def check_sum_range(name: str, a_q: Quantisation, b_q: Quantisation, y_q: Quantisation) -> None:
    """Check the range of a sum.  Raises `UnsupportedError` if int32 does not hold it."""
    ra, rb, fixed = map(float, add_factors(a_q, b_q, y_q))
    _check(name, 255 * (ra + rb) + abs(fixed))


def _check(name: str, largest: float) -> None:
    if largest >= MOST:
        raise UnsupportedError(f"operator {name!r}: values of up to {largest:.3g} times its scale; below {MOST:.3g} is supported")


def _steps(op: Operator, machine: Machine, writer: _Writer) -> TypedSteps:
    """Steps of an operator.  Raises `UnsupportedError`."""
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
    """Constants per channel as [planes of bytes][constants], four blocks of float32 each."""
    packed = np.zeros((len(channels), placement.planes * WIDE * _F32.lanes), np.float32)
    packed[:, np.asarray(placement.lanes)] = channels
    by_planes = packed.reshape(len(channels), placement.planes, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(by_planes).view(np.uint8).reshape(-1)


@dataclass(frozen=True, eq=False)
class TypedSpec(OnVector):
    """steps: int64 [s, 10] of (mode, opcode, data type, buffers of the result and of the first operand, second and third operand, immediate
    bits, blocks of the result and of the first operand for a block of bytes).  A buffer is named by where it begins, in blocks for a
    block of bytes; -2 - i: block i of the constants, CHANNELS - i: of those of a plane, -1: no operand.

    inputs: int64 [inputs, 4] of (buffer, planes for a plane of bytes, data type, 1 for one pixel of every channel).
    blocks, pixel_blocks: of all buffers, for a block of bytes; of those of one pixel, numbered from PIXELS on, for a plane of bytes.
    result: the buffer that is stored.  together: planes of the result for a plane of bytes.
    constants: blocks of them; by_channel: for a plane of bytes, each of which has its own.
    """

    word: ClassVar[str] = "typed"

    steps: NDArray[np.int64]
    inputs: NDArray[np.int64]
    blocks: int
    pixel_blocks: int
    result: int
    together: int
    constants_at: int
    constants: int
    by_channel: bool

    @classmethod
    def lower(cls, index: int, op: Operator, into: Lowering) -> Self:
        *shapes, shape = (into.layout.graph.shapes[name] for name in (*op.inputs, op.y))
        pixels = [input_shape != shape for input_shape in shapes]
        if pixels[0] or any(input_shape not in (shape, (*shape[:2], 1, 1)) for input_shape in shapes):
            raise UnsupportedError(
                f"operator {op.name!r}: shapes {', '.join(map(str, shapes))}; equal ones, or one pixel of every channel as the second"
            )
        takes, gives = [into.type_of(name) for name in op.inputs], into.type_of(op.y)
        writer = _Writer(takes, gives, pixels)
        steps = _steps(op, into.machine, writer)
        place = into.layout.placements[op.y]
        # the emitter takes constants by plane if channels have their own
        values = _by_planes(steps.channels, place) if steps.channels else steps.constants
        inputs = [
            (buffer, _planes(dtype), int(dtype), int(pixel)) for buffer, dtype, pixel in zip(writer.inputs, takes, pixels, strict=True)
        ]
        return cls(
            **into.fields(index, op),
            steps=np.array(steps.rows, np.int64),
            inputs=np.array(inputs, np.int64),
            blocks=sum(steps.buffers),
            pixel_blocks=sum(steps.pixels),
            result=steps.result,
            together=_planes(gives),
            constants_at=into.constants.add(f"{op.name}/constants", values) if len(values) else -1,
            constants=len(values) // BLOCK_BYTES // (place.planes if steps.channels else 1),
            by_channel=bool(steps.channels),
        )

    def described(self) -> dict[str, object]:
        return {"steps": self.steps[:, [0, 1, 2, 8, 9]].tolist()}

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        return tuple(bool(pixel) for pixel in self.inputs[:, 3])

    @property
    def planes_together(self) -> int:
        return self.together

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a tile: whole planes of bytes."""
        return min(self.y.planes, max(self.together, tiling.tile_planes // self.together * self.together))

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return (self.blocks * rows * columns + self.pixel_blocks) * -(-planes // self.together)

    def constant_blocks(self, planes: int) -> int:
        return self.constants * (planes if self.by_channel else 1)

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    @property
    def steps_of_tile(self) -> int:
        return len(self.steps)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("constants", ("p",)),) if self.constants else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.output_tiles:
            deep, size = planes // self.together, tall * wide
            for mode, op, _, d, *_, d_factor, s_factor in self.steps.tolist():
                if mode == COPIED:  # half by half
                    step_repeats, instructions = 2 * deep, 2 * -(-deep // MAX_REPEATS)
                elif d >= PIXELS:
                    step_repeats, instructions = repeats_along(deep * PIXEL_BLOCKS, 1)
                elif mode == FLAT:
                    step_repeats, instructions = repeats_along(deep * size * d_factor, 1)
                elif mode == BESIDE:
                    step_repeats, instructions = repeats_along(size * d_factor, deep)
                elif mode == CONVERT:
                    step_repeats, instructions = repeats_along(deep * size, 1)
                    step_repeats *= max(d_factor, s_factor) // 2  # so many blocks beside each block
                else:
                    step_repeats, instructions = repeats_along(size, deep * (s_factor if mode == SPREAD else d_factor))
                repeats += count * tiles.images * step_repeats * tiles.cycles[op]
                calls += count * tiles.images * instructions
        one = float(sum([planes * count for planes, *_, count in tiles.output_tiles]) * tiles.images)
        return VectorWork(
            repeats, calls,
            [(one if pixel else tiles.size) * in_planes / self.together for _, in_planes, _, pixel in self.inputs.tolist()],
        )  # fmt: skip

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.together

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        first, last = first // self.together, last // self.together
        reads = [
            run_of_planes(read, first * planes, last * planes) for read, planes in zip(self.reads, self.inputs[:, 1].tolist(), strict=True)
        ]
        address = self.constants_at + first * self.constants * self.by_channel
        return replace(self, y=run_of_planes(self.y, first * self.together, last * self.together), reads=tuple(reads), constants_at=address)

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size)

    def job(self, inputs: EmitInputs) -> TypedJob:
        assert isinstance(inputs.tiling, VectorTiling)
        return TypedJob(
            **self.common(inputs),
            width=self.out_w,
            together=self.together,
            blocks=self.blocks,
            tile_planes=self.planes_of_tile(inputs.tiling),
            consts=first_or_zero(inputs.constants),
            consts_at=self.constants_at if streams_constants(inputs) else -1,
            const_blocks=self.constants,
            by_channel=int(self.by_channel),
            result=self.result,
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.steps, self.inputs]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        if streams_constants(inputs) or not self.constants:
            return []
        return [Fetch(Memory.UB, self.constants_at, first_or_zero(inputs.constants), self.constant_blocks(self.y.planes))]
