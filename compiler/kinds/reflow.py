"""Pixels in another order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class ReflowSpec(KernelSpec):
    """before: pixels of zeros in front of the first one."""

    before: int

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        return super().signature(storages) | {"before": self.before}
