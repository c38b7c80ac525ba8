"""Lanes without a channel: what chains leave there, that it is finite, and zeros where sums over lanes need them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.ir.operators import GUARDS, ZERO, Concat, Conv, MatMul, Pool, Step, StepOp, Vector
from compiler.ir.padding import assign_with_masks
from simulator.npu.parts import DataType
from tests.graphs import graph


def chain(*ops: StepOp, inputs: int = 1, value: float = 1.0) -> Vector:
    steps = tuple(Step(op, value, operand=1 if op in ("add", "sub", "mul", "div", "max", "min") else -1) for op in ops)
    return Vector("v", tuple("xy"[:inputs]), "z", steps)


@pytest.mark.parametrize(
    ("op", "guard"),
    [
        (chain("relu", "adds"), None),
        (chain("exp", "adds", "reciprocal"), None),  # 1 / (e^0 + 1)
        (chain("sqrt"), None),
        (chain("ln"), 1.0),
        (chain("reciprocal"), 1.0),
        (chain("ln", "exp"), None),  # e^-inf is a number again
        (chain("add", inputs=2), None),
        (chain("adds", "ln", value=-5.0), 16.0),  # ln of -5, -4, -6, -1 and -9 is no number
        (chain("adds", "reciprocal", value=-1.0), None),
    ],
)
def test_guard(op: Vector, guard: float | None) -> None:
    steps = op.guarded([ZERO] * len(op.inputs), np.float16)
    assert [step.padding for step in steps] == ([] if guard is None else [guard]) + [None] * len(op.steps)
    assert steps[-len(op.steps) :] == op.steps


def test_values_on_paper() -> None:
    assert chain("adds", "muls").padding([ZERO], np.float32) == {1.0}
    assert chain("ln").padding([ZERO], np.float32) == {0.0}  # ln 1
    assert chain("adds").padding([frozenset({0.0, 2.0})], np.float32) == {1.0, 3.0}
    assert Concat("c", ("x", "y"), "z").padding([ZERO, frozenset({GUARDS[0]})], np.float32) == {0.0, 1.0}
    conv = Conv("c", "x", "y", np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.float32))
    assert conv.padding([frozenset({3.0})], np.float32) == ZERO  # weights are zero there
    counted = Pool("p", "x", "y", "average", (2, 1), pads=(1, 0, 0, 0), count_include_pad=True)
    assert {0.0, 1.5, 3.0} < counted.padding([frozenset({3.0})], np.float32)
    assert counted.padding([ZERO], np.float32) == ZERO


def test_a_quotient_of_gaps_is_clamped() -> None:
    """Nothing that v may be makes v / 0 finite."""
    guard, *steps = chain("div", inputs=2).guarded([ZERO, ZERO], np.float16)
    assert guard.padding == GUARDS[0]
    assert [step.op for step in steps] == ["div", "mins", "maxs"]
    assert chain("div", inputs=2).padding([ZERO, ZERO], np.float16) == {65504.0}


def test_a_square_beyond_float16_is_clamped() -> None:
    op = Vector("v", ("x", "y"), "z", (Step("take", operand=1), Step("square")))
    assert op.padding([ZERO, frozenset({300.0})], np.float16) == {65504.0}
    assert op.padding([ZERO, frozenset({300.0})], np.float32) == {90000.0}


def test_guard_stands_where_no_earlier_number_helps() -> None:
    op = Vector("v", ("x", "y"), "z", (Step("take", operand=1), Step("ln")))
    assert [step.op for step in op.guarded([ZERO, frozenset({-1.0})], np.float16)] == ["take", "scale_shift", "ln"]
    quotient = Vector("v", ("x", "y", "z"), "z", (Step("mul", operand=1), Step("div", operand=2)))
    assert quotient.padding([ZERO, ZERO, ZERO], np.float16) == {65504.0}


@given(
    st.lists(st.sampled_from(get_args(StepOp)), min_size=1, max_size=6),
    st.lists(st.frozensets(st.sampled_from([-60000.0, -1.0, 0.0, 2.0, 60000.0]), min_size=1), min_size=2, max_size=2),
    st.sampled_from([-60000.0, -1.0, 0.0, 3.0]),
)
def test_every_chain_can_be_kept_finite(ops: list[StepOp], inputs: list[frozenset[float]], value: float) -> None:
    several = np.array([value, 1.0], np.float32)
    steps = [Step("keep", register=0), *(Step(op, value, operand=1, register=0, added=0, scale=several, shift=several) for op in ops)]
    assert np.isfinite(sorted(Vector("v", ("x", "y"), "z", tuple(steps)).padding(inputs, np.float16))).all()


def test_no_gaps_no_guard() -> None:
    op = chain("ln")
    assert op.guarded([frozenset()], np.float16) == op.steps


def test_a_residual_keeps_its_gaps() -> None:
    conv = Conv("c", "x", "y", np.zeros((1, 1, 1, 1), np.float32), np.zeros(1, np.float32), residual="r", activation="relu")
    assert conv.padding([ZERO, frozenset({-2.0, 3.0})], np.float32) == {0.0, 3.0}


@pytest.mark.parametrize("ops", [("exp",), ("adds",), ("exp", "muls"), ("muls", "adds"), ("exp", "scale_shift")])
def test_mask_replaces_a_last_sum_or_product(ops: tuple[StepOp, ...]) -> None:
    scale = np.full(20, 2.0, np.float32)
    steps = tuple(Step(op, 3.0, scale=scale, shift=scale) if op == "scale_shift" else Step(op, 3.0) for op in ops)
    op = Vector("v", ("x",), "v", steps)
    masked = op.with_mask(20)
    assert len(masked.steps) == len(steps) + (ops[-1] == "exp")
    assert masked.padding([ZERO], np.float32) == ZERO != op.padding([ZERO], np.float32)
    x = np.linspace(-2, 2, 20, dtype=np.float32).reshape(1, 20, 1, 1)
    assert np.array_equal(masked.apply([x]), op.apply([x]))


def test_nearest_chain_is_masked_once_for_all_readers() -> None:
    exp = Vector("e", ("x",), "e", (Step("exp"),))
    pool = Pool("p", "e", "p", "max", (1, 1))
    products = [MatMul("g", "p", "p", "g", 1, True), MatMul("h", "p", "e", "h", 1, True)]
    made = assign_with_masks(graph((1, 20, 3, 4), [exp, pool, *products], ["g", "h"]), DataType.float16).graph
    assert [op.name for op in made.operators] == ["e", "p", "g", "h"]
    assert isinstance(made.operators[0], Vector)
    assert [step.op for step in made.operators[0].steps] == ["exp", "scale_shift"]
    full = assign_with_masks(graph((1, 32, 3, 4), [exp, pool, *products], ["g", "h"]), DataType.float16).graph
    assert full.operators[0] is exp
