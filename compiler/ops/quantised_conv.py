"""Convolutions of integers: FIXPIPE adds a bias per channel to int32 sums, and multiplies them by a scale per channel.

Most zero points cost nothing.  The zero point of weights is subtracted from the weights.  The zero point of the input is part of the bias,
and is the value of padding (`QuantisedConv.offset`).  If the difference of a weight exceeds 8 bits, packed weights hold only a part of
their zero point; the remaining part, the zero excess, needs another product.

A residual of bytes is added after the conversion to integers, as in onnxruntime; its addition to the int32 sums would skip one rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from compiler.ir.layout import Placement
from compiler.ir.operators import Convolution, QuantisedConv
from compiler.ir.quantised.elementwise import add_factors
from compiler.ir.quantised.parameters import SUMS, Quantisation
from compiler.ir.quantised.products import check_bound
from compiler.ops.base import Lowering
from compiler.ops.conv import ConvSpec
from compiler.ops.conv_job import ConvOperands
from compiler.ops.conv_lowering import pack_product
from compiler.ops.integer_elementwise import check_sum_range
from compiler.plan.plan import Tiling
from compiler.target import weights
from compiler.target.storage import StorageSpec
from compiler.target.target_op import EmitInputs, Fetch
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import float_bits
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType, Fractal, Memory


@dataclass(frozen=True, eq=False)
class IntegerProductSpec(ConvSpec):
    """A product of integers.  A zero point of the right operand outside the weights is a product (`conv_emitter._zero_point_products`).

    right_type: data type of the packed weights, or of the right tensor.  scale_at: DDR blocks from a channel's bias to its scale; 0 if the
    result is int32, which has no scale.  zeros_at: DDR block of the constants for the zero point, a block of weights per byte of `zeros`;
    in L1, these constants lie in front of the weights.
    """

    right_type: DataType
    scale_at: int
    zeros_at: int

    @cached_property
    def zeros(self) -> tuple[tuple[int, ...], DataType]:
        """Bytes that are added to all of the right operand, and their type: `negated_bytes` of its zero point."""
        raise NotImplementedError

    def operands_of(self, read: DataType) -> ConvOperands:
        zeros, zeros_type = self.zeros
        return super().operands_of(read)._replace(right_type=int(self.right_type), zeros=len(zeros), zeros_type=int(zeros_type))

    def requantised(self) -> dict[str, int]:
        return {"scale_at": self.scale_at, "scale_after": self.bias_blocks // 2}

    @cached_property
    def zero_blocks(self) -> int:
        return len(self.zeros[0]) * self.fractal.weight_blocks

    @cached_property
    def channel_vector_blocks(self) -> int:
        return self.fractal.sum_blocks * (2 if self.scale_at else 1)

    @property
    def products(self) -> int:
        return 1 + len(self.zeros[0])

    def described(self) -> dict[str, object]:
        return super().described() | ({"products": self.products} if self.products > 1 else {})

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        return *super().sizes(storages), self.products, self.zero_blocks, self.channel_vector_blocks

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        """Buffers of weights.  Constants for the zero point stay in L1, so they share one buffer with both chunks."""
        slots, size = super().weight_slots(tiling)
        return (1, slots * size + self.zero_blocks) if self.zero_blocks else (slots, size)

    def weight_slot_addresses(self, inputs: EmitInputs) -> tuple[int, ...]:
        if not self.zero_blocks:
            return inputs.weights
        slots, size = super().weight_slots(inputs.tiling)
        first = inputs.weights[0] + self.zero_blocks
        return tuple(first + slot * size for slot in range(max(1, slots)))

    def zero_point_block(self, inputs: EmitInputs) -> int:
        return inputs.weights[0] if self.zeros[0] else 0

    def channel_vector_fetches(self) -> list[Fetch]:
        """Fetches of biases and of scales.  Both are separate, because the biases of a channel part end before the scales begin."""
        if not self.scale_at:
            return super().channel_vector_fetches()
        half = self.bias_blocks // 2
        return [Fetch(Memory.UB, self.bias_at + source, target, half) for source, target in ((0, 0), (self.scale_at, half))]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        fetches = super().fetches(inputs)
        return [Fetch(Memory.L1, self.zeros_at, inputs.weights[0], self.zero_blocks), *fetches] if self.zero_blocks else fetches


@dataclass(frozen=True, eq=False)
class QuantisedConvSpec(IntegerProductSpec):
    """A convolution of integers.  zero_excess: part of the weights' zero point that packed weights do not hold."""

    word: ClassVar[str] = "quantised_conv"

    zero_excess: int

    @classmethod
    def lowered_fields(cls, index: int, op: Convolution, lowering: Lowering) -> dict[str, Any]:
        assert isinstance(op, QuantisedConv)
        if lowering.type_of(op.x) not in BYTES:
            raise UnsupportedError(f"operator {op.name!r}: reads {lowering.type_of(op.x).name}; integers of 8 bits are multiplied")
        check_bound(op.x_q, op.weights, op.w_q, 0, op.bias, op.name)  # sums beyond int32 are refused
        if op.added is not None and op.y_q is not None:
            check_sum_range(op.name, op.y_q, op.added.q, op.added.y_q)
        values, dtype, zero_excess = op.multiplied()
        fields = pack_product(index, op, lowering, values, dtype, zero_excess, cls.channel_vectors_at)
        n = fields["groups"] * fields["n1"] * fields["fractal"].sum_blocks
        zeros_at = pack_zeros(f"{op.name}/zeros", negated_bytes(zero_excess)[0], fields["fractal"], lowering)
        return fields | {"right_type": dtype, "scale_at": 0 if keeps_sums(op.y_q) else n, "zeros_at": zeros_at, "zero_excess": zero_excess}

    @classmethod
    def channel_vectors_at(cls, op: Any, y_place: Placement, lane_count: int, lowering: Lowering) -> int:
        """DDR block of biases, then scales unless the result is the sums; 0 for tensors, whose addresses `placed` sets."""
        if op.of_columns:
            inputs = {port.tensor for port in lowering.layout.graph.inputs}
            if not inputs.issuperset(op.of_columns) or any(
                lowering.layout.placements[name].lanes != y_place.lanes for name in op.of_columns
            ):
                raise UnsupportedError(f"operator {op.name!r}: {', '.join(op.of_columns)} are read where the host puts them")
            return 0
        columns = weights.pack_channel_vector(op.offset, y_place, lane_count, DataType.int32)
        if not keeps_sums(op.y_q):
            columns = np.concatenate([columns, weights.pack_channel_vector(op.scale, y_place, lane_count, DataType.float32)])
        return lowering.constants.add(f"{op.name}/bias", columns)

    def placed(self, address: Callable[[str], int]) -> Self:
        """The operator with addresses of biases and scales that are tensors.  Their layout is that of packed columns."""
        if not (addresses := [address(name) for name in self.quantised.of_columns]):
            return self
        return replace(self, bias_at=addresses[0], scale_at=addresses[1] - addresses[0] if len(addresses) > 1 else 0)

    @cached_property
    def zeros(self) -> tuple[tuple[int, ...], DataType]:
        return negated_bytes(self.zero_excess)

    @property
    def quantised(self) -> QuantisedConv:
        assert isinstance(self.operator, QuantisedConv)
        return self.operator

    def operands_of(self, read: DataType) -> ConvOperands:
        return super().operands_of(read)._replace(pad=as_byte(self.quantised.x_q.single(self.name)[1]))

    def requantised(self) -> dict[str, int]:
        op = self.quantised
        fields = super().requantised() | requantise_fields(op.y_q, self.name)
        if op.added is None or op.y_q is None:
            return fields
        q, last = op.added.q, op.added.last
        first, second = (q, op.y_q) if last else (op.y_q, q)
        outer, inner, fixed = add_factors(first, second, op.added.y_q)
        sum_factor, residual_factor = (inner, outer) if last else (outer, inner)
        of_sum = {"sum_factor": sum_factor, "residual_factor": residual_factor, "fixed": fixed}
        return fields | {word: float_bits(float(value)) for word, value in of_sum.items()} | {"last": int(last)}


