"""Chains of element-wise steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, Self

import numpy as np

from compiler.ir.operators.base import Floats, Operator, Shape, Spell, Values

# Values that padding lanes may begin with; the first one that keeps them finite is used.  ln, reciprocal, square root and division take 1.
GUARDS = (1.0, -1.0, *(sign * 4.0**power for power in range(1, 7) for sign in (1, -1)))
_QUOTIENTS = ("div", "rdiv", "reciprocal", "exp")
# Kinds of steps that may overflow, in the order in which limits are tried: quotients first, then squares, products and sums.
_BEYOND = (_QUOTIENTS, (*_QUOTIENTS, "square", "mul", "muls", "scale_shift", "multiply_add", "add", "adds", "sub", "rsub"))
_UNDEFINED = ("div", "rdiv", "reciprocal", "ln", "sqrt")  # undefined for some finite numbers
_CASES = 4096  # most tested combinations of operand values; larger sets of values are sampled from least to greatest

StepOp = Literal[
    "scale_shift", "relu", "exp", "ln", "sqrt", "reciprocal", "square", "adds", "muls", "maxs", "mins",
    "add", "sub", "mul", "div", "max", "min", "rsub", "rdiv", "keep", "take", "multiply_add",
    "gelu", "erf",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an element-wise chain on the running value v.

    scale_shift: v * scale[c] + shift[c]; `padding`: its constant result in padding lanes.  adds, muls, maxs, mins: v op `value`.
    add, sub, mul, div, max, min: v op other.  rsub, rdiv: other op v.  take: v becomes other.
    other: inputs[operand], or the last value that `keep` stored in `register`.
    multiply_add: v * factor + summand, rounded once; both are the registers `register` and `added`, or `value` where the number is -1.
    gelu: v * (1 + erf(v / sqrt 2)) / 2.
    """

    op: StepOp
    value: float = 0.0
    operand: int = -1
    register: int = -1
    added: int = -1
    scale: Floats | None = None  # [channels], or [1]: the same for all channels
    shift: Floats | None = None
    padding: float | None = None

    @property
    def of_padding(self) -> tuple[float, float]:
        """(scale, shift) of padding lanes: the channels' values if all are equal, which keeps the lanes finite; else (0, 0)."""
        assert self.scale is not None
        assert self.shift is not None
        if self.padding is not None:
            return 0.0, self.padding
        same = np.all(self.scale == self.scale[0]) and np.all(self.shift == self.shift[0])
        return (float(self.scale[0]), float(self.shift[0])) if same else (0.0, 0.0)

    def spelt(self, spell: Spell) -> str:
        if self.op == "scale_shift":
            assert self.scale is not None
            assert self.shift is not None
            padding = "" if self.padding is None else f" padding {self.padding:.9g}"
            return f"scale_shift {spell(self.scale)} {spell(self.shift)}{padding}"
        if self.op == "multiply_add":
            factor, summand = (f"kept{number}" if number >= 0 else f"{self.value:.9g}" for number in (self.register, self.added))
            return f"{self.op} {factor} {summand}"
        if self.operand >= 0 or self.register >= 0:
            return f"{self.op} " + (f"#{self.operand}" if self.operand >= 0 else f"kept{self.register}")
        return f"{self.op} {self.value:.9g}" if self.op in ("adds", "muls", "maxs", "mins") else self.op


