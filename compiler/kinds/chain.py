"""Chains of element-wise steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class VectorSpec(KernelSpec):
    """steps: int64 [s, 6] of (opcode, immediate bits, buffer of the other operand (-1: none, -2: v itself), scale blocks or -1, shift
    blocks or -1, 1 where v and the other change places).  VCOPY with a buffer takes v from there; with places changed it keeps v there.

    pixels: which inputs are one pixel of every channel.
    Buffers of a tile: the inputs, v where `keeps_input` (else it is the first input), and what is put aside.
    """

    steps: NDArray[np.int64]
    pixels: tuple[bool, ...]

    @property
    def keeps_input(self) -> bool:
        """Whether a later step reads the first input again, so that v needs a buffer of its own."""
        return bool((self.steps[:, 2] == 0).any())

    @property
    def buffers(self) -> int:
        """Tiles in UB that the chain works on."""
        return max(len(self.reads) + self.keeps_input, int(self.steps[:, 2].max(initial=-1)) + 1)

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        steps = [[int(s[0]), int(s[2]), int(s[5])] for s in self.steps]
        return super().signature(storages) | {"steps": steps, "pixels": self.pixels}
