"""Normalisation over the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class LayerNormSpec(KernelSpec):
    """constants_at: DDR blocks [3][planes] of scale, shift, and 1 in lanes that are channels; gaps: planes that have lanes that are not."""

    channels: int
    epsilon: float
    constants_at: int
    gaps: tuple[int, ...]

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        return super().signature(storages) | {"channels": self.channels, "gaps": list(self.gaps)}
