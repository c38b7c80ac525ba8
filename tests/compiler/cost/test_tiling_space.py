"""The tiling space: all that fits on paper, nothing that does not, and every point computes the right thing."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.cost.ranking import CHUNK_BUDGETS, chunk_choices, conv_tiling
from compiler.cost.tiling_space import Shape, engine_cycles, estimate, legal_points, shape_of
from compiler.ops.base import vector_tiling
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.space.decode import plan_of
from simulator.npu.level import NO_CONTENTION
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from simulator.timing import simulate
from tests.compiled import check_program, make_case
from tests.ddr_rates import with_rates
from tests.graphs import conv, max_pool, target_graph
from tests.models import Builder

TINY, EDGE = load_machine("tiny"), load_machine("edge")


def test_points_on_paper() -> None:
    """Half of L0A and of L0B are 128 blocks, half of L0C 256: m * k <= 128, n * k * 16 <= 128, n * m * 2 <= 256."""
    s = Shape(pixels=60, groups=1, n1=4, k1=4, chunks_n=1, chunks_k=1, to_l1=True, dtype=int(DataType.float16), n1_step=1, result_lanes=16)
    expected = {
        (m, n, k, order)
        for m in (16, 32, 48, 64)
        for n in (1, 2, 3, 4)
        for k in (1, 2, 3, 4)
        for order in ((0, 1) if m < 60 and n < 4 else (0,))  # of one tile there is one order
        if m * k <= 128 and n * k <= 8 and n * m <= 128
    }
    points = legal_points(TINY, s)
    assert {tuple(p) for p in points.tolist()} == expected
    assert len(points) == len(expected)


def test_partial_sums_take_all_of_l0c() -> None:
    """Chunks of k keep every tile of the chunk: 64 pixels by n1 * 16 channels, n1 * 64 * 2 <= 512 blocks."""
    four = Shape(64, 1, 4, 2, 1, 2, True, int(DataType.float16), 1, 16)
    assert len(legal_points(TINY, four))
    # three tiles of m = 32 hold 96 rows: 96 * 4 * 2 > 512
    assert 32 not in legal_points(TINY, four._replace(pixels=80))[:, 0]
    assert not len(legal_points(TINY, four._replace(n1=5)))


def test_results_on_their_way_fit_ub() -> None:
    """64 -> 64 channels on tiny, with a residual: 4 tiles in (1024 - 8) blocks of UB, 248 each: n * m <= 248 in float16."""
    u = target_graph(TINY, (1, 64, 16, 16), conv("a", "x", (64, 64), 1), conv("y", "a", (64, 64), 1, residual="x"))
    spec = u.operators[1]
    assert isinstance(spec, ConvSpec)
    shape = shape_of(TINY, DataType.float16, spec, 16, False, (4, 4))
    assert shape.ub_blocks == (1024 - 8) // 4 // 8 * 8 == 248
    points = legal_points(TINY, shape._replace(ub_blocks=64))
    assert (points[:, 0] * points[:, 1]).max() == 64
    # straight to L1, without a residual: nothing passes UB
    first = u.operators[0]
    assert isinstance(first, ConvSpec)
    assert shape_of(TINY, DataType.float16, first, 16, True, (4, 4)).ub_blocks == 0


def test_estimates_are_above_the_matrix_unit() -> None:
    """16 x 16 x 16 MACs in a cycle: 64 pixels, 64 channels in and out are 4 * 4 * 4 cycles."""
    s = Shape(64, 1, 4, 4, 1, 1, True, int(DataType.float16), 1, 16)
    cycles = estimate(TINY, s, legal_points(TINY, s))
    assert cycles.min() >= 64
    # weights go to L0B at 32 bytes a cycle: 4 * 4 tiles of 512 bytes take 256 cycles, so MTE1 is what limits
    assert cycles.min() >= 256


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("dataflow", ["output-stationary", "weight-stationary"])
def test_estimates_follow_the_kind_of_the_matrix_unit(dataflow: str, pipelined: bool) -> None:
    """Every sixth tiling of a layer on a 128 x 64 array, memory out of the way: few take a quarter longer than their estimate.

    Small tiles have many slots, so that engines are several tiles ahead of each other and hide what the estimate adds for each; that is
    six tenths of it at most.  The one that is estimated to be fastest is.
    """
    base = load_machine("tpu-like")
    matrix = base.matrix.model_copy(update={"rows": 128, "columns": 64, "dataflow": dataflow, "pipelined": pipelined})
    machine = with_rates(base.model_copy(update={"matrix": matrix}), 1 << 20, 1 << 20, bytes_per_cycle=1 << 20, latency_cycles=0)
    u = target_graph(machine, (1, 96, 20, 20), conv("y", "x", (96, 112)))
    spec = u.operators[0]
    assert isinstance(spec, ConvSpec)
    shape = shape_of(machine, DataType.float16, spec, spec.out_h, False, (spec.n1, spec.k1))
    points = legal_points(machine, shape)
    estimated = estimate(machine, shape, points)
    compiler, ratios, simulated = Compiler(u), [], []
    chosen = range(0, len(points), 6)
    for i in chosen:
        m, n, k, n_outer = points[i].tolist()
        sizes = {"chunk_n1": spec.n1, "chunk_k1": spec.k1, "tile_m": m, "tile_n1": n, "tile_k1": k}
        tiling = ConvTiling.model_validate({"weights": "resident", "order": "mn"[n_outer], **sizes})
        program = compiler.compile(plan_of(u, [SegmentPlan(operators=(spec.name,), blocks=1, tilings=(tiling,))]))
        assert isinstance(program, Program), program
        simulated.append(simulate(program, machine, NO_CONTENTION).cycles)
        ratios.append(simulated[-1] / estimated[i])
    assert len(ratios) > 100
    assert min(ratios) > 0.4
    assert np.quantile(ratios, 0.9) < 1.25
    best = int(np.argmin(estimated[list(chosen)]))
    assert simulated[best] <= 1.05 * min(simulated)


def test_every_point_computes_the_same() -> None:
    b = Builder(np.random.default_rng(0), (1, 24, 7, 6))
    case = make_case(b.model(b.conv("x", 40)), TINY, DataType.float16)
    spec = case.target_graph.operators[0]
    assert isinstance(spec, ConvSpec)
    compiler = Compiler(case.target_graph)
    tried = 0
    for weights, n1, k1 in (("resident", 3, 18), ("streamed", 2, 18), ("streamed", 1, 7), ("streamed", 3, 1)):
        points = legal_points(TINY, shape_of(TINY, DataType.float16, spec, 4, False, (n1, k1)))
        for m, n, k, n_outer in points[:: max(1, len(points) // 12)].tolist():
            tiling = ConvTiling.model_validate(
                {"weights": weights, "chunk_n1": n1, "chunk_k1": k1, "tile_m": m, "tile_n1": n, "tile_k1": k, "order": "mn"[n_outer]}
            )
            program = compiler.compile(plan_of(case.target_graph, [SegmentPlan(operators=(spec.name,), blocks=2, tilings=(tiling,))]))
            assert isinstance(program, Program), program
            check_program(case, program)
            tried += 1
    assert tried >= 40


def test_of_one_tile_there_is_one_order() -> None:
    """What is left out emits the same instructions as what is looked at."""
    u = target_graph(EDGE, (1, 64, 9, 9), conv("y", "x", (64, 96)))
    compiler, left_out = Compiler(u), 0
    for weights, n1, k1 in (("resident", 6, 36), ("streamed", 4, 36), ("streamed", 2, 12)):
        points = {tuple(p) for p in legal_points(EDGE, shape_of(EDGE, DataType.float16, u.operators[0], 9, False, (n1, k1))).tolist()}
        for m, n, k in sorted({(m, n, k) for m, n, k, _ in points if (m, n, k, 1) not in points})[::9]:
            sizes = {"chunk_n1": n1, "chunk_k1": k1, "tile_m": m, "tile_n1": n, "tile_k1": k}
            programs = []
            for order in "mn":
                tiling = ConvTiling.model_validate({"weights": weights, "order": order, **sizes})
                programs.append(compiler.compile(plan_of(u, [SegmentPlan(operators=("y",), blocks=1, tilings=(tiling,))])))
            first, second = programs
            assert isinstance(first, Program)
            assert isinstance(second, Program)
            assert all(np.array_equal(a, b) for a, b in zip(first.streams, second.streams, strict=True))
            left_out += 1
    assert left_out > 20


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_best_of_every_chunk_can_be_named(kernel: int) -> None:
    """And what makes least work of it, which is the best of some under contention, whatever the estimate says."""
    u = target_graph(EDGE, (1, 48, 13, 13), conv("y", "x", (48, 192), kernel))
    spec = u.operators[0]
    assert isinstance(spec, ConvSpec)
    for budget in CHUNK_BUDGETS:
        named = [conv_tiling(u, spec, 13, False, False, budget, choice) for choice in range(64)]
        points = [(t.chunk_n1, t.chunk_k1, t.tile_m, t.tile_n1, t.tile_k1, int(t.order == "n")) for t in named if t is not None]
        assert len(set(points)) == len(points) == 64
        for chunk in chunk_choices(spec, 13, budget, EDGE.buffer_blocks(Memory.L0C)):
            shape = shape_of(EDGE, DataType.float16, spec, 13, False, chunk)
            space = legal_points(EDGE, shape)
            best = space[np.argsort(estimate(EDGE, shape, space), kind="stable")[:4]]
            assert {(*chunk, *point) for point in best.tolist()} <= set(points)
            work = engine_cycles(EDGE, shape, *chunk, space)[:, :2].sum(1)
            least = {(*chunk, *point) for point in space[work == work.min()].tolist()}
            assert least & set(points)


@pytest.mark.parametrize("budget", CHUNK_BUDGETS)
def test_chunks_stay_within_their_budget(budget: int) -> None:
    u = target_graph(EDGE, (1, 512, 14, 14), conv("y", "x", (512, 512)))
    spec = u.operators[0]
    assert isinstance(spec, ConvSpec)
    for choice in range(64):
        tiling = conv_tiling(u, spec, 2, False, False, budget, choice)
        assert tiling is not None
        assert tiling.chunk_n1 * tiling.chunk_k1 * 16 <= budget


def test_vector_tiles_fit_a_slot() -> None:
    """2 rows of input (3 and one of halo at most) and one of their columns' maxima per output row, of 32 columns."""
    u = target_graph(EDGE, (1, 64, 32, 32), max_pool("y", "x", 3, 2, 1))
    whole = vector_tiling(u, u.operators[0], 16, slot_blocks=3200)
    # a plane takes 33 rows of 32 in and 16 of 32 behind them: 1568 blocks, so two fit
    assert (whole.tile_planes, whole.tile_rows) == (2, 16)
    few = vector_tiling(u, u.operators[0], 16, slot_blocks=400)
    # r rows: (2 r + 1) * 32 + 32 r <= 400
    assert (few.tile_planes, few.tile_rows) == (1, 3)
    # tiny has 1024 blocks of UB: two slots of at most 512
    small = target_graph(TINY, (1, 64, 32, 32), max_pool("y", "x", 3, 2, 1))
    assert vector_tiling(small, small.operators[0], 16, slot_blocks=3000).tile_rows == 5
