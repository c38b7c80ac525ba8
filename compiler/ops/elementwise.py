"""Chains of element-wise float steps on VECTOR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from compiler.ir.operators import Floats, Vector
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, block_of_channels
from compiler.ops.tile_program import Extent, ProgramSpec, ProgramWriter, TileProgram
from compiler.ops.tile_program_emitter import BESIDE, FLAT, PLANES
from compiler.plan.plan import Infeasible
from compiler.target.target_op import EmitInputs, Strip
from compiler.target.weights import pack_lanes
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import BLOCK_BYTES, DataType

_VMADD = int(Op.VMADD)
_STEP_OPS = {
    "relu": Op.VRELU, "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "reciprocal": Op.VRECIPROCAL, "square": Op.VMUL,
    "adds": Op.VADDS, "muls": Op.VMULS, "maxs": Op.VMAXS, "mins": Op.VMINS, "scale_shift": Op.VMADD,
    "multiply_add": Op.VMADD,
    "add": Op.VADD, "sub": Op.VSUB, "mul": Op.VMUL, "div": Op.VDIV, "max": Op.VMAX, "min": Op.VMIN,
    "rsub": Op.VSUB, "rdiv": Op.VDIV,
}  # fmt: skip
_SWAPPED = ("rsub", "rdiv")


@dataclass(frozen=True, eq=False)
class VectorSpec(ProgramSpec):
    """A chain of steps.  Operands and results are buffers of a tile: first the inputs, then one buffer per live intermediate value."""

    word: ClassVar[str] = "chain"

    @classmethod
    def lower(cls, index: int, op: Vector, lowering: Lowering) -> Self:
        return cls(**lowering.fields(index, op), program=_program(op, lowering))

    def described(self) -> dict[str, object]:
        """Description.  steps: per step opcode, left operand, right operand, result, and whether one block of constants serves all planes.
        If any step has a third operand, every row ends with a third operand."""
        steps, places = self.program.steps, self.program.places
        operands = np.where((steps[:, 5:7] >= 0) & (places[steps[:, 5:7], 0] == 0), steps[:, 5:7], -1)
        alike = (steps[:, 1] == _VMADD) & (steps[:, 0] == FLAT)
        columns = [steps[:, 1], steps[:, 4], operands[:, 0], steps[:, 3], alike, *([operands[:, 1]] if (operands[:, 1] >= 0).any() else [])]
        return {"steps": np.stack(columns, 1).tolist(), "pixels": self.pixels_only, "result": self.program.result}

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        names = {begin_plane + begin: ("p",) if of_plane else () for _, begin_plane, begin, _, of_plane in self.program.constants.tolist()}
        return tuple((f"{('scale', 'shift')[number % 2]}{number // 2}", loops) for number, loops in names.items())

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return block_of_channels(self, dtype)

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=self.in_w if self.pixels_only[0] else in_columns.size, out_w=out_columns.size)

    def row_blocks(self, inputs: EmitInputs) -> int:
        """Blocks of a row of the result.  Whole rows have the width of the storage."""
        return inputs.storages[self.y.storage].row_blocks if self.strip is None else self.out_w


def _program(op: Vector, lowering: Lowering) -> TileProgram:
    """Program of a chain.

    Values are numbered in the order of computation, inputs first.
    The steps `keep` and `take` only rename values and move nothing.
    A result takes the buffer of an operand at its last use, or a new buffer (linear scan, Poletto and Sarkar 1999).
    """
    shapes, dtype = lowering.layout.graph.shapes, lowering.type_of(op.y)
    pixels = [shapes[name] != shapes[op.y] for name in op.inputs]
    steps = op.guarded([lowering.layout.padding[name] for name in op.inputs], dtype.storage.type)
    operations: list[
        tuple[Op, int, int, int, int, int, int, int]
    ] = []  # opcode, immediate bits, left value, right value, scale, shift, alike, summand
    aside: dict[int, int] = {}
    inputs = len(op.inputs)
    current = 0
    for i, step in enumerate(steps):
        if step.op == "keep":
            aside[step.register] = current
            continue
        operand = current if step.op == "square" else aside[step.register] if step.register >= 0 else step.operand
        if step.op == "take":
            current = operand
            continue
        constants = (-1, -1, 0)
        if step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            channels = lowering.channels(op.y)
            values = np.broadcast_to(step.scale, channels), np.broadcast_to(step.shift, channels)
            constants = _packed(op, str(i), values, step.of_padding, lowering)
        elif step.op == "multiply_add":  # values kept in registers replace the constants
            value = np.full(lowering.channels(op.y), step.value, np.float32)
            constants = (
                _packed(op, str(i), (value, value), (step.value, step.value), lowering)
                if min(step.register, step.added) < 0
                else (-1, -1, 1)
            )
        left_value, right_value = (operand, current) if step.op in _SWAPPED else (current, operand)
        operations.append((_STEP_OPS[step.op], float_bits(step.value), left_value, right_value, *constants, aside.get(step.added, -1)))
        current = inputs + len(operations) - 1
    # a value is alive until its last reader; results take the first buffer without an alive value
    last = {value: position for position, row in enumerate(operations) for value in (row[2], row[3], row[7])} | {current: len(operations)}
    buffers = list(range(inputs))  # buffer of every value
    for position, (_, _, left_value, *_) in enumerate(operations):
        alive = {buffers[value] for value in range(len(buffers)) if last.get(value, -1) > position}
        choices = {buffers[left_value]: None} | dict.fromkeys(range(inputs + len(operations)))  # in place if possible
        buffers.append(next(buffer for buffer in choices if buffer not in alive and not (buffer < inputs and pixels[buffer])))
    writer = ProgramWriter()
    for buffer in range(max(buffers) + 1):
        pixel = buffer < inputs and pixels[buffer]
        writer.buffer(Extent(tile=1), Extent(plane=1) if pixel else None, dtype if buffer < inputs else None)
    # blocks [2 * step + (0 for scale, 1 for shift)] of constants, per plane unless every constant is equal in all planes
    by_plane = any(scale >= 0 and not alike for *_, scale, _, alike, _ in operations)
    for position, (opcode, bits, left_value, right_value, *addresses, alike, summand) in enumerate(operations):
        operands = [buffers[value] if value >= 0 else -1 for value in (right_value, summand)]
        for side, address in enumerate(addresses):
            if address >= 0:
                begin = Extent(plane=2 * position + side) if by_plane else Extent(alike=2 * position + side)
                writer.fetch(address, Extent(alike=1) if alike else Extent(plane=1), begin)
                place = writer.constant(begin, 1 - alike)
                operands[side] = place if operands[side] < 0 else operands[side]
        fused, right = opcode == Op.VMADD, operands[0]
        mode = PLANES if fused and not alike else BESIDE if not fused and 0 <= right < inputs and pixels[right] else FLAT
        writer.step(mode, opcode, dtype, buffers[inputs + position], buffers[left_value], *operands, imm=0 if fused else bits)
    blocks = 2 * len(operations) if any(scale >= 0 for *_, scale, _, _, _ in operations) else 0
    return writer.program(buffers[current], Extent(plane=blocks) if by_plane else Extent(alike=blocks))


def _packed(op: Vector, name: str, values: tuple[Floats, Floats], padding: tuple[float, float], lowering: Lowering) -> tuple[int, int, int]:
    """Constants of a multiply-add: (DDR block of scales, DDR block of shifts, 1 if all planes share one block of each)."""
    placement, dtype = lowering.layout.placements[op.y], lowering.type_of(op.y)
    packed = [
        pack_lanes(value, placement, dtype, padding=fill).reshape(-1, BLOCK_BYTES) for value, fill in zip(values, padding, strict=True)
    ]
    alike = all((blocks == blocks[0]).all() for blocks in packed)
    scale, shift = (
        lowering.constants.add(f"{op.name}/{role}{name}", blocks[0] if alike else blocks.reshape(-1))
        for role, blocks in zip(("scale", "shift"), packed, strict=True)
    )
    return scale, shift, int(alike)
