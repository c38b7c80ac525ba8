"""Encoders on the machine: values against onnxruntime, races, bounds; heads of any size, sequences of any length, several images."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.onnx_io.random_weights import seed_weights
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import LayerNorm, Step, Vector
from compiler.ops.lower_graph import make_unit, pack_unit
from compiler.ops.matmul import MatMulSpec
from compiler.ops.norm import LayerNormSpec
from compiler.ops.softmax import SoftmaxSpec
from compiler.ops.tile_program import Extent, ProgramWriter
from compiler.ops.tile_program_emitter import PLANES, _step, _Tile
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode_all
from compiler.space.gene import Gene
from compiler.space.initial import layer_by_layer
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, make_case, run_program
from tests.models import Builder, reference_outputs
from tests.plans import random_plan
from tuner.zoo.builders import build_network

EDGE, DAVINCI = load_machine("edge"), load_machine("ascend310")
TYPES = [DataType.float16, DataType.float32]


def linear(b: Builder, x: str, width: int) -> str:
    return b.node("Add", [b.node("MatMul", [x, b.normal((b.shape[x][-1], width), b.shape[x][-1] ** -0.5)]), b.normal((width,), 0.1)])


def encoder(n: int, tokens: int, heads: int, size: int, seed: int = 0) -> ModelProto:
    """Attention with a mask, between two norms and with a residual."""
    b = Builder(np.random.default_rng(seed), (n, tokens, heads * size))
    x = b.node("LayerNormalization", ["x", b.normal((heads * size,), 0.2, 1.0), b.normal((heads * size,), 0.2)], axis=-1)
    q, k, v = (linear(b, x, heads * size) for _ in range(3))
    shape = b.constant(np.array([n, tokens, heads, size]))
    q, v = (b.node("Transpose", [b.node("Reshape", [t, shape])], perm=[0, 2, 1, 3]) for t in (q, v))
    k = b.node("Transpose", [b.node("Reshape", [k, shape])], perm=[0, 2, 3, 1])
    scores = b.node("Mul", [b.node("MatMul", [q, k]), b.constant(np.array(1 / (heads * size), np.float32))])
    scores = b.node("Add", [scores, b.constant(np.triu(np.full((tokens, tokens), -100, np.float32), 1))])
    y = b.node("Transpose", [b.node("MatMul", [b.softmax(scores, axis=-1), v])], perm=[0, 2, 1, 3])
    y = b.node("Reshape", [y, b.constant(np.array([n, tokens, heads * size]))])
    return prepare(b.model(b.add(linear(b, y, heads * size), "x")))


def layers_of(case: Case) -> None:
    plan = layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible), plan
    program = Compiler(case.target_graph).compile(plan)
    assert not isinstance(program, Infeasible), program
    check_program(case, program)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("n", "tokens", "heads", "size"), [(1, 16, 2, 16), (2, 21, 3, 8), (1, 33, 1, 20), (1, 7, 4, 40)], ids=lambda v: str(v)
)
def test_encoder(n: int, tokens: int, heads: int, size: int, dtype: DataType) -> None:
    layers_of(make_case(encoder(n, tokens, heads, size), EDGE, dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["vit_b16-small", "bert_base-small", "vit_b16-small,class_token=0,width=48,heads=3"])
def test_made_network(name: str, dtype: DataType) -> None:
    layers_of(make_case(seed_weights(prepare(build_network(name)), 0), DAVINCI, dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_mask_at_run_time(dtype: DataType) -> None:
    """Token numbers are looked up by the host; all else, a mask of the tokens that count included, is the NPU's."""
    _, part = lower_partition(seed_weights(prepare(build_network("bert_base-small,lookup=1")), 0))
    assert [node.op_type for node in part.host] == ["Gather"]
    case = make_case(prepare(part.pieces[0].npu), EDGE, dtype)
    rng = np.random.default_rng(0)
    case.feeds["attention_mask"][...] = rng.integers(0, 2, case.feeds["attention_mask"].shape)
    case.feeds["attention_mask"][..., 0] = 1
    case.expected.update(reference_outputs(case.model, case.feeds))
    layers_of(case)


