"""Are the values of a compiled file right?  What the NPU makes, against onnxruntime on the same inputs and what rounding alone does to it.

Compared is what crosses the border: every piece is given onnxruntime's own inputs, so what one piece does, or an index that a node of the
host picks, does not pass for an error of the next.  So are outputs that the host makes of it by continuous functions.  Outputs that jump
(an index, what is chosen by one) are made by the same code on both sides, and a rounding may well turn one: they are counted, and fail
nothing.

How far float16 is from float32 depends on network and input, so it is measured: by the reference with its weights and every tensor that the
NPU stores rounded, the largest error of some samples of that.  What the NPU does is another sample, and stays below `FACTOR` times that.

A tensor that a Softmax makes is compared before it, because Softmax saturates and hides errors.  The logits need not
be in the file's memory map: log p = logit - log(sum exp), so a difference of log p is a difference of logits but for one shift per
softmax.  Probabilities below the smallest normal number of the data type are taken as that number.

Of a quantised model what no floating operator lies before is onnxruntime's to the bit.  Behind one a value may be a step of its integers
off wherever a rounding turned one; how many are is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from simulator.npu.float_range import Beyond
from simulator.npu.parts import DataType
from simulator.session import InferenceSession
from tuner.verify.reference import Array, ReferenceValues, differing

FACTOR = 4.0  # times what rounding alone does
FLOOR = 4 * 2.0**-11  # where rounding happens to do nothing: storing the output itself may move it by 2^-11
MOST = 0.1  # whatever rounding does: nothing tells such a network from a wrong one
FLOAT32 = 1e-4  # float32 differs from onnxruntime by the order of its sums
_A_STEP = 1.01  # and float16 holds a step with an error


@dataclass(frozen=True)
class Compared:
    """A tensor.  error: max|out - ref| / max|ref|.  rounding: the same of rounded references, None where nothing is rounded to float16.

    exact: whether no value may differ.  step: of its integers, by the same measure; 0 of what is not quantised.  differing: of `count`.
    quantised: whether the model is, so that a rounding turns integers, and those further ones.  whose: the reference.
    shapes: the tensor's and the reference's, where they are not the same; then no value is compared.
    """

    error: float
    rounding: float | None
    exact: bool = False
    step: float = 0.0
    differing: int = 0
    count: int = 0
    quantised: bool = False
    whose: str = "onnxruntime's"
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def limit(self) -> float:
        """The largest error of a right program."""
        if self.exact:
            return 0.0
        if self.rounding is None:
            return max(FLOAT32, _A_STEP * self.step)
        floor = max(FLOOR, _A_STEP * self.step)
        most = np.inf if self.quantised else MOST
        return max(floor, min(most, FACTOR * self.rounding)) if np.isfinite(self.rounding) else floor

    @property
    def ok(self) -> bool:
        return self.shapes is None and (self.differing == 0 if self.exact else self.error <= self.limit)  # NaN is not

    def __str__(self) -> str:
        if self.shapes is not None:
            return f"shape {list(self.shapes[0])}, {self.whose} {list(self.shapes[1])}"
        if self.exact or self.step:
            said = f"{self.differing:,} of {self.count:,} values differ from {self.whose}"
            if self.exact:
                return f"{said}, none may"
            return f"{said}, by {self.error / self.step:.3g} steps at most, rounding alone {(self.rounding or 0.0) / self.step:.3g}"
        if not np.isfinite(self.error):
            return "not finite"
        alone = "" if self.rounding is None else f", rounding alone {self.rounding:.3g}"
        return f"max|out-ref|/max|ref| {self.error:.3g}{alone}, at most {self.limit:.3g}"


@dataclass(frozen=True)
class Counted:
    """An output that jumps.  equal: of `count` values; None where even the shapes differ, which is that of onnxruntime."""

    equal: int | None
    count: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        if self.equal is None:
            return f"another shape than onnxruntime's {'x'.join(map(str, self.shape))}; not part of the check"
        return f"{self.equal:,} of {self.count:,} values equal to onnxruntime's; not part of the check"


@dataclass(frozen=True)
class Values:
    """made: what the NPU made and the host behind it.  Every name of it is in `compared` or in `counted`.

    beyond: where something is not finite, the first tensor that the data type does not hold, if there is one.
    """

    made: Mapping[str, Array]
    compared: Mapping[str, Compared]
    counted: Mapping[str, Counted]
    beyond: Beyond | None
    dtype: DataType

    @property
    def worst(self) -> Compared:
        """The one that is furthest beyond its limit, or nearest to it; one that is not finite before all others."""
        return max(self.compared.values(), key=_beyond)

    @property
    def faults(self) -> tuple[str, ...]:
        """Why the values are not confirmed, a line each; () where they are."""
        wrong = sorted(((name, one) for name, one in self.compared.items() if not one.ok), key=lambda named: named[1].shapes is None)
        out = [f"{name!r}: {one}" for name, one in wrong]
        if self.beyond is not None:
            out.append(f"the first tensor {self.beyond.side} {self.dtype.name} is {self.beyond.text(self.dtype)}")
        elif not finite(self.compared):
            out.append(f"not finite, and no tensor of the model is beyond {self.dtype.name} in float32: a value inside an operator is")
        return tuple(out)


def _beyond(one: Compared) -> float:
    """Above 1 where it is wrong."""
    if not np.isfinite(one.error):
        return np.inf
    return one.error / one.limit if one.limit else np.inf if one.differing else 0.0


def finite(compared: Mapping[str, Compared]) -> bool:
    """Of those that have the right shape."""
    return all(np.isfinite(one.error) for one in compared.values() if one.shapes is None)


def relative_error(out: ArrayLike, ref: ArrayLike, dtype: DataType, logits_scale: float | None = None) -> float:
    """max|out - ref| / max|ref|; with `logits_scale` = max|logits| both are probabilities and are compared as logits.

    NaN or infinity where `out` has them.
    """
    mine, theirs = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    if mine.shape != theirs.shape:  # what the host makes may have an extent that depends on values
        return float("inf")
    scale = float(np.abs(theirs).max(initial=0.0))
    if logits_scale is not None:
        least = 2.0**-14 if dtype == DataType.float16 else 2.0**-126
        # maximum keeps NaN; a negative probability is as far off as one can be
        mine, theirs, scale = np.log(np.maximum(mine, least)), np.log(np.maximum(theirs, least)), logits_scale
    with np.errstate(invalid="ignore"):  # inf - inf
        return float(np.abs(mine - theirs).max(initial=0.0)) / (scale or 1.0)


def compare(expected: ReferenceValues, name: str, out: Array, dtype: DataType) -> Compared:
    """A tensor that the NPU made, or the host of it."""
    ref, scale = expected.values[name], expected.logits_scale.get(name)
    if out.shape != ref.shape:
        return Compared(np.inf, None, count=ref.size, whose=expected.whose, shapes=(out.shape, ref.shape))
    half = out.dtype == np.float16
    dtype = DataType.float16 if half else dtype  # the tensor's own type rounds, whatever computes it
    noise = [relative_error(sample[name], ref, dtype, scale) for sample in expected.rounded]
    if half and not noise:
        noise = [relative_error(ref.astype(np.float16), ref, dtype, scale)]
    found = Compared(relative_error(out, ref, dtype, scale), float(np.max(noise)) if noise else None)
    if not expected.quantised:
        return found
    most = float(np.abs(ref.astype(np.float64)).max(initial=0.0)) or 1.0
    wrong = differing(out, ref.astype(out.dtype))
    step = expected.steps.get(name, 0.0) / most
    return replace(found, exact=name in expected.exact, step=step, differing=wrong, count=ref.size, quantised=True, whose=expected.whose)


def values_of(session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, level: str) -> Values:
    """Execute the variants of a level and compare.  Raises `BadInputError` for a level or feeds that the file does not have."""
    dtype = session.compiled.dtype
    made = session.run_on(feeds, expected.values, level)
    compared, counted = {}, {}
    for name, mine in made.items():
        if name in expected.stepped:
            theirs = expected.values[name]
            same = mine.shape == theirs.shape
            counted[name] = Counted(int((mine == theirs).sum()) if same else None, theirs.size, theirs.shape)
        else:
            compared[name] = compare(expected, name, mine, dtype)
    return Values(made, compared, counted, None if finite(compared) else expected.beyond, dtype)
