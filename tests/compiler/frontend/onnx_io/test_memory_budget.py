"""What a model may make of its constants, and what becomes of one that asks for more."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.frontend import load_model, lower, seed_weights
from compiler.frontend.handlers.pattern_match import recognise_patterns
from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io import onnx_sandbox
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.fold import check_folding_budget
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.onnx_io.memory_budget import FOLLOWED, ByteBudget, can_follow, constant_bytes, memory_limit
from compiler.frontend.onnx_io.onnx_sandbox import LibraryError
from compiler.ir.interpret import evaluate
from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.models import random_feeds, reference_outputs

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 16, 16])  # more values than loading makes constants of


def model_of(nodes: list[onnx.NodeProto], constants: dict[str, object], opset: int = 17) -> ModelProto:
    """From x to y, both [1, 3, 16, 16]."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [X], [Y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def doubling(times: int, one: object) -> ModelProto:
    """y = x + max of 2^times values of one."""
    nodes = [helper.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(times)]
    nodes += [helper.make_node("ReduceMax", [f"c{times}"], ["m"], keepdims=0), helper.make_node("Add", ["x", "m"], ["y"])]
    return model_of(nodes, {"c0": one})


def peak_bytes() -> int:
    return next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))


def test_doubling_chain_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "bomb.onnx"
    before, begin = peak_bytes(), time.process_time()
    path.write_bytes(doubling(40, np.ones(1, np.float32)).SerializeToString())
    with pytest.raises(BadInputError, match=naming("bomb.onnx", "'c31'", "[2147483648]")):
        lower_partition(load_model(path))
    # each of its tensors is small enough to be one
    with pytest.raises(BadInputError, match=naming("Concat 'c28'", "1,073,741,824")):
        lower_partition(prepare(doubling(29, np.ones(1, np.float32))))
    assert peak_bytes() - before < 64 << 20
    assert time.process_time() - begin < 2


def test_shape_inference_follows_the_rules_of_onnx() -> None:
    assert set(FOLLOWED) == {schema.name for schema in onnx.defs.get_all_schemas() if schema.has_data_propagation_function}


