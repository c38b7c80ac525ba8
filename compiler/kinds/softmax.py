"""Softmax over the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class SoftmaxSpec(KernelSpec):
    """masks_at: DDR blocks [planes], 0 in lanes that are channels and very negative in gaps; gaps: planes that have any."""

    groups: int
    masks_at: int
    gaps: tuple[int, ...]

    @property
    def group_planes(self) -> int:
        return self.y.planes // self.groups

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        return super().signature(storages) | {"groups": self.groups, "gaps": list(self.gaps)}
