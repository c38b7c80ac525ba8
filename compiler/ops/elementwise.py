"""Chains of element-wise float steps on VECTOR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.repeats import by_planes, repeats_across, repeats_along
from compiler.ir.operators import Floats, Vector
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_or_zero, streams_constants
from compiler.ops.elementwise_emitter import VectorJob
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.target.target_op import EmitInputs, Fetch, Strip
from compiler.target.weights import pack_lanes
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

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
class VectorSpec(OnVector):
    """steps: int64 [s, 9] of (opcode, immediate bits, left operand, right operand or -1, scale blocks or -1, shift blocks or -1, result,
    whether one block of scale and one of shift serve all planes, summand or -1).

    pixels: which inputs are one pixel of every channel.
    Operands and results are buffers of a tile: first the inputs, then as many as values are alive at once.
    `result` is the buffer of the last value.
    """

    word: ClassVar[str] = "chain"

    steps: NDArray[np.int64]
    pixels: tuple[bool, ...]
    result: int

    @classmethod
    def lower(cls, index: int, op: Vector, into: Lowering) -> Self:
        shapes = into.layout.graph.shapes
        pixels = tuple(shapes[name] != shapes[op.y] for name in op.inputs)
        steps, result = _steps(op, pixels, into)
        return cls(**into.fields(index, op), steps=steps, pixels=pixels, result=result)

    @property
    def buffers(self) -> int:
        """Tiles in UB that the chain works on."""
        return max(len(self.reads), int(self.steps[:, 6].max(initial=0)) + 1)

    def described(self) -> dict[str, object]:
        columns = [0, 2, 3, 6, 7, *([8] if (self.steps[:, 8] >= 0).any() else [])]
        return {"steps": self.steps[:, columns].tolist(), "pixels": self.pixels, "result": self.result}

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        return self.pixels

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return self.buffers * planes * rows * columns

    def constant_blocks(self, planes: int) -> int:
        scaled = self.steps[:, 4] >= 0
        return 2 * len(self.steps) * (1 if self.steps[scaled, 7].all() else planes) if scaled.any() else 0

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    @property
    def steps_of_tile(self) -> int:
        return len(self.steps)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        loops = [(i, () if step[7] else ("p",)) for i, step in enumerate(self.steps) if step[4] >= 0]
        return tuple((f"{role}{i}", axes) for i, axes in loops for role in ("scale", "shift"))

    def work(self, tiles: VectorTiles) -> VectorWork:
        # a pixel of every plane comes with each tile
        one = float(sum([planes * count for planes, *_, count in tiles.output_tiles]) * tiles.images)
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.output_tiles:
            steps, instructions = _repeats(self, planes, tall * wide)
            repeats += count * tiles.images * sum([tiles.cycles[op] * step_repeats for op, step_repeats in steps])
            calls += count * tiles.images * instructions
        return VectorWork(repeats, calls, [one if pixel else tiles.size for pixel in self.pixels])

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        if part is None:
            return None
        steps = self.steps.copy()
        steps[:, 4:6] += first * ((steps[:, 4:6] >= 0) & (steps[:, 7:8] == 0))
        return replace(part, steps=steps)

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=self.in_w if self.pixels[0] else in_columns.size, out_w=out_columns.size)

    def job(self, inputs: EmitInputs) -> VectorJob:
        assert isinstance(inputs.tiling, VectorTiling)
        common = self.common(inputs)
        # whole rows are as wide as their storage
        width = inputs.storages[self.y.storage].row_blocks if self.strip is None else self.out_w
        common["tile_columns"] = min(common["tile_columns"], width)
        return VectorJob(
            **common,
            width=width,
            tile_planes=self.planes_of_tile(inputs.tiling),
            consts=first_or_zero(inputs.constants),
            fetches=int(streams_constants(inputs)),
            result=self.result,
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.steps]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        if streams_constants(inputs):
            return []
        base, pitch = first_or_zero(inputs.constants), self.constant_blocks(self.y.planes) // (2 * len(self.steps) or 1)
        constants = ((2 * i + j, step) for i, step in enumerate(self.steps.tolist()) if step[4] >= 0 for j in (0, 1))
        return [
            Fetch(Memory.UB, step[4 + offset % 2], base + offset * pitch, 1 if step[7] else self.y.planes) for offset, step in constants
        ]


@lru_cache(maxsize=1 << 14)
def _repeats(spec: VectorSpec, planes: int, pixels: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """((opcode, repeats) of every step, all instructions) of a tile of planes by pixels."""
    step_costs = []
    for op, _, _, right, _, _, _, alike, _ in spec.steps.tolist():
        pixel = 0 <= right < len(spec.pixels) and spec.pixels[right]
        if not pixel and (op != _VMADD or alike):
            step_costs.append((op, *repeats_along(planes * pixels, 1)))
        elif pixel or by_planes(planes, pixels):
            step_costs.append((op, *repeats_along(pixels, planes)))
        else:
            step_costs.append((op, *repeats_across(planes, pixels, 1)))
    return tuple([(op, repeats) for op, repeats, _ in step_costs]), sum([calls for _, _, calls in step_costs])


def _steps(op: Vector, pixels: tuple[bool, ...], into: Lowering) -> tuple[NDArray[np.int64], int]:
    """(steps, the buffer of the last value), as `VectorSpec` has them.

    Values are numbered as they are made, inputs first.
    To put a value aside and to take it back are names of values, not moves: a result has the buffer of an operand that nobody reads
    again, or a new one (linear scan, Poletto and Sarkar 1999).
    """
    steps = op.guarded([into.layout.padding[name] for name in op.inputs], into.type_of(op.y).storage.type)
    operations: list[tuple[int, ...]] = []  # opcode, immediate bits, left value, right value, scale, shift, alike, summand
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
            channels = into.channels(op.y)
            values = np.broadcast_to(step.scale, channels), np.broadcast_to(step.shift, channels)
            constants = _packed(op, str(i), values, step.of_padding, into)
        elif step.op == "multiply_add":  # of what is put aside no constant is read
            value = np.full(into.channels(op.y), step.value, np.float32)
            constants = (
                _packed(op, str(i), (value, value), (step.value, step.value), into) if min(step.register, step.added) < 0 else (-1, -1, 1)
            )
        left_value, right_value = (operand, current) if step.op in _SWAPPED else (current, operand)
        operations.append((int(_STEP_OPS[step.op]), float_bits(step.value), left_value, right_value, *constants, aside.get(step.added, -1)))
        current = inputs + len(operations) - 1
    # a value is alive until its last reader; results take the first buffer without an alive value
    last = {value: position for position, row in enumerate(operations) for value in (row[2], row[3], row[7])} | {current: len(operations)}
    buffers = list(range(inputs))  # of every value
    rows = []
    for position, (opcode, bits, left_value, right_value, scale, shift, alike, summand) in enumerate(operations):
        alive = {buffers[value] for value in range(len(buffers)) if last.get(value, -1) > position}
        reach = {buffers[left_value]: None} | dict.fromkeys(range(inputs + len(operations)))  # in place where it can be
        buffers.append(next(buffer for buffer in reach if buffer not in alive and not (buffer < inputs and pixels[buffer])))
        operand_buffers = [buffers[value] if value >= 0 else -1 for value in (right_value, summand)]
        rows.append((opcode, bits, buffers[left_value], operand_buffers[0], scale, shift, buffers[-1], alike, operand_buffers[1]))
    return np.array(rows, np.int64).reshape(len(rows), 9), buffers[current]


def _packed(op: Vector, name: str, values: tuple[Floats, Floats], padding: tuple[float, float], into: Lowering) -> tuple[int, int, int]:
    """(scale blocks, shift blocks, whether there is one of each for all planes), of a multiply-add's constants."""
    placement, dtype = into.layout.placements[op.y], into.type_of(op.y)
    packed = [
        pack_lanes(value, placement, dtype, padding=fill).reshape(-1, BLOCK_BYTES) for value, fill in zip(values, padding, strict=True)
    ]
    alike = all((blocks == blocks[0]).all() for blocks in packed)
    scale, shift = (
        into.constants.add(f"{op.name}/{role}{name}", blocks[0] if alike else blocks.reshape(-1))
        for role, blocks in zip(("scale", "shift"), packed, strict=True)
    )
    return scale, shift, int(alike)