def test_values_of_a_long_vector_are_not_followed() -> None:
    """Inference would make a dimension of each of them, known or not."""
    nodes = [
        helper.make_node("Range", ["zero", "many", "one"], ["r"]),
        helper.make_node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["f"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    model = model_of(nodes, {"zero": 0, "many": 1 << 24, "one": 1})
    shapes = onnx_sandbox.infer(model, 0, "model", values=False)
    assert not can_follow(shapes.graph, ByteBudget.of(model))
    assert {item.name for item in prepare(model).graph.value_info} >= {"r", "f", "m"}
    assert can_follow(onnx_sandbox.infer(doubling(10, np.ones(1, np.float32)), 0, "model", values=False).graph, ByteBudget.of(model))
    # inside of a branch too
    inner = helper.make_graph(list(shapes.graph.node[:2]), "inner", [], [helper.make_tensor_value_info("f", 1, [1 << 24])])
    branch = helper.make_node("If", ["yes"], ["z"], then_branch=inner, else_branch=inner)
    assert not can_follow(helper.make_graph([branch], "g", [], []), ByteBudget.of(model))


def filled(n: int) -> ModelProto:
    """y = x + (n x n ones) / 3 through shapes that are computed."""
    nodes = [
        helper.make_node("Mul", ["n", "one"], ["side"]),
        helper.make_node("Concat", ["side", "side"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])),
        helper.make_node("Expand", ["third", "shape"], ["thirds"]),
        helper.make_node("Mul", ["ones", "thirds"], ["product"]),
        helper.make_node("Reshape", ["product", "image"], ["k"]),
        helper.make_node("Add", ["x", "k"], ["y"]),
    ]
    return model_of(nodes, {"n": [n], "one": [1], "third": np.float32([1 / 3]), "image": [1, 1, n, n]})


def test_constants_are_folded_through_computed_shapes() -> None:
    model = prepare(filled(16))
    graph = lower(model)
    assert len(graph.operators) == 1
    feeds = random_feeds(model)
    assert np.array_equal(evaluate(graph, feeds)["y"], reference_outputs(model, feeds)["y"])


def test_oversized_constant_is_refused_before_folding() -> None:
    skeleton = prepare(filled(16))
    shapes = known_shapes(skeleton.graph)
    check_folding_budget(skeleton, (), shapes, ByteBudget(3 * 16 * 16 * 4))
    with pytest.raises(BadInputError, match=naming("Mul 'product'", "1,024", "3,071", "2,048")):
        check_folding_budget(skeleton, (), shapes, ByteBudget(3 * 16 * 16 * 4 - 1))
    del skeleton.graph.initializer[:]  # as large constants are, which are beside it
    with pytest.raises(BadInputError, match="3,071 may be made"):
        check_folding_budget(skeleton, {"n", "one", "third", "shape", "image"}, shapes, ByteBudget(3 * 16 * 16 * 4 - 1))
    check_folding_budget(skeleton, (), shapes, ByteBudget(0))


def test_constant_operator_of_the_evaluator_alone_is_folded() -> None:
    """As an exporter writes a mask: Where of more values than loading makes constants of."""
    nodes = [
        helper.make_node("Greater", ["columns", "rows"], ["behind"]),
        helper.make_node("Where", ["behind", "low", "none"], ["mask"]),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    places = np.arange(16, dtype=np.float32)
    model = prepare(
        model_of(nodes, {"columns": places, "rows": places[:, None], "low": np.float32(-1e4), "none": np.zeros((3, 16, 16), np.float32)})
    )
    feeds = random_feeds(model)
    assert np.array_equal(evaluate(lower(model), feeds)["y"], reference_outputs(model, feeds)["y"])


def test_nodes_that_nothing_reads_are_left_out() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Exp", ["x"], ["unread"]),
        helper.make_node("NonZero", ["unread"], ["unread_too"]),
    ]
    assert [type(op).__name__ for op in lower(prepare(model_of(nodes, {}))).operators] == ["Vector"]


def test_the_order_of_the_file_does_not_matter() -> None:
    """Branches one after the other, and layer by layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"]),
        helper.make_node("Conv", ["x", "v"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    weights = {name: np.full((3, 3, 1, 1), value, np.float32) for name, value in (("w", 0.5), ("v", 0.25))}
    one, other = (prepare(model_of([nodes[i] for i in order], weights)) for order in ((0, 1, 2, 3, 4), (0, 3, 1, 2, 4)))
    assert [op.y for op in lower(one).operators] == [op.y for op in lower(other).operators]
    assert [node.output[0] for node in recognise_patterns(one).graph.node] == ["a", "d", "b", "c", "y"]
    assert recognise_patterns(other) is other


def test_size_from_folding_is_known_after_loading() -> None:
    """As an exporter writes Expand: the shape passes through Where, which inference does not follow."""
    nodes = [
        helper.make_node("Equal", ["wanted", "minus"], ["same"]),
        helper.make_node("Where", ["same", "ones", "wanted"], ["shape"]),
        helper.make_node("Expand", ["third", "shape"], ["e"]),
        helper.make_node("Add", ["x", "e"], ["y"]),
    ]
    constants = {"wanted": [-1, 3, 16, 16], "minus": [-1] * 4, "ones": [1] * 4, "third": np.float32(1 / 3)}
    model = prepare(model_of(nodes, constants))
    feeds = random_feeds(model)
    assert np.array_equal(evaluate(lower(model), feeds)["y"], reference_outputs(model, feeds)["y"])
    nodes[3:] = [helper.make_node("ReduceMax", ["e"], ["m"], axes=[0]), helper.make_node("Add", ["x", "m"], ["y"])]
    with pytest.raises(BadInputError, match="more than"):  # 400 GB, were they folded
        prepare(model_of(nodes, constants | {"wanted": [1 << 27, 3, 16, 16]}))


def test_weights_are_not_drawn_into_any_size() -> None:
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["w"]),
        helper.make_node("ConstantOfShape", ["n"], ["v"]),
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Conv", ["x", "v"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("ReduceMax", ["c"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    model = prepare(model_of(nodes, {"n": [300_000, 3, 16, 16]}))
    with pytest.raises(BadInputError, match=naming("ConstantOfShape 'v'", "921,600,000")):
        seed_weights(model, 0)


def test_budget_is_half_the_memory_beside_libraries() -> None:
    model = model_of(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.zeros(5, np.int64)))], {"w": np.zeros((2, 3), np.float32)}
    )
    assert constant_bytes(model) == 5 * 8 + 6 * 4
    assert ByteBudget.of(model).total_bytes == 1 << 30
    assert memory_limit(5 << 30) == 20 << 30
    budget = ByteBudget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert not budget.take(1, 2)
    assert budget.take(40)
    with pytest.raises(BadInputError, match=naming("Relu 'r'", "1 bytes", 100)):
        budget.spend(1, helper.make_node("Relu", ["x"], ["r"]))


# the process of the libraries ----------------------------------------------------------------------------------------


def constant_model(node: onnx.NodeProto, **constants: object) -> ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=node.output[0])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def endless() -> ModelProto:
    """Its loop has 2^62 rounds."""
    ports = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["k"])], "body", ports, [helper.make_tensor_value_info("k", TensorProto.BOOL, [])]
    )
    return constant_model(helper.make_node("Loop", ["n", "yes"], ["y"], body=body), n=1 << 62, yes=True)


def test_dead_process_is_an_error_and_next_works(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = model_of([helper.make_node("Relu", ["x"], ["y"])], {})
    prepare(relu)
    monkeypatch.setattr(onnx_sandbox, "CPU_LIMIT_S", 60)
    killer = threading.Timer(0.5, onnx_sandbox._PROCESS.start().kill)
    killer.start()
    with pytest.raises(BadInputError, match=naming("model", "constants", "signal 9")):
        onnx_sandbox.evaluate(endless(), 0)
    prepare(relu)
    child = onnx_sandbox._PROCESS.start()
    child.kill()
    child.wait()
    prepare(relu)


def test_memory_and_time_of_a_request_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    much = constant_model(helper.make_node("ConstantOfShape", ["n"], ["y"]), n=[1 << 29])
    with pytest.raises(BadInputError, match=naming("model", "constants", "2,147,483,648")):
        onnx_sandbox.evaluate(much, 0)
    monkeypatch.setattr(onnx_sandbox, "CPU_LIMIT_S", 1)
    with pytest.raises(BadInputError, match=naming("constants", "1 s")):
        onnx_sandbox.evaluate(endless(), 0)
    assert onnx_sandbox.evaluate(constant_model(helper.make_node("Identity", ["n"], ["y"]), n=[7]), 0).graph.initializer[0].name == "y"


def test_a_librarys_own_error_is_told() -> None:
    with pytest.raises(LibraryError, match="No Op registered for Nonsense"):
        onnx_sandbox.check(model_of([helper.make_node("Nonsense", ["x"], ["y"])], {}), 0, "model")


def test_a_fork_has_a_process_of_its_own() -> None:
    relu = model_of([helper.make_node("Relu", ["x"], ["y"])], {})
    prepare(relu)
    forked = os.fork()
    if not forked:
        code = 1
        try:
            prepare(relu)
            code = 0
        finally:
            os._exit(code)
    prepare(relu)
    assert os.waitpid(forked, 0)[1] == 0


def test_interrupted_request_leaves_no_half_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    relu = model_of([helper.make_node("Relu", ["x"], ["y"])], {})
    with monkeypatch.context() as patch:
        patch.setattr(onnx_sandbox.json, "loads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(relu)
    prepare(relu)
