"""Resampling of rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.base import ROWS, Floats, Shape, Spell, UnaryOperator, Values
from compiler.ir.reach import LISTED
from compiler.ir.taps import Taps
from simulator.npu.isa import bits_float


@dataclass(frozen=True, eq=False)
class Resample(UnaryOperator):
    """Resampling of rows and columns: y[i, j] = sum of weights * x[source row, source column] over rows.taps[i] and columns.taps[j].

    A row or a column without taps is `fill`.  Covers slices, all kinds of padding, resizing and inserted zeros.
    """

    name: str
    x: str
    y: str
    rows: Taps
    columns: Taps
    fill: float = 0.0

    @property
    def moves(self) -> bool:
        taps = (*self.rows.taps, *self.columns.taps)
        return all(len(place_taps) <= 1 and all(weight == 1 for _, weight in place_taps) for place_taps in taps)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return *inputs[0][:2], len(self.rows), len(self.columns)

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [f"rows={_spelt(self.rows)}", f"columns={_spelt(self.columns)}", f"fill={self.fill:.9g}"]

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        return LISTED, in_size, first, 0, 0, 0

    def bounds(self, axis: int = ROWS) -> NDArray[np.int64]:
        return (self.rows, self.columns)[axis].bounds

    @property
    def has_halo(self) -> bool:
        bounds = self.bounds()
        return bool((bounds[1:, 0] < bounds[:-1, 1]).any())

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        fill_values = {self.fill} if self.rows.has_empty or self.columns.has_empty else set()
        sums = [a * b for a in self.rows.sums or (1.0,) for b in self.columns.sums or (1.0,)]
        return frozenset({float(rounding(value * total)) for value in inputs[0] for total in sums} | fill_values)

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        rows, columns = self.rows.matrix(x.shape[2]), self.columns.matrix(x.shape[3])
        out = np.einsum("ih,nchw,jw->ncij", rows, x, columns, optimize=True)
        out[:, :, [not taps for taps in self.rows.taps]] = self.fill
        out[:, :, :, [not taps for taps in self.columns.taps]] = self.fill
        return np.asarray(out, x.dtype if x.dtype.kind in "iu" else np.float32)


def _spelt(taps: Taps) -> str:
    """Text of runs: place+step*count<-source+step, with weights other than 1."""
    runs = []
    for place, step, count, source, source_step, bits, _ in taps.runs.tolist():
        weight = bits_float(bits)
        runs.append(f"{place}+{step}*{count}<-{source}+{source_step}" + (f"@{weight:.9g}" if weight != 1 else ""))
    return f"{len(taps)}({' '.join(runs)})"
