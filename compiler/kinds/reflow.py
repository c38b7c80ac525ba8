"""Pixels in another order of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from compiler.ir.operators import Reflow
from compiler.kinds.base import Lowering, OnVector
from compiler.kinds.reflow_emitter import ReflowJob
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import Given


@dataclass(frozen=True, eq=False)
class ReflowSpec(OnVector):
    """before: pixels of zeros in front of the first one."""

    word: ClassVar[str] = "reflow"

    before: int

    @classmethod
    def lower(cls, index: int, op: Reflow, into: Lowering) -> Self:
        return cls(**into.fields(index, op), before=op.before)

    def described(self) -> dict[str, object]:
        return {"before": self.before}

    @property
    def strip_refusal(self) -> str:
        return "pixels that take another order have no columns of their own: strips have"

    def job(self, given: Given) -> ReflowJob:
        assert isinstance(given.tiling, VectorTiling)
        return ReflowJob(
            **self.common(given),
            width=self.out_w,
            before=self.before,
            pixels=self.in_h * self.in_w,
            tile_planes=self.planes_of_tile(given.tiling),
        )
