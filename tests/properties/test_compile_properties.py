"""Random model x random plan x machine x data type: a readable refusal, or a program of which everything holds."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.derive.gene import layer_by_layer, realise, realise_all
from compiler.derive.moves import random_genome, repaired
from compiler.derive.plan import Infeasible, Plan
from compiler.pipeline import Compiler
from compiler.tile.spec import Unit
from simulator.npu.machine import DataType, Machine, load_machine
from tests.compiled import check_program, make_case
from tests.corner_models import CORNER_MODELS, corner_model
from tests.models import SMALL_MODELS, random_model, small_model
from tests.plans import random_plan, resized

EDGE = load_machine("edge")
MACHINES = {
    "edge": EDGE,
    "ascend310": load_machine("ascend310"),
    "tiny": load_machine("tiny"),
    "edge-little-l1": resized(EDGE, L1=65536),
    "edge-odd-sizes": resized(EDGE, L1=65536 + 32 * 5, UB=65536 + 32 * 3, L0A=8192 + 32, L0B=16384 + 32, L0C=16384 + 32 * 7),
}
PLANS = 4


def searched_plan(unit: Unit, rng: np.random.Generator) -> Plan | Infeasible | None:
    """A start of the search: random segments, cut until they fit."""
    genome = repaired(unit, random_genome(unit, rng), lambda gene: realise(unit, gene) is not None)
    return None if genome is None else realise_all(unit, genome)


PLAN_KINDS = (lambda unit, rng: layer_by_layer(unit), searched_plan, random_plan)


def hold(model: ModelProto, machine: Machine, dtype: DataType, seed: int) -> int:
    """Check `PLANS` plans; returns how many of them fitted."""
    case = make_case(model, machine, dtype, seed)
    rng = np.random.default_rng(seed)
    compiler, fitted = Compiler(case.unit), 0
    for i in range(PLANS):
        plan = PLAN_KINDS[min(i, 2)](case.unit, rng)
        if plan is None:
            continue
        program = plan if isinstance(plan, Infeasible) else compiler.compile(plan)
        if isinstance(program, Infeasible):
            assert program.where
            assert any(unit in program.what for unit in (" B of ", "instructions")), program
            continue
        assert not isinstance(plan, Infeasible)
        check_program(case, program)
        # the cache of segments, and what was compiled before, change nothing
        assert Compiler(case.unit).compile(plan).digest == program.digest  # type: ignore[union-attr]
        fitted += 1
    return fitted


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", list(CORNER_MODELS))
def test_corners(name: str, dtype: str) -> None:
    names = list(MACHINES)
    for i in range(2):
        machine = MACHINES[names[(list(CORNER_MODELS).index(name) + i) % len(names)]]
        assert hold(corner_model(name), machine, DataType[dtype], seed=i)


@pytest.mark.parametrize("seed", range(30))
def test_random_models(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    machine = list(MACHINES.values())[int(rng.integers(len(MACHINES)))]
    names = list(SMALL_MODELS)
    model = small_model(names[seed % len(names)], seed) if seed % 4 == 0 else random_model(seed)
    hold(model, machine, DataType(int(rng.integers(2))), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 430))
def test_more_random_models(seed: int) -> None:
    test_random_models(seed)
