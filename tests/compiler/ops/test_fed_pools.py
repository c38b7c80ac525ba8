"""Pools that convolutions feed in UB compute what they are meant to, and spare what goes to L1 and comes back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from compiler.codegen.lower_segment import Records
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Concat, Operator, Pool
from compiler.ops.lower_graph import pack_unit
from compiler.ops.pool import PoolSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan, VectorTiling, parse_plan
from compiler.planner.tweaks import CHANGES, apply_if_fits
from compiler.space.decode import decode, decode_all, plan_of
from compiler.space.encode import genome_of
from compiler.space.gene import UB_SLOTS, Gene
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from tests.compiled import Case, check_program
from tests.graphs import conv, graph, max_pool, target_graph
from tests.lowered import lower_segment

EDGE = load_machine("edge")


def fed(plan: SegmentPlan, rows: int) -> SegmentPlan:
    """With every pool fed, in tiles of so many rows."""
    tilings = [
        VectorTiling(tile_planes=1 << 10, tile_rows=rows, fed=True) if isinstance(tiling, VectorTiling) else
        tiling.model_copy(update={"weights": "resident", "constants": "resident"})
        for tiling in plan.tilings
    ]  # fmt: skip
    return plan.model_copy(update={"tilings": tuple(tilings)})


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32], ids=lambda dtype: dtype.name)
def test_random_pools_that_are_fed(dtype: DataType) -> None:
    """By one convolution or by two, beside what else the segment makes, in blocks of one image or of several."""
    rng = np.random.default_rng(int(dtype))
    made, two, halos = 0, 0, 0
    while made < 16:
        n, h, w = int(rng.integers(1, 3)), int(rng.integers(3, 26)), int(rng.integers(3, 26))
        both, behind = bool(rng.integers(2)), bool(rng.integers(2))
        size = int(rng.integers(1, 4))
        ways = [conv("a", "x", (20, 32), 3, pad=1)] + [conv("b", "x", (20, 48), 1)] * both
        joined: list[Operator] = [*ways, Concat("c", ("a", "b"), "c")] if both else ways
        stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        kernel = (max(size, stride[0]), int(rng.integers(1, 4)))
        pads = tuple(int(rng.integers(0, (k + 1) // 2)) for k in (*kernel, *kernel))
        mode = "average" if kernel[0] == stride[0] and not any(pads) else "max"
        pool = Pool("p", "c" if both else "a", "p", mode, kernel, stride, pads, False)  # type: ignore[arg-type]
        chain = [*joined, pool] + [conv("y", "p", (80 if both else 32, 16), 3, pad=1)] * behind
        if not behind:
            chain[-1] = replace(pool, name="y", y="y")
        g = graph((n, 20, h, w), chain)
        u, constants = pack_unit(g, EDGE, dtype)
        spec = next(spec for spec in u.operators if isinstance(spec, PoolSpec))
        if not spec.can_be_fed:
            continue
        blocks, sliding = int(rng.integers(1, u.operators[-1].out_h + 1)), bool(rng.integers(2))
        gene = Gene(0, len(u.operators), blocks, cached=-int(rng.integers(2)), sliding=sliding, window=int(rng.integers(1, 4)))
        plan = decode(u, gene)
        assert plan is not None
        rows = int(rng.integers(1, 4))
        program = Compiler(u).compile(plan_of(u, [fed(plan, rows)]))
        assert not isinstance(program, Infeasible), program
        x = rng.standard_normal((n, 20, h, w)).astype(np.float16).astype(np.float32)
        check_program(Case(ModelProto(), u, constants, {"x": x}, evaluate(g, {"x": x})), program, 8e-3)
        made, two, halos = made + 1, two + both, halos + (kernel[0] > stride[0])
    assert two > 2
    assert halos > 2


def stem(channels: int = 64, size: int = 56) -> TargetGraph:
    return target_graph(
        EDGE, (1, 16, size, size), conv("a", "x", (16, channels), 3, pad=1), max_pool("p", "a", 3, 2, 1), conv("y", "p", (channels, 32), 1)
    )


def test_pool_input_goes_from_accumulators_to_ub() -> None:
    """And nothing of it to L1, where there is room for other things then."""
    u = stem()
    gene = Gene(0, 3, blocks=4)
    usual, other = decode(u, gene), decode(u, gene._replace(choices=(0, len(UB_SLOTS), 0)))
    assert usual is not None
    assert other is not None
    mine, its = lower_segment(u, other, 0), lower_segment(u, usual, 0)
    assert isinstance(mine, Records)
    assert isinstance(its, Records)

    def moved(records: Records, op: Op, source: Memory, target: Memory) -> int:
        code = records.code
        rows = (code[:, isa.OP] == op) & (code[:, isa.TAG] < 2) & (code[:, isa.SRC] == source) & (code[:, isa.DST] == target)
        return int(rows.sum())

    assert moved(its, Op.COPY, Memory.L1, Memory.UB) > 0
    assert moved(mine, Op.COPY, Memory.L1, Memory.UB) == 0
    assert moved(mine, Op.FIXPIPE, Memory.L0C, Memory.L1) == 0
    assert moved(mine, Op.FIXPIPE, Memory.L0C, Memory.UB) >= moved(its, Op.FIXPIPE, Memory.L0C, Memory.L1)
    assert mine.peak_bytes["L1"] < its.peak_bytes["L1"]


def test_plans_with_fed_pools_round_trip_to_genes() -> None:
    u = stem()
    plan = decode_all(u, (Gene(0, 3, blocks=4, choices=(0, len(UB_SLOTS) + 1, 0)),))
    assert isinstance(plan, Plan)
    assert any(isinstance(tiling, VectorTiling) and tiling.fed for tiling in plan.segments[0].tilings)
    assert parse_plan(plan.to_json()) == plan
    genome = genome_of(u, plan)
    assert genome is not None
    assert decode_all(u, genome) == plan


def test_a_change_feeds_pools_where_they_can_be() -> None:
    tried = [apply_if_fits(stem(), Gene(0, 3, blocks=4), change) for change in CHANGES]
    assert any(gene.choices and gene.choices[1] >= len(UB_SLOTS) for gene in tried)
    shared = target_graph(EDGE, (1, 16, 8, 8), conv("a", "x", (16, 16), 1), max_pool("p", "a", 3, 2, 1), conv("y", "a", (16, 16), 1))
    assert all(max(apply_if_fits(shared, Gene(0, 3), change).choices, default=0) < len(UB_SLOTS) or not change for change in CHANGES[7:9])


def test_what_cannot_be_fed_is_named() -> None:
    u = stem()
    plan = decode(u, Gene(0, 3))
    assert plan is not None
    streamed = fed(plan, 1)
    streamed = streamed.model_copy(update={"tilings": (plan.tilings[0].model_copy(update={"weights": "streamed"}), *streamed.tilings[1:])})
    found = Compiler(u).compile(plan_of(u, [streamed]))
    assert isinstance(found, Infeasible)
    assert "accepted: resident ones" in str(found)
    pool = target_graph(EDGE, (1, 16, 8, 8), max_pool("p", "x", 3, 2, 1), conv("y", "p", (16, 16), 1))
    alone = decode(pool, Gene(0, 2))
    assert alone is not None
    found = Compiler(pool).compile(plan_of(pool, [fed(alone, 1)]))
    assert isinstance(found, Infeasible)
    assert "accepted: pools of" in str(found)
