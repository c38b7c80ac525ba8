"""Relayout by moves: blocks go through UB to other planes and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.relayout import Digit, Relayout, whole_digit
from compiler.ir.taps import input_rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork
from compiler.ops.relayout_emitter import DIGIT_WORDS, RelayoutJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import DataType


@dataclass(frozen=True, eq=False)
class RelayoutSpec(OnVector):
    """A relayout.  group_planes: planes of a group.  bounds: int64 [out_h, 2], `Relayout.row_bounds`."""

    word: ClassVar[str] = "relayout"

    operator: Relayout
    group_planes: int
    bounds: NDArray[np.int64]

    @classmethod
    def lower(cls, index: int, op: Relayout, lowering: Lowering) -> Self:
        fields = lowering.fields(index, op)
        return cls(**fields, group_planes=fields["reads"][0].planes // op.of[0], bounds=op.row_bounds)

    def described(self) -> dict[str, object]:
        op = self.operator
        return {"deep": self.group_planes, "groups": op.groups, "pixels": op.pixels, "first": op.first}

    @lru_cache(maxsize=256)  # noqa: B019  a spec lives as long as its unit
    def input_rows(self, rows: int) -> int:
        return int(input_rows(self.bounds, rows))

    def set_aside(self, rows: int) -> int:
        return 0

    def work(self, tiles: VectorTiles) -> VectorWork:
        """Work of all tiles: VECTOR only fills, moves do the rest."""
        filled = self.operator.filled
        return VectorWork(tiles.size / 8 * tiles.cycles[Op.VFILL] * filled, tiles.tiles * filled, [tiles.size * self._sources])

    @property
    def _sources(self) -> float:
        """Share of the places that have a source."""
        share = 1.0
        for digit in (*self.operator.groups, *self.operator.pixels):
            share *= max(0, digit.high - digit.low) / digit.size
        return share

    @property
    def strip_refusal(self) -> str:
        return "pixels that go to other places have no columns of their own: strips have"

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return "its planes come of other planes"

    def job(self, inputs: EmitInputs) -> RelayoutJob:
        assert isinstance(inputs.tiling, VectorTiling)
        op = self.operator
        return RelayoutJob(
            **self.common(inputs),
            in_w=self.in_w,
            group_planes=self.group_planes,
            group=op.first[0],
            pixel=op.first[1],
            fill=float_bits(op.fill),
            filled=int(op.filled),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [_table(self.operator.groups, 1), _table(self.operator.pixels, 2)]


def _table(digits: Sequence[Digit], least: int) -> NDArray[np.int64]:
    """Digits as int64 [at least `least`, 5]."""
    padding = [whole_digit(1)] * max(0, least - len(digits))
    return np.array([*padding, *digits], np.int64).reshape(-1, DIGIT_WORDS)
