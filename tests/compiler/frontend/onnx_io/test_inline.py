"""What stands for other nodes is these: the same programs and values as of a model that was written without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from compiler.frontend.lower import SUPPORTED, lower_partition
from compiler.frontend.onnx_io import inline
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.operators import LayerNorm
from simulator.exact_onnxruntime import REFUSALS
from tests.fuzz.builder import Sample, values_of
from tests.fuzz.graphs import draw_graph
from tests.models import reference_outputs
from tests.same_programs import OFFLOAD, graph_of
from tuner.onnx_backend import compile_model

Array = NDArray[np.generic]
SEEDS = st.integers(0, 10_000)


def drawn(seed: int) -> Sample:
    """A random graph of an opset in which a model may have functions and optional axes."""
    return next(
        sample
        for k in range(1000)
        if (sample := draw_graph(seed + 10_007 * k, quantised=False)).model.opset_import[0].version >= 17
        and all(item.type.tensor_type.elem_type == TensorProto.FLOAT for item in sample.model.graph.input)
        and not {item.name for item in sample.model.graph.input} & {item.name for item in sample.model.graph.output}
    )


def with_nodes(model: ModelProto, nodes: Sequence[NodeProto], constants: Sequence[TensorProto] = ()) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    copy.graph.initializer.extend(constants)
    return copy


def split(model: ModelProto, rng: np.random.Generator) -> tuple[list[NodeProto], list[NodeProto], list[NodeProto], list[str], list[str]]:
    """(before, inside, behind, what the inside reads of others, what it makes for others): a run of nodes cut out of a graph."""
    nodes = list(model.graph.node)
    begin = int(rng.integers(len(nodes)))
    end = int(rng.integers(begin, len(nodes))) + 1
    inside, rest = nodes[begin:end], [*nodes[:begin], *nodes[end:]]
    made = {name for node in inside for name in node.output if name}
    wanted = {name for node in rest for name in node.input} | {item.name for item in model.graph.output}
    reads = sorted({name for node in inside for name in node.input if name} - made)
    return nodes[:begin], inside, nodes[end:], reads, sorted(made & wanted)


def body_of(nodes: Sequence[NodeProto], outputs: Sequence[str], prefix: str) -> GraphProto:
    """A branch: names inside are its own."""
    names = {name: prefix + name for node in nodes for name in node.output if name}
    copies = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        copies.append(copy)
    return helper.make_graph(copies, prefix, [], [onnx.ValueInfoProto(name=names[name]) for name in outputs])


def in_function(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    before, inside, behind, reads, makes = split(model, rng)
    copy = with_nodes(model, [*before, helper.make_node("Part", reads, makes, domain="own"), *behind])
    copy.functions.append(helper.make_function("own", "Part", reads, makes, inside, list(model.opset_import)))
    copy.opset_import.append(helper.make_opsetid("own", 1))
    return copy


def in_branch(model: ModelProto, rng: np.random.Generator) -> ModelProto:
    """The other branch is another model."""
    before, inside, behind, _, makes = split(model, rng)
    taken = bool(rng.integers(2))
    branches = [body_of(inside, makes, "a."), body_of(inside, makes, "b.")]
    for item, name in zip(branches[1].output, makes, strict=True):
        branches[1].node.append(helper.make_node("Neg", [f"b.{name}"], [f"c.{name}"]))
        item.name = f"c.{name}"
    then, other = branches if taken else branches[::-1]
    node = helper.make_node("If", ["flag"], makes, then_branch=then, else_branch=other)
    return with_nodes(model, [*before, node, *behind], [numpy_helper.from_array(np.array(taken), "flag")])


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, write=st.sampled_from([in_function, in_branch]))
def test_a_part_of_a_graph_behind_a_name(seed: int, write: Callable[[ModelProto, np.random.Generator], ModelProto]) -> None:
    sample = drawn(seed)
    written = write(sample.model, np.random.default_rng(seed))
    onnx.checker.check_model(written)
    names = [item.name for item in sample.model.graph.output]
    plain = values_of(*sample, names)
    try:
        theirs = values_of(written, sample.feeds, names)
    except REFUSALS:  # in a branch, onnxruntime holds its own size of a window with ceil_mode against onnx's
        assume(False)
    mine = values_of(prepare(written), sample.feeds, names)
    for name in names:
        np.testing.assert_allclose(theirs[name], plain[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mine[name], plain[name], rtol=1e-4, atol=1e-5)
    assert not {"If", "Part"} & {node.op_type for node in prepare(written).graph.node}
    assert graph_of(written) == graph_of(sample.model)


def model_of(text: str, constants: dict[str, Array] | None = None, ir: int = 10) -> ModelProto:
    """By onnx's own text form, with initialisers beside it."""
    model = parser.parse_model(text)
    model.ir_version = ir
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items())
    return model


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


