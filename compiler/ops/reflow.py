"""Reflow on VECTOR: the pixels of an image in rows of another length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from compiler.ir.operators import Reflow
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork
from compiler.ops.reflow_emitter import ReflowJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs
from simulator.npu.isa import Op, float_bits


@dataclass(frozen=True, eq=False)
class ReflowSpec(OnVector):
    """A reflow.  before: number of filled pixels in front of the first input pixel.  fill: value of filled pixels."""

    word: ClassVar[str] = "reflow"

    before: int
    fill: float

    @classmethod
    def lower(cls, index: int, op: Reflow, lowering: Lowering) -> Self:
        return cls(**lowering.fields(index, op), before=op.before, fill=op.fill)

    def described(self) -> dict[str, object]:
        return {"before": self.before}

    def work(self, tiles: VectorTiles) -> VectorWork:
        """Work of all tiles.  Moves load the pixels.  VECTOR fills pixels before and after them; a tile of fill only is one instruction."""
        total = self.out_h * self.out_w
        moved = min(self.in_h * self.in_w, total - self.before)
        image_count = tiles.images * tiles.rows / self.out_h  # number of images that these tiles amount to
        planes, size = self.planes_of_tile(tiles.tiling), tiles.tiling.tile_rows * min(tiles.tiling.tile_columns or self.out_w, self.out_w)
        groups = self.y.planes / planes
        repeats = calls = 0.0
        for zeros in (self.before, total - self.before - moved):
            empty, remaining = divmod(zeros, size)
            repeats += image_count * groups * (empty * -(-planes * size // 8) + planes * -(-remaining // 8))
            calls += image_count * groups * (empty + planes * (remaining > 0))
        return VectorWork(repeats * tiles.cycles[Op.VFILL], calls, [image_count * self.y.planes * moved])

    @property
    def strip_refusal(self) -> str:
        return "pixels that take another order have no columns of their own: strips have"

    def job(self, inputs: EmitInputs) -> ReflowJob:
        assert isinstance(inputs.tiling, VectorTiling)
        return ReflowJob(
            **self.common(inputs),
            before=self.before,
            pixels=self.in_h * self.in_w,
            fill=float_bits(self.fill),
        )
