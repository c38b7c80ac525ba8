"""Poolings of every kind in tiles of every shape compute what they are meant to, and VECTOR does as little as it is meant to."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.cost.features import FEATURES, raw_features
from compiler.instructions.repeats import START, cheapest_way
from compiler.instructions.vector_grid import grid
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Pool
from compiler.ops.lower_graph import pack_unit
from compiler.ops.pool import BOTH, COLUMNS, ROWS, PoolSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan, VectorTiling
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program
from tests.graphs import max_pool, target_graph

EDGE = load_machine("edge")


def random_pool(rng: np.random.Generator, h: int, w: int) -> Pool:
    """Windows smaller and larger than their strides, padding on every side, windows of a row, of a column and of one pixel."""
    kernel = int(rng.integers(1, 1 + min(6, h))), int(rng.integers(1, 1 + min(6, w)))
    stride = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    top, left, bottom, right = (int(rng.integers(0, (size + 1) // 2)) for size in (*kernel, *kernel))
    return Pool("y", "x", "y", "max" if rng.integers(2) else "average", kernel, stride, (top, left, bottom, right), bool(rng.integers(2)))


def random_tiling(rng: np.random.Generator, spec: PoolSpec) -> VectorTiling:
    """Some planes by some rows, or one row's columns."""
    planes, rows = int(rng.integers(1, spec.y.planes + 1)), int(rng.integers(1, spec.out_h + 1))
    if spec.out_w > 1 and rng.integers(3) == 0:
        return VectorTiling(tile_planes=planes, tile_rows=1, tile_columns=int(rng.integers(1, spec.out_w)))
    return VectorTiling(tile_planes=planes, tile_rows=rows)


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32], ids=lambda dtype: dtype.name)
def test_random_poolings(dtype: DataType) -> None:
    rng = np.random.default_rng(int(dtype))
    passes = set()
    for _ in range(150):
        n, c, h, w = int(rng.integers(1, 3)), int(rng.integers(1, 70)), int(rng.integers(1, 24)), int(rng.integers(1, 24))
        op = random_pool(rng, h, w)
        u, constants = pack_unit(target_graph(EDGE, (n, c, h, w), op, dtype=dtype.name).graph, EDGE, dtype)
        spec = u.operators[0]
        assert isinstance(spec, PoolSpec)
        plan = SegmentPlan(operators=("y",), blocks=int(rng.integers(1, spec.out_h + 1)), tilings=(random_tiling(rng, spec),))
        program = Compiler(u).compile(plan_of(u, [plan]))
        assert not isinstance(program, Infeasible), (op, program)
        x = rng.standard_normal((n, c, h, w)).astype(np.float16).astype(np.float32)
        case = Case(ModelProto(), u, constants, {"x": x}, evaluate(u.graph, {"x": x}))
        check_program(case, program, 0.0 if op.mode == "max" else 4e-3 if dtype == DataType.float16 else 1e-6)
        passes.add(0 if spec.whole_rows else spec.passes)
    assert passes == {0, ROWS, COLUMNS, BOTH}


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "size", "channels"),
    [
        (3, 2, 0, 111, 64),
        (3, 1, 1, 28, 192),
        (2, 2, 0, 56, 128),
        (3, 2, 1, 56, 256),
        (5, 3, 0, 17, 768),
        (3, 1, 1, 7, 832),
        (13, 1, 6, 13, 512),
    ],
    ids=str,
)
def test_the_estimate_is_of_what_vector_does(kernel: int, stride: int, pad: int, size: int, channels: int) -> None:
    """And, of windows that lie close together, less than two thirds of an operation for every place of a window."""
    u = target_graph(EDGE, (1, channels, size, size), max_pool("y", "x", kernel, stride, pad))
    spec = u.operators[0]
    plan = decode(u, Gene(0, 1, 1))
    assert plan is not None
    parts = Compiler(u).alone(plan, 0)
    assert isinstance(parts, list)
    vector = int(simulate_levels(Compiler(u).link(parts), EDGE, ("none",))["none"].busy_cycles[0, Engine.VECTOR])
    expected = raw_features(u, plan, 0)[FEATURES.index("vector_cycles")]
    assert vector == pytest.approx(expected, rel=0.15)
    if stride == 1:
        assert vector < 2 / 3 * kernel * kernel * spec.out_h * spec.out_w * spec.y.planes / 8


@pytest.mark.parametrize(("channels", "size"), [(64, 28), (480, 14), (1280, 7)], ids=str)
def test_image_mean_takes_under_two_operations_per_block(channels: int, size: int) -> None:
    """A multiply-add with a power of two and what starting takes; what that is too small by is a factor of the results."""
    u = target_graph(EDGE, (1, channels, size, size), Pool("y", "x", "y", "average", (size, size), (1, 1), (0, 0, 0, 0), False))
    plan = decode(u, Gene(0, 1, 1))
    assert plan is not None
    parts = Compiler(u).alone(plan, 0)
    assert isinstance(parts, list)
    vector = int(simulate_levels(Compiler(u).link(parts), EDGE, ("none",))["none"].busy_cycles[0, Engine.VECTOR])
    assert vector == pytest.approx(raw_features(u, plan, 0)[FEATURES.index("vector_cycles")], rel=0.15)
    assert vector < 2 * u.operators[0].y.planes * size * size / 8


@pytest.mark.parametrize(("a", "b", "c"), [(1, 1, 1), (8, 1, 1), (2041, 1, 1), (55, 8, 4), (7, 7, 52), (111, 17, 1), (3, 300, 2)], ids=str)
def test_the_cheapest_way_over_a_grid(a: int, b: int, c: int) -> None:
    """Every block once, in as many repeats and instructions as it says; no way is cheaper, whichever axes it goes along."""
    way = cheapest_way(a, b, c)
    out = np.zeros((4096, isa.WORDS), np.int32)
    strides = (1, 1000, 1_000_000)
    used = grid(out, 0, int(Op.VCOPY), 1, 0, (a, b, c), 0, strides, 0, strides, -1, strides, 0)
    places = [
        row[isa.D] + i * row[isa.V_DBS] + r * row[isa.V_DRS]
        for row in out[:used]
        for r in range(row[isa.V_REPEATS])
        for i in range(row[isa.V_BLOCKS])
    ]
    assert sorted(places) == sorted(x + 1000 * y + 1_000_000 * z for x in range(a) for y in range(b) for z in range(c))
    assert (used, int(out[:used, isa.V_REPEATS].sum())) == (way.instructions, way.work)
    assert out[:used, isa.V_REPEATS].max() <= isa.MAX_REPEATS
    best = way.work + START * way.instructions
    for n in permutations((a, b, c)):
        assert best <= n[2] * -(-n[0] // 8) * (n[1] + START * -(-n[1] // 255))
        assert best <= n[1] * n[2] * (-(-n[0] // 8) + START * (-(-(n[0] // 8) // 255) + (n[0] % 8 > 0)))


def test_what_lies_end_to_end_is_one_axis() -> None:
    out = np.zeros((64, isa.WORDS), np.int32)
    assert grid(out, 0, int(Op.VCOPY), 1, 0, (14, 14, 10), 0, (1, 14, 196), 5000, (1, 14, 196), -1, (0, 0, 0), 0) == 1
    assert (out[0, isa.V_BLOCKS], out[0, isa.V_REPEATS]) == (8, 245)
    assert grid(out, 0, int(Op.VMAX), 1, 0, (14, 14, 10), 0, (1, 14, 196), 5000, (1, 14, 196), 9000, (1, 28, 392), 0) > 1
