"""Chains of element-wise steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, Self

import numpy as np

from compiler.ir.operators.base import Floats, Operator, Shape, Spell, Values

GUARD = 1.0  # finite under every step: ln, reciprocal, square root and division take it
_MANY = 64  # combinations of operands that are looked at

StepOp = Literal[
    "scale_shift", "relu", "exp", "ln", "sqrt", "reciprocal", "square", "adds", "muls", "maxs", "mins",
    "add", "sub", "mul", "div", "max", "min", "rsub", "rdiv", "keep", "take", "multiply_add",
    "gelu", "erf",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an element-wise chain on the running value v.

    scale_shift: v * scale[c] + shift[c].  adds, muls, maxs, mins: with `value`.  add, sub, mul, div, max, min: v op other.
    rsub, rdiv: other op v.  take: v becomes other.  other: inputs[operand], or what `keep` put aside last under the number `kept`.
    multiply_add: v * factor + summand, rounded once: what is put aside under `kept` and `added`, or `value` where that is -1.
    gelu: v * (1 + erf(v / sqrt 2)) / 2.
    """

    op: StepOp
    value: float = 0.0
    operand: int = -1
    kept: int = -1
    added: int = -1
    scale: Floats | None = None  # [c]
    shift: Floats | None = None  # [c]

    @property
    def of_padding(self) -> tuple[float, float]:
        """(scale, shift) of lanes without a channel: that of all channels where it is one, so that such a lane stays as finite; else 0."""
        assert self.scale is not None
        assert self.shift is not None
        same = np.all(self.scale == self.scale[0]) and np.all(self.shift == self.shift[0])
        return (float(self.scale[0]), float(self.shift[0])) if same else (0.0, 0.0)

    def spelt(self, spell: Spell) -> str:
        if self.op == "scale_shift":
            assert self.scale is not None
            assert self.shift is not None
            return f"scale_shift {spell(self.scale)} {spell(self.shift)}"
        if self.op == "multiply_add":
            factor, summand = (f"kept{number}" if number >= 0 else f"{self.value:.9g}" for number in (self.kept, self.added))
            return f"{self.op} {factor} {summand}"
        if self.operand >= 0 or self.kept >= 0:
            return f"{self.op} " + (f"#{self.operand}" if self.operand >= 0 else f"kept{self.kept}")
        return f"{self.op} {self.value:.9g}" if self.op in ("adds", "muls", "maxs", "mins") else self.op


@dataclass(frozen=True, eq=False)
class Vector(Operator):
    """An element-wise chain: v starts as inputs[0], every step changes it, y is the last v.

    inputs[0] and y have one shape; each other input has it as well, or is one pixel (n, c, 1, 1) that goes with all of them.
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
        others = [shape for shape in inputs[1:] if shape not in ((n, c, h, w), (n, c, 1, 1))]
        return f"an input of shape {others[0]} beside {(n, c, h, w)}" if others else ""

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        return chain(self.steps, inputs[0], inputs)

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """As `guarded` leaves it."""
        steps, guard = self.guarded(inputs, rounding)
        return frozenset(_on_padding(steps, GUARD if guard else values[0], values, rounding) for values in _combinations(inputs))

    def guarded(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[tuple[Step, ...], bool]:
        """Steps that keep lanes without a channel finite, and whether v must start as `GUARD` in them; its own steps where they do anyway.

        Weights are zero for such lanes, but 0 x inf is NaN, so one logarithm or division of a zero there would spoil every channel of the
        next convolution.  They are followed through the graph as sets of values; only a chain that would leave the finite numbers changes.
        """
        cases = list(_combinations(inputs))
        if all(np.isfinite(_on_padding(self.steps, values[0], values, rounding)) for values in cases):
            return self.steps, False
        if all(np.isfinite(_on_padding(self.steps, GUARD, values, rounding)) for values in cases):
            return self.steps, True
        # a division by another tensor's: what is beyond the largest number becomes that, in channels too
        largest = float(np.finfo(rounding).max)
        clamped: list[Step] = []
        for step in self.steps:
            clamped.append(step)
            if step.op in ("div", "rdiv", "reciprocal", "exp"):
                clamped += [Step("mins", largest), Step("maxs", -largest)]
        return tuple(clamped), True


def _combinations(inputs: Sequence[Values]) -> list[tuple[float, ...]]:
    return [values for _, values in zip(range(_MANY), product(*(sorted(values) for values in inputs)), strict=False)]


def _on_padding(steps: tuple[Step, ...], first: float, values: tuple[float, ...], rounding: type[np.floating]) -> float:
    """The chain where inputs have no channel, v starting as `first`, rounded after every step."""
    there = [_of_one_lane(step) if step.op == "scale_shift" else step for step in steps]
    start, *tensors = (np.full((1, 1, 1, 1), value, np.float32) for value in (first, *values))
    with np.errstate(all="ignore"):
        v = chain(there, start, tensors, lambda made: made.astype(rounding).astype(np.float32))
    return float(v[0, 0, 0, 0])


def _of_one_lane(step: Step) -> Step:
    scale, shift = step.of_padding
    return replace(step, scale=np.array([scale], np.float32), shift=np.array([shift], np.float32))


def erf(x: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26: off by at most 1.5e-7."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - series * np.exp(-x * x)), np.float32)


def chain(steps: Sequence[Step], v: Floats, inputs: Sequence[Floats], rounded: Callable[[Floats], Floats] = np.asarray) -> Floats:
    """An element-wise chain that starts as v; `rounded` is applied to what every step makes."""
    kept: dict[int, Floats] = {}
    for step in steps:
        if step.op == "keep":
            kept[step.kept] = v
        elif step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            v = rounded(v * step.scale[:, None, None] + step.shift[:, None, None])
        elif step.op == "multiply_add":
            v = rounded(v * kept.get(step.kept, np.float32(step.value)) + kept.get(step.added, np.float32(step.value)))
        else:
            other = inputs[step.operand] if step.operand >= 0 else kept.get(step.kept, v)
            v = rounded(_STEPS[step.op](v, np.float32(step.value), other))
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
