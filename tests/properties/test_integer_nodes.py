"""Single nodes on integers, of random shapes, scales and zero points, on the NPU: no value differs from onnxruntime's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.frontend import load_model
from compiler.frontend.lower import lower
from compiler.ir.quantised import products, tables
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.errors import BadInputError, InfeasibleError, UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, run_program
from tests.integer_nodes import Single, chain, columned, singles, sums
from tests.integers import with_integers
from tests.plans import random_plan
from tests.quantised_kernels import CASES, MS, Batch, near, single, some

TINY = with_integers(load_machine("tiny"))
GROUPS = {"conv": 0.3, "product": 0.2, "elementwise": 0.5, "pool": 0.15, "table": 0.4}  # the least share of nodes that the NPU takes

SUMS = {"conv": 0.3, "product": 0.05}  # the same of ConvInteger and MatMulInteger


def differing(made: Single, rng: np.random.Generator, whole: bool) -> int:
    """Values that differ, layer by layer and in a random plan.  whole: all that must hold of a program is asked.

    Raises UnsupportedError.
    """
    graph = lower(load_model(made.model.SerializeToString()))
    target_graph, constants = pack_unit(graph, TINY, DataType.float32)
    case = Case(made.model, target_graph, constants, made.feeds, {"y": made.expected})
    plans = [default_plan(target_graph), random_plan(target_graph, rng, 5, strips=True)]
    found = 0
    for plan in plans:
        program = None if plan is None else Compiler(target_graph).compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        if whole:
            check_program(case, program)
        found += int((run_program(case, program)[0]["y"].reshape(made.expected.shape) != made.expected).sum())
    return found


def sweep(group: str, seed: int, count: int, whole: bool, least: float, of: Callable[[Batch], list[Single]]) -> None:
    rng, of_plans = np.random.default_rng([34, seed]), np.random.default_rng([31, seed])  # nodes are the same whatever plans draw
    wrong, taken, refused = Counter[str](), 0, Counter[str]()
    for _ in range(count):
        batch = Batch()
        CASES[group][0](batch, rng)
        for made in of(batch):
            try:
                wrong[made.model.graph.node[-2:][0].op_type] += differing(made, of_plans, whole)
                taken += 1
            except (UnsupportedError, BadInputError, InfeasibleError) as error:
                refused[str(error)] += 1
    assert not +wrong, wrong
    assert taken >= max(1, least * (taken + refused.total())), refused


@pytest.mark.parametrize("group", GROUPS)
def test_no_value_differs_from_onnxruntime(group: str) -> None:
    sweep(group, 0, 6, True, GROUPS[group], singles)


@pytest.mark.parametrize("group", SUMS)
def test_no_sum_differs_from_onnxruntime(group: str) -> None:
    sweep(group, 0, 12, True, SUMS[group], sums)


@pytest.mark.parametrize("group", SUMS)
def test_products_with_computed_columns_equal_onnxruntime(group: str) -> None:
    rng = np.random.default_rng(7)
    sweep(group, 0, 12, True, SUMS[group], lambda batch: columned(batch, rng))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("group", SUMS)
def test_products_with_computed_columns_equal_onnxruntime_long(group: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sweep(group, seed, 100, False, SUMS[group], lambda batch: columned(batch, rng))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("group", SUMS)
def test_sums_equal_onnxruntime_in_a_long_sweep(group: str, seed: int) -> None:
    sweep(group, seed, 100, False, SUMS[group], sums)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("group", GROUPS)
def test_values_equal_onnxruntime_in_a_long_sweep(group: str, seed: int) -> None:
    sweep(group, seed, 60, False, GROUPS[group], singles)


@pytest.mark.parametrize("constant", [0, 1])
def test_constant_beside_a_sequence_is_joined_to_it(constant: int) -> None:
    """As a class token is, in another scale."""
    rng = np.random.default_rng(constant)
    for dtype in (np.uint8, np.int8):
        batch, (a_q, b_q, y_q) = Batch(), (single(rng, dtype, near(rng, 0.01)) for _ in range(3))
        a, b = some(rng, dtype, (1, 6, 40)), some(rng, dtype, (1, 2, 40))
        parts = [[batch.fed(a), *batch.parameters(a_q)], [batch.constant(b), *batch.parameters(b_q)]]
        values = [(a, a_q), (b, b_q)]
        listed = [name for part in (parts[constant], parts[1 - constant]) for name in part]
        expected = tables.concat([values[constant], values[1 - constant]], y_q, 1)
        batch.node("QLinearConcat", [*batch.parameters(y_q), *listed], expected, MS, axis=1)
        # a product behind it has its channels last
        weights = some(rng, np.int8, (40, 24)).clip(-127, 127)
        w_q, z_q = Quantisation.of(np.float32(0.01), np.int8(0), np.int8), single(rng, dtype, np.float32(4.0))
        made = products.matmul(expected, y_q, weights, w_q, z_q)
        rest = [batch.constant(weights), *batch.parameters(w_q), *batch.parameters(z_q)]
        batch.node("QLinearMatMul", ["y0", *batch.parameters(y_q), *rest], made)
        assert differing(chain(batch), rng, whole=True) == 0
