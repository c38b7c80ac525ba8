"""No program is below the bound; each term by hand where it is the largest."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.bound.bound import Bound
from compiler.frontend import lower
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.timing import simulate_levels
from tests.corner_models import CORNER_MODELS, corner_model
from tests.everywhere import MACHINES, PLAN_KINDS
from tests.models import SMALL_MODELS, random_model, small_model

ALL = MACHINES | {name: load_machine(name) for name in ("edge-shared", "ascend310-l2", "tpu-like")}


def held(model, machine, dtype: DataType, seed: int) -> int:  # type: ignore[no-untyped-def]
    """Programs of random plans that were timed, none of them below the bound at any level."""
    unit = make_unit(lower(model), machine, dtype)
    bound, rng, compiler, timed = Bound(unit), np.random.default_rng(seed), Compiler(unit), 0
    terms = {level: bound.of(level) for level in machine.contention}
    for i in range(4):
        plan = PLAN_KINDS[min(i, 2)](unit, rng)
        program = compiler.compile(plan) if plan is not None and not isinstance(plan, Infeasible) else plan
        if program is None or isinstance(program, Infeasible):
            continue
        fits = [level for level in machine.contention if program.needs.fits(machine.granted(level))]
        for level, timing in simulate_levels(program, machine, fits).items():
            assert timing.cycles >= terms[level].cycles, (level, terms[level])
            assert timing.ddr_read_bytes + timing.ddr_write_bytes >= terms[level].traffic_bytes
            assert timing.ddr_read_bytes >= bound.once.inputs + bound.once.weights
            assert timing.ddr_write_bytes >= bound.once.outputs
            busy = timing.busy_cycles.sum(0)  # today's programs make products on the matrix unit
            assert (busy[[Engine.CUBE, Engine.MTE1, Engine.FIXPIPE]] >= bound.work.matrix.sum(0) - 1).all()
            assert busy[Engine.VECTOR] >= bound.work.vector.sum() - 1
            timed += 1
    return timed


SEEDS = int(__import__("os").environ.get("NS", "40"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_program_of_a_random_plan_is_below(seed: int) -> None:
    rng = np.random.default_rng(7000 + seed)
    machine = list(ALL.values())[int(rng.integers(len(ALL)))]
    names = list(SMALL_MODELS)
    model = small_model(names[seed % len(names)], seed) if seed % 4 == 0 else random_model(seed)
    dtype = DataType(int(rng.integers(2))) if len(machine.data_types) > 1 else machine.data_types[0]
    held(model, machine, dtype, seed)


@pytest.mark.parametrize("name", list(CORNER_MODELS))
def test_no_program_of_a_corner_is_below(name: str) -> None:
    machine = ALL[list(ALL)[list(CORNER_MODELS).index(name) % len(ALL)]]
    assert held(corner_model(name), machine, DataType.float16, seed=1)