def negated_bytes(zero: int) -> tuple[tuple[int, ...], DataType]:
    """(nonzero bytes that add up to -zero, their data type)."""
    if zero == -128:
        return (128,), DataType.uint8
    parts = (-zero,) if zero <= 128 else (-128, 128 - zero)
    return tuple(as_byte(part) for part in parts if part), DataType.int8


def pack_zeros(name: str, zeros: Sequence[int], fractal: Fractal, lowering: Lowering) -> int:
    """DDR block of the constants, a block of weights per byte of `zeros`; -1 without bytes.  Raises `UnsupportedError` without L0B."""
    if zeros and not lowering.machine.has(Memory.L0B):
        where = f"machine {lowering.machine.name} has none"
        raise UnsupportedError(f"{name}: what is left of a zero point comes to L0B; {where}, -128 to 127 or 0 to 255 is supported")
    return lowering.constants.add(name, np.repeat(np.array(zeros, np.uint8), fractal.weight_blocks * BLOCK_BYTES)) if zeros else -1


def as_byte(value: int) -> int:
    """An int8 or uint8 as the word of a record."""
    return value & 0xFF


def keeps_sums(y_q: Quantisation | None) -> bool:
    """Whether the result is the int32 sums."""
    return y_q is not None and y_q.dtype == SUMS


def requantise_fields(y_q: Quantisation | None, name: str) -> dict[str, int]:
    """Fields of `ConvEpilogue` for the conversion of int32 sums."""
    sums = {"sums": int(DataType.int32)}
    return sums if y_q is None or keeps_sums(y_q) else sums | {"zero": y_q.single(name)[1], "low": y_q.limits[0], "high": y_q.limits[1]}
