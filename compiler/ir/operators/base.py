"""Base class of operators: its interface, with the defaults of most operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import Quantisation, check_quantisation
from compiler.ir.reach import NO_BOUNDS, WINDOW

Shape = tuple[int, int, int, int]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Values = frozenset[float]  # a range is given by at least its smallest and largest value
ZERO: Values = frozenset({0.0})
Spell = Callable[[NDArray[Any]], str]  # text of a constant in a dump of the graph
ROWS, COLUMNS = 0, 1  # axes of an image
_SOME = 9  # values that represent a range


class Operator(ABC):
    """Frozen dataclass with fields `name`, `y` (name of the output tensor) and fields of its kind; tensors are referenced by name.

    computes: whether it becomes instructions (`compiler.ops.registry`); else it only constrains the layout.
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
        """Inputs with one value per column of a product, read before the product."""
        return ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Inputs that are read row by row: rows of the result need rows of them."""
        columns = self.of_columns
        return tuple(name for name in self.inputs if name not in columns) if columns else self.inputs

    def with_inputs(self, names: Sequence[str]) -> Self:
        """The operator reading other tensors, in the order of `inputs`."""
        return self if tuple(names) == self.inputs else self._reading(tuple(names))

    def _reading(self, names: tuple[str, ...]) -> Self:
        return cast("Self", replace(cast("Any", self), x=names[0]))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Logical shape of the output."""
        return inputs[0]

    @property
    def moves(self) -> bool:
        """Whether the operator only moves values, so that they may be integers."""
        return False

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        """Quantisation of the output, given those of the inputs; None for floats.

        Raises ValueError for inputs of a wrong type.
        """
        first = inputs[0] if self.moves else None
        for input_type in inputs:
            check_quantisation(input_type, first)
        return first

    @abstractmethod
    def apply(self, inputs: Sequence[Floats]) -> Floats:
        """Reference computation on float32 [n, c, h, w] of each input.  Plain, not fast."""

    def without_values(self) -> Self:
        """Copy of the operator with only the sizes of its constants."""
        return self

    def unfit(self, inputs: Sequence[Shape]) -> str:
        """Error in the input shapes, or ''."""
        return ""

    def attributes(self, spell: Spell) -> list[str]:
        """Attributes in a dump of the graph, beside kind and inputs; default values are left out."""
        del spell
        return []

    # input regions of output regions

    def window(self, axis: int = ROWS) -> tuple[int, int, int, int]:
        """(size, stride, dilation, padding before) of the window along an axis."""
        return 1, 1, 1, 0

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        """Six numbers for `ir.reach.demanded`.  first: index of its `bounds` in a table of several operators."""
        return WINDOW, in_size, *self.window(axis)

    def bounds(self, axis: int = ROWS) -> NDArray[np.int64]:
        """Bounds of a `LISTED` reach, int64 [.., 2]."""
        return NO_BOUNDS

    def blocks_read(self, channels: Mask, rows: Mask, columns: Mask) -> tuple[Mask, int] | None:
        """(channels of the input, least number of pixels of each of them) that channels at rows and columns of the result need.

        None where `reach` says which rows and columns.  Masks are bool [size of the axis].
        """
        return None

    @property
    def has_halo(self) -> bool:
        """Whether neighbouring rows of the result need some of the same rows of the input."""
        size, stride, dilation, _ = self.window()
        return (size - 1) * dilation + 1 > stride

    # lanes

    @property
    def follows(self) -> tuple[str, ...]:
        """Inputs whose channel i needs the lane of channel i of y."""
        return self.inputs

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        """(tensor, heads) of tensors whose `heads` equal runs of channels each begin on a plane."""
        return ()

    def reads_fours(self, tensor: str) -> bool:
        """Whether the operator may read `tensor` as an image of four lanes per pixel."""
        return False

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """Values of padding lanes of y, given those of the inputs, rounded to a data type.

        Empty where every lane has a channel.  Always finite: weights are zero there, but 0 x inf is NaN.
        """
        return inputs[0]

    def requires_zeros(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[str, ...]:
        """Inputs whose padding lanes must be zero (the zero point of integers) but may hold other values.

        All other inputs may hold any finite value there: the weights are zero, or the operator masks the lanes.
        """
        return ()


def mean_samples(values: Values, rounding: type[np.floating]) -> Values:
    """Samples of the range of weighted means of some values."""
    return frozenset(np.linspace(min(values), max(values), _SOME).astype(rounding).astype(float).tolist())


def shape_text(numbers: Sequence[int]) -> str:
    """Text of a shape in dumps: `3x5`."""
    return "x".join(map(str, numbers))


class UnaryOperator(Operator):
    """Operator of one input, x."""

    if TYPE_CHECKING:

        @property
        def x(self) -> str: ...

    else:

        @property
        def inputs(self) -> tuple[str, ...]:
            return (self.x,)
