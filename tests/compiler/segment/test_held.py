"""Tensors that are held in L1 over cuts: right values, no race, less of DDR, and plans that say why they cannot."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.pipeline import Compiler, with_starts
from compiler.plan.plan import Plan
from compiler.segment.permuted import permuted_to
from compiler.segment.residence import border_names
from compiler.unit.unit import Unit
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from tests.compiled import Case, check_program, make_case
from tests.models import small_model
from tests.plans import random_plan

NETWORKS = ("residual_block", "inception_block", "dense_block", "lrn_chain", "shuffle_block")


def case_of(name: str, cores: int = 1) -> Case:
    return make_case(small_model(name), Machine.model_validate(load_machine("tiny").model_dump() | {"cores": cores}), DataType.float16)


def holding(unit: Unit, plan: Plan, wanted: frozenset[str]) -> Plan:
    """The plan with those of its border tensors held."""
    of = permuted_to(unit, [name for segment in plan.segments for name in segment.operators])
    assert isinstance(of, Unit)
    segments = []
    for segment, start in with_starts(plan):
        mine = border_names(of, start, start + len(segment.operators)) & wanted
        segments.append(segment.model_copy(update={"held": tuple(sorted(mine))}))
    return plan.model_copy(update={"segments": tuple(segments)})


def crossing(unit: Unit, plan: Plan) -> list[str]:
    of = permuted_to(unit, [name for segment in plan.segments for name in segment.operators])
    assert isinstance(of, Unit)
    return sorted({name for each, start in with_starts(plan) for name in border_names(of, start, start + len(each.operators))})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(NETWORKS))
def test_any_plan_is_right_with_some_tensors_held(seed: int, name: str) -> None:
    case, rng = case_of(name), np.random.default_rng(seed)
    plan = random_plan(case.unit, rng)
    if plan is None:
        return
    names = crossing(case.unit, plan)
    wanted = frozenset(each for each in names if rng.random() < 0.6)
    held = holding(case.unit, plan, wanted)
    assert Plan.model_validate_json(held.to_json()) == held
    program = Compiler(case.unit).compile(held)
    if isinstance(program, Program):
        check_program(case, program)
