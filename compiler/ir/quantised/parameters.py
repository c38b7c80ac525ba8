"""Scale and zero point of a quantised tensor, validated once: value = (integer - zero_point) * scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.npu.errors import BadInputError

Integers = NDArray[Any]  # int8 or uint8 unless stated otherwise
Floats = NDArray[np.float32]
STORED = (np.dtype(np.int8), np.dtype(np.uint8))
SUMS = np.dtype(np.int32)  # type of accumulators and biases


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Quantisation of a tensor.  scale: float32 [1], or [channels] along `axis`.  zero_point: one per scale, in the type of the tensor."""

    scale: Floats
    zero_point: Integers
    axis: int | None = None

    @classmethod
    def of(
        cls, scale: ArrayLike, zero_point: ArrayLike | None, dtype: Any, shape: Sequence[int] = (), axis: int | None = None, where: str = ""
    ) -> Quantisation:
        """Quantisation from a model's values, for a tensor of that type and shape; a zero point of None is 0.

        axis: axis of several scales; negative: counted from the end.  where: name of the tensor in errors.  Raises BadInputError.
        """
        kind, prefix = np.dtype(dtype), f"{where}: " if where else ""
        if kind not in (*STORED, SUMS):
            raise BadInputError(f"{prefix}quantised as {kind}; expected int8, uint8, or int32 of a bias")
        scales, zeros = np.asarray(scale), np.asarray(0 if zero_point is None else zero_point)
        if scales.dtype not in (np.float16, np.float32):
            raise BadInputError(f"{prefix}scale of type {scales.dtype}; expected float32 or float16")
        for values in (scales, zeros):
            if values.ndim > 1:
                raise BadInputError(f"{prefix}scale or zero point of shape {list(values.shape)}; expected one axis at most")
        several = scales.size != 1 or zeros.size != 1
        along = None
        if several:
            along = _axis(axis, shape, prefix)
            for noun, count in (("scales", scales.size), ("zero points", zeros.size)):
                if count not in (1, shape[along]):
                    raise BadInputError(f"{prefix}{count} {noun} for {shape[along]} channels on axis {along}; expected 1 or {shape[along]}")
        wrong = scales.reshape(-1)[~(np.isfinite(scales) & (scales > 0)).reshape(-1)]
        if wrong.size:
            raise BadInputError(f"{prefix}scale {wrong[0]:g}; expected a finite number above 0")
        size = shape[along] if along is not None else 1
        points = _zeros(zeros, zero_point, kind, prefix)
        return cls(np.broadcast_to(scales.reshape(-1), size).astype(np.float32), np.broadcast_to(points, size).copy(), along)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.zero_point.dtype

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest integer of the type."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    def single(self, where: str) -> tuple[np.float32, int]:
        """Scale and zero point of a tensor with one of each.  Raises BadInputError for several."""
        if self.axis is not None:
            raise BadInputError(f"{where}: {self.scale.size} scales along axis {self.axis}; expected one for the whole tensor")
        return np.float32(self.scale[0]), int(self.zero_point[0])

    def of_channels(self, axis: int, where: str) -> Quantisation:
        """The quantisation itself.  Raises BadInputError where scales lie along another axis than that of output channels."""
        if self.axis not in (None, axis):
            raise BadInputError(f"{where}: scales along axis {self.axis}; expected the output channels, axis {axis}, or one scale")
        return self

    def along(self, rank: int) -> tuple[Floats, NDArray[np.int64]]:
        """Scale and zero point, shaped to broadcast over a tensor of that rank."""
        shape = [1] * rank
        if self.axis is not None:
            shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero_point.astype(np.int64).reshape(shape)

    def same_as(self, quantisation: Quantisation | None) -> bool:
        """Whether both have the same type, axis, scales and zero points."""
        parts = ("scale", "zero_point")
        return (
            quantisation is not None
            and (self.dtype, self.axis) == (quantisation.dtype, quantisation.axis)
            and all(np.array_equal(getattr(self, part), getattr(quantisation, part)) for part in parts)
        )

    def __str__(self) -> str:
        scale, zero = (f"{part[0]:.9g}" if part.size == 1 else f"[{part.size}]" for part in (self.scale, self.zero_point))
        return f"{self.dtype} (q - {zero}) * {scale}"


def check_quantisation(actual: Quantisation | None, expected: Quantisation | None) -> None:
    """Raise ValueError where a tensor has another type than an operator expects.  None stands for floats."""
    if not (actual is expected is None or (actual is not None and actual.same_as(expected))):
        raise ValueError(f"reads {expected or 'floats'}, and is given {actual or 'floats'}")


def _axis(axis: int | None, shape: Sequence[int], prefix: str) -> int:
    if axis is None:
        raise BadInputError(f"{prefix}several scales or zero points; expected one of each for the whole tensor")
    if not -len(shape) <= axis < len(shape):
        raise BadInputError(f"{prefix}scales along axis {axis}; expected an axis of the shape {list(shape)}")
    return axis % len(shape)


def _zeros(zeros: NDArray[Any], zero_point: ArrayLike | None, kind: np.dtype[Any], prefix: str) -> Integers:
    """Zero points in the tensor's type.  Integers of Python are converted by value, arrays have to have the type."""
    typed = isinstance(zero_point, np.ndarray | np.generic)
    if zeros.dtype.kind not in "iu" or (typed and zeros.dtype != kind):
        raise BadInputError(f"{prefix}zero point of type {zeros.dtype}; expected that of the tensor, {kind}")
    least, greatest = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    wrong = zeros.reshape(-1)[((zeros < least) | (zeros > greatest)).reshape(-1)]
    if wrong.size:
        raise BadInputError(f"{prefix}zero point {wrong[0]}; expected {least} to {greatest}, the range of {kind}")
    if kind == SUMS and zeros.any():
        raise BadInputError(f"{prefix}zero point {zeros.reshape(-1)[zeros.reshape(-1) != 0][0]} of int32; expected 0")
    return zeros.reshape(-1).astype(kind)


RAW_SUMS = Quantisation.of(np.float32(1), None, SUMS)  # int32 sums, whose values are the integers
