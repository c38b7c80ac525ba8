"""Element-wise operators on integers, and between integers and floats, in the order of operations of `ir.quantised`.

What is computed is computed in float32.  A value is rounded to an integer by adding 1.5 * 2^23, which leaves no room for fractions, and
taking it away again: VCONVERT rounds as well, but a zero point is added to what is rounded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.instructions.conversion import WIDE
from compiler.instructions.repeats import end_to_end
from compiler.ir.layout import Placement
from compiler.ir.operators import Dequantise, LookUp, Operator, Quantise, QuantisedAffine, QuantisedPair
from compiler.ir.quantised import linear
from compiler.ir.quantised.affine import fit_affine, fit_gated_affine
from compiler.ir.quantised.elementwise import add_factors
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from compiler.ir.quantised.tables import all_stored_integers, fit_line
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_of, run_of_planes, streamed
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
    """buffers, pixels: blocks of each buffer for a block of bytes, of those of one pixel for a plane.  rows: see `TypedSpec`.

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
        """Where a new one begins, in blocks for a block of bytes, or for a plane's pixel."""
        buffers = self.of_pixels if pixel else self.buffers
        buffers.append(blocks)
        return sum(buffers) - blocks + (PIXELS if pixel else 0)

    def constant(self, values: NDArray[Any]) -> int:
        """A value for every lane of a block, or a table: as an operand."""
        at = sum(map(len, self.constants)) // BLOCK_BYTES
        self.constants.append(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        return -2 - at

    def all_lanes(self, value: ArrayLike) -> int:
        return self.constant(np.full(_F32.lanes, value, np.float32))

    def by_channel(self, values: NDArray[np.float32]) -> int:
        """A value for every channel, as a buffer of one pixel."""
        self.of_channels.append(values)
        d = self.buffer(PIXEL_BLOCKS, pixel=True)
        s = CHANNELS - WIDE * (len(self.of_channels) - 1)
        self.rows.append((COPIED, int(Op.VCOPY), int(_F32), d, s, -1, -1, 0, PIXEL_BLOCKS, WIDE))
        return d

    def flat(self, op: Op, d: int, s: int, value: float = 0.0, s1: int = -1, s2: int = -1) -> None:
        mode, blocks = FLAT, PIXEL_BLOCKS if d >= PIXELS else WIDE
        if d < PIXELS <= max(s, s1, s2):
            mode = BESIDE
        self.rows.append((mode, int(op), int(_F32), d, s, s1, s2, float_bits(value), blocks, blocks))

    def bytes_of(self, v: int, y: int, dtype: DataType) -> None:
        """y = v, rounded and saturated."""
        self.rows.append((CONVERT, int(Op.VCONVERT), int(dtype), y, v, -1, -1, int(_F32), 1, WIDE))

    def floats_of(self, y: int, v: int, dtype: DataType) -> None:
        """v = y, integers."""
        self.rows.append((CONVERT, int(Op.VCONVERT), int(_F32), v, y, -1, -1, int(dtype), WIDE, 1))

    def floats(self, i: int) -> int:
        """Input i as float32; a buffer of its own."""
        dtype, s, pixel = self.takes[i], self.inputs[i], self.inputs[i] >= PIXELS
        d = self.buffer(PIXEL_BLOCKS if pixel else WIDE, pixel)
        if pixel:
            assert not dtype.is_float
            self.rows.append((TWICE, int(Op.VCONVERT), int(_F32), d, s, -1, -1, int(dtype), PIXEL_BLOCKS, 1))
        elif dtype.is_float:
            op = Op.VCOPY if dtype == _F32 else Op.VCONVERT
            self.rows.append((SPREAD, int(op), int(_F32), d, s, -1, -1, int(dtype) if op == Op.VCONVERT else 0, WIDE, _planes(dtype)))
        else:
            self.floats_of(s, d, dtype)
        return d

    def integers(self, v: int) -> TypedSteps:
        """v, which is whole numbers, as the result."""
        free = [at for at, dtype in zip(self.inputs, self.takes, strict=True) if not dtype.is_float and at < PIXELS]
        y = free[0] if free else self.buffer(1)
        self.bytes_of(v, y, self.gives)
        return self.done(y)

    def done(self, y: int) -> TypedSteps:
        constants = np.concatenate(self.constants) if self.constants else np.zeros(0, np.uint8)
        return TypedSteps(tuple(self.buffers), tuple(self.of_pixels), self.rows, constants, self.of_channels, y)

    def clamped(self, v: int, q: Quantisation, ends: tuple[int, int] | None = None) -> TypedSteps:
        """As `ir.quantised.rounding.round_to_integers`.  ends: nearer ones than those of the type, counted from the zero point."""
        _, zero = q.single("y")
        least, greatest = (limit - zero for limit in q.limits) if ends is None else ends
        self.flat(Op.VMAXS, v, v, least)
        self.flat(Op.VMINS, v, v, greatest)
        self.flat(Op.VADDS, v, v, ROUNDER)
        self.flat(Op.VADDS, v, v, zero - ROUNDER)
        return self.integers(v)


def _quantised(op: Quantise, w: _Writer) -> TypedSteps:
    v = w.floats(0)
    if w.takes[0] == DataType.float16:  # which has few values: a multiply-add may be the quotient for all of them
        every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        every = every[np.isfinite(every)]
        scale, _ = op.y_q.single(op.name)
        found = fit_affine(every, linear.quantize(every, op.y_q), np.asarray(1 / scale))
        if found is not None:
            w.flat(Op.VMADD, v, v, s1=w.all_lanes(found.scale), s2=w.all_lanes(found.shift))
            return w.integers(v)
    w.flat(Op.VDIV, v, v, s1=w.all_lanes(op.y_q.single(op.name)[0]))
    return w.clamped(v, op.y_q)


def _dequantised(op: Dequantise, w: _Writer) -> TypedSteps:
    """A difference is exact in float16 too, and a product with a number in float32 before it is rounded."""
    scale, zero = op.x_q.single(op.name)
    each = _planes(w.gives)
    v = w.buffer(each)
    w.rows.append((CONVERT, int(Op.VCONVERT), int(w.gives), v, w.inputs[0], -1, -1, int(w.takes[0]), each, 1))
    if zero:
        w.rows.append((FLAT, int(Op.VADDS), int(w.gives), v, v, -1, -1, float_bits(-zero), each, each))
    y = w.buffer(each)
    w.rows.append((GATHER, int(Op.VMULS), int(w.gives), y, v, -1, -1, float_bits(float(scale)), each, each))
    return w.done(y)


def _affine(op: QuantisedAffine, w: _Writer) -> TypedSteps:
    v = w.floats(0)
    last = len(op.steps) - 1
    factors = [(w.by_channel(affine.scale), w.by_channel(affine.shift)) for affine, _ in op.steps]
    for i, ((scale, shift), (_, q)) in enumerate(zip(factors, op.steps, strict=True)):
        w.flat(Op.VMADD, v, v, s1=scale, s2=shift)
        if i < last:
            dtype = DataType[q.dtype.name]
            w.bytes_of(v, w.inputs[0], dtype)
            w.floats_of(w.inputs[0], v, dtype)
    return w.integers(v)


def _looked_up(op: LookUp, machine: Machine, w: _Writer) -> TypedSteps:
    """By VLUT, which counts bytes from 0 on: of int8 the negative ones come last.  Without it a straight line takes vector code."""
    (_, zero), (y_scale, _) = op.x_q.single(op.name), op.y_q.single(op.name)
    if machine.vector.lookup_cycles is not None:
        at, entries = w.inputs[0], op.entries.view(np.uint8)
        s1 = w.constant(np.roll(entries, len(entries) // 2) if w.takes[0] == DataType.int8 else entries)
        w.rows.append((FLAT, int(Op.VLUT), int(w.gives), at, at, s1, -1, 0, 1, 1))
        return w.done(at)
    straight = fit_line(op.entries, op.x_q, op.y_q)
    if straight is None:
        raise UnsupportedError(f"operator {op.name!r}: a table; machine {machine.name} has no look-up (vector.lookup_cycles)")
    v = w.floats(0)
    w.flat(Op.VADDS, v, v, -zero)
    w.flat(Op.VMULS, v, v, float(straight.scale))
    w.flat(Op.VDIV, v, v, s1=w.all_lanes(y_scale))
    return w.clamped(v, op.y_q, (straight.low, straight.high))


def _pair(op: QuantisedPair, w: _Writer) -> TypedSteps:
    """As `ir.quantised.elementwise` has it; what is whole is where the result is made."""
    if op.mode == "mul":
        return _product(op, w)
    a, b = (0, 1) if op.mode == "add" else (1, 0)
    types = op.a_q, op.b_q
    ra, rb, fixed = add_factors(types[a], types[b], op.y_q)
    check_most(op.name, op.a_q, op.b_q, op.y_q)
    of = w.floats(0), w.floats(1)
    last, first = of[a], of[b]
    w.flat(Op.VMADD, first, first, s1=w.all_lanes(rb), s2=w.all_lanes(fixed))
    y = min(first, last)
    w.flat(Op.VMADD, y, last, s1=w.all_lanes(ra), s2=first)
    return w.integers(y)


def _product(op: QuantisedPair, w: _Writer) -> TypedSteps:
    (sa, za), (sb, zb), (sy, zy) = (q.single(op.name) for q in (op.a_q, op.b_q, op.y_q))
    scale = sa * sb / sy
    _check(op.name, 255 * 255 * float(scale) + abs(zy))
    a, b = w.floats(0), w.floats(1)
    w.flat(Op.VADDS, b, b, -zb)
    y = min(a, b)
    every_a, every_b = all_stored_integers(op.a_q), all_stored_integers(op.b_q).astype(np.int64) - zb
    products = np.multiply.outer(every_b, every_a.astype(np.int64) - za)
    wanted = saturate(to_int32(products.astype(np.float32) * scale + np.float32(zy)), op.y_q)
    if b >= PIXELS and (gate := fit_gated_affine(every_a, every_b, za, wanted, np.asarray(scale))) is not None:
        shift = w.buffer(PIXEL_BLOCKS, pixel=True)
        w.flat(Op.VMULS, b, b, float(gate.scale))
        w.flat(Op.VMADD, shift, b, s1=w.all_lanes(-za), s2=w.all_lanes(gate.shift))
        w.flat(Op.VMADD, y, a, s1=b, s2=shift)
        return w.integers(y)
    if za:
        w.flat(Op.VADDS, a, a, -za)
    w.flat(Op.VMUL, y, a, s1=b)
    every, first = np.unique(products, return_index=True)
    found = fit_affine(every.astype(np.float32), wanted.reshape(-1)[first], np.asarray(scale))
    if found is not None:
        w.flat(Op.VMADD, y, y, s1=w.all_lanes(found.scale), s2=w.all_lanes(found.shift))
    else:
        w.flat(Op.VMULS, y, y, float(scale))
        w.flat(Op.VADDS, y, y, zy)
    return w.integers(y)


def check_most(name: str, a_q: Quantisation, b_q: Quantisation, y_q: Quantisation) -> None:
    """Of a sum.  Raises `UnsupportedError` for what int32 does not hold."""
    ra, rb, fixed = map(float, add_factors(a_q, b_q, y_q))
    _check(name, 255 * (ra + rb) + abs(fixed))


def _check(name: str, most: float) -> None:
    if most >= MOST:
        raise UnsupportedError(f"operator {name!r}: values of up to {most:.3g} times its scale; below {MOST:.3g} is supported")


def _steps(op: Operator, machine: Machine, w: _Writer) -> TypedSteps:
    """Raises `UnsupportedError`."""
    if isinstance(op, Quantise):
        return _quantised(op, w)
    if isinstance(op, Dequantise):
        return _dequantised(op, w)
    if isinstance(op, LookUp):
        return _looked_up(op, machine, w)
    if isinstance(op, QuantisedAffine):
        return _affine(op, w)
    assert isinstance(op, QuantisedPair)
    return _pair(op, w)


def _by_planes(channels: Sequence[NDArray[np.float32]], placement: Placement) -> _Bytes:
    """[planes of bytes][constants] four blocks of float32."""
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
        pixels = [each != shape for each in shapes]
        if pixels[0] or any(each not in (shape, (*shape[:2], 1, 1)) for each in shapes):
            raise UnsupportedError(
                f"operator {op.name!r}: shapes {', '.join(map(str, shapes))}; equal ones, or one pixel of every channel as the second"
            )
        takes, gives = [into.type_of(name) for name in op.inputs], into.type_of(op.y)
        w = _Writer(takes, gives, pixels)
        made = _steps(op, into.machine, w)
        place = into.layout.placements[op.y]
        values = _by_planes(made.channels, place) if made.channels else made.constants
        inputs = [(at, _planes(dtype), int(dtype), int(pixel)) for at, dtype, pixel in zip(w.inputs, takes, pixels, strict=True)]
        return cls(
            **into.fields(index, op),
            steps=np.array(made.rows, np.int64),
            inputs=np.array(inputs, np.int64),
            blocks=sum(made.buffers),
            pixel_blocks=sum(made.pixels),
            result=made.result,
            together=_planes(gives),
            constants_at=into.constants.add(f"{op.name}/constants", values) if len(values) else -1,
            constants=len(values) // BLOCK_BYTES // (place.planes if made.channels else 1),
            by_channel=bool(made.channels),
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
        """Those of whole planes of bytes."""
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
        for planes, tall, wide, count in tiles.made:
            deep, size = planes // self.together, tall * wide
            for mode, op, _, d, *_, d_factor, s_factor in self.steps.tolist():
                if mode == COPIED:  # half by half
                    each, instructions = 2 * deep, 2 * -(-deep // MAX_REPEATS)
                elif d >= PIXELS:
                    each, instructions = end_to_end(deep * PIXEL_BLOCKS, 1)
                elif mode == FLAT:
                    each, instructions = end_to_end(deep * size * d_factor, 1)
                elif mode == BESIDE:
                    each, instructions = end_to_end(size * d_factor, deep)
                elif mode == CONVERT:
                    each, instructions = end_to_end(deep * size, 1)
                    each *= max(d_factor, s_factor) // 2  # so many blocks beside each block
                else:
                    each, instructions = end_to_end(size, deep * (s_factor if mode == SPREAD else d_factor))
                repeats += count * tiles.images * each * tiles.cycles[op]
                calls += count * tiles.images * instructions
        one = float(sum([planes * count for planes, *_, count in tiles.made]) * tiles.images)
        return VectorWork(
            repeats, calls, [(one if pixel else tiles.size) * each / self.together for _, each, _, pixel in self.inputs.tolist()]
        )

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.together

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        first, last = first // self.together, last // self.together
        of = [run_of_planes(read, first * each, last * each) for read, each in zip(self.reads, self.inputs[:, 1].tolist(), strict=True)]
        at = self.constants_at + first * self.constants * self.by_channel
        return replace(self, y=run_of_planes(self.y, first * self.together, last * self.together), reads=tuple(of), constants_at=at)

    def narrowed(self, strip: Strip, main: Rows, made: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=main.size, out_w=made.size)

    def job(self, given: EmitInputs) -> TypedJob:
        assert isinstance(given.tiling, VectorTiling)
        return TypedJob(
            **self.common(given),
            width=self.out_w,
            together=self.together,
            blocks=self.blocks,
            tile_planes=self.planes_of_tile(given.tiling),
            consts=first_of(given.constants),
            consts_at=self.constants_at if streamed(given) else -1,
            const_blocks=self.constants,
            by_channel=int(self.by_channel),
            result=self.result,
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.steps, self.inputs]

    def fetches(self, given: EmitInputs) -> list[Fetch]:
        if streamed(given) or not self.constants:
            return []
        return [Fetch(Memory.UB, self.constants_at, first_of(given.constants), self.constant_blocks(self.y.planes))]