@dataclass(frozen=True, eq=False)
class Vector(Operator):
    """Element-wise chain: v starts as inputs[0], each step updates it, y is the last v.

    inputs[0] and y have one shape; each other input has it as well, or is one pixel (n, c, 1, 1), broadcast to all pixels.
    """

    name: str
    inputs: tuple[str, ...]
    y: str
    steps: tuple[Step, ...]

    @property
    def moves(self) -> bool:
        return not self.steps

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, inputs=names)

    def attributes(self, spell: Spell) -> list[str]:
        return ["[" + "; ".join(step.spelt(spell) for step in self.steps) + "]"]

    def unfit(self, inputs: Sequence[Shape]) -> str:
        n, c, h, w = inputs[0]
        mismatches = [shape for shape in inputs[1:] if shape not in ((n, c, h, w), (n, c, 1, 1))]
        return f"an input of shape {mismatches[0]} beside {(n, c, h, w)}" if mismatches else ""

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        return chain(self.steps, inputs[0], inputs)

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """Values of padding lanes after the `guarded` steps."""
        outputs = _on_padding(self.guarded(inputs, rounding), _combinations(inputs), rounding)
        return frozenset(np.unique(outputs).astype(float).tolist())

    def guarded(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[Step, ...]:
        """Steps that keep padding lanes finite: the operator's own where possible.

        Weights are zero for such lanes, but 0 x inf is NaN, so one logarithm or division of a zero there would corrupt every channel of the
        next convolution.  Padding values are tracked through the graph as sets; only a chain that would overflow changes.
        """
        cases = _combinations(inputs)
        finite = (steps for steps in self._guards(rounding) if np.isfinite(_on_padding(steps, cases, rounding)).all())
        return next(finite)

    def _guards(self, rounding: type[np.floating]) -> Iterator[tuple[Step, ...]]:
        """Candidates of guarded steps, the cheapest first.  The last is finite for all finite inputs."""
        for limited_ops in ((), *_BEYOND):  # overflow saturates, in channels too
            steps = _bounded(self.steps, limited_ops, rounding) if limited_ops else self.steps
            if not limited_ops:
                yield steps
            yield from ((_guard(value), *steps) for value in GUARDS)
        steps = _bounded(self.steps, _BEYOND[-1], rounding)
        yield tuple(guarded_step for step in steps for guarded_step in ((_guard(GUARDS[0]), step) if step.op in _UNDEFINED else (step,)))

    def with_mask(self, channels: int) -> Self:
        """Chain with zeros in padding lanes: a last step that adds or multiplies a constant gets a value per lane; else a product with 1
        is appended."""
        *before, last = self.steps or (Step("muls", 1.0),)
        if last.op == "scale_shift":
            return replace(self, steps=(*before, replace(last, padding=0.0)))
        if last.op not in ("adds", "muls"):
            before, last = [*before, last], Step("muls", 1.0)
        scale, shift = (1.0, last.value) if last.op == "adds" else (last.value, 0.0)
        constants = (np.full(channels, value, np.float32) for value in (scale, shift))
        return replace(self, steps=(*before, Step("scale_shift", scale=next(constants), shift=next(constants), padding=0.0)))


def _combinations(inputs: Sequence[Values]) -> Floats:
    """Test cases of a padding lane, float32 [inputs, cases]."""
    max_values = max(2, int(_CASES ** (1 / len(inputs))))
    operand_values = [np.array(sorted(values), np.float32) for values in inputs]
    samples = [values[np.linspace(0, len(values) - 1, min(len(values), max_values), dtype=np.int64)] for values in operand_values]
    return np.array(list(product(*samples)), np.float32).reshape(-1, len(inputs)).T


def _bounded(steps: tuple[Step, ...], ops: Sequence[str], rounding: type[np.floating]) -> tuple[Step, ...]:
    """Steps with limits after each step of the kinds `ops`, which may overflow."""
    largest = float(np.finfo(rounding).max)
    limits = Step("mins", largest), Step("maxs", -largest)
    return tuple(bounded_step for step in steps for bounded_step in ((step, *limits) if step.op in ops else (step,)))


def _guard(value: float) -> Step:
    """Step that sets padding lanes to a value."""
    return Step("scale_shift", scale=np.ones(1, np.float32), shift=np.zeros(1, np.float32), padding=value)


def _on_padding(steps: tuple[Step, ...], cases: Floats, rounding: type[np.floating]) -> Floats:
    """Result of the chain in padding lanes, [cases], rounded after every step."""
    lane_steps = [_of_one_lane(step) if step.op == "scale_shift" else step for step in steps]
    tensors = list(cases[:, None, None, None])
    with np.errstate(all="ignore"):
        return chain(lane_steps, tensors[0], tensors, lambda values: values.astype(rounding).astype(np.float32)).reshape(-1)


def _of_one_lane(step: Step) -> Step:
    scale, shift = step.of_padding
    return replace(step, scale=np.array([scale], np.float32), shift=np.array([shift], np.float32))


def erf(x: Floats) -> Floats:
    """Error function of x by Abramowitz and Stegun 7.1.26: error at most 1.5e-7."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - series * np.exp(-x * x)), np.float32)


def chain(steps: Sequence[Step], v: Floats, inputs: Sequence[Floats], rounded: Callable[[Floats], Floats] = np.asarray) -> Floats:
    """Result of an element-wise chain with start value v.  rounded: applied after every step."""
    registers: dict[int, Floats] = {}
    for step in steps:
        if step.op == "keep":
            registers[step.register] = v
        elif step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            v = rounded(v * step.scale[:, None, None] + step.shift[:, None, None])
        elif step.op == "multiply_add":
            v = rounded(v * registers.get(step.register, np.float32(step.value)) + registers.get(step.added, np.float32(step.value)))
        else:
            operand = inputs[step.operand] if step.operand >= 0 else registers.get(step.register, v)
            v = rounded(_STEPS[step.op](v, np.float32(step.value), operand))
    return v


_STEPS: dict[str, Callable[[Floats, np.float32, Floats], Floats]] = {
    "relu": lambda a, s, b: np.maximum(a, np.float32(0)), "exp": lambda a, s, b: np.exp(a), "ln": lambda a, s, b: np.log(a),
    "sqrt": lambda a, s, b: np.sqrt(a), "reciprocal": lambda a, s, b: np.float32(1) / a, "square": lambda a, s, b: a * a,
    "adds": lambda a, s, b: a + s, "muls": lambda a, s, b: a * s, "maxs": lambda a, s, b: np.maximum(a, s),
    "mins": lambda a, s, b: np.minimum(a, s), "add": lambda a, s, b: a + b, "sub": lambda a, s, b: a - b,
    "mul": lambda a, s, b: a * b, "div": lambda a, s, b: a / b, "max": lambda a, s, b: np.maximum(a, b),
    "min": lambda a, s, b: np.minimum(a, b), "rsub": lambda a, s, b: b - a, "rdiv": lambda a, s, b: b / a, "take": lambda a, s, b: b,
    "erf": lambda a, s, b: erf(a), "gelu": lambda a, s, b: a * np.float32(0.5) * (1 + erf(a * np.float32(math.sqrt(0.5)))),
}  # fmt: skip
