"""Resampling on VECTOR: images in another size."""

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

_NO_PLACE = np.array([[0, 1, 0, 0, 0, 0, 0]], np.int64)  # a run of no places


@dataclass(frozen=True, eq=False)
class ResampleSpec(OnVector):
    """A resampling, of columns first and then of rows.

    columns, rows: `Taps.runs`, empty where every place stays; bounds: int64 [out_h, 2], `Taps.bounds` of the rows.
    """

    word: ClassVar[str] = "resample"

    operator: Resample
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @classmethod
    def lower(cls, index: int, op: Resample, into: Lowering) -> Self:
        fields = into.fields(index, op)
        axes = (op.columns, fields["in_w"]), (op.rows, fields["in_h"])
        columns, rows = (np.zeros((0, 7), np.int64) if taps.is_identity(size) else taps.runs for taps, size in axes)
        return cls(**fields, columns=columns, rows=rows, bounds=op.rows.bounds)

    @property
    def weighted(self) -> bool:
        """Whether a place is the sum of several, so that products need a place of their own."""
        return bool(self.columns[:, 6].any() or self.rows[:, 6].any())

    @lru_cache(maxsize=256)  # noqa: B019  a spec lives as long as its unit
    def input_rows(self, rows: int) -> int:
        """The most input rows that `rows` neighbouring rows of the result come from."""
        return int(input_rows(self.bounds, rows))

    @lru_cache(maxsize=256)  # noqa: B019
    def input_columns(self, columns: int) -> int:
        """The most columns of input that a tile of so many columns of output comes from."""
        if columns >= self.out_w:
            return self.in_w
        return int(input_columns(self.columns, columns, self.out_w)) if len(self.columns) else columns

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Input, columns done, rows done, products."""
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
        if len(runs):  # a strip that is filled as a whole has none, which would say that its columns stay
            runs = columns.runs if len(columns.runs) else _NO_PLACE
        kernel = replace(self.operator, columns=columns)
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, operator=kernel, columns=runs)

    def job(self, inputs: EmitInputs) -> ResampleJob:
        assert isinstance(inputs.tiling, VectorTiling)
        common = self.common(inputs)
        return ResampleJob(
            **common,
            out_w=self.out_w,
            in_w=self.in_w,
            widest=self.input_columns(common["tile_columns"]),
            fill=float_bits(self.operator.fill),
            filled=int(self.operator.rows.has_empty or self.operator.columns.has_empty),
            tile_planes=self.planes_of_tile(inputs.tiling),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [self.columns, self.rows, self.bounds]