HEAD = '<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g (float[2,6,16] x) => (float[2,6,16] y) '
# operator -> a call of it between two products, its constants
CALLS: dict[str, tuple[str, dict[str, Array]]] = {
    "BiasGelu": ("b = com.microsoft.BiasGelu(a, v)", {"v": normal(16)}),
    "FastGelu": ("b = com.microsoft.FastGelu(a)", {}),
    "FastGelu of two": ("b = com.microsoft.FastGelu(a, v)", {"v": normal(16)}),
    "FusedMatMul": ("b = com.microsoft.FusedMatMul<alpha = 0.5>(a, v)", {"v": normal(16, 16)}),
    "Gelu": ("b = com.microsoft.Gelu(a)", {}),
    "QuickGelu": ("b = com.microsoft.QuickGelu<alpha = 1.5>(a)", {}),
    "QuickGelu plain": ("b = com.microsoft.QuickGelu(a)", {}),
    "SkipLayerNormalization": ("b = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(a, x, v, u, w)", {k: normal(16) for k in "vuw"}),
    "SkipLayerNormalization of three": ("b = com.microsoft.SkipLayerNormalization(a, x, v)", {"v": normal(16)}),
    "SkipLayerNormalization and sum": (
        "n,,,s = com.microsoft.SkipLayerNormalization(a, x, v, u) b = Add(n, s)",
        {k: normal(16) for k in "vu"},
    ),
    "Simplified": ("b = SimplifiedLayerNormalization<axis = -1, epsilon = 0.001, stash_type = 1>(a, v)", {"v": normal(16)}),
    "Simplified plain": ("b = SimplifiedLayerNormalization(a, v)", {"v": normal(16)}),
    "SkipSimplified": ("b = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(a, x, v)", {"v": normal(16)}),
    "SkipSimplified and bias": ("b = com.microsoft.SkipSimplifiedLayerNormalization(a, x, v, u)", {k: normal(16) for k in "vu"}),
}


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("case", CALLS)
def test_operators_of_onnxruntime(case: str, opset: int) -> None:
    text, constants = CALLS[case]
    weights = {"k": normal(16, 16) / 4}
    model = model_of(f"{HEAD.format(opset=opset)} {{ a = MatMul(x, k) {text} y = MatMul(b, k) }}", constants | weights)
    feeds = {"x": normal(2, 6, 16, seed=1)}
    done = prepare(model)
    assert {node.domain for node in done.graph.node} == {""}
    np.testing.assert_allclose(reference_outputs(done, feeds)["y"], reference_outputs(model, feeds)["y"], rtol=1e-4, atol=1e-5)
    (graph,), part = lower_partition(done, OFFLOAD)
    assert part.whole, [node.why for node in part.host]
    if "Simplified" in case:
        assert any(isinstance(op, LayerNorm) for op in graph.operators)


def test_more_than_a_body_stays_with_a_shape() -> None:
    """A transposing product has another shape than its stand-in."""
    for call, known in (("FusedMatMul<transB = 1>(a, k)", False), ("SkipLayerNormalization(a, x, v)", True)):
        more = "n, m = " if known else "n = "
        text = f"{HEAD.format(opset=17)} {{ a = MatMul(x, k) {more}com.microsoft.{call} y = Relu(n) }}"
        done = prepare(model_of(text, {"k": normal(16, 16), "v": normal(16)}))
        assert "com.microsoft" in {node.domain for node in done.graph.node}
        assert ("n" in known_shapes(done.graph)) == known


