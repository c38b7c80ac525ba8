"""No program of a random plan is below the bound, nor works or moves less than its parts say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compiler.bound.bound import Bound
from compiler.frontend import lower
from compiler.ir.graph import Graph
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.timing import simulate_levels
from tests.corner_models import CORNER_MODELS, corner_model
from tests.everywhere import MACHINES, PLAN_KINDS
from tests.graphs import concat, gated, graph, max_pool
from tests.graphs import conv as product
from tests.integer_graphs import conv, quantisation
from tests.models import SMALL_MODELS, random_model, small_model
from tests.plans import resized

ALL = MACHINES | {name: load_machine(name) for name in ("edge-shared", "ascend310-l2", "tpu-like")}
INTEGERS = load_machine("ascend310"), load_machine("ethos-u65-512"), resized(load_machine("ascend310"), L1=65536, UB=65536)
PLANS = 4


def held(made: Graph, machine: Machine, dtype: DataType, seed: int) -> int:
    """How many programs of random plans were timed, at all levels that grant them enough."""
    target_graph = make_unit(made, machine, dtype)
    bound, rng, compiler, timed = Bound(target_graph), np.random.default_rng(seed), Compiler(target_graph), 0
    terms = {level: bound.of(level) for level in machine.contention}
    for i in range(PLANS):
        plan = PLAN_KINDS[min(i, 2)](target_graph, rng)
        program = compiler.compile(plan) if plan is not None and not isinstance(plan, Infeasible) else plan
        if program is None or isinstance(program, Infeasible):
            continue
        fits = [level for level in machine.contention if program.needs.fits(machine.granted(level))]
        for level, timing in simulate_levels(program, machine, fits).items():
            assert timing.cycles >= terms[level].cycles, (level, terms[level])
            assert timing.ddr_read_bytes + timing.ddr_write_bytes >= terms[level].traffic_bytes
            assert timing.ddr_read_bytes >= bound.once.inputs + bound.once.weights
            assert timing.ddr_write_bytes >= bound.once.outputs
            busy = timing.busy_cycles.sum(0)  # programs of today make products on the matrix unit
            assert busy[Engine.CUBE] >= bound.work.cube.cycles.sum() - 1
            assert busy[Engine.FIXPIPE] >= bound.work.fixpipe.cycles.sum() - 1
            assert busy[Engine.MTE1] >= bound.work.loads.cycles.sum() - 1
            assert busy[Engine.VECTOR] >= bound.work.vector.sum() - 1
            timed += 1
    return timed


@pytest.mark.parametrize("seed", range(40))
def test_no_program_of_a_random_model_is_below(seed: int) -> None:
    rng = np.random.default_rng(7000 + seed)
    machine = list(ALL.values())[int(rng.integers(len(ALL)))]
    names = list(SMALL_MODELS)
    model = small_model(names[seed % len(names)], seed) if seed % 4 == 0 else random_model(seed)
    held(lower(model), machine, DataType(int(rng.integers(2))), seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 1040, 20))
def test_no_program_of_many_random_models_is_below(first: int) -> None:
    for seed in range(first, first + 20):
        test_no_program_of_a_random_model_is_below(seed)


@pytest.mark.parametrize("name", list(CORNER_MODELS))
def test_no_program_of_a_corner_is_below(name: str) -> None:
    machine = ALL[list(ALL)[list(CORNER_MODELS).index(name) % len(ALL)]]
    assert held(lower(corner_model(name)), machine, DataType.float16, seed=1)


@pytest.mark.parametrize("seed", range(9))
def test_no_program_of_integers_is_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x_q, y_q = quantisation(rng), quantisation(rng)
    channels, size = int(rng.integers(3, 100)), int(rng.integers(8, 40))
    groups = int(rng.choice([1, 2]))
    operators = [
        conv(rng, "a", "x", (channels, 64), x_q, y_q, stride=int(rng.integers(1, 3))),
        conv(rng, "b", "a", (64, 64), y_q, y_q, groups=64),
        max_pool("p", "b", 3, 1, 1),
        conv(rng, "d", "a", (64, 32 * groups), y_q, y_q, kernel=1, groups=groups),
        concat("c", "p", "d"),
        conv(rng, "y", "c", (64 + 32 * groups, 48), y_q, y_q, kernel=1),
    ]
    assert held(graph((1, channels, size, size), operators, x_q=x_q), INTEGERS[seed % len(INTEGERS)], DataType.float16, seed)


@pytest.mark.parametrize("seed", range(8))
def test_no_program_with_little_memory_is_below(seed: int) -> None:
    """Chains of products whose tensors and weights are larger than everything on chip."""
    rng = np.random.default_rng(seed)
    channels = [int(c) for c in rng.choice([64, 128, 256], 5)]
    operators = [
        product(f"t{i}", f"t{i - 1}" if i else "x", (a, b), kernel=int(rng.choice([1, 1, 3])))
        for i, (a, b) in enumerate(itertools.pairwise(channels))
    ]
    little = resized(MACHINES["edge"], L1=65536, UB=65536, L0A=8192, L0B=8192, L0C=32768)
    made = graph((1, channels[0], 28, 28), list(operators))
    assert held(made, little, DataType.float16, seed)
    bound = Bound(make_unit(made, little, DataType.float16))
    assert bound.of("none").traffic_bytes >= sum(bound.once)


@pytest.mark.parametrize("seed", range(6))
def test_no_program_with_phases_is_below(seed: int) -> None:
    """Channels gated by a mean over all pixels: VECTOR works before it, CUBE behind it."""
    machine = MACHINES["edge"] if seed % 2 else list(ALL.values())[seed]
    made = graph((1, 16, 14, 14), list(gated(14, wide=64 + 32 * seed)))
    assert Bound(make_unit(made, machine, DataType.float16)).phases.phases > 1
    assert held(made, machine, DataType.float16, seed)


@pytest.mark.parametrize("seed", range(6))
def test_no_program_of_a_batch_is_below(seed: int) -> None:
    """Images that share their weights: products, a mean over each image, and weights larger than everything on chip behind it."""
    rng = np.random.default_rng(seed)
    images, size, wide = int(rng.integers(2, 5)), int(rng.integers(6, 15)), int(rng.choice([16, 40, 64]))
    little = resized(MACHINES["edge"], L1=65536, UB=65536, L0A=8192, L0B=8192, L0C=32768)
    machine = (little, MACHINES["edge"], list(ALL.values())[seed])[seed % 3]
    late = [product("u", "p", (wide, 256), kernel=1), product("v", "u", (256, 512), kernel=1)]
    operators = [product("a", "x", (16, wide)), product("b", "a", (wide, wide), residual="a"), max_pool("p", "b", size, size), *late]
    if seed % 2:
        operators = list(gated(size, wide=wide))
    one, several = (graph((n, 16, size, size), list(operators)) for n in (1, images))
    assert held(several, machine, DataType.float16, seed)
    alone, together = (Bound(make_unit(each, machine, DataType.float16)) for each in (one, several))
    assert together.once == (images * alone.once.inputs, alone.once.weights, images * alone.once.outputs)
    assert together.work.vector == pytest.approx(images * alone.work.vector)
    assert together.work.on_vector == pytest.approx(images * alone.work.on_vector), "every image's products"
    assert together.phases.phases == 1, "an image does not wait for another one"
    for level in machine.contention:
        assert alone.of(level).cycles <= together.of(level).cycles <= images * alone.of(level).cycles
