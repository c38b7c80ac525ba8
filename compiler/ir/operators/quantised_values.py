"""Operators on quantised tensors: conversion from and to floats, element-wise sums and products, tables, average pools, softmax.

The results equal those of onnxruntime (`compiler.ir.quantised`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

import numpy as np

from compiler.ir.operators.base import Operator, Shape, Spell, UnaryOperator, Values, shape_text
from compiler.ir.operators.pool import Pooling
from compiler.ir.operators.quantised_products import all_integers
from compiler.ir.quantised import elementwise, linear, pooling, tables
from compiler.ir.quantised.affine import Affine
from compiler.ir.quantised.parameters import Integers, Quantisation, check_quantisation
from compiler.ir.quantised.products import SlidingWindow

PairMode = Literal["add", "radd", "mul"]


class _Pointwise(Operator):
    """Element-wise operator, also in padding lanes."""

    @property
    @abstractmethod
    def input_quantisations(self) -> tuple[Quantisation | None, ...]:
        """Quantisation of each input; None for floats."""

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        types = [np.float32 if q is None else q.dtype for q in self.input_quantisations]
        cases = np.array(list(product(*(sorted(values) for values in inputs))))  # one case per combination
        if not cases.size:
            return frozenset()
        outputs = self.apply([cases[:, i].astype(dtype).reshape(1, -1, 1, 1) for i, dtype in enumerate(types)])
        return frozenset(np.unique(outputs.astype(rounding)).astype(float).tolist())


@dataclass(frozen=True, eq=False)
class Quantise(UnaryOperator, _Pointwise):
    """Conversion of floats to integers."""

    name: str
    x: str
    y: str
    y_q: Quantisation

    @property
    def input_quantisations(self) -> tuple[Quantisation | None, ...]:
        return (None,)

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], None)
        return self.y_q

    def apply(self, inputs: Sequence[Any]) -> Any:
        return linear.quantize(inputs[0], self.y_q)


@dataclass(frozen=True, eq=False)
class Dequantise(UnaryOperator, _Pointwise):
    """Conversion of integers to floats."""

    name: str
    x: str
    y: str
    x_q: Quantisation

    @property
    def input_quantisations(self) -> tuple[Quantisation | None, ...]:
        return (self.x_q,)

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        return None

    def apply(self, inputs: Sequence[Any]) -> Any:
        return linear.dequantize(inputs[0], self.x_q)


@dataclass(frozen=True, eq=False)
class QuantisedPair(_Pointwise):
    """Sum or product of two tensors, with numpy's broadcasting.

    `add` computes fma(a, scale_a, fma(b, scale_b, offset)); `radd` exchanges a and b, and may differ in the last bit.
    """

    name: str
    a: str
    b: str
    y: str
    mode: PairMode
    a_q: Quantisation
    b_q: Quantisation
    y_q: Quantisation

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)

    @property
    def input_quantisations(self) -> tuple[Quantisation | None, ...]:
        return (self.a_q, self.b_q)

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, a=names[0], b=names[1])

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, c, h, w = np.broadcast_shapes(*inputs)
        return n, c, h, w

    def unfit(self, inputs: Sequence[Shape]) -> str:
        a, b = inputs
        fits = all(1 in pair or pair[0] == pair[1] for pair in zip(a, b, strict=True))
        return "" if fits else f"shapes {shape_text(a)} and {shape_text(b)} do not broadcast"

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.a_q)
        check_quantisation(inputs[1], self.b_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [self.mode]

    def apply(self, inputs: Sequence[Any]) -> Any:
        a, b = np.broadcast_arrays(*inputs)  # equal shapes, so that `add` does not exchange them
        if self.mode == "radd":
            return elementwise.add(b, self.b_q, a, self.a_q, self.y_q)
        return (elementwise.add if self.mode == "add" else elementwise.mul)(a, self.a_q, b, self.b_q, self.y_q)


@dataclass(frozen=True, eq=False)
class LookUp(UnaryOperator, _Pointwise):
    """Table look-up: any function of one quantised tensor, also a requantisation.

    entries[0] is the result of the smallest integer of x's type.
    """

    name: str
    x: str
    y: str
    entries: Integers  # [256]
    x_q: Quantisation
    y_q: Quantisation

    @property
    def input_quantisations(self) -> tuple[Quantisation | None, ...]:
        return (self.x_q,)

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        return [f"entries={spell(self.entries)}"]

    def apply(self, inputs: Sequence[Any]) -> Any:
        return tables.look_up(inputs[0], self.entries)


@dataclass(frozen=True, eq=False)
class QuantisedAffine(UnaryOperator):
    """Chain of multiply-adds per channel of a quantised tensor, each rounded to integers of its own type: see `Affine`.

    Used where it gives the same integer as the operators that it replaces, for every input in every channel.  Padding lanes become 0.
    """

    name: str
    x: str
    y: str
    steps: tuple[tuple[Affine, Quantisation], ...]  # [channels] each
    x_q: Quantisation

    @property
    def y_q(self) -> Quantisation:
        return self.steps[-1][1]

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        return [f"{field}={spell(entry)}" for affine, _ in self.steps for field, entry in zip(affine._fields, affine, strict=True)]

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return frozenset({0.0})

    def apply(self, inputs: Sequence[Any]) -> Any:
        (values,) = inputs
        n, c, h, w = values.shape
        values = values.reshape(n, c, h * w)
        for affine, q in self.steps:
            values = affine.apply(values, q.dtype)
        return values.reshape(n, c, h, w)


@dataclass(frozen=True, eq=False)
class QuantisedAverage(Pooling):
    """Average pool.  A window over the whole image without padding sums in int32, others in float32."""

    name: str
    x: str
    y: str
    kernel: tuple[int, int]
    x_q: Quantisation
    y_q: Quantisation
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    count_include_pad: bool = False

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        return self.y_q

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return all_integers(self.y_q)

    def apply(self, inputs: Sequence[Any]) -> Any:
        window = SlidingWindow(self.kernel, self.stride, self.pads, (1, 1))
        return pooling.average_pool(inputs[0], self.x_q, self.y_q, window, self.count_include_pad)


@dataclass(frozen=True, eq=False)
class QuantisedSoftmax(UnaryOperator):
    """Softmax over the channels, or over each of `groups` equal runs of channels, at every pixel."""

    name: str
    x: str
    y: str
    x_q: Quantisation
    y_q: Quantisation
    groups: int = 1

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        return ((self.x, self.groups), (self.y, self.groups)) if self.groups > 1 else ()

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [f"groups={self.groups}"] if self.groups > 1 else []

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return all_integers(self.y_q)

    def apply(self, inputs: Sequence[Any]) -> Any:
        x = inputs[0]
        group_values = x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])
        return tables.softmax(group_values, self.x_q, self.y_q, 2).reshape(x.shape)
