"""Average pools of bytes: which windows may be added up in any order, and that every integer is onnxruntime's in either way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.ir.operators import QuantisedAverage
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.pooling import average_pool, means_of_sums
from compiler.ir.quantised.products import SlidingWindow
from compiler.ops.quantised_avg_pool import AverageSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine
from tests.compiled import check_program, run_program
from tests.graphs import graph
from tests.integer_graphs import case_of
from tests.integers import with_integers
from tests.plans import random_plan

TINY = with_integers(load_machine("tiny"))


def of(scale: float, zero: int, dtype: str) -> Quantisation:
    return Quantisation.of(np.float32(scale), np.dtype(dtype).type(zero), np.dtype(dtype))


RELU = of(0.0213, 0, "uint8")
LEAST = of(0.0417, -128, "int8")
MIDDLE = of(0.0361, 7, "int8")
OTHER = of(0.0193, 31, "uint8")
ALL, SOME, NONE = "all", "some", "none"

# shape, kernel, x_q, y_q, stride, pads, whether padding counts, which windows may be added up in any order
WINDOWS = {
    "a shortcut of ShuffleNet": ((1, 40, 13, 12), (3, 3), RELU, RELU, (2, 2), (1, 1, 1, 1), False, SOME),
    "neighbours": ((2, 70, 9, 8), (3, 3), LEAST, LEAST, (1, 1), (1, 1, 1, 1), False, SOME),
    "padding counts": ((1, 33, 9, 11), (3, 3), RELU, RELU, (2, 2), (1, 1, 1, 1), True, ALL),
    "no padding": ((1, 40, 11, 9), (5, 1), RELU, RELU, (2, 1), (0, 0, 0, 0), False, ALL),
    "ties": ((1, 40, 9, 8), (2, 2), RELU, RELU, (2, 2), (0, 0, 0, 0), False, NONE),
    "more columns than the image": ((1, 40, 9, 4), (3, 3), RELU, RELU, (1, 1), (1, 2, 1, 2), False, NONE),
    "sums that float16 has not": ((1, 40, 12, 9), (5, 5), RELU, RELU, (1, 1), (2, 2, 2, 2), False, NONE),
    "one row": ((1, 40, 1, 24), (1, 3), LEAST, LEAST, (1, 2), (0, 1, 0, 0), False, SOME),
}
WHOLE = {
    "a pixel": (1, 70, 1, 1),
    "one run": (2, 70, 3, 5),
    "several, the last shorter": (1, 70, 13, 11),
    "one plane": (1, 8, 31, 29),
}


def extremes(shape: tuple[int, ...], q: Quantisation) -> np.ndarray:
    """Random integers, and channels of nothing but the least and the greatest."""
    x = np.random.default_rng(1).integers(q.limits[0], q.limits[1] + 1, shape).astype(q.dtype)
    x[:, 0], x[:, 1] = q.limits
    return x


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    shape, kernel, x_q, y_q, stride, pads, counts, which = WINDOWS[name]
    op = QuantisedAverage("y", "x", "y", kernel, x_q, y_q, stride, pads, counts)
    case = case_of(graph(shape, [op], x_q=x_q), TINY)
    x = extremes(shape, x_q)
    case = replace(case, feeds={"x": x}, expected={"y": op.apply([x])})
    (spec,) = case.target_graph.operators
    assert isinstance(spec, AverageSpec)
    assert spec.exact == (which != NONE)
    compiler, rng, done = Compiler(case.target_graph), np.random.default_rng(0), 0
    program = compiler.compile(default_plan(case.target_graph))
    check_program(case, program)
    divided = (np.concatenate(program.streams)[:, isa.OP] == Op.VDIV).any()
    assert divided == (which != ALL)  # windows that are made in order
    while done < 3:
        plan = random_plan(case.target_graph, rng, 3, strips=True)
        program = None if plan is None else compiler.compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


@pytest.mark.parametrize("q", [RELU, MIDDLE, OTHER])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_images(name: str, q: Quantisation) -> None:
    shape = WHOLE[name]
    op = QuantisedAverage("y", "x", "y", shape[2:], q, of(float(q.scale[0]) / 3, int(q.zero_point[0]), q.dtype.name))
    case = case_of(graph(shape, [op], x_q=q), TINY)
    x = extremes(shape, q)
    case = replace(case, feeds={"x": x})
    program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
    np.testing.assert_array_equal(run_program(case, program)[0]["y"].reshape(op.apply([x]).shape), op.apply([x]))


@pytest.mark.parametrize(("x_q", "y_q"), [(RELU, RELU), (LEAST, LEAST), (MIDDLE, OTHER), (OTHER, MIDDLE)])
def test_what_sums_become_is_what_windows_become(x_q: Quantisation, y_q: Quantisation) -> None:
    rng, found = np.random.default_rng(0), 0
    for taps in range(2, 17):
        wanted = means_of_sums(x_q, y_q, taps, taps)
        if wanted is None:
            continue
        found += 1
        biased = rng.integers(x_q.limits[0], x_q.limits[1] + 1, (4000, 1, 1, 1))
        x = np.clip(biased + rng.integers(-40, 41, (4000, 1, 1, taps)), *x_q.limits).astype(x_q.dtype)
        x = np.concatenate([x, np.full_like(x, x_q.limits[0])], axis=3)  # a window that is no whole image
        made = average_pool(x, x_q, y_q, SlidingWindow((1, taps), (1, taps), (0, 0, 0, 0), (1, 1)))[:, 0, 0, 0]
        np.testing.assert_array_equal(made, wanted[x[..., :taps].astype(np.int64).sum(axis=(1, 2, 3)) - taps * x_q.limits[0]])
    assert found > 3


def test_ties_are_no_function_of_sums() -> None:
    """Means of an even number at the same scale: halves, which rounding of products moves either way."""
    assert [taps for taps in range(1, 17) if means_of_sums(RELU, RELU, taps, taps) is not None] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert means_of_sums(of(2.0**-70, 0, "uint8"), of(2.0**-70, 0, "uint8"), 3, 3) is None


def test_windows_in_any_order_halve_vector_time() -> None:
    """The same windows; scales of which one pair has ties."""
    machine, found = load_machine("edge"), list[int]()
    for y_q in (RELU, of(float(RELU.scale[0]) * 2 / 9, 0, "uint8")):
        op = QuantisedAverage("y", "x", "y", (3, 3), RELU, y_q, (2, 2), (1, 1, 1, 1))
        case = case_of(graph((1, 32, 56, 56), [op], x_q=RELU), machine)
        code = np.concatenate(Compiler(case.target_graph).compile(default_plan(case.target_graph)).streams)
        found.append(int(price(code, machine).busy[code[:, isa.ENGINE] == Engine.VECTOR].sum()))
    assert 2 * found[0] < found[1]