ATTENTION = """
  f = RMSNormalization<epsilon = 0.00001>(x, g) q0 = MatMul(f, wq) k0 = MatMul(f, wk) v0 = MatMul(f, wv)
  q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q1) k = Transpose<perm = [0, 2, 1, 3]>(k1) v = Transpose<perm = [0, 2, 1, 3]>(v1)
  a = Attention(q, k, v) b = Transpose<perm = [0, 2, 1, 3]>(a) c = Reshape(b, flat) d = MatMul(c, wo) y = Add(d, x)
"""
# the two as an exporter writes them for an older opset
RMS = "p = Pow(x, two) m = ReduceMean<keepdims = 1>(p, last) e = Add(m, eps) r = Sqrt(e) i = Reciprocal(r) j = Mul(x, i) f = Mul(j, g)"
SCORES = """
  t = Transpose<perm = [0, 1, 3, 2]>(k) qs = Mul(q, root) ts = Mul(t, root) s = MatMul(qs, ts) z = Softmax<axis = -1>(s) a = MatMul(z, v)
"""


def block(opset: int) -> ModelProto:
    text = ATTENTION
    if opset < 23:
        text = text.replace("f = RMSNormalization<epsilon = 0.00001>(x, g)", RMS).replace("a = Attention(q, k, v)", SCORES)
    constants: dict[str, Array] = {name: normal(32, 32, seed=i) / 6 for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    constants |= {"g": 1 + normal(32) / 10, "heads": np.array([1, 16, 2, 16]), "flat": np.array([1, 16, 32])}
    if opset < 23:
        constants |= {"two": np.array(2, np.float32), "last": np.array([-1]), "eps": np.array(1e-5, np.float32)}
        constants["root"] = np.array(16**-0.25, np.float32)
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1,16,32] x) => (float[1,16,32] y) '
    return model_of(f"{head} {{ {text} }}", constants)


