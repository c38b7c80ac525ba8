"""The baseline is the faster of two orders, and the same segments."""

from __future__ import annotations

import math

import numpy as np

from compiler.build import measure_plans
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode_all
from compiler.space.initial import single_operators
from compiler.space.operator_order import ordered
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import inception_block
from tuner.measure.baseline import faster_in_file_order

LEVELS = ("none", "slight", "severe")


def test_the_faster_order() -> None:
    target_graph = make_unit(lower(inception_block(np.random.default_rng(0))), load_machine("edge"), DataType.float16)
    compiler = Compiler(target_graph)

    def product(plan: Plan) -> int:
        timings = measure_plans(compiler, dict.fromkeys(LEVELS, plan))["none"].timings
        return math.prod(timings[level].cycles for level in LEVELS)

    plans = []
    for order in ("file", "depth"):
        mine = ordered(target_graph, order)  # type: ignore[arg-type]
        genome = single_operators(mine)
        assert not isinstance(genome, Infeasible)
        plan = decode_all(mine, genome)
        assert not isinstance(plan, Infeasible)
        plans.append(plan)
    in_file, deep = plans
    assert in_file != deep
    assert {s.operators: s for s in in_file.segments} == {s.operators: s for s in deep.segments}
    found = faster_in_file_order(compiler, deep, LEVELS)
    assert found in plans
    assert product(found) == min(map(product, plans))
    assert faster_in_file_order(compiler, in_file, LEVELS) == in_file
