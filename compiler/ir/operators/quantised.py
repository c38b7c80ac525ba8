"""Element-wise operators on integers, as onnxruntime computes them (`ir.quantised`), and what leads from floats to integers and back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.base import OfOne, Operator, Shape, Spell, Type, Values
from compiler.ir.quantised.elementwise import add, mul
from compiler.ir.quantised.linear import dequantize, quantize
from compiler.ir.quantised.parameters import Integers, Quantisation
from compiler.ir.quantised.tables import every_integer, looked_up, requantized
from simulator.npu.parts import DataType


class Pointwise(Operator):
    """Every value of y is made of those of the inputs at the same place, each of which has y's shape."""

    @property
    @abstractmethod
    def takes(self) -> tuple[Type, ...]:
        """Types of the inputs."""

    @property
    @abstractmethod
    def gives(self) -> Type:
        """Type of y."""

    def unfit(self, inputs: Sequence[Shape]) -> str:
        return f"inputs of shapes {list(inputs)}; accepted: equal shapes" if len(set(inputs)) > 1 else ""

    def result_type(self, inputs: Sequence[Type]) -> Type:
        if tuple(inputs) != self.takes:
            found, accepted = (", ".join("float" if each is None else each.name for each in types) for types in (inputs, self.takes))
            raise ValueError(f"inputs of type {found}; accepted: {accepted}")
        return self.gives

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        taken = [np.float32 if dtype is None else dtype.storage for dtype in self.takes]
        found = set()
        for values in product(*(sorted(each) for each in inputs)):
            made = self.apply([np.full((1, 1, 1, 1), value, dtype) for value, dtype in zip(values, taken, strict=True)])
            found.add(float(rounding(made[0, 0, 0, 0])))
        return frozenset(found)


def _type_of(q: Quantisation) -> DataType:
    return DataType[q.dtype.name]


@dataclass(frozen=True, eq=False)
class Quantise(OfOne, Pointwise):
    """QuantizeLinear: floats as integers of one scale."""

    name: str
    x: str
    y: str
    q: Quantisation

    @property
    def takes(self) -> tuple[Type, ...]:
        return (None,)

    @property
    def gives(self) -> Type:
        return _type_of(self.q)

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return quantize(inputs[0], self.q)


@dataclass(frozen=True, eq=False)
class Dequantise(OfOne, Pointwise):
    """DequantizeLinear: integers of one scale as floats."""

    name: str
    x: str
    y: str
    q: Quantisation

    @property
    def takes(self) -> tuple[Type, ...]:
        return (_type_of(self.q),)

    @property
    def gives(self) -> Type:
        return None

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return dequantize(inputs[0], self.q)


@dataclass(frozen=True, eq=False)
class Requantise(OfOne, Pointwise):
    """Integers in another scale and zero point, as a QLinearConcat takes its parts."""

    name: str
    x: str
    y: str
    x_q: Quantisation
    y_q: Quantisation

    @property
    def takes(self) -> tuple[Type, ...]:
        return (_type_of(self.x_q),)

    @property
    def gives(self) -> Type:
        return _type_of(self.y_q)

    @property
    def table(self) -> Integers:
        """As of `Lookup`."""
        return requantized(every_integer(self.x_q), self.x_q, self.y_q)

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return requantized(inputs[0], self.x_q, self.y_q)


@dataclass(frozen=True, eq=False)
class Lookup(OfOne, Pointwise):
    """y = table[x]: any function of one tensor (QLinearSigmoid, QLinearLeakyRelu).  table: [256], the least integer of x first."""

    name: str
    x: str
    y: str
    x_type: DataType
    table: Integers

    @property
    def takes(self) -> tuple[Type, ...]:
        return (self.x_type,)

    @property
    def gives(self) -> Type:
        return DataType[self.table.dtype.name]

    def attributes(self, spell: Spell) -> list[str]:
        return [f"table={spell(self.table)}"]

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return looked_up(inputs[0], self.table)


@dataclass(frozen=True, eq=False)
class QuantisedSum(Pointwise):
    """QLinearAdd of two tensors of one shape."""

    name: str
    a: str
    b: str
    y: str
    a_q: Quantisation
    b_q: Quantisation
    y_q: Quantisation

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.a, self.b

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, a=names[0], b=names[1])

    @property
    def takes(self) -> tuple[Type, ...]:
        return _type_of(self.a_q), _type_of(self.b_q)

    @property
    def gives(self) -> Type:
        return _type_of(self.y_q)

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return add(inputs[0], self.a_q, inputs[1], self.b_q, self.y_q)


class QuantisedProduct(QuantisedSum):
    """QLinearMul of two tensors of one shape."""

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return mul(inputs[0], self.a_q, inputs[1], self.b_q, self.y_q)
