"""Convolutions of integers give onnxruntime's integers, however they are cut, tiled and fused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.autoplan import quick_genomes
from compiler.build import default_plan
from compiler.ir.graph import Graph
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Operator, QuantisedConv, QuantisedPair
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.planner.segmentation import estimate_predictor
from compiler.rewrites.engine import rewrite
from compiler.rewrites.rules import RULES
from compiler.space.decode import decode_all
from compiler.space.operator_order import ordered
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BYTES, DataType
from simulator.timing import simulate
from tests.compiled import check_program
from tests.graphs import graph
from tests.integer_graphs import case_of, conv, quantisation
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import multiplying, random_plan

TINY = with_integers(load_machine("tiny"))


def chain(seed: int, shape: tuple[int, int, int, int] = (1, 40, 9, 10)) -> Graph:
    """3x3, 3x3 with stride 2, 1x1, of any types."""
    rng = np.random.default_rng(seed)
    x, a, b, c = (quantisation(rng) for _ in range(4))
    operators: list[Operator] = [
        conv(rng, "a", "x", (shape[1], 48), x, a),
        conv(rng, "b", "a", (48, 70), a, b, stride=2),
        conv(rng, "c", "b", (70, 33), b, c, kernel=1),
    ]
    return graph(shape, operators, x_q=x)


def first_layers(seed: int) -> Graph:
    """An image of three channels, depthwise, grouped, and all of the image."""
    rng = np.random.default_rng(seed)
    x, a, b, c, d = (quantisation(rng) for _ in range(5))
    operators: list[Operator] = [
        conv(rng, "a", "x", (3, 48), x, a, kernel=5, stride=2),
        conv(rng, "b", "a", (48, 48), a, b, groups=48),
        conv(rng, "c", "b", (48, 96), b, c, groups=4, dilation=2),
        conv(rng, "d", "c", (96, 50), c, d, kernel=5, pad=0),
    ]
    return graph((2, 3, 10, 10), operators, x_q=x)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("network", [chain, first_layers])
def test_layer_by_layer_and_fused(network, seed: int) -> None:
    case = case_of(network(seed), TINY, seed=seed)
    compiler = Compiler(case.target_graph)
    check_program(case, compiler.compile(default_plan(case.target_graph)))
    for values in case.expected.values():
        assert np.unique(values).size > 20  # most do not saturate
    rng = np.random.default_rng(seed)
    done = 0
    while done < 3:
        plan = random_plan(case.target_graph, rng, 4, strips=True)
        program = None if plan is None else compiler.compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


@pytest.mark.parametrize("seed", range(2))
def test_weights_around_any_zero_point(seed: int) -> None:
    """What no 8 bits hold: uint8 from 0 to 255 and int8 from -128 to 127 around a zero point at their ends, in groups, in four lanes."""
    rng = np.random.default_rng(seed)
    x, a, b, c = (quantisation(rng) for _ in range(4))
    made = [
        conv(rng, "a", "x", (3, 40), x, a, kernel=5, stride=2),
        conv(rng, "b", "a", (40, 40), a, b, groups=40),
        conv(rng, "c", "b", (40, 33), b, c, kernel=1),
    ]
    operators: list[Operator] = []
    for op in made:
        dtype = BYTES[rng.integers(2)].storage
        limits = np.iinfo(dtype)
        weights, zero = rng.integers(limits.min, limits.max + 1, op.weights.shape).astype(dtype), rng.choice([limits.min, limits.max, 60])
        scale = np.float32(float(op.w_q.scale.min()) / 2)
        operators.append(replace(op, weights=weights, w_q=Quantisation.of(scale, np.asarray(zero, dtype), dtype)))
    case = case_of(graph((1, 3, 16, 16), operators, x_q=x), TINY, seed=seed)
    check_program(case, Compiler(case.target_graph).compile(default_plan(case.target_graph)))
    done = 0
    while done < 3:
        plan = random_plan(case.target_graph, rng, 4, strips=True)
        program = None if plan is None else Compiler(case.target_graph).compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


@pytest.mark.parametrize("seed", range(3))
def test_sum_behind_convolution_is_part_of_its_output(seed: int) -> None:
    """As the two operators, in either order, of either type, where lanes have no channel; also of a depthwise convolution."""
    rng = np.random.default_rng(seed)
    dtype = BYTES[seed % 2]
    x, a, b, s, c, t = (quantisation(rng, dtype) for _ in range(6))
    modes = ("add", "radd") if seed else ("radd", "add")
    made = graph(
        (2, 40, 9, 10),
        [
            conv(rng, "a", "x", (40, 70), x, a),
            conv(rng, "b", "a", (70, 70), a, b, kernel=1),
            QuantisedPair("s", "b", "a", "s", modes[0], b, a, s),
            conv(rng, "c", "s", (70, 70), s, c, groups=70),
            QuantisedPair("y", "s", "c", "y", modes[1], s, c, t),
        ],
        x_q=x,
    )
    fused, report = rewrite(made, RULES)
    assert report.fired["fuse-integer-residual"] == 2
    case = case_of(fused, TINY, seed=seed)
    for name, values in evaluate(made, case.feeds).items():
        np.testing.assert_array_equal(case.expected[name], values)
        assert np.unique(values).size > 20
    check_program(case, Compiler(case.target_graph).compile(default_plan(case.target_graph)))
    done = 0
    while done < 3:
        plan = random_plan(case.target_graph, rng, 4, strips=True)
        program = None if plan is None else Compiler(case.target_graph).compile(plan)
        if program is None or isinstance(program, Infeasible):
            continue
        check_program(case, program)
        done += 1


def test_fusion_and_a_search_by_simulation_pay() -> None:
    """What `compile` does without a plan: fewer cycles than layer by layer, the same integers."""
    case = case_of(chain(7, (1, 32, 32, 32)), TINY)
    target_graph, compiler = ordered(case.target_graph, "depth"), Compiler(case.target_graph)
    plan = decode_all(target_graph, quick_genomes(compiler, target_graph, estimate_predictor(target_graph))["none"][0])
    assert not isinstance(plan, Infeasible)
    tuned, first = compiler.compile(plan), compiler.compile(default_plan(case.target_graph))
    check_program(case, tuned)
    level = TINY.contention["none"]
    assert simulate(tuned, TINY, level).cycles < 0.9 * simulate(first, TINY, level).cycles


def test_bytes_take_half_of_what_halves_take() -> None:
    """The same layer, of channels that fill planes: half the blocks of weights, and of the tensors."""
    rng = np.random.default_rng(0)
    q = quantisation(rng)
    made = graph((1, 64, 8, 8), [conv(rng, "y", "x", (64, 64), q, q)], x_q=q)
    target_graph = make_unit(made, TINY, DataType.float16)
    assert target_graph.operators[0].weight_blocks == 64 * 64 * 9 // 32
    assert [storage.planes for storage in target_graph.storages] == [2, 2]
    assert {target_graph.memory.type_of(buffer).name for buffer in target_graph.memory.of_kind("input")} == {q.dtype.name}


def test_half_a_plane_is_no_tile() -> None:
    """Two fractals of 16 channels make a plane of 32 lanes, so an odd tile is refused with what would be accepted."""
    target_graph = make_unit(chain(0), TINY, DataType.float16)
    plan = default_plan(target_graph)
    first = plan.segments[0]
    tiling = first.tilings[0].model_copy(update={"tile_n1": 1})
    odd = plan.model_copy(update={"segments": (first.model_copy(update={"tilings": (tiling,)}), *plan.segments[1:])})
    found = Compiler(target_graph).compile(odd)
    assert isinstance(found, Infeasible)
    assert "tile_n1 1: 2 n1 are a plane of its result, so accepted: multiples of 2" in str(found)


def test_what_no_instruction_can_multiply_is_refused() -> None:
    made = chain(0)
    halves = multiplying(TINY, float16=(16, 16, 16, 1))
    with pytest.raises(UnsupportedError, match=r"\bu?int8; .*float16"):
        make_unit(made, halves, DataType.float16)
    q = quantisation(np.random.default_rng(0))
    weights = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1)
    w_q = Quantisation.of(np.float32([0.1, 0.1]), np.uint8([100, 90]), np.uint8, weights.shape, 0)
    lopsided = QuantisedConv("y", "x", "y", weights, np.zeros(2, np.int32), q, w_q, q)
    with pytest.raises(UnsupportedError, match=naming("'y'", "-100 to 165", "-128 to 127", "0 to 255")):
        make_unit(graph((1, 1, 2, 2), [lopsided], x_q=q), TINY, DataType.float16)


def test_sums_beyond_int32_are_refused() -> None:
    rng = np.random.default_rng(0)
    q = quantisation(rng)
    op = conv(rng, "y", "x", (4, 4), q, q)
    make_unit(graph((1, 4, 4, 4), [op], x_q=q), TINY, DataType.float16)
    large = QuantisedConv("y", "x", "y", op.weights, np.full(4, 2**31 - 1, np.int32), op.x_q, op.w_q, op.y_q)
    with pytest.raises(UnsupportedError, match="sums of up to"):
        make_unit(graph((1, 4, 4, 4), [large], x_q=q), TINY, DataType.float16)
