"""Convolutions of integers: sums in int32, to which FIXPIPE adds a bias and which it multiplies by a scale, one of each for a channel.

Zero points cost nothing: that of weights is taken from them, that of the input goes into the bias, and the padding is that zero point
(`QuantisedConv.offset`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from compiler.ir.layout import Placement
from compiler.ir.operators import Convolution, QuantisedConv
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.products import check_bound
from compiler.kinds.base import Lowering
from compiler.kinds.conv import ConvSpec
from compiler.unit import weights
from compiler.unit.constants import Bytes
from compiler.unit.operators import Fetch, Given
from simulator.npu.parts import DataType, Memory


@dataclass(frozen=True, eq=False)
class QuantisedConvSpec(ConvSpec):
    """weights_type: of the packed weights.  scale_at: DDR blocks from a channel's bias to its scale."""

    word: ClassVar[str] = "quantised_conv"

    weights_type: DataType
    scale_at: int

    @classmethod
    def lowered(cls, index: int, op: Convolution, into: Lowering) -> dict[str, Any]:
        assert isinstance(op, QuantisedConv)
        check_bound(op.x_q, op.weights, op.w_q, 0, op.bias, op.name)  # sums beyond int32 are refused
        found = super().lowered(index, op, into)
        n = found["groups"] * found["n1"] * found["fractal"].sum_blocks
        return found | {"weights_type": cls.multiplied(op, into.type_of(op.x))[1], "scale_at": n}

    @staticmethod
    def multiplied(op: Any, dtype: DataType) -> tuple[NDArray[Any], DataType]:
        found: tuple[NDArray[Any], DataType] = op.centred()
        return found

    @staticmethod
    def of_columns(op: Any, y: Placement, n: int) -> Bytes:
        """Biases, then scales."""
        biases = weights.pack_columns(op.offset, y, n, DataType.int32)
        return np.concatenate([biases, weights.pack_columns(op.scale, y, n, DataType.float32)])

    @property
    def column_blocks(self) -> int:
        return 2 * self.fractal.sum_blocks

    @property
    def quantised(self) -> QuantisedConv:
        assert isinstance(self.operator, QuantisedConv)
        return self.operator

    def of_integers(self, given: Given) -> dict[str, int]:
        op = self.quantised
        return super().of_integers(given) | {
            "right_type": int(self.weights_type),
            "pad": byte(op.x_q.single(self.name)[1]),
            "scale_after": self.groups * self.n1 * self.fractal.sum_blocks,
            "scale_at": self.scale_at,
            **requantised(op.y_q, self.name),
        }

    def fetches(self, given: Given) -> list[Fetch]:
        return [each for fetch in super().fetches(given) for each in with_scales(fetch, self.scale_at)]


def byte(value: int) -> int:
    """As a word of a record has it."""
    return value & 0xFF


def requantised(q: Quantisation | None, name: str) -> dict[str, int]:
    """Fields of `ConvJob` that say what int32 sums become."""
    sums = {"sums": int(DataType.int32)}
    return sums if q is None else sums | {"zero": q.single(name)[1], "low": q.limits[0], "high": q.limits[1]}


def with_scales(fetch: Fetch, scale_at: int) -> list[Fetch]:
    """Biases, and the scales that lie behind them: those of all channels need not be those of a part."""
    if fetch.memory != Memory.UB:
        return [fetch]
    half = fetch.blocks // 2
    return [fetch._replace(blocks=half), fetch._replace(source=fetch.source + scale_at, target=fetch.target + half, blocks=half)]
