"""Chains of element-wise steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import GUARD, Vector
from compiler.ir.region import Rows
from compiler.kinds.base import Lowering, OnVector, VectorTiles, VectorWork, first_of, streamed
from compiler.kinds.chain_emitter import VectorJob
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.records.elementwise import by_planes
from compiler.records.ways import apart, end_to_end
from compiler.unit.operators import Fetch, Given, Strip
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import DataType, Memory

_VCOPY, _VMADD = int(Op.VCOPY), int(Op.VMADD)
ITSELF = -2  # the operand of a square
_STEP_OPS = {
    "relu": Op.VRELU, "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "reciprocal": Op.VRECIPROCAL, "square": Op.VMUL,
    "adds": Op.VADDS, "muls": Op.VMULS, "maxs": Op.VMAXS, "mins": Op.VMINS, "scale_shift": Op.VMADD,
    "add": Op.VADD, "sub": Op.VSUB, "mul": Op.VMUL, "div": Op.VDIV, "max": Op.VMAX, "min": Op.VMIN,
    "rsub": Op.VSUB, "rdiv": Op.VDIV, "keep": Op.VCOPY, "take": Op.VCOPY,
}  # fmt: skip
_SWAPPED = ("rsub", "rdiv", "keep")


@dataclass(frozen=True, eq=False)
class VectorSpec(OnVector):
    """steps: int64 [s, 6] of (opcode, immediate bits, buffer of the other operand (-1: none, -2: v itself), scale blocks or -1, shift
    blocks or -1, 1 where v and the other change places).  VCOPY with a buffer takes v from there; with places changed it keeps v there.

    pixels: which inputs are one pixel of every channel.
    Buffers of a tile: the inputs, v where `keeps_input` (else it is the first input), and what is put aside.
    """

    word: ClassVar[str] = "chain"

    steps: NDArray[np.int64]
    pixels: tuple[bool, ...]

    @classmethod
    def lower(cls, index: int, op: Vector, into: Lowering) -> Self:
        shapes = into.layout.graph.shapes
        return cls(**into.fields(index, op), steps=_steps(op, into), pixels=tuple(shapes[name] != shapes[op.y] for name in op.inputs))

    @property
    def keeps_input(self) -> bool:
        """Whether a later step reads the first input again, so that v needs a buffer of its own."""
        return bool((self.steps[:, 2] == 0).any())

    @property
    def buffers(self) -> int:
        """Tiles in UB that the chain works on."""
        return max(len(self.reads) + self.keeps_input, int(self.steps[:, 2].max(initial=-1)) + 1)

    def described(self) -> dict[str, object]:
        steps = [[int(s[0]), int(s[2]), int(s[5])] for s in self.steps]
        return {"steps": steps, "pixels": self.pixels}

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        return self.pixels

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return self.buffers * planes * rows * columns

    def constant_blocks(self, planes: int) -> int:
        return 2 * len(self.steps) * planes if (self.steps[:, 3] >= 0).any() else 0

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    @property
    def steps_of_tile(self) -> int:
        return len(self.steps) + self.keeps_input

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        scaled = [i for i, step in enumerate(self.steps) if step[3] >= 0]
        return tuple((f"{what}{i}", ("p",)) for i in scaled for what in ("scale", "shift"))

    def work(self, tiles: VectorTiles) -> VectorWork:
        # a pixel of every plane comes with each tile
        one = float(sum([planes * count for planes, *_, count in tiles.made]) * tiles.images)
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.made:
            steps, instructions = _repeats(self, planes, tall * wide)
            repeats += count * tiles.images * sum([tiles.cycles[op] * each for op, each in steps])
            calls += count * tiles.images * instructions
        return VectorWork(repeats, calls, [one if pixel else tiles.size for pixel in self.pixels])

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        if part is None:
            return None
        steps = self.steps.copy()
        steps[:, 3:5] += first * (steps[:, 3:5] >= 0)
        return replace(part, steps=steps)

    def narrowed(self, strip: Strip, main: Rows, made: Rows) -> Self | Infeasible:
        return replace(self, strip=strip, in_w=self.in_w if self.pixels[0] else main.size, out_w=made.size)

    def job(self, given: Given) -> VectorJob:
        assert isinstance(given.tiling, VectorTiling)
        common = self.common(given)
        # whole rows are as wide as their storage
        width = given.storages[self.y.storage].row_blocks if self.strip is None else self.out_w
        common["tile_columns"] = min(common["tile_columns"], width)
        return VectorJob(
            **common,
            width=width,
            tile_planes=self.planes_of_tile(given.tiling),
            consts=first_of(given.constants),
            fetches=int(streamed(given)),
            keeps_input=int(self.keeps_input),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.steps]

    def fetches(self, given: Given) -> list[Fetch]:
        if streamed(given):
            return []
        planes, at = self.y.planes, first_of(given.constants)
        found = ((2 * i + j, int(step[3 + j])) for i, step in enumerate(self.steps) for j in (0, 1))
        return [Fetch(Memory.UB, source, at + offset * planes, planes) for offset, source in found if source >= 0]


@lru_cache(maxsize=1 << 14)
def _repeats(spec: VectorSpec, planes: int, pixels: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Of a tile of so many planes by pixels: (opcode, repeats) of every step, and instructions in all."""
    found = [(_VCOPY, *end_to_end(planes * pixels, 1))] if spec.keeps_input else []
    for op, _, operand, *_ in spec.steps.tolist():
        pixel = 0 <= operand < len(spec.pixels) and spec.pixels[operand]
        if not pixel and (op != _VMADD):
            found.append((op, *end_to_end(planes * pixels, 1)))
        elif pixel or by_planes(planes, pixels):
            found.append((op, *end_to_end(pixels, planes)))
        else:
            found.append((op, *apart(planes, pixels, 1)))
    return tuple([(op, repeats) for op, repeats, _ in found]), sum([calls for _, _, calls in found])


def _steps(op: Vector, into: Lowering) -> NDArray[np.int64]:
    steps, guard = op.guarded([into.padding[name] for name in op.inputs], into.type_of(op.y).storage.type)
    aside = len(op.inputs) + any(step.operand == 0 for step in steps)
    rows = []
    if guard:
        one = np.ones(into.channels(op.y), np.float32)
        scale = into.pack(f"{op.name}/guard_scale", one, op.y)
        shift = into.pack(f"{op.name}/guard_shift", 0 * one, op.y, GUARD)
        rows.append((int(Op.VMADD), 0, -1, scale, shift, 0))
    for i, step in enumerate(steps):
        scale = shift = -1
        if step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            scale = into.pack(f"{op.name}/scale{i}", step.scale, op.y)
            shift = into.pack(f"{op.name}/shift{i}", step.shift, op.y)
        other = ITSELF if step.op == "square" else step.operand if step.kept < 0 else aside + step.kept
        rows.append((int(_STEP_OPS[step.op]), float_bits(step.value), other, scale, shift, int(step.op in _SWAPPED)))
    return np.array(rows, np.int64).reshape(len(rows), 6)
