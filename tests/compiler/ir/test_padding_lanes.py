"""Lanes without a channel stay finite, and only chains that need it are changed."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.operators import GUARD, Concat, Conv, Step, StepOp, Vector

ZERO = frozenset({0.0})


def chain(*ops: StepOp, inputs: int = 1) -> Vector:
    steps = tuple(Step(op, 1.0, operand=1 if op in ("add", "sub", "mul", "div", "max", "min") else -1) for op in ops)
    return Vector("v", tuple("xy"[:inputs]), "z", steps)


@pytest.mark.parametrize(
    ("op", "guard"),
    [
        (chain("relu", "adds"), False),
        (chain("exp", "adds", "reciprocal"), False),  # 1 / (e^0 + 1)
        (chain("sqrt"), False),
        (chain("ln"), True),
        (chain("reciprocal"), True),
        (chain("ln", "exp"), False),  # e^-inf is a number again
        (chain("add", inputs=2), False),
    ],
)
def test_guard(op: Vector, guard: bool) -> None:
    steps, found = op.guarded([ZERO] * len(op.inputs), np.float16)
    assert found == guard
    assert steps == op.steps


def test_values_on_paper() -> None:
    assert chain("adds", "muls").padding([ZERO], np.float32) == {1.0}
    assert chain("ln").padding([ZERO], np.float32) == {0.0}  # ln 1
    assert chain("adds").padding([frozenset({0.0, 2.0})], np.float32) == {1.0, 3.0}
    assert Concat("c", ("x", "y"), "z").padding([ZERO, frozenset({GUARD})], np.float32) == {0.0, 1.0}
    conv = Conv("c", "x", "y", np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.float32))
    assert conv.padding([frozenset({3.0})], np.float32) == ZERO  # weights are zero there


def test_a_quotient_of_gaps_is_clamped() -> None:
    """Nothing that v may be makes v / 0 finite."""
    steps, guard = chain("div", inputs=2).guarded([ZERO, ZERO], np.float16)
    assert guard
    assert [step.op for step in steps] == ["div", "mins", "maxs"]
    assert chain("div", inputs=2).padding([ZERO, ZERO], np.float16) == {65504.0}


def test_no_gaps_no_guard() -> None:
    op = chain("ln")
    assert op.guarded([frozenset()], np.float16) == (op.steps, False)


def test_a_residual_keeps_its_gaps() -> None:
    conv = Conv("c", "x", "y", np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.float32), residual="r", activation="relu")
    assert conv.padding([ZERO, frozenset({-2.0, 3.0})], np.float32) == {0.0, 3.0}
