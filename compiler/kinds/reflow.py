"""Pixels in another order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from compiler.ir.operators import Reflow
from compiler.kinds.base import Lowering, OnVector
from compiler.kinds.reflow_emitter import ReflowJob
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import Given
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class ReflowSpec(OnVector):
    """before: pixels of zeros in front of the first one."""

    before: int

    @classmethod
    def lower(cls, index: int, op: Reflow, into: Lowering) -> Self:
        return cls(**into.fields(index, op), before=op.before)

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        return super().signature(storages) | {"before": self.before}

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