@pytest.mark.parametrize("seed", range(6))
def test_any_plan(seed: int) -> None:
    """Segments, blocks and tilings that no search would choose: keys and values made where they are used, or loaded once for all blocks."""
    rng = np.random.default_rng(seed)
    case = make_case(encoder(1 + seed % 2, 19, 2, 24, seed), EDGE, TYPES[seed % 2])
    program = None
    for _ in range(20):
        plan = random_plan(case.target_graph, rng, longest=6)
        program = Compiler(case.target_graph).compile(plan) if plan is not None else None
        if program is not None and not isinstance(program, Infeasible):
            break
    assert program is not None
    assert not isinstance(program, Infeasible), program
    check_program(case, program)


def attention_unit() -> tuple[TargetGraph, list[int]]:
    target_graph = make_case(encoder(1, 32, 2, 16), EDGE, DataType.float16).target_graph
    return target_graph, [k for k, spec in enumerate(target_graph.operators) if isinstance(spec, MatMulSpec)]


def test_keys_are_loaded_once_for_all_blocks() -> None:
    target_graph, products = attention_unit()
    k = products[0]
    genome = tuple(Gene(i, i + 1, 4 if i == k else 1) for i in range(len(target_graph.operators)))
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible)
    part = Compiler(target_graph).segment(plan.segments[k], k)
    assert not isinstance(part, Infeasible)
    loads = part.code[(part.code[:, isa.OP] == Op.COPY) & (part.code[:, isa.D] >= 0) & (part.code[:, isa.ENGINE] == 0)]
    # 4 blocks of queries, and the keys with the first of them
    assert loads[:, isa.BLOCK].tolist() == [0, 0, 1, 2, 3]
    # 8 products (two heads, four blocks), every right operand from the keys' planes, not transposed
    assert (part.code[:, isa.OP] == Op.FRACTAL).sum() == 8
    assert set(part.code[part.code[:, isa.OP] == Op.FRACTAL][:, isa.R_TRANSPOSE].tolist()) == {0}


def test_attention_stays_on_chip() -> None:
    """Scores, softmax and their product with the values as one segment: nothing between them touches DDR."""
    target_graph, products = attention_unit()
    start, stop = products[0], products[1] + 1
    genome = (
        *(Gene(i, i + 1) for i in range(start)),
        Gene(start, stop, 2),
        *(Gene(i, i + 1) for i in range(stop, len(target_graph.operators))),
    )
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible)
    part = Compiler(target_graph).segment(plan.segments[start], start)
    assert not isinstance(part, Infeasible)
    stores = part.code[(part.code[:, isa.DST] == 0) & (part.code[:, isa.OP] == Op.COPY)]
    assert set(stores[:, isa.TAG].tolist()) == {products[1]}


def graph_of(op: Vector | LayerNorm, channels: int, pixels: int) -> Graph:
    shape = (1, channels, pixels, 1)
    onnx_shape = (1, channels, pixels, 1)
    return Graph("one", (Port("x", "x", onnx_shape),), (Port("y", "y", onnx_shape),), (op,), {"x": shape, "y": shape})


