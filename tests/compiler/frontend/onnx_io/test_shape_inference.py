"""A network whose batch is dynamic, given a shape, is the network that was exported with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.build import build_variants, default_plan, package
from compiler.frontend import load_model
from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.attributes import known_shapes
from compiler.frontend.onnx_io.large_constants import LARGE
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.macs import model_macs
from compiler.frontend.partition.partition import Partition
from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import load_machine
from simulator.session import InferenceSession
from tests.models import Builder, reference_outputs

LENGTH, WIDTH, HEADS, WORDS = 8, 32, 4, 50
EDGE = load_machine("edge")


class Written:
    """Nodes of a small transformer, its shapes computed at run time as PyTorch exports them, or constants for one batch."""

    def __init__(self, batch: int | None) -> None:
        self.batch = batch
        self.rng = np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def constant(self, values: NDArray[np.generic]) -> str:
        self.weights.append(numpy_helper.from_array(values, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def normal(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def extent(self, of: str, axis: int) -> str:
        """One dimension as a vector of one value."""
        size = self.node("Gather", self.node("Shape", of), self.constant(np.array(axis, np.int64)), axis=0)
        return self.node("Unsqueeze", size, self.whole(0))

    def reshape(self, x: str, of: str, *dims: int) -> str:
        """To (batch, length, *dims), of which the first two are those of another tensor."""
        if self.batch is not None:
            return self.node("Reshape", x, self.whole(self.batch, LENGTH, *dims))
        return self.node("Reshape", x, self.node("Concat", self.extent(of, 0), self.extent(of, 1), self.whole(*dims), axis=0))

    def model(self) -> ModelProto:
        places = self.normal(1, 2 * LENGTH, WIDTH)
        if self.batch is None:
            places = self.node("Slice", places, self.whole(0), self.extent("ids", 1), self.whole(1))
        else:
            self.weights[-1].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(self.weights[-1])[:, :LENGTH], places))
        x = self.node("Add", self.node("Gather", self.normal(WORDS, WIDTH), "ids"), places)
        for _ in range(2):
            x = self.node("Add", x, self.attention(x))
        y = self.node("MatMul", x, self.normal(WIDTH, WORDS))
        self.nodes.append(helper.make_node("Identity", [y], ["logits"]))
        batch = self.batch or "batch"
        graph = helper.make_graph(
            self.nodes,
            "transformer",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, LENGTH])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, LENGTH, WORDS])],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def attention(self, x: str) -> str:
        q, k, v = (self.node("MatMul", x, self.normal(WIDTH, WIDTH)) for _ in range(3))
        q, k, v = (self.reshape(part, x, HEADS, WIDTH // HEADS) for part in (q, k, v))
        q, v = (self.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        weights = self.node("Softmax", self.node("MatMul", q, self.node("Transpose", k, perm=[0, 2, 3, 1])), axis=-1)
        return self.reshape(self.node("Transpose", self.node("MatMul", weights, v), perm=[0, 2, 1, 3]), x, WIDTH)


def operators(part: Partition) -> list[list[str]]:
    return [[node.op_type for node in piece.npu.graph.node if node.op_type != "Constant"] for piece in part.pieces]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_dynamic_batch_is_partitioned_like_the_static_network(tmp_path: Path, batch: int) -> None:
    onnx.save(Written(None).model(), tmp_path / "dynamic.onnx")
    dynamic = load_model(tmp_path / "dynamic.onnx", {"ids": (batch, LENGTH)})
    static = prepare(Written(batch).model())
    (of_dynamic, mine), (of_static, theirs) = lower_partition(dynamic), lower_partition(static)
    assert model_macs(dynamic) == model_macs(static) == batch * LENGTH * (6 * WIDTH**2 + 4 * WIDTH * LENGTH + WIDTH * WORDS)
    assert operators(mine) == operators(theirs)
    assert [(node.op_type, node.macs, node.refused) for node in mine.host] == [
        (node.op_type, node.macs, node.refused) for node in theirs.host
    ]
    assert [[type(op) for op in graph.operators] for graph in of_dynamic] == [[type(op) for op in graph.operators] for graph in of_static]
    assert [node.op_type for node in mine.host] == ["Gather"]


def test_its_values_are_those_of_the_network(tmp_path: Path) -> None:
    onnx.save(Written(None).model(), tmp_path / "m.onnx")
    opened = lower_model(ModelSpec(tmp_path / "m.onnx", EDGE, shapes={"ids": (2, LENGTH)}))
    containers = [build_variants(packed, dict.fromkeys(EDGE.contention, default_plan(packed.target_graph))) for packed in opened.packed]
    package(opened, containers, tmp_path / "out.onnx")
    feeds = {"ids": np.random.default_rng(1).integers(0, WORDS, (2, LENGTH))}
    (found,) = InferenceSession(tmp_path / "out.onnx").run(None, feeds)
    for reference in (Written(None), Written(2)):
        expected = reference_outputs(reference.model(), feeds)["logits"]
        assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()


def test_no_shape_arithmetic_is_left(tmp_path: Path) -> None:
    onnx.save(Written(None).model(), tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx", {"ids": (2, LENGTH)})
    onnx.checker.check_model(model, full_check=True)
    assert not {"Shape", "Concat", "Unsqueeze"} & {node.op_type for node in model.graph.node}
    assert {name for node in model.graph.node for name in node.output} <= known_shapes(model.graph).keys()


def test_random_values_and_loops_are_no_constants() -> None:
    """A loop's count may be any number: one with room for it is unrolled (test_inline.py)."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    noise = b.node("RandomNormalLike", [b.constant(np.zeros((1, 4, 1, 1), np.float32))])
    model = prepare(b.model(b.node("Add", ["x", noise])))
    assert [node.op_type for node in model.graph.node] == ["RandomNormalLike", "Add"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info(*port)
            for port in (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [1]))
        ],
        [helper.make_tensor_value_info(*port) for port in (("on", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [1]))],
    )
    loop = helper.make_node("Loop", ["times", "yes", "start"], ["end"], body=body)
    weights = [numpy_helper.from_array(np.array(1 << 40), "times"), numpy_helper.from_array(np.array(True), "yes")]
    weights += [numpy_helper.from_array(np.ones(1, np.float32), "start")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([loop, helper.make_node("Add", ["x", "end"], ["y"])], "g", ports[:1], ports[1:], weights)
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert [node.op_type for node in model.graph.node] == ["Loop", "Add"]


def test_a_number_stays_one_without_an_axis() -> None:
    """A Range takes nothing else."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    count = b.node("Gather", [b.node("Shape", ["x"]), b.constant(np.array(1, np.int64))])
    steps = b.node("Range", [b.constant(np.array(0, np.int64)), count, b.constant(np.array(1, np.int64))])
    times = b.node("Cast", [steps], to=TensorProto.FLOAT)
    model = prepare(b.model(b.node("Mul", ["x", b.node("Reshape", [times, b.constant(np.array([1, -1, 1, 1], np.int64))])])))
    assert [node.op_type for node in model.graph.node] == ["Mul"]
    known = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    np.testing.assert_array_equal(known[model.graph.node[0].input[1]].ravel(), [0, 1, 2, 3])
    y = b.node("Mul", ["x", b.node("Cast", [count], to=TensorProto.FLOAT)])
    scalar = prepare(b.model(y))
    assert {tuple(item.dims) for item in scalar.graph.initializer if item.name == scalar.graph.node[-1].input[1]} == {()}


def test_a_number_keeps_none_through_onnxs_own_evaluator() -> None:
    """Sub is not one of the few operators that are computed here."""
    b = Builder(np.random.default_rng(0), (2, 4, 8, 8))
    number, axis = b.node("Gather", [b.node("Shape", ["x"]), b.constant(np.array(1, np.int64))]), b.constant(np.array([0], np.int64))
    half = b.node("Unsqueeze", [b.node("Sub", [number, b.constant(np.array(2, np.int64))]), axis])
    shape = b.node("Concat", [b.constant(np.array([2], np.int64)), half, b.constant(np.array([16, 8], np.int64))], axis=0)
    model = prepare(b.model(b.relu(b.node("Reshape", ["x", shape]))))
    assert [node.op_type for node in model.graph.node] == ["Reshape", "Relu"]
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [2, 2, 16, 8]


def test_known_output_stays_with_its_node() -> None:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    y, shape = b.relu("x"), b.node("Shape", ["x"])
    graph = b.model(y).graph
    graph.output.append(helper.make_tensor_value_info(shape, TensorProto.INT64, [4]))
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert [node.op_type for node in model.graph.node if shape in node.output] == ["Shape"]


def test_piece_ends_where_a_shape_is_unknown() -> None:
    """The target comes out of a constant too large to be looked at while shapes are inferred: the border of a piece has to have one."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    ones = b.constant(np.full((LARGE, 4), 0.5, np.float32))
    rows = b.node("Cast", [b.node("ReduceSum", [ones], keepdims=0)], to=TensorProto.INT64)  # 2 * LARGE = 16 * 32
    target = b.node("Concat", [b.node("Unsqueeze", [rows, b.constant(np.zeros(1, np.int64))]), b.constant(np.array([2], np.int64))], axis=0)
    model = b.model(b.node("Sin", [b.node("Reshape", [b.conv("x", 16), target])]))
    part = lower_partition(prepare(model))[1]
    assert [node.op_type for node in part.host] == ["Reshape", "Sin"]
    assert "of unknown shape" in part.host[0].why


@pytest.mark.parametrize("values", [2, LARGE])
@pytest.mark.parametrize("shapes", [None, {"x": (1, 4, 8, 8)}])
def test_output_without_a_node_has_its_source_shape(values: int, shapes: dict[str, tuple[int, ...]] | None) -> None:
    """A constant, small or large, or an input, listed without a shape."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    constant = b.constant(np.ones((1, values), np.float32))
    model = b.model(b.relu("x"))
    for name in (constant, "x"):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    known = known_shapes(prepare(model, shapes).graph)
    assert (known[constant], known["x"]) == ((1, values), (1, 4, 8, 8))
    assert all(item.type.tensor_type.HasField("shape") for item in prepare(model, shapes).graph.output)


def test_wrong_shape_behind_an_operator_without_onnx_rule() -> None:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    model = b.model(b.relu("x"))
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [4], [value] * 4) for name, value in (("scale", 1.0), ("bias", 0.0))]
    model.graph.initializer.extend(weights)
    model.graph.node.append(helper.make_node("GroupNormalization", [model.graph.output[0].name, "scale", "bias"], ["y"], num_groups=2))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [7]))
    model.opset_import[0].version = 21
    assert known_shapes(prepare(model).graph)["y"] == (1, 4, 8, 8)
