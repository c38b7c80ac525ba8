"""What every operator of a graph is asked, and the answer of most."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import Quantisation, integers_of
from compiler.ir.reach import NO_BOUNDS, WINDOW

Shape = tuple[int, int, int, int]
Floats = NDArray[np.float32]
Values = frozenset[float]  # that lie between the least and the greatest of these
ZERO: Values = frozenset({0.0})
Spell = Callable[[NDArray[Any]], str]  # a constant, as a text form of the graph shows it
ROWS, COLUMNS = 0, 1  # axes of an image
_SOME = 9


class Operator(ABC):
    """A frozen dataclass with fields `name`, `y` (what it makes) and those that are its own; tensors go by name.

    computes: whether it becomes instructions, of a kind (`compiler.ops.registry`); else it says where values lie.
    """

    computes: ClassVar[bool] = True

    if TYPE_CHECKING:  # a field or a property, as a class likes

        @property
        def name(self) -> str: ...
        @property
        def y(self) -> str: ...
        @property
        def inputs(self) -> tuple[str, ...]: ...

    @property
    def of_columns(self) -> tuple[str, ...]:
        """Those of its inputs that have a value for each column of a product, in front of which they are read."""
        return ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Those of its inputs of which rows of the result need rows."""
        columns = self.of_columns
        return tuple(name for name in self.inputs if name not in columns) if columns else self.inputs

    def with_inputs(self, names: Sequence[str]) -> Self:
        """The operator reading other tensors, in the order of `inputs`."""
        return self if tuple(names) == self.inputs else self._reading(tuple(names))

    def _reading(self, names: tuple[str, ...]) -> Self:
        return cast("Self", replace(cast("Any", self), x=names[0]))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Logical shape of what it makes."""
        return inputs[0]

    @property
    def moves(self) -> bool:
        """Whether it moves values without looking at them, so that they may be integers."""
        return False

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        """Scale and zero point of what it makes, given those of its inputs; None for floats.

        Raises ValueError where it cannot read these.
        """
        first = inputs[0] if self.moves else None
        for input_type in inputs:
            integers_of(input_type, first)
        return first

    @abstractmethod
    def apply(self, inputs: Sequence[Floats]) -> Floats:
        """What it means: float32 [n, c, h, w] of each input.  Plain, not fast."""

    def without_values(self) -> Self:
        """The operator for those who need the sizes of its constants only."""
        return self

    def unfit(self, inputs: Sequence[Shape]) -> str:
        """What its inputs' shapes do not allow, or ''."""
        return ""

    def attributes(self, spell: Spell) -> list[str]:
        """What a text form of the graph says of it beside its kind and its inputs, without what is as usual."""
        del spell
        return []

    # which part of its input a part of its result needs

    def window(self, axis: int = ROWS) -> tuple[int, int, int, int]:
        """Places of a window along an axis, its stride, dilation and padding in front."""
        return 1, 1, 1, 0

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        """Six numbers for `ir.reach.demanded`.  first: where its `bounds` begin in a table of several operators'."""
        return WINDOW, in_size, *self.window(axis)

    def bounds(self, axis: int = ROWS) -> NDArray[np.int64]:
        """int64 [.., 2] of what is listed."""
        return NO_BOUNDS

    @property
    def has_halo(self) -> bool:
        """Whether neighbouring rows of the result need some of the same rows of the input."""
        size, stride, dilation, _ = self.window()
        return (size - 1) * dilation + 1 > stride

    # where values lie

    @property
    def follows(self) -> tuple[str, ...]:
        """Inputs whose channel i has to lie in the lane of channel i of y."""
        return self.inputs

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        """(tensor, heads) for tensors of which every one of so many equal runs of channels begins on a plane."""
        return ()

    def reads_fours(self, tensor: str) -> bool:
        """Whether it may read that input as an image of four lanes."""
        return False

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """What lanes of y without a channel may hold, given what those of its inputs may; rounded to a data type.

        No values at all where every lane has a channel.  Always finite: weights are zero there, but 0 x inf is NaN.
        """
        return inputs[0]

    def requires_zeros(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[str, ...]:
        """Inputs that have to be zero (of integers their zero point) in lanes without a channel, and may not be.

        For all others any finite value there is right: weights are zero, or the operator has a mask of its own.
        """
        return ()


def between(values: Values, rounding: type[np.floating]) -> Values:
    """Sums of parts of some values, which are 1 together: any number between the ends, of which some stand for all."""
    return frozenset(np.linspace(min(values), max(values), _SOME).astype(rounding).astype(float).tolist())


def sized(numbers: Sequence[int]) -> str:
    """`3x5`, as text forms show shapes."""
    return "x".join(map(str, numbers))


class OfOne(Operator):
    """Of one input, x."""

    if TYPE_CHECKING:

        @property
        def x(self) -> str: ...

    else:

        @property
        def inputs(self) -> tuple[str, ...]:
            return (self.x,)
