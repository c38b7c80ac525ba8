"""Poolings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from compiler.ir.graph import Pool
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec

ROWS, COLUMNS, BOTH = 1, 2, 3  # of `PoolSpec.passes`


@dataclass(frozen=True, eq=False)
class PoolSpec(KernelSpec):
    """counts_at: DDR blocks [out_h][out_w] of 1 / number of elements, or -1 where one factor serves every pixel.

    counts_pitch: blocks from row to row of them, which a strip has only a part of.
    """

    counts_at: int
    counts_pitch: int

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every window is whole rows of the image, one beside the other."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        return self.out_w == 1 and kernel.kernel[1] - kernel.pads[1] >= self.in_w and (self.out_h == 1 or self.in_w > 1)

    @cached_property
    def passes(self) -> int:
        """What the windows slide along, each in a pass over a tile: ROWS, COLUMNS or BOTH."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        still = [(kernel.kernel[i], kernel.stride[i], kernel.pads[i], kernel.pads[i + 2]) == (1, 1, 0, 0) for i in range(2)]
        return COLUMNS if still[0] and not still[1] else ROWS if still[1] else BOTH

    @property
    def operations(self) -> tuple[int, int]:
        """Of the pass over rows and of that over columns, where windows slide."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        high, wide = kernel.kernel
        return max(1, high - 1) * bool(self.passes & ROWS), max(1, wide - 1) * bool(self.passes & COLUMNS)

    @cached_property
    def inside(self) -> tuple[float, float]:
        """Which part of what windows cover, along rows and along columns, lies inside the image."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        found = []
        for axis, (results, length) in enumerate(((self.out_h, self.in_h), (self.out_w, self.in_w))):
            at = np.arange(results)[:, None] * kernel.stride[axis] + np.arange(kernel.kernel[axis]) - kernel.pads[axis]
            found.append(float(((at >= 0) & (at < length)).mean()))
        return found[0], found[1]

    def wide(self, columns: int) -> int:
        """Columns of the image that the windows of a tile cover: of all columns, whole rows."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        return self.in_w if columns >= self.out_w else min(self.in_w, (columns - 1) * kernel.stride[1] + kernel.kernel[1])

    def slot_blocks(self, rows: int, columns: int) -> int:
        """Blocks of UB for a tile of one plane: what its windows cover and the results; or, with two passes, what the first one makes."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        high = (rows - 1) * kernel.stride[0] + kernel.kernel[0]
        wide = self.wide(columns)
        if self.passes != BOTH or self.whole_rows:
            return high * wide + rows * columns
        return (high + rows) * max(wide, columns)

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        return super().signature(storages) | {"window": [*kernel.kernel, *kernel.stride, *kernel.pads], "mode": kernel.mode}
