"""Machines whose UB or L1 is far too small: operators are split until they fit, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from compiler.ops.matmul import MatMulSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, Infeasible, Plan, VectorTiling, parse_plan
from compiler.segment.blocks import cut_blocks
from compiler.segment.memory_plan import place_segment
from compiler.segment.operator_run import streamed_rights
from compiler.space.decode import decode, decode_all
from compiler.space.encode import genome_of
from compiler.space.gene import Gene
from compiler.space.initial import single_operators
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, make_case
from tests.compiler.codegen.test_transformer import encoder
from tests.models import Builder, small_model
from tests.plans import resized

EDGE = load_machine("edge")
TYPES = [DataType.float16, DataType.float32]


def layers(case: Case) -> Plan:
    """Every operator alone, in the plan that the search starts from: run, and equal to onnxruntime; its text and its genes say the same."""
    genome = single_operators(case.target_graph)
    assert not isinstance(genome, Infeasible), genome
    plan = decode_all(case.target_graph, genome)
    assert not isinstance(plan, Infeasible), plan
    program = Compiler(case.target_graph).compile(plan)
    assert not isinstance(program, Infeasible), program
    check_program(case, program)
    assert parse_plan(plan.to_json()) == plan
    again = genome_of(case.target_graph, plan)
    assert again is not None
    assert decode_all(case.target_graph, again) == plan
    return plan


def scaled(b: Builder) -> ModelProto:
    """A chain with constants per channel on rows wider than UB, and one with an operand of one pixel."""
    x = b.relu("x")
    x = b.add(b.node("Mul", [x, b.normal((1, b.shape["x"][1], 1, 1))]), b.normal((1, b.shape["x"][1], 1, 1)))
    pixel = b.node("GlobalAveragePool", [b.max_pool(x, kernel=4, stride=4)])
    return b.model(b.node("Mul", [b.node("Sigmoid", [x]), pixel]))


def pooled(b: Builder) -> ModelProto:
    a = b.average_pool("x", kernel=3, stride=2, pads=(1, 1, 1, 1), count_include_pad=0)
    return b.model(b.max_pool(a, kernel=3, stride=1, pads=(1, 1, 1, 1)), b.max_pool("x", kernel=2, stride=3))


def normalised(b: Builder) -> ModelProto:
    return b.model(b.softmax("x", axis=1), b.lrn("x"))


def resized_images(b: Builder) -> ModelProto:
    scales, empty = b.constant(np.array([1, 1, 2, 1.5], np.float32)), ""
    x = b.node("Resize", ["x", empty, scales], mode="linear", coordinate_transformation_mode="half_pixel")
    starts, ends, steps = (b.constant(np.array(v, np.int64)) for v in ([40, 1], [3, 9], [-2, 1]))
    y = b.node("Slice", [x, starts, ends, b.constant(np.array([3, 2], np.int64)), steps])
    return b.model(b.node("Pad", [y, b.constant(np.array([0, 0, 2, 9, 0, 0, 1, 17], np.int64)), b.constant(np.float32(0.5))]), x)


MODELS: dict[str, Callable[[Builder], ModelProto]] = {
    "scaled": scaled, "pooled": pooled, "normalised": normalised, "resized": resized_images,
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", MODELS)
def test_rows_wider_than_ub(name: str, dtype: DataType) -> None:
    """UB of 2 KiB for float16: 64 blocks, of which a tile may have half; a row of the image has more."""
    model = MODELS[name](Builder(np.random.default_rng(0), (1, 40, 7, 41 * dtype.size_bytes // 2)))
    case = make_case(model, resized(EDGE, UB=1024 * dtype.size_bytes), dtype)
    tilings = [tiling for segment in layers(case).segments for tiling in segment.tilings]
    assert any(isinstance(tiling, VectorTiling) and tiling.tile_columns for tiling in tilings)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_constants_larger_than_ub(dtype: DataType) -> None:
    """A bias and a scale of 640 channels in 2 KiB of UB (float32: 4): they come in pieces."""
    b = Builder(np.random.default_rng(1), (2, 16, 3, 5))
    x = b.conv("x", 640, kernel=(1, 1), pads=(0, 0, 0, 0))
    x = b.node("Mul", [b.node("Sigmoid", [b.batch_norm(b.max_pool(x, kernel=2, stride=1))]), b.constant(np.float32(0.5))])
    case = make_case(b.model(x), resized(EDGE, UB=1024 * dtype.size_bytes), dtype)
    plan = layers(case)
    streamed = [tiling.kind for segment in plan.segments for tiling in segment.tilings if tiling.constants == "streamed"]
    assert set(streamed) == {"conv", "vector"}


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("n", "tokens", "heads", "size"), [(1, 64, 3, 32), (2, 39, 2, 40)], ids=str)
def test_right_operands_larger_than_l1(n: int, tokens: int, heads: int, size: int, dtype: DataType) -> None:
    """Keys and values come in chunks, in any number of blocks."""
    case = make_case(encoder(n, tokens, heads, size), resized(EDGE, L1=8192 * dtype.size_bytes // 2), dtype)
    plan = layers(case)
    starts = [k for k, spec in enumerate(case.target_graph.operators) if isinstance(spec, MatMulSpec)]
    for k in starts:
        (tiling,) = plan.segments[k].tilings
        assert isinstance(tiling, ConvTiling)
        assert tiling.weights == "streamed"
    genes = tuple(Gene(k, k + 1, s.blocks * 2 if k in starts else s.blocks, s.prefetch) for k, s in enumerate(plan.segments))
    more = decode_all(case.target_graph, genes)
    assert not isinstance(more, Infeasible), more
    program = Compiler(case.target_graph).compile(more)
    assert not isinstance(program, Infeasible), program
    check_program(case, program)


def test_right_operand_of_the_segment_cannot_be_chunked() -> None:
    case = make_case(encoder(1, 32, 2, 16), EDGE, DataType.float16)
    target_graph = case.target_graph
    k = next(k for k, spec in enumerate(target_graph.operators) if isinstance(spec, MatMulSpec))
    start = min(target_graph.producers[k])
    plan = decode(target_graph, Gene(start, k + 1))
    assert plan is not None
    tilings = (*plan.tilings[:-1], plan.tilings[-1].model_copy(update={"weights": "streamed"}))
    found = Compiler(target_graph).segment(plan.model_copy(update={"tilings": tilings}), start)
    assert isinstance(found, Infeasible)
    assert f"{target_graph.operators[k].name}: its right operand lies in L1 as a whole, made in this segment" in found.reason


@pytest.mark.parametrize("name", ["inception_block", "dense_block", "vector_chain", "lrn_chain"])
def test_what_is_realised_fits(name: str) -> None:
    """No tiling that is named needs more of UB or L1 than there is, whatever the gene."""
    rng, found = np.random.default_rng(3), 0
    for size in (3072, 6144, 20480):
        target_graph = make_case(small_model(name), resized(load_machine("tiny"), UB=size), DataType.float16).target_graph
        for _ in range(20):
            start = int(rng.integers(len(target_graph.operators)))
            stop = min(len(target_graph.operators), start + int(rng.integers(1, 6)))
            choices = tuple(int(c) for c in rng.integers(4, size=stop - start))
            blocks, window = int(rng.integers(1, 6)), int(rng.integers(1, 3))
            gene = Gene(start, stop, blocks, window=window, choices=choices, sliding=bool(rng.integers(2)))
            plan = decode(target_graph, gene)
            if plan is not None:
                layout = cut_blocks(target_graph, start, stop, blocks, plan.caching, 1, streamed_rights(target_graph, start, plan.tilings))
                places = place_segment([(target_graph, layout)], plan)
                assert not isinstance(places, Infeasible), places
                found += 1
    assert found > 20
