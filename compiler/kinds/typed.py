"""Element-wise operators on integers, and between integers and floats, in the order of operations of `ir.quantised`.

What is computed is computed in float32.  A value is rounded to an integer by adding 1.5 * 2^23, which leaves no room for fractions, and
taking it away again: VCONVERT rounds as well, but a zero point is added to what is rounded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Dequantise, LookUp, Operator, Quantise, QuantisedPair
from compiler.ir.quantised.elementwise import add_factors
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.tables import every_integer, requantized
from compiler.ir.region import Rows
from compiler.kinds.base import Lowering, OnVector, VectorTiles, VectorWork, first_of, run_of_planes, streamed
from compiler.kinds.typed_emitter import CONVERT, FLAT, GATHER, SPREAD, WIDE, TypedJob
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.records.ways import end_to_end
from compiler.unit.operators import Fetch, Given, Strip
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

_ROUNDER = 1.5 * 2**23
_MOST = 2.0**31  # of a value that is rounded
_F32 = DataType.float32
_Bytes = NDArray[np.uint8]


class TypedSteps(NamedTuple):
    """buffers: blocks of each buffer for a block of bytes.  rows: see `TypedSpec`.  constants: one after the other, whole blocks."""

    buffers: tuple[int, ...]
    rows: list[tuple[int, ...]]
    constants: _Bytes
    result: int


def _planes(dtype: DataType) -> int:
    """Planes of a type that have the channels of a plane of bytes."""
    return WIDE * dtype.size_bytes // _F32.size_bytes


class _Writer:
    """Steps of an operator; buffers by number, in the order in which they are asked for."""

    def __init__(self, takes: Sequence[DataType], gives: DataType) -> None:
        self.takes, self.gives = takes, gives
        self.buffers, self.rows, self.constants = list[int](), list[tuple[int, ...]](), list[_Bytes]()
        self.inputs = [self.buffer(_planes(dtype)) for dtype in takes]

    def buffer(self, blocks: int) -> int:
        """Where a new one begins, in blocks for a block of bytes."""
        self.buffers.append(blocks)
        return sum(self.buffers) - blocks

    def constant(self, values: NDArray[Any]) -> int:
        """A value for every lane of a block, or a table: as an operand."""
        at = sum(map(len, self.constants)) // BLOCK_BYTES
        self.constants.append(np.ascontiguousarray(values).view(np.uint8).reshape(-1))
        return -2 - at

    def all_lanes(self, value: np.float32) -> int:
        return self.constant(np.full(_F32.lanes, value))

    def flat(self, op: Op, d: int, s: int, value: float = 0.0, s1: int = -1, s2: int = -1) -> None:
        self.rows.append((FLAT, int(op), int(_F32), d, s, s1, s2, float_bits(value), WIDE, WIDE))

    def floats(self, i: int) -> int:
        """Input i as float32; a buffer of its own."""
        dtype, s, d = self.takes[i], self.inputs[i], self.buffer(WIDE)
        if dtype.is_float:
            op = Op.VCOPY if dtype == _F32 else Op.VCONVERT
            self.rows.append((SPREAD, int(op), int(_F32), d, s, -1, -1, int(dtype) if op == Op.VCONVERT else 0, WIDE, _planes(dtype)))
        else:
            self.rows.append((CONVERT, int(Op.VCONVERT), int(_F32), d, s, -1, -1, int(dtype), WIDE, 1))
        return d

    def integers(self, v: int) -> TypedSteps:
        """v, which is whole numbers, as the result."""
        y = self.inputs[0] if not self.takes[0].is_float else self.buffer(1)
        self.rows.append((CONVERT, int(Op.VCONVERT), int(self.gives), y, v, -1, -1, int(_F32), 1, WIDE))
        return self.done(y)

    def done(self, y: int) -> TypedSteps:
        constants = np.concatenate(self.constants) if self.constants else np.zeros(0, np.uint8)
        return TypedSteps(tuple(self.buffers), self.rows, constants, y)

    def clamped(self, v: int, q: Quantisation) -> TypedSteps:
        """As `ir.quantised.rounding.clamped`."""
        _, zero = q.single("y")
        least, greatest = q.limits
        self.flat(Op.VMAXS, v, v, least - zero)
        self.flat(Op.VMINS, v, v, greatest - zero)
        self.flat(Op.VADDS, v, v, _ROUNDER)
        self.flat(Op.VADDS, v, v, zero - _ROUNDER)
        return self.integers(v)


def _quantised(op: Quantise, w: _Writer) -> TypedSteps:
    v = w.floats(0)
    w.flat(Op.VDIV, v, v, s1=w.all_lanes(op.y_q.single(op.name)[0]))
    return w.clamped(v, op.y_q)


def _dequantised(op: Dequantise, w: _Writer) -> TypedSteps:
    scale, zero = op.x_q.single(op.name)
    v = w.floats(0)
    w.flat(Op.VADDS, v, v, -zero)
    w.flat(Op.VMULS, v, v, float(scale))
    each = _planes(w.gives)
    y, same = w.buffer(each), w.gives == _F32
    w.rows.append((GATHER, int(Op.VCOPY if same else Op.VCONVERT), int(w.gives), y, v, -1, -1, 0 if same else int(_F32), each, WIDE))
    return w.done(y)


def _looked_up(op: LookUp, machine: Machine, w: _Writer) -> TypedSteps:
    """By VLUT, which counts bytes from 0 on: of int8 the negative ones come last.  Without it another scale takes vector code."""
    (scale, zero), (y_scale, _) = op.x_q.single(op.name), op.y_q.single(op.name)
    if machine.vector.lookup_cycles is not None:
        at, entries = w.inputs[0], op.entries.view(np.uint8)
        s1 = w.constant(np.roll(entries, len(entries) // 2) if w.takes[0] == DataType.int8 else entries)
        w.rows.append((FLAT, int(Op.VLUT), int(w.gives), at, at, s1, -1, 0, 1, 1))
        return w.done(at)
    if not np.array_equal(op.entries, requantized(every_integer(op.x_q), op.x_q, op.y_q)):
        raise UnsupportedError(f"operator {op.name!r}: a table; machine {machine.name} has no look-up (vector.lookup_cycles)")
    v = w.floats(0)
    w.flat(Op.VADDS, v, v, -zero)
    w.flat(Op.VMULS, v, v, float(scale))
    w.flat(Op.VDIV, v, v, s1=w.all_lanes(y_scale))
    return w.clamped(v, op.y_q)


def _pair(op: QuantisedPair, w: _Writer) -> TypedSteps:
    """As `ir.quantised.elementwise` has it."""
    (sa, za), (sb, zb), (sy, zy) = (q.single(op.name) for q in (op.a_q, op.b_q, op.y_q))
    ra, rb, fixed = add_factors(op.a_q, op.b_q, op.y_q)
    scale = sa * sb / sy
    most = 255 * (float(ra) + float(rb)) + abs(float(fixed)) if op.mode == "add" else 255 * 255 * float(scale) + abs(zy)
    if most >= _MOST:
        raise UnsupportedError(f"operator {op.name!r}: values of up to {most:.3g} times its scale; below {_MOST:.3g} is supported")
    a, b = w.floats(0), w.floats(1)
    if op.mode == "add":
        w.flat(Op.VMADD, b, b, s1=w.all_lanes(rb), s2=w.all_lanes(fixed))
        w.flat(Op.VMADD, a, a, s1=w.all_lanes(ra), s2=b)
        return w.integers(a)
    w.flat(Op.VADDS, a, a, -za)
    w.flat(Op.VADDS, b, b, -zb)
    w.flat(Op.VMUL, a, a, s1=b)
    w.flat(Op.VMULS, a, a, float(scale))
    w.flat(Op.VADDS, a, a, zy)
    return w.integers(a)


def _steps(op: Operator, machine: Machine, w: _Writer) -> TypedSteps:
    """Raises `UnsupportedError`."""
    if isinstance(op, Quantise):
        return _quantised(op, w)
    if isinstance(op, Dequantise):
        return _dequantised(op, w)
    if isinstance(op, LookUp):
        return _looked_up(op, machine, w)
    assert isinstance(op, QuantisedPair)
    return _pair(op, w)


@dataclass(frozen=True, eq=False)
class TypedSpec(OnVector):
    """steps: int64 [s, 10] of (mode, opcode, data type, buffers of the result and of the first operand, second and third operand, immediate
    bits, blocks of the result and of the first operand for a block of bytes).  A buffer is named by where it begins, in blocks for a
    block of bytes; -2 - i: block i of the constants, -1: no operand.

    inputs: int64 [inputs, 3] of (buffer, planes for a plane of bytes, data type).  blocks: of all buffers, for a block of bytes.
    result: the buffer that is stored.  together: planes of the result for a plane of bytes.
    """

    word: ClassVar[str] = "typed"

    steps: NDArray[np.int64]
    inputs: NDArray[np.int64]
    blocks: int
    result: int
    together: int
    constants_at: int
    constants: int

    @classmethod
    def lower(cls, index: int, op: Operator, into: Lowering) -> Self:
        shapes = [into.layout.graph.shapes[name] for name in (*op.inputs, op.y)]
        if len(set(shapes)) > 1:
            raise UnsupportedError(f"operator {op.name!r}: shapes {', '.join(map(str, shapes))}; equal ones are supported")
        takes, gives = [into.type_of(name) for name in op.inputs], into.type_of(op.y)
        w = _Writer(takes, gives)
        made = _steps(op, into.machine, w)
        inputs = [(at, _planes(dtype), int(dtype)) for at, dtype in zip(w.inputs, takes, strict=True)]
        return cls(
            **into.fields(index, op),
            steps=np.array(made.rows, np.int64),
            inputs=np.array(inputs, np.int64),
            blocks=sum(made.buffers),
            result=made.result,
            together=_planes(gives),
            constants_at=into.constants.add(f"{op.name}/constants", made.constants) if len(made.constants) else -1,
            constants=len(made.constants) // BLOCK_BYTES,
        )

    def described(self) -> dict[str, object]:
        return {"steps": self.steps[:, [0, 1, 2, 8, 9]].tolist()}

    @property
    def planes_together(self) -> int:
        return self.together

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Those of whole planes of bytes."""
        return min(self.y.planes, max(self.together, tiling.tile_planes // self.together * self.together))

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return self.blocks * -(-planes // self.together) * rows * columns

    def constant_blocks(self, planes: int) -> int:
        return self.constants

    def set_aside(self, rows: int) -> int:
        return self.constants

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
            for mode, op, *_, d_factor, s_factor in self.steps.tolist():
                if mode == FLAT:
                    each, instructions = end_to_end(deep * size * d_factor, 1)
                elif mode == CONVERT:
                    each, instructions = end_to_end(deep * size, 1)
                    each *= 2  # four blocks beside each block
                else:
                    each, instructions = end_to_end(size, deep * (s_factor if mode == SPREAD else d_factor))
                repeats += count * tiles.images * each * tiles.cycles[op]
                calls += count * tiles.images * instructions
        return VectorWork(repeats, calls, [tiles.size * planes / self.together for planes in self.inputs[:, 1].tolist()])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.together

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        first, last = first // self.together, last // self.together
        of = [run_of_planes(read, first * each, last * each) for read, each in zip(self.reads, self.inputs[:, 1].tolist(), strict=True)]
        return replace(self, y=run_of_planes(self.y, first * self.together, last * self.together), reads=tuple(of))

    def narrowed(self, strip: Strip, main: Rows, made: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=main.size, out_w=made.size)

    def job(self, given: Given) -> TypedJob:
        assert isinstance(given.tiling, VectorTiling)
        return TypedJob(
            **self.common(given),
            width=self.out_w,
            together=self.together,
            tile_planes=self.planes_of_tile(given.tiling),
            consts=first_of(given.constants),
            consts_at=self.constants_at if streamed(given) else -1,
            const_blocks=self.constants,
            result=self.result,
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.steps, self.inputs]

    def fetches(self, given: Given) -> list[Fetch]:
        if streamed(given) or not self.constants:
            return []
        return [Fetch(Memory.UB, self.constants_at, first_of(given.constants), self.constants)]