def test_a_block_is_the_same_in_every_opset() -> None:
    feeds = {"x": normal(1, 16, 32, seed=9)}
    models = {opset: block(opset) for opset in (18, 20, 23)}
    lines = {opset: graph_of(model) for opset, model in models.items()}
    assert lines[18] == lines[20] == lines[23]
    assert lines[23][1] == 0
    wanted = reference_outputs(models[23], feeds)["y"]
    for model in models.values():
        np.testing.assert_allclose(reference_outputs(prepare(model), feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


# bodies of onnx: a node, and what of it the host has afterwards
BODIES = {
    "LogSoftmax": "y = LogSoftmax<axis = 2>(a)",
    "MeanVarianceNormalization": "y = MeanVarianceNormalization<axes = [2]>(a)",
    "ReduceLogSumExp": "l = Constant<value_ints = [2]>() s = ReduceLogSumExp(a, l) y = Add(a, s)",
    "Shrink": "y = Shrink<lambd = 0.5, bias = 0.25>(a)",
    "ThresholdedRelu": "y = ThresholdedRelu<alpha = 0.5>(a)",
    "CastLike": "n = Constant<value_int = 3>() m = CastLike(n, a) y = Mul(a, m)",
}


@pytest.mark.parametrize("name", BODIES)
def test_operators_that_onnx_writes_out(name: str) -> None:
    assert name in inline.WRITTEN_OUT - SUPPORTED.keys()
    model = model_of(f"{HEAD.format(opset=18)} {{ a = MatMul(x, k) {BODIES[name]} }}", {"k": normal(16, 16) / 4})
    done, feeds = prepare(model), {"x": normal(2, 6, 16, seed=1)}
    assert name not in {node.op_type for node in done.graph.node}
    np.testing.assert_allclose(reference_outputs(done, feeds)["y"], reference_outputs(model, feeds)["y"], rtol=1e-4, atol=1e-5)


def loop_of(times: int, initial: bool = True, ends: bool = False, scans: bool = True, width: int = 4) -> ModelProto:
    """x = x W + its number, over and over; all of them above each other as the second result."""
    condition = "c = Not(go)" if ends else "c = Identity(go)"
    row = "Identity" if scans else "Neg"
    text = f"""<ir_version: 10, opset_import: ["": 17]>
      g (float[2,{width}] x) => (float[2,{width}] y, float[n,2,{width}] all) {{
        y, all = Loop (times, yes, x) <
          body = body (int64 i, bool go, float[2,{width}] a) => (bool c, float[2,{width}] b, float[2,{width}] r) {{ {condition}
          f = Cast<to = 1>(i) m = MatMul(a, w) b = Add(m, f) r = {row}(b) }}> }}"""
    return model_of(text, {"times": np.array(times), "yes": np.array(initial), "w": normal(width, width) / 2})


@settings(max_examples=10, deadline=None)
@given(times=st.integers(1, 6), scans=st.booleans())
def test_a_loop_of_known_count(times: int, scans: bool) -> None:
    model, feeds = loop_of(times, scans=scans), {"x": normal(2, 4, seed=5)}
    done = prepare(model)
    assert [node.op_type for node in done.graph.node].count("MatMul") == times
    assert "Loop" not in {node.op_type for node in done.graph.node}
    wanted, mine = (values_of(each, feeds, ["y", "all"]) for each in (model, done))
    for name in ("y", "all"):
        np.testing.assert_allclose(mine[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [loop_of(3, ends=True), loop_of(0), loop_of(1 << 40), loop_of(10_000), loop_of(3, initial=False)])
def test_a_loop_that_stays(model: ModelProto) -> None:
    """It ends when it likes, makes nothing, or does so often that there is no room for its nodes."""
    assert [node.op_type for node in prepare(model).graph.node] == ["Loop"]


def test_condition_decided_by_shapes_and_a_passing_branch() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[n,4] x) => (float[n,4] y) {
      s = Shape(x) o = Constant<value_ints = [1]>() z = Constant<value_ints = [0]>() d = Gather(s, z) c = Equal(d, o)
      b = If(c) <then_branch = t () => (e) {
                   e = If(c) <then_branch = u () => (f) { f = Relu(x) }, else_branch = v () => (h) { h = Identity(x) }> },
                 else_branch = w () => (h) { h = Identity(x) }>
      y = MatMul(b, k) }"""
    model = model_of(text, {"k": normal(4, 4)})
    for n, operators in ((1, ["Relu", "MatMul"]), (3, ["Identity", "MatMul"])):
        done = prepare(model, {"x": (n, 4)})
        assert [node.op_type for node in done.graph.node if node.op_type != "Identity" or n > 1] == operators
        feeds = {"x": normal(n, 4)}
        np.testing.assert_allclose(reference_outputs(done, feeds)["y"], reference_outputs(model, feeds)["y"], rtol=1e-5)


def test_a_compiled_file_is_not_taken_apart() -> None:
    model = in_function(drawn(1).model, np.random.default_rng(1))
    model.functions[0].domain = "tilefarm"
    for item in (*model.graph.node, *model.opset_import):
        item.domain = "tilefarm" if item.domain == "own" else item.domain
    assert "Part" in {node.op_type for node in prepare(model).graph.node}


def test_wholly_masked_row_is_zeros() -> None:
    """Whether it is one is told by a maximum of -inf, which the NPU does not have."""
    text = """<ir_version: 10, opset_import: ["": 23]>
      g (float[1,2,4,16] q, float[1,2,4,16] k, float[1,2,4,16] v, float[1,2,4,4] mask, float[1,2,4,4] more)
        => (float[1,2,4,16] y) {
        m = Add(mask, more) y = Attention(q, k, v, m) }"""
    mask = np.broadcast_to(np.where(np.tri(4, k=-1, dtype=bool), 0, -np.inf).astype(np.float32), (1, 2, 4, 4))
    feeds = {name: normal(1, 2, 4, 16, seed=i) for i, name in enumerate("qkv")} | {"mask": mask, "more": normal(1, 2, 4, 4)}
    model = model_of(text)
    (mine,) = compile_model(model, whole=False).run(None, feeds)
    assert not mine[:, :, 0].any()
    np.testing.assert_allclose(mine, reference_outputs(model, feeds)["y"], rtol=1e-3, atol=1e-5)
