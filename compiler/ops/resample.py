"""Resampling on VECTOR: resizing of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Resample
from compiler.ir.region import Rows
from compiler.ir.taps import Taps, input_columns, input_rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork
from compiler.ops.resample_emitter import ResampleJob
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.target.target_op import EmitInputs, Strip
from simulator.npu.isa import float_bits
from simulator.npu.parts import DataType

_EMPTY_RUN = np.array([[0, 1, 0, 0, 0, 0, 0]], np.int64)  # a run of length 0


@dataclass(frozen=True, eq=False)
class ResampleSpec(OnVector):
    """A resampling, first of columns and then of rows.

    columns, rows: int64 [runs, 7], `Taps.runs`; no runs for the identity.  bounds: int64 [out_h, 2], `Taps.bounds` of the rows.
    """

    word: ClassVar[str] = "resample"

    operator: Resample
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @classmethod
    def lower(cls, index: int, op: Resample, lowering: Lowering) -> Self:
        fields = lowering.fields(index, op)
        axes = (op.columns, fields["in_w"]), (op.rows, fields["in_h"])
        columns, rows = (np.zeros((0, 7), np.int64) if taps.is_identity(size) else taps.runs for taps, size in axes)
        return cls(**fields, columns=columns, rows=rows, bounds=op.rows.bounds)

    @property
    def weighted(self) -> bool:
        """Whether any result is a sum of several products, which need a buffer."""
        return bool(self.columns[:, 6].any() or self.rows[:, 6].any())

    @lru_cache(maxsize=256)  # noqa: B019  a spec lives as long as its unit
    def input_rows(self, rows: int) -> int:
        """Largest number of input rows under `rows` neighbouring rows of the result."""
        return int(input_rows(self.bounds, rows))

    @lru_cache(maxsize=256)  # noqa: B019
    def input_columns(self, columns: int) -> int:
        """Largest number of input columns under a tile of `columns` columns."""
        if columns >= self.out_w:
            return self.in_w
        return int(input_columns(self.columns, columns, self.out_w)) if len(self.columns) else columns

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of the input, of the image after resampling of columns, of the result, and of products."""
        middle = self.input_rows(rows) * columns if len(self.columns) else 0
        last = rows * columns if len(self.rows) or not len(self.columns) else 0
        return planes * (self.input_rows(rows) * self.input_columns(columns) + middle + last + (max(middle, last) if self.weighted else 0))

    def described(self) -> dict[str, object]:
        return {"columns": self.columns.tolist(), "rows": self.rows.tolist(), "fill": self.operator.fill}

    def set_aside(self, rows: int) -> int:
        return 0

    @property
    def steps_of_tile(self) -> int:
        return max(1, len(self.columns) + len(self.rows))

    def work(self, tiles: VectorTiles) -> VectorWork:
        runs = len(self.columns) + len(self.rows)
        repeats, calls = tiles.size / 4 * (1 + self.weighted), tiles.tiles * max(1, runs) * tiles.tiling.tile_planes
        return VectorWork(repeats, calls, [tiles.size * self.in_h * self.in_w / (self.out_h * self.out_w)])

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        taps = self.operator.columns.taps[out_columns.start : out_columns.stop]
        columns = Taps(tuple(tuple((source - in_columns.start, weight) for source, weight in place) for place in taps))
        runs = self.columns
        if len(runs):  # a strip of fill only has no runs; an empty table would mean the identity
            runs = columns.runs if len(columns.runs) else _EMPTY_RUN
        kernel = replace(self.operator, columns=columns)
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, operator=kernel, columns=runs)

    def job(self, inputs: EmitInputs) -> ResampleJob:
        assert isinstance(inputs.tiling, VectorTiling)
        common = self.common(inputs)
        return ResampleJob(
            **common,
            in_w=self.in_w,
            widest=self.input_columns(common["tiles"].tile_columns),
            fill=float_bits(self.operator.fill),
            filled=int(self.operator.rows.has_empty or self.operator.columns.has_empty),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.columns, self.rows, self.bounds]
