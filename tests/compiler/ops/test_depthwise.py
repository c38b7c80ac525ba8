"""Depthwise convolutions of which VECTOR makes some channels compute what they are meant to, in tiles of every shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from compiler.autoplan import quick_genomes
from compiler.cost.features import FEATURES, raw_features
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, Operator
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan, VectorShare, VectorTiling, parse_plan
from compiler.planner.segmentation import estimate_predictor
from compiler.planner.tweaks import move_share
from compiler.space.decode import decode, decode_all, plan_of
from compiler.space.encode import genome_of
from compiler.space.gene import Gene, Genome, find_fault, pins_of
from compiler.space.mutators import change_tiling
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program
from tests.graphs import conv, graph, target_graph

EDGE = load_machine("edge")


def random_depthwise(rng: np.random.Generator, channels: int, h: int, w: int) -> Conv:
    """Windows smaller and larger than their strides, far apart, with any padding, and any activation."""
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    dilation = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    sizes = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = [int(rng.integers(0, size + 1)) for size in (*sizes, *sizes)]
    for axis, length in enumerate((h, w)):  # at least one window
        pads[2 + axis] = max(pads[2 + axis], sizes[axis] - length - pads[axis])
    weights = rng.standard_normal((channels, 1, *kernel)).astype(np.float16).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) * int(rng.integers(2))
    act, stride = ("none", "relu", "clip")[int(rng.integers(3))], (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    return Conv("d", "a", "d", weights, bias, stride, dilation, tuple(pads), channels, act, limit=2.0 if act == "clip" else 0.0)  # type: ignore[arg-type]


def random_tiling(rng: np.random.Generator, planes: int, rows: int, columns: int) -> VectorTiling:
    """Some planes by some rows, or one row's columns."""
    if columns > 1 and rng.integers(3) == 0:
        return VectorTiling(tile_planes=int(rng.integers(1, planes + 1)), tile_rows=1, tile_columns=int(rng.integers(1, columns)))
    return VectorTiling(tile_planes=int(rng.integers(1, planes + 1)), tile_rows=int(rng.integers(1, rows + 1)))


def test_random_shares() -> None:
    """Of the first operator, one in the middle and the last one of a segment, in blocks that keep their halo or do not, in strips too."""
    rng = np.random.default_rng(0)
    made = 0
    while made < 24:
        planes, h, w = int(rng.integers(2, 7)), int(rng.integers(1, 24)), int(rng.integers(1, 24))
        channels = 16 * planes - int(rng.integers(0, 16))
        op = random_depthwise(rng, channels, h, w)
        before, behind = bool(rng.integers(2)), bool(rng.integers(2))
        inner: list[Operator] = [conv("a", "x", (16, channels), 1), op] if before else [replace(op, x="x")]
        chain = [*inner, conv("y", "d", (channels, 16), 1)] if behind else inner
        shape = int(rng.integers(1, 3)), 16 if before else channels, h, w
        g = graph(shape, chain)
        u, constants = pack_unit(g, EDGE, DataType.float16)
        out = u.operators[-1]
        gene = Gene(0, len(chain), blocks=int(rng.integers(1, out.out_h + 1)), cached=-int(rng.integers(2)), sliding=bool(rng.integers(2)))
        at = int(before)
        share, spec = int(rng.integers(1, planes)), u.operators[at]
        plan = decode(u, gene._replace(on_vector=tuple(share * (k == at) for k in range(len(chain)))))
        if plan is None:
            continue
        tiling = random_tiling(rng, share, spec.out_h, spec.out_w)
        columns = int(rng.integers(1, 4))
        plan = plan.model_copy(
            update={"on_vector": (VectorShare(operator="d", planes=share, tiling=tiling),), "columns": min(columns, out.out_w)}
        )
        program = Compiler(u).compile(plan_of(u, [plan]))
        if isinstance(program, Infeasible):
            assert columns > 1 or "UB" in str(program), program
            continue
        x = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        check_program(Case(ModelProto(), u, constants, {"x": x}, evaluate(g, {"x": x})), program, 8e-3)
        made += 1


def body(size: int, *, channels: int = 192) -> list[Operator]:
    """What MobileNet v2 is made of."""
    made = [conv("a", "x", (32, channels), 1), conv("d", "a", (channels, channels), groups=channels), conv("y", "d", (channels, 32), 1)]
    return [replace(op, activation="clip", limit=6.0) for op in made[:2]] + made[2:]


