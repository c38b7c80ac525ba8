"""Matrix products of two tensors of integers.

With zero points u of a and v of b, the sum over k of (a - u) * (b - v) is the sum of a * b, a * -v, -u * b and u * v.  The first three are
products of the matrix unit.  A constant operand has -v or -u in every place: one byte, or the sum of two bytes.  FIXPIPE adds the last
term.  A zero point of 0 costs no product, a zero point above 128 costs two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from compiler.ir.operators import QuantisedMatMul
from compiler.ir.quantised.products import MAX_SUM
from compiler.ops.base import Lowering
from compiler.ops.conv_job import ConvOperands
from compiler.ops.matmul import MatMulSpec
from compiler.ops.quantised_conv import IntegerProductSpec, as_byte, keeps_sums, negated_bytes, pack_zeros, requantise_fields
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import DataType, Memory

_MAX_PRODUCT = 255 * 255


@dataclass(frozen=True, eq=False)
class QuantisedMatMulSpec(IntegerProductSpec, MatMulSpec):
    """A product of two integer tensors.  All heads share the biases and scales of one head."""

    word: ClassVar[str] = "quantised_matmul"

    @classmethod
    def lowered_fields(cls, index: int, op: Any, lowering: Lowering) -> dict[str, Any]:
        assert isinstance(op, QuantisedMatMul)
        fields = super().lowered_fields(index, op, lowering)
        if not lowering.machine.has(Memory.L0B):
            raise UnsupportedError(
                f"operator {op.name!r}: only L0B brings a computed right operand into order; machine {lowering.machine.name} has none"
            )
        u, v = op.a_q.single(op.name)[1], op.b_q.single(op.name)[1]
        summed = fields["k1"] * fields["fractal"].lanes
        if summed * _MAX_PRODUCT > MAX_SUM:
            raise UnsupportedError(f"operator {op.name!r}: sums of {summed:,} products; {MAX_SUM // _MAX_PRODUCT:,} at most are supported")
        lanes = summed - lowering.channels(op.a) // op.heads if op.transposed else 0  # padding lanes
        (beside,) = (
            op.beside([lowering.layout.padding[op.a], lowering.layout.padding[op.b]]) if lanes else (0.0,)
        )  # `ir.padding` makes all padding equal
        added = summed * u * v - lanes * int(beside)
        n, zeros = fields["n1"] * fields["fractal"].columns, negated_bytes(v)[0]
        columns = np.full(n, added, np.int32).view(np.uint8)
        if not (raw_sums := keeps_sums(op.y_q)):
            columns = np.concatenate([columns, np.full(n, op.scale[0], np.float32).view(np.uint8)])
        return fields | {
            "right_type": lowering.type_of(op.b),
            "bias_at": lowering.constants.add(f"{op.name}/bias", columns),
            "scale_at": 0 if raw_sums else fields["n1"] * fields["fractal"].sum_blocks,
            "zeros_at": pack_zeros(f"{op.name}/zeros", zeros, fields["fractal"], lowering),
        }

    @property
    def quantised(self) -> QuantisedMatMul:
        assert isinstance(self.operator, QuantisedMatMul)
        return self.operator

    @cached_property
    def zeros(self) -> tuple[tuple[int, ...], DataType]:
        return negated_bytes(self.quantised.b_q.single(self.name)[1])

    @property
    def n1_step(self) -> int:
        """Step of tiles along n1.  An int32 result steps by the fractals of a plane of bytes: no tile may lie behind all pixels."""
        return max(super().n1_step, self.fractal.lanes // self.fractal.columns)

    @cached_property
    def bias_blocks(self) -> int:
        return self.n1 * self.channel_vector_blocks

    @cached_property
    def _left(self) -> tuple[tuple[int, ...], DataType]:
        """Bytes that are added to all of the left operand, and their type; as `zeros`."""
        return negated_bytes(self.quantised.a_q.single(self.name)[1])

    @property
    def products(self) -> int:
        return super().products + len(self._left[0])

    def operands_of(self, read: DataType) -> ConvOperands:
        left_bytes, left_type = self._left
        first, second = (*left_bytes, 0, 0)[:2]
        missing = as_byte(self.quantised.b_q.single(self.name)[1])
        operands = super().operands_of(read)
        return operands._replace(left_less=first, left_less_1=second, left_type=int(left_type), missing=missing)

    def requantised(self) -> dict[str, int]:
        return super().requantised() | {"groups_share_bias": 1, **requantise_fields(self.quantised.y_q, self.name)}