def run_graph(graph: Graph, x: np.ndarray, dtype: DataType) -> np.ndarray:
    target_graph, constants = pack_unit(graph, EDGE, dtype)
    plan = layer_by_layer(target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    feeds = {"x": x.astype(np.float32)}
    case = Case(ModelProto(), target_graph, constants, feeds, evaluate(graph, feeds))
    outputs, _ = run_program(case, program)
    return outputs["y"]


@pytest.mark.parametrize(("dtype", "limit"), [(DataType.float16, 1.2e-3), (DataType.float32, 1e-5)])
def test_gelu_curve(dtype: DataType, limit: float) -> None:
    """x Phi(x) of everything from far below to far above, each error measured against 1 and against |x|."""
    x = np.concatenate((np.linspace(-8, 8, 4000), [-60000.0, -300, -12, 12, 300, 60000]))
    x = x.astype(np.float16).astype(np.float64)
    op = Vector("gelu", ("x",), "y", (Step("gelu"),))
    y = run_graph(graph_of(op, 2, len(x) // 2), x.reshape(1, 2, -1, 1), dtype).reshape(-1)
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    assert (np.abs(y - exact) <= limit * np.maximum(1, np.abs(x))).all()


@pytest.mark.parametrize(("dtype", "limit"), [(DataType.float16, 2e-3), (DataType.float32, 2e-5)])
def test_erf_curve(dtype: DataType, limit: float) -> None:
    x = np.concatenate((np.linspace(-6, 6, 2000), [-40000.0, -300, 300, 40000])).astype(np.float16)
    op = Vector("erf", ("x",), "y", (Step("erf"),))
    y = run_graph(graph_of(op, 2, len(x) // 2), x.reshape(1, 2, -1, 1), dtype).reshape(-1)
    assert np.abs(y - np.array([math.erf(v) for v in x])).max() <= limit


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.01, 0.0), (500.0, 0.0), (3.0, 40.0), (0.0, 7.0)])
@pytest.mark.parametrize("channels", [5, 64, 200])
def test_layer_norm_of_any_size(channels: int, scale: float, offset: float, dtype: DataType) -> None:
    """Values whose squares float16 does not hold, tiny ones, ones far from zero, equal ones; channels that leave lanes empty."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1, channels, 11, 1)) * scale + offset).astype(np.float16).astype(np.float32)
    op = LayerNorm(
        "norm", "x", "y", rng.standard_normal(channels).astype(np.float32), rng.standard_normal(channels).astype(np.float32), 1e-5
    )
    graph = graph_of(op, channels, 11)
    expected = evaluate(graph, {"x": x})["y"]
    y = run_graph(graph, x, dtype)
    # the deviation from a mean of 40 has lost some bits of float16
    limit = (1e-2 if offset else 4e-3) if dtype == DataType.float16 else 1e-5
    assert np.abs(y - expected).max() <= limit * np.abs(expected).max()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("channels", [5, 64])
def test_layer_norm_without_scale_and_shift(channels: int, centred: bool, dtype: DataType) -> None:
    """It reads no constants but which lanes are channels, where others are there; nor does it look for a mean that is 0."""
    x = np.random.default_rng(0).standard_normal((1, channels, 40, 1)) + 1
    x = (x - centred * x.mean(1)).astype(np.float16).astype(np.float32)
    op = LayerNorm("norm", "x", "y", np.ones(channels, np.float32), np.zeros(channels, np.float32), 1e-5, centred)
    graph = graph_of(op, channels, 40)
    (spec,) = make_unit(graph, EDGE, dtype).operators
    assert isinstance(spec, LayerNormSpec)
    assert spec.kinds == (channels % dtype.lanes > 0)
    expected = evaluate(graph, {"x": x})["y"]
    limit = 2e-3 if dtype == DataType.float16 else 1e-5
    assert np.abs(run_graph(graph, x, dtype) - expected).max() <= limit * np.abs(expected).max()


def test_tiles_of_a_layer_norm_are_whole_repeats() -> None:
    """Over planes eight pixels at a time: a ninth would take as long as eight."""
    for rows in (5, 197):
        graph = graph_of(LayerNorm("norm", "x", "y", np.ones(768, np.float32), np.zeros(768, np.float32), 1e-5), 768, rows)
        (spec,) = make_unit(graph, EDGE, DataType.float16).operators
        assert isinstance(spec, LayerNormSpec)
        fitting = 21 * spec.tile_blocks(48, 1, 1, DataType.float16)
        assert spec.slot_tiling(rows, fitting, DataType.float16).tile_rows == (5 if rows == 5 else 16)


def test_second_softmax_group_cannot_leak_into_the_first() -> None:
    """One head's scores grow by 1000: the other's weights stay as they are."""
    b = Builder(np.random.default_rng(0), (1, 6, 16))
    model = prepare(b.model(attention_over(b)))
    case = make_case(model, EDGE, DataType.float16)
    assert any(isinstance(spec, SoftmaxSpec) and spec.groups == 2 for spec in case.target_graph.operators)
    plan = layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible)
    program = Compiler(case.target_graph).compile(plan)
    assert not isinstance(program, Infeasible)
    outputs, _ = run_program(case, program)
    ((name, expected),) = case.expected.items()
    first = outputs[name].reshape(expected.shape)[..., :6]
    assert np.abs(first - expected[..., :6]).max() < 2e-3


def attention_over(b: Builder) -> str:
    y = b.node("MatMul", ["x", b.normal((16, 12), 0.2)])
    y = b.node("Add", [y, b.constant(np.repeat(np.array([0, 1000], np.float32), 6))])
    y = b.node("Transpose", [b.node("Reshape", [y, b.constant(np.array([1, 6, 2, 6]))])], perm=[0, 2, 1, 3])
    y = b.node("Transpose", [b.softmax(y, axis=-1)], perm=[0, 2, 1, 3])
    return b.node("Reshape", [y, b.constant(np.array([1, 6, 12]))])


def test_norms_have_signatures_of_their_own() -> None:
    target_graph, _ = attention_unit()
    assert any(isinstance(spec, LayerNormSpec) for spec in target_graph.operators)
    assert target_graph.macs == sum(spec.macs for spec in target_graph.operators)
    # 2 heads, 32 queries, 32 keys, 16 channels, twice; four linear layers of 32 x 32 at 32 pixels
    assert target_graph.macs == 2 * 2 * 32 * 32 * 16 + 4 * 32 * 32 * 32


@pytest.mark.parametrize(("planes", "size"), [(48, 8), (48, 197), (3, 300), (9, 1), (20, 600)])
def test_scale_and_shift_of_planes(planes: int, size: int) -> None:
    """Plane by plane or across planes, whichever takes less: every block once, with the constants of its plane."""
    code = np.zeros((256, isa.WORDS), np.int32)
    writer = ProgramWriter()
    x = writer.buffer(Extent(tile=1), dtype=DataType.float16)
    writer.step(PLANES, Op.VMADD, DataType.float16, x, x, *(writer.constant(Extent(plane=kind), 1) for kind in range(2)))
    program = writer.program(x)
    tile = _Tile(1000, planes, size, consts=100, const_planes=100, const_first=0, plane=0, first=0, planes=planes, size=size)
    used = _step(code, 0, 0, program.steps[0], program.places, tile)
    found = {}
    for row in code[:used].tolist():
        for r in range(row[isa.V_REPEATS]):
            for b in range(row[isa.V_BLOCKS]):
                d, scale, shift = (
                    row[base] + r * row[isa.V_DBS + 2 * i + 1] + b * row[isa.V_DBS + 2 * i]
                    for base, i in ((isa.D, 0), (isa.S1, 2), (isa.S2, 3))
                )
                assert d not in found
                found[d] = (scale, shift)
    assert found == {1000 + p * size + i: (100 + p, 200 + p) for p in range(planes) for i in range(size)}
    assert price(code[:used], EDGE).busy.sum() <= planes * (6 + -(-size // 8)) + 6 * planes


def test_last_layer_works_for_the_class_token_alone() -> None:
    """Behind the last attention everything is done at one pixel; before it, at all of them."""
    target_graph = make_case(seed_weights(prepare(build_network("vit_b16-small,layers=2")), 0), EDGE, DataType.float16).target_graph
    products = [
        rows.size for spec, rows in zip(target_graph.operators, rows_needed(target_graph), strict=True) if isinstance(spec, MatMulSpec)
    ]
    assert products == [17, 17, 1, 1]
    last = [spec.name for spec, rows in zip(target_graph.operators, rows_needed(target_graph), strict=True) if rows.size == 1]
    assert len(last) == 11  # queries, scores, softmax, context, projection, norm, layer, GELU, layer, norm, classes
