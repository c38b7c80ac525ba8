"""Operators in another order: topological, over the same memory, and plans in it keep the values and the names."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import numpy as np
import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, parse_plan
from compiler.segment.reorder import permute, permute_to
from compiler.space.decode import decode_all
from compiler.space.mutators import random_genome
from compiler.space.operator_order import ORDERS, Order, ordered
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, make_case
from tests.models import Builder, inception_block, small_model

EDGE = load_machine("edge")


@pytest.fixture(scope="module", params=["inception_block", "residual_block"])
def case(request: pytest.FixtureRequest) -> Case:
    model = inception_block(np.random.default_rng(0)) if request.param == "inception_block" else small_model(request.param)
    return make_case(model, EDGE, DataType.float16)


def names(target_graph: TargetGraph) -> list[str]:
    return [spec.name for spec in target_graph.operators]


def shuffled(target_graph: TargetGraph, rng: np.random.Generator) -> TargetGraph:
    """Some topological order."""
    order = list[int]()
    while len(order) < len(target_graph.operators):
        ready = [k for k in range(len(target_graph.operators)) if k not in order and set(target_graph.producers[k]) <= set(order)]
        order.append(int(rng.choice(ready)))
    return permute(target_graph, tuple(order))


def test_any_topological_order_keeps_values(case: Case) -> None:
    rng, tried = np.random.default_rng(1), set[tuple[str, ...]]()
    for _ in range(6):
        target_graph = shuffled(case.target_graph, rng)
        plan = decode_all(target_graph, random_genome(target_graph, rng))
        assert not isinstance(plan, Infeasible)
        plan = parse_plan(plan.to_json())
        program = Compiler(case.target_graph).compile(plan)
        assert not isinstance(program, Infeasible)
        check_program(case, program)
        again = Compiler(target_graph).compile(plan)
        assert not isinstance(again, Infeasible)
        assert again.digest == program.digest
        tried.add(tuple(names(target_graph)))
    assert len(tried) > 1


def test_records_keep_the_numbers_of_the_file(case: Case) -> None:
    target_graph = shuffled(case.target_graph, np.random.default_rng(3))
    assert [case.target_graph.operators[spec.tag].name for spec in target_graph.operators] == names(target_graph)
    plan = decode_all(target_graph, random_genome(target_graph, np.random.default_rng(0)))
    assert not isinstance(plan, Infeasible)
    program = Compiler(case.target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    (code,) = (code for code in program.streams if len(code))
    at = {name: i for i, segment in enumerate(plan.segments) for name in segment.operators}
    work = code[~np.isin(code[:, isa.OP], [int(isa.Op.SET), int(isa.Op.WAIT)])]
    found = {(int(tag) >> 16, case.target_graph.operators[int(tag) & 0xFFFF].name) for tag in np.unique(work[:, isa.TAG])}
    assert found == {(segment, name) for name, segment in at.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_order_does_not_depend_on_its_source(case: Case, order: Order) -> None:
    first = ordered(case.target_graph, order)
    assert sorted(names(first)) == sorted(names(case.target_graph))
    assert permute_to(case.target_graph, names(first)) is not None
    for other in ORDERS:
        assert names(ordered(ordered(case.target_graph, other), order)) == names(first)
    assert names(ordered(first, "file")) == names(case.target_graph)
    assert first.storages == case.target_graph.storages


def test_depth_follows_a_branch() -> None:
    target_graph = make_case(inception_block(np.random.default_rng(0)), EDGE, DataType.float16).target_graph
    deep = ordered(target_graph, "depth")
    for k, spec in enumerate(deep.operators[:-1]):
        readers = [c for c in deep.consumers[k] if set(deep.producers[c]) <= set(range(k + 1))]
        assert not readers or k + 1 in deep.consumers[k], f"{spec.name} could be followed"


def test_what_is_no_order(case: Case) -> None:
    mine = names(case.target_graph)
    for wrong, what in (
        (mine[::-1], "behind"),
        (mine[:-1], "missing"),
        ([*mine, mine[0]], "once"),
        (["nobody", *mine[1:]], "none of"),
    ):
        found = permute_to(case.target_graph, wrong)
        assert isinstance(found, Infeasible)
        assert what in found.reason


@pytest.mark.parametrize("file", list(permutations(("alone", "with_tail", "on_vector", "no_product")))[::5])
def test_branch_with_most_work_behind_comes_first(file: tuple[str, ...]) -> None:
    """Behind one without products; one that VECTOR begins has nothing behind its product that counts; of equals the file's order holds."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    x = b.conv("x", 16)
    pool = partial(b.max_pool, kernel=3, stride=1, pads=(1, 1, 1, 1))
    branches = {
        "alone": lambda: b.conv(x, 16),
        "with_tail": lambda: pool(b.conv(x, 16)),
        "on_vector": lambda: pool(pool(b.conv(pool(x), 16))),
        "no_product": lambda: b.max_pool(x, 5, 1, (2, 2, 2, 2)),
    }
    ends = {name: branches[name]() for name in file}
    target_graph = make_case(b.model(b.concat(*ends.values())), EDGE, DataType.float16).target_graph
    deep = ordered(target_graph, "depth")
    ends_at = {name: names(deep).index(end) for name, end in ends.items()}
    equal = [name for name in file if name in ("alone", "on_vector")]
    assert sorted(ends_at, key=ends_at.__getitem__) == ["no_product", "with_tail", *equal]
