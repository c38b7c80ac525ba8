"""Products of two tensors of integers by heads, with any zero points, give onnxruntime's integers however they are cut and tiled."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.ir.graph import Graph
from compiler.ir.operators import Operator, QuantisedMatMul
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import check_program
from tests.graphs import graph
from tests.integer_graphs import case_of, conv, quantisation
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import random_plan

TINY = with_integers(load_machine("tiny"))


def zero_at(zero: int, scale: float, dtype: DataType = DataType.uint8) -> Quantisation:
    return Quantisation.of(np.float32(scale), np.asarray(zero, dtype.storage), dtype.storage)


def attention(seed: int, channels: int = 64, pixels: tuple[int, int] = (5, 9)) -> Graph:
    """Scores of every pixel with every other, head by head, and sums of a third tensor by them; what a softmax gives stands between."""
    rng = np.random.default_rng(seed)
    x, q, v = (quantisation(rng) for _ in range(3))
    k = (zero_at(200, 0.03), zero_at(0, 0.03), zero_at(-128, 0.03, DataType.int8), quantisation(rng))[seed % 4]
    scores = (zero_at(120, 20.0), zero_at(7, 20.0, DataType.int8))[seed % 2]
    operators: list[Operator] = [
        conv(rng, "q", "x", (40, channels), x, q, kernel=1),
        conv(rng, "k", "x", (40, channels), x, k, kernel=1),
        conv(rng, "v", "x", (40, channels), x, v, kernel=1),
        QuantisedMatMul("s", "q", "k", "s", 2, True, q, k, scores),
        QuantisedMatMul("y", "s", "v", "y", 2, False, scores, v, quantisation(rng, scale=1500.0)),
    ]
    return graph((2, 40, *pixels), operators, ["s", "y"], x_q=x)


@pytest.mark.parametrize("seed", range(4))
def test_attention(seed: int) -> None:
    case = case_of(attention(seed, (64, 76)[seed % 2]), TINY, seed=seed)
    compiler = Compiler(case.target_graph)
    check_program(case, compiler.compile(default_plan(case.target_graph)))
    for values in case.expected.values():
        assert np.unique(values).size > 20
    rng, done = np.random.default_rng(seed), 0
    while done < 3:
        plan = random_plan(case.target_graph, rng, 5)
        program = None if plan is None else compiler.compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4, 104, 10))
def test_attention_in_a_long_sweep(first: int) -> None:
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 12)), int(rng.integers(1, 12))
        case = case_of(attention(seed, 2 * int(rng.integers(1, 40)), size), TINY, seed=seed)
        for plan in (default_plan(case.target_graph), random_plan(case.target_graph, rng, 5)):
            program = None if plan is None else Compiler(case.target_graph).compile(plan)
            if program is not None and not isinstance(program, Infeasible):
                check_program(case, program)


def test_lanes_that_may_hold_anything_are_masked() -> None:
    q, coarse = (Quantisation.of(np.float32(scale), np.uint8(120), np.uint8) for scale in (0.05, 1.0))
    made = [
        QuantisedMatMul("v", "x", "x", "v", 1, False, q, q, coarse),  # of 33 channels whose lanes hold 0, not q's zero point
        QuantisedMatMul("y", "v", "v", "y", 1, True, coarse, coarse, Quantisation.of(np.float32(2e3), np.uint8(120), np.uint8)),
    ]
    case = case_of(graph((1, 33, 3, 11), made, x_q=q), TINY)
    assert [type(op).__name__ for op in case.target_graph.graph.operators] == ["QuantisedMatMul", "QuantisedConv", "QuantisedMatMul"]
    program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
    assert not isinstance(program, Infeasible)
    check_program(case, program)
    assert len(np.unique(case.expected["y"])) > 20


def test_longer_sums_than_int32_holds_are_refused() -> None:
    q = quantisation(np.random.default_rng(0))
    op = QuantisedMatMul("y", "x", "x", "y", 1, True, q, q, q)
    with pytest.raises(UnsupportedError, match=naming("'y'", "33,056", "33,025")):
        make_unit(graph((1, 33030, 1, 1), [op], x_q=q), TINY, DataType.float16)
