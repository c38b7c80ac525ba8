"""Images in another size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Resample
from compiler.ir.taps import input_columns, input_rows
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import StorageSpec


@dataclass(frozen=True, eq=False)
class ResampleSpec(KernelSpec):
    """Columns first, then rows.

    columns, rows: `Taps.runs`, empty where every place stays; bounds: int64 [out_h, 2], `Taps.bounds` of the rows.
    """

    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def weighted(self) -> bool:
        """Whether a place is the sum of several, so that products need a place of their own."""
        return bool(self.columns[:, 6].any() or self.rows[:, 6].any())

    @lru_cache(maxsize=256)  # noqa: B019  a spec lives as long as its unit
    def input_rows(self, rows: int) -> int:
        """The most rows of input that `rows` neighbouring rows of output come from."""
        return int(input_rows(self.bounds, rows))

    @lru_cache(maxsize=256)  # noqa: B019
    def input_columns(self, columns: int) -> int:
        """The most columns of input that a tile of so many columns of output comes from."""
        if columns >= self.out_w:
            return self.in_w
        return int(input_columns(self.columns, columns, self.out_w)) if len(self.columns) else columns

    def slot_blocks(self, planes: int, rows: int, columns: int) -> int:
        """Blocks of UB for a tile: input, columns done, rows done, products."""
        middle = self.input_rows(rows) * columns if len(self.columns) else 0
        last = rows * columns if len(self.rows) or not len(self.columns) else 0
        return planes * (self.input_rows(rows) * self.input_columns(columns) + middle + last + (max(middle, last) if self.weighted else 0))

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        kernel = self.kernel
        assert isinstance(kernel, Resample)
        return super().signature(storages) | {"columns": self.columns.tolist(), "rows": self.rows.tolist(), "fill": kernel.fill}
