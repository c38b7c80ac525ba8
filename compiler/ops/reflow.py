"""Reflow on VECTOR: pixels of an image in rows of another length."""

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
    """A reflow.  before: filled pixels in front of the first one."""

    word: ClassVar[str] = "reflow"

    before: int
    fill: float

    @classmethod
    def lower(cls, index: int, op: Reflow, into: Lowering) -> Self:
        return cls(**into.fields(index, op), before=op.before, fill=op.fill)

    def described(self) -> dict[str, object]:
        return {"before": self.before}

    def work(self, tiles: VectorTiles) -> VectorWork:
        """Moves bring the pixels; VECTOR fills what is in front of them and behind them, in one piece where a tile has nothing else."""
        total = self.out_h * self.out_w
        moved = min(self.in_h * self.in_w, total - self.before)
        part = tiles.images * tiles.rows / self.out_h  # images, as far as they are made here
        planes, size = self.planes_of_tile(tiles.tiling), tiles.tiling.tile_rows * min(tiles.tiling.tile_columns or self.out_w, self.out_w)
        groups = self.y.planes / planes
        repeats = calls = 0.0
        for zeros in (self.before, total - self.before - moved):
            empty, remaining = divmod(zeros, size)
            repeats += part * groups * (empty * -(-planes * size // 8) + planes * -(-remaining // 8))
            calls += part * groups * (empty + planes * (remaining > 0))
        return VectorWork(repeats * tiles.cycles[Op.VFILL], calls, [part * self.y.planes * moved])

    @property
    def strip_refusal(self) -> str:
        return "pixels that take another order have no columns of their own: strips have"

    def job(self, inputs: EmitInputs) -> ReflowJob:
        assert isinstance(inputs.tiling, VectorTiling)
        return ReflowJob(
            **self.common(inputs),
            width=self.out_w,
            before=self.before,
            pixels=self.in_h * self.in_w,
            fill=float_bits(self.fill),
            tile_planes=self.planes_of_tile(inputs.tiling),
        )