@pytest.mark.parametrize(("size", "planes"), [(28, 3), (14, 6), (14, 8), (7, 11)], ids=str)
def test_the_estimate_is_of_what_vector_makes(size: int, planes: int) -> None:
    u = target_graph(EDGE, (1, 32, size, size), *body(size))
    plan = decode(u, Gene(0, 3, 1, on_vector=(0, planes, 0)))
    assert plan is not None
    parts = Compiler(u).alone(plan, 0)
    assert isinstance(parts, list)
    vector = int(simulate_levels(Compiler(u).link(parts), EDGE, ("none",))["none"].busy_cycles[0, Engine.VECTOR])
    without = decode(u, Gene(0, 3, 1))
    assert without is not None
    expands, expected = (raw_features(u, each, 0)[FEATURES.index("vector_cycles")] for each in (without, plan))
    assert vector == pytest.approx(expected, rel=0.1)
    assert 11 * planes * size * size / 8 < vector - expands < 1.35 * 11 * planes * size * size / 8


def test_plans_say_what_vector_makes_and_have_genes() -> None:
    """As the rules make them, and with other planes and tiles, of several images as well."""
    u, other = target_graph(EDGE, (4, 32, 14, 14), *body(14)), VectorTiling(tile_planes=3, tile_rows=2)
    for blocks, planes, tiling, images in ((1, 3, None, 1), (2, 5, None, 1), (2, 4, other, 1), (1, 3, None, 2), (1, 4, other, 2)):
        plan = decode_all(u, (Gene(0, 3, blocks, cached=-1, on_vector=(0, planes, 0), images=images),))
        assert isinstance(plan, Plan)
        segment = plan.segments[0]
        if tiling is not None:
            share = VectorShare(operator="d", planes=planes, tiling=tiling)
            plan = plan.model_copy(update={"segments": (segment.model_copy(update={"on_vector": (share,)}),)})
        assert parse_plan(plan.to_json()) == plan
        genome = genome_of(u, plan)
        assert genome is not None
        assert (genome[0].on_vector, genome[0].images) == ((0, planes, 0), images)
        assert bool(genome[0].pinned) == (tiling is not None)
        assert decode_all(u, genome) == plan


def test_what_vector_cannot_make_is_named() -> None:
    u = target_graph(EDGE, (1, 32, 14, 14), *body(14))
    plan = decode(u, Gene(0, 3, 1))
    assert plan is not None
    tiling = VectorTiling(tile_planes=1, tile_rows=1)
    for operator, planes, said in (("a", 1, "accepted: depthwise convolutions"), ("d", 12, "accepted: 1 to 11")):
        share = VectorShare(operator=operator, planes=planes, tiling=tiling)
        found = Compiler(u).compile(plan_of(u, [plan.model_copy(update={"on_vector": (share,)})]))
        assert isinstance(found, Infeasible)
        assert said in str(found)
    with pytest.raises(ValueError, match="none of the segment's operators"):
        SegmentPlan.model_validate(plan.model_dump() | {"on_vector": ({"operator": "b", "planes": 1, "tiling": tiling},)})


def test_plans_by_prediction_share_where_that_is_faster() -> None:
    model = target_graph(EDGE, (1, 32, 28, 28), *body(28))
    genome, *_ = quick_genomes(Compiler(model), model, estimate_predictor(model), ("none",))["none"]
    assert any(any(gene.on_vector) for gene in genome)
    took = []
    for tried in (genome, tuple(gene._replace(on_vector=()) for gene in genome)):
        plan = decode_all(model, tried)
        assert isinstance(plan, Plan)
        program = Compiler(model).compile(plan)
        assert not isinstance(program, Infeasible)
        took.append(simulate_levels(program, EDGE, ("none",))["none"].cycles)
    assert took[0] < 0.97 * took[1]


def test_tilings_stay_where_a_share_changes() -> None:
    """Of pinned segments, as neighbours that were joined are: what VECTOR makes has a tiling by rule."""
    u = target_graph(EDGE, (1, 32, 14, 14), *body(14))
    plan = decode(u, Gene(0, 3, 1, choices=(3, 2, 1)))
    assert plan is not None
    gene = Gene(0, 3, 1, pinned=pins_of(plan.tilings))
    for eighths, planes in ((2, 3), (1, 5), (-1, 3), (-3, 0)):
        gene = move_share(0, eighths, u, gene)
        assert gene.on_vector == ((0, planes, 0) if planes else ())
        shared = decode(u, gene)
        assert shared is not None
        assert shared.tilings == plan.tilings
        assert [share.planes for share in shared.on_vector] == ([planes] if planes else [])
    assert move_share(1, 1, u, gene) == gene, "there is one"


def test_a_search_draws_shares() -> None:
    u, rng, found = target_graph(EDGE, (1, 32, 14, 14), *body(14)), np.random.default_rng(0), set()
    genome: Genome = (Gene(0, 3, 1),)
    for _ in range(60):
        changed = change_tiling(u, genome, rng)
        if changed is not None:
            genome = changed
            assert find_fault(u, genome, True) is None
            found.add(genome[0].on_vector)
    assert len(found) > 4
    assert all(not shares or (shares[0] == shares[2] == 0 and 0 < shares[1] < 12) for shares in found)
