"""Products of two tensors of integers.

With zero points u of a and v of b, the sum over k of (a - u) * (b - v) is that of a * b, of a * -v and of -u * b, and u * v each time.  The
first three are products of the matrix unit, of which a constant is one side: -v or -u in every place, a byte or the sum of two.  The last
is what FIXPIPE adds.  A zero point of 0 costs nothing, one beyond 128 two more products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.ir.operators import QuantisedMatMul
from compiler.ir.quantised.products import MOST
from compiler.kinds.base import Lowering
from compiler.kinds.matmul import MatMulSpec
from compiler.kinds.quantised_conv import byte, requantised, with_scales
from compiler.plan.plan import Tiling
from compiler.unit.operators import Fetch, Given
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

_MOST_OF_A_PRODUCT = 255 * 255


@dataclass(frozen=True, eq=False)
class QuantisedMatMulSpec(MatMulSpec):
    """types: of both operands.  scale_at: DDR blocks from the biases of a head to its scales.  zeros_at: DDR blocks of what is added to b."""

    word: ClassVar[str] = "quantised_matmul"

    right_type: DataType
    scale_at: int
    zeros_at: int

    @classmethod
    def lowered(cls, index: int, op: Any, into: Lowering) -> dict[str, Any]:
        assert isinstance(op, QuantisedMatMul)
        found = super().lowered(index, op, into)
        u, v = op.a_q.single(op.name)[1], op.b_q.single(op.name)[1]
        summed = found["k1"] * found["fractal"].lanes
        if summed * _MOST_OF_A_PRODUCT > MOST:
            raise UnsupportedError(f"operator {op.name!r}: sums of {summed:,} products; {MOST // _MOST_OF_A_PRODUCT:,} at most are supported")
        lanes = summed - into.channels(op.a) // op.heads if op.transposed else 0  # without a channel
        beside = {(x - u) * (y - v) for x in into.padding[op.a] for y in into.padding[op.b]} if lanes else {0.0}
        if len(beside) > 1:
            raise UnsupportedError(
                f"operator {op.name!r}: {lanes} lanes without a channel in each head may hold anything in both operands; "
                f"a multiple of {found['fractal'].lanes} channels in each head is supported"
            )
        added = summed * u * v - lanes * int(beside.pop())
        n, zeros = found["n1"] * found["fractal"].columns, less(v)[0]
        columns = np.concatenate([np.full(n, added, np.int32).view(np.uint8), np.full(n, op.scale[0], np.float32).view(np.uint8)])
        each = found["fractal"].weight_blocks * BLOCK_BYTES
        return found | {
            "right_type": into.type_of(op.b),
            "bias_at": into.constants.add(f"{op.name}/bias", columns),
            "scale_at": found["n1"] * found["fractal"].sum_blocks,
            "zeros_at": into.constants.add(f"{op.name}/zeros", np.repeat(np.array(zeros, np.uint8), each)) if zeros else -1,
        }

    @property
    def quantised(self) -> QuantisedMatMul:
        assert isinstance(self.operator, QuantisedMatMul)
        return self.operator

    @property
    def zeros(self) -> tuple[tuple[int, ...], DataType]:
        """What is added to all of b; as `less`."""
        return less(self.quantised.b_q.single(self.name)[1])

    @property
    def bias_blocks(self) -> int:
        return self.n1 * self.column_blocks

    @property
    def column_blocks(self) -> int:
        return 2 * self.fractal.sum_blocks

    @property
    def products(self) -> int:
        """Of the matrix unit for each of the sum."""
        return 1 + len(self.zeros[0]) + len(less(self.quantised.a_q.single(self.name)[1])[0])

    def described(self) -> dict[str, object]:
        return super().described() | {"products": self.products}

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        """What is added to b lies in front of its chunks."""
        slots, size = super().weight_slots(tiling)
        return max(slots, int(bool(self.zeros[0]))), size + len(self.zeros[0]) * self.fractal.weight_blocks

    def of_integers(self, given: Given) -> dict[str, int]:
        op, (zeros, zeros_type) = self.quantised, self.zeros
        left, left_type = less(op.a_q.single(self.name)[1])
        first, second = (*left, 0, 0)[:2]
        return super().of_integers(given) | {
            "right_type": int(self.right_type),
            "scale_after": self.n1 * self.fractal.sum_blocks,
            "scale_at": self.scale_at,
            "alike": 1,
            "left_less": first,
            "left_less_1": second,
            "left_type": int(left_type),
            "zeros": len(zeros),
            "zeros_type": int(zeros_type),
            "zeros_at": given.weights[0] if zeros else 0,
            "missing": byte(op.b_q.single(self.name)[1]),
            **requantised(op.y_q, self.name),
        }

    def chunk_slots(self, given: Given) -> tuple[int, ...]:
        return tuple(at + len(self.zeros[0]) * self.fractal.weight_blocks for at in given.weights)

    def fetches(self, given: Given) -> list[Fetch]:
        found = [each for fetch in super().fetches(given) for each in with_scales(fetch, self.scale_at)]
        size = len(self.zeros[0]) * self.fractal.weight_blocks
        return [*found, Fetch(Memory.L1, self.zeros_at, given.weights[0], size)] if size else found


def less(zero: int) -> tuple[tuple[int, ...], DataType]:
    """Bytes that add up to -zero, none of them 0, and their type."""
    if zero == -128:
        return (128,), DataType.uint8
    parts = (-zero,) if zero <= 128 else (-128, 128 - zero)
    return tuple(byte(part) for part in parts if part), DataType.int8

