"""Values of a compiled file against onnxruntime on the same inputs, relative to the effect of rounding alone.

The comparison is at the borders: every piece gets onnxruntime's own inputs, so an error of one piece, or an index selected by a node of the
host, does not count as an error of the next.  Outputs that the host computes by continuous functions are compared too.  Discontinuous
outputs (an index, a selection) come from the same code on both sides, and rounding may well change them: they are counted, and are never a
fault.

The distance of float16 from float32 depends on network and input, so it is measured: the reference runs with rounded weights and rounded
stored tensors, and the largest error of some samples counts.  The NPU is another sample, and must stay below `FACTOR` times that.

The output of a Softmax is compared before it, because Softmax saturates and hides errors.  The logits need not be in the file's memory map:
log p = logit - log(sum exp), so a difference of log p is a difference of logits except for one shift per softmax.  Probabilities below the
smallest normal number of the data type are taken as that number.

Integers of a quantised model before the first floating operator equal onnxruntime's to the bit.  After it a value may be one step off
wherever rounding changed it; their number is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from simulator.npu.float_range import OutOfRange
from simulator.npu.parts import DataType
from simulator.session import InferenceSession
from tuner.verify.reference import Array, ReferenceValues, count_differing

FACTOR = 4.0  # largest error, as a multiple of the effect of rounding
FLOOR = 4 * 2.0**-11  # for luck in rounding: storing the output itself may move it by 2^-11
MOST = 0.1  # upper limit of accepted errors: beyond it a correct network looks like a wrong one
FLOAT32 = 1e-4  # float32 differs from onnxruntime by the order of its sums
_A_STEP = 1.01  # float16 stores a step with an error


@dataclass(frozen=True)
class TensorComparison:
    """Comparison of a tensor.  error: max|out - ref| / max|ref|.  rounding: the same for rounded references; None without rounding to
    float16.

    exact: whether no value may differ.  step: one step of its integers, in the unit of `error`; 0 if not quantised.  differing: number of
    different values among `count`.  quantised: whether rounding in a quantised model may change its integers.  whose: the reference.
    shapes: shapes of the tensor and the reference, if different; then no value is compared.
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
        """Largest error of a correct program."""
        if self.exact:
            return 0.0
        if self.rounding is None:
            return max(FLOAT32, _A_STEP * self.step)
        floor = max(FLOOR, _A_STEP * self.step)
        ceiling = np.inf if self.quantised else MOST
        return max(floor, min(ceiling, FACTOR * self.rounding)) if np.isfinite(self.rounding) else floor

    @property
    def ok(self) -> bool:
        return self.shapes is None and (self.differing == 0 if self.exact else self.error <= self.limit)  # NaN is not

    def __str__(self) -> str:
        if self.shapes is not None:
            return f"shape {list(self.shapes[0])}, {self.whose} {list(self.shapes[1])}"
        if self.exact or self.step:
            text = f"{self.differing:,} of {self.count:,} values differ from {self.whose}"
            if self.exact:
                return f"{text}, none may"
            return f"{text}, by {self.error / self.step:.3g} steps at most, rounding alone {(self.rounding or 0.0) / self.step:.3g}"
        if not np.isfinite(self.error):
            return "not finite"
        note = "" if self.rounding is None else f", rounding alone {self.rounding:.3g}"
        return f"max|out-ref|/max|ref| {self.error:.3g}{note}, at most {self.limit:.3g}"


@dataclass(frozen=True)
class CountedOutput:
    """Discontinuous output.  equal: number of equal values among `count`; None if the shape differs from `shape`, onnxruntime's."""

    equal: int | None
    count: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        if self.equal is None:
            return f"another shape than onnxruntime's {'x'.join(map(str, self.shape))}; not part of the check"
        return f"{self.equal:,} of {self.count:,} values equal to onnxruntime's; not part of the check"


@dataclass(frozen=True)
class Values:
    """Values of one level.  outputs: outputs of the NPU and of the host nodes after it.  Every name is in `compared` or in `counted`.

    beyond: if values are not finite, the first tensor outside the range of the data type, if any.
    """

    outputs: Mapping[str, Array]
    compared: Mapping[str, TensorComparison]
    counted: Mapping[str, CountedOutput]
    beyond: OutOfRange | None
    dtype: DataType

    @property
    def worst(self) -> TensorComparison:
        """Comparison with the largest ratio of error to limit; non-finite errors first."""
        return max(self.compared.values(), key=_error_over_limit)

    @property
    def faults(self) -> tuple[str, ...]:
        """Reasons for unconfirmed values, a line each; () for confirmed values."""
        failed = sorted(
            ((name, comparison) for name, comparison in self.compared.items() if not comparison.ok),
            key=lambda entry: entry[1].shapes is None,
        )
        lines = [f"{name!r}: {comparison}" for name, comparison in failed]
        if self.beyond is not None:
            lines.append(f"the first tensor {self.beyond.side} {self.dtype.name} is {self.beyond.text(self.dtype)}")
        elif not all_finite(self.compared):
            lines.append(f"not finite, and no tensor of the model is beyond {self.dtype.name} in float32: a value inside an operator is")
        return tuple(lines)


def _error_over_limit(comparison: TensorComparison) -> float:
    """Error over limit; above 1 for a wrong value."""
    if not np.isfinite(comparison.error):
        return np.inf
    return comparison.error / comparison.limit if comparison.limit else np.inf if comparison.differing else 0.0


def all_finite(compared: Mapping[str, TensorComparison]) -> bool:
    """Whether all errors of tensors with the right shape are finite."""
    return all(np.isfinite(comparison.error) for comparison in compared.values() if comparison.shapes is None)


def relative_error(out: ArrayLike, ref: ArrayLike, dtype: DataType, logits_scale: float | None = None) -> float:
    """Error max|out - ref| / max|ref|; with `logits_scale` = max|logits| both are probabilities and are compared as logits.

    NaN or infinity where `out` has them.
    """
    actual, ideal = np.asarray(out, np.float64), np.asarray(ref, np.float64)
    if actual.shape != ideal.shape:  # extents of host outputs may depend on values
        return float("inf")
    scale = float(np.abs(ideal).max(initial=0.0))
    if logits_scale is not None:
        smallest_normal = 2.0**-14 if dtype == DataType.float16 else 2.0**-126
        # maximum keeps NaN; a negative probability is as far off as one can be
        actual, ideal, scale = np.log(np.maximum(actual, smallest_normal)), np.log(np.maximum(ideal, smallest_normal)), logits_scale
    with np.errstate(invalid="ignore"):  # inf - inf
        return float(np.abs(actual - ideal).max(initial=0.0)) / (scale or 1.0)


def compare_tensor(expected: ReferenceValues, name: str, out: Array, dtype: DataType) -> TensorComparison:
    """Compare a tensor made by the NPU, or by the host from its outputs."""
    ref, scale = expected.values[name], expected.logits_scale.get(name)
    if out.shape != ref.shape:
        return TensorComparison(np.inf, None, count=ref.size, whose=expected.whose, shapes=(out.shape, ref.shape))
    half = out.dtype == np.float16
    dtype = DataType.float16 if half else dtype  # the tensor's own type rounds
    noise = [relative_error(sample[name], ref, dtype, scale) for sample in expected.rounded]
    if half and not noise:
        noise = [relative_error(ref.astype(np.float16), ref, dtype, scale)]
    comparison = TensorComparison(relative_error(out, ref, dtype, scale), float(np.max(noise)) if noise else None)
    if not expected.quantised:
        return comparison
    magnitude = float(np.abs(ref.astype(np.float64)).max(initial=0.0)) or 1.0
    differing = count_differing(out, ref.astype(out.dtype))
    step = expected.steps.get(name, 0.0) / magnitude
    return replace(
        comparison, exact=name in expected.exact, step=step, differing=differing, count=ref.size, quantised=True, whose=expected.whose
    )


def compare_values(session: InferenceSession, feeds: Mapping[str, ArrayLike], expected: ReferenceValues, level: str) -> Values:
    """Execute the variants of a level and compare.  Raises `BadInputError` for a level or feeds unknown to the file."""
    dtype = session.compiled.dtype
    outputs = session.run_on(feeds, expected.values, level)
    compared, counts = {}, {}
    for name, output in outputs.items():
        if name in expected.stepped:
            reference = expected.values[name]
            same_shape = output.shape == reference.shape
            counts[name] = CountedOutput(int((output == reference).sum()) if same_shape else None, reference.size, reference.shape)
        else:
            compared[name] = compare_tensor(expected, name, output, dtype)
    return Values(outputs, compared, counts, None if all_finite(compared) else expected.beyond, dtype)
