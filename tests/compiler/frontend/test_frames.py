"""Several frames of a model in a run: the ONNX graph that stock onnxruntime runs, the program, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

import compiler
from compiler.frontend.frames import frame_count, restore_nodes
from compiler.ir.frames import with_frames
from compiler.model import LoweredModel
from simulator.npu.errors import BadInputError
from simulator.objective import Pace
from simulator.session import InferenceSession
from tests.messages import naming
from tests.models import Builder, small_graph, small_model
from tests.partial_models import partial_model
from tuner.verify.check import check_file
from tuner.verify.reference_body import expand_bodies

FRAMES = 3


def opened(model: ModelProto, frames: int = FRAMES) -> LoweredModel:
    return compiler.load(model, "edge", objective="throughput", frames=frames)


def stock(model: ModelProto | str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = model if isinstance(model, str) else model.SerializeToString()
    return list(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds))


def models() -> dict[str, ModelProto]:
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    return {
        "whole": small_model("residual_block"),
        "host first": partial_model("first"),
        "host between": partial_model("middle"),
        "host at both ends": partial_model("ends"),
        "host reads an output": partial_model("two_outputs"),
        "constant of one frame": b.model(b.conv(b.add(b.relu("x"), b.normal((1, 16, 8, 8))), 16)),
    }


@pytest.mark.parametrize("name", models())
def test_a_file_takes_frames_along_the_first_axis(name: str, tmp_path: Path) -> None:
    """onnxruntime on the file is what it is on the model frame by frame; so is the program, at every level."""
    model = models()[name]
    found = compiler.compile(model, "edge", objective="throughput", frames=FRAMES)
    found.save(tmp_path / "out.onnx")
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal([FRAMES, *shape[1:]], dtype=np.float32)
    expected = [np.concatenate(each) for each in zip(*(stock(model, {given.name: frame[None]}) for frame in x), strict=True)]
    session = InferenceSession(str(tmp_path / "out.onnx"))
    assert session.get_inputs()[0].shape == list(x.shape)
    assert session.compiled.frames == FRAMES
    for mine, theirs in zip(stock(str(tmp_path / "out.onnx"), {given.name: x}), expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [fault for checked in check_file(tmp_path / "out.onnx") for fault in checked.faults] == []


def test_every_tensor_has_an_image_of_each_frame() -> None:
    """And the pace of a run counts them."""
    found = compiler.compile(small_model("dense_block"), "edge", objective="throughput", frames=2)
    graph = found.opened.target_graph.graph
    assert all(shape[0] == 2 for shape in graph.shapes.values())
    assert found.pace("none") == Pace.of(found.cycles("none"), 2, found.opened.machine.clock_hz)


def test_the_model_is_found_again_in_its_frames(tmp_path: Path) -> None:
    """What a check runs: nodes, names and shapes of the original, whatever host nodes are around."""
    for name in ("middle", "two_outputs"):
        model = partial_model(name)
        compiler.compile(model, "edge", layerwise=True, objective="throughput").save(tmp_path / "out.onnx")
        written = onnx.load(tmp_path / "out.onnx")
        assert frame_count(written) == 2
        expand_bodies(written)
        single = opened(model, 1).part.model
        assert sorted(map(str, written.graph.node), key=str) == sorted((str(node) for node in _named(single)), key=str)
        assert [port.type for port in written.graph.input] == [port.type for port in single.graph.input]
        assert [port.type for port in written.graph.output] == [port.type for port in single.graph.output]


def _named(model: ModelProto) -> list[onnx.NodeProto]:
    """Its nodes, each with a name."""
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return restore_nodes(model.graph.node)


def test_graphs_inside_nodes_read_their_frame(tmp_path: Path) -> None:
    """The branches of an If read what is computed outside of them."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    y = b.conv("x", 16)
    model = b.model(b.conv(y, 16))
    branch = [
        helper.make_graph([helper.make_node(op, [y], [f"{op}.made"])], op, [], [helper.make_tensor_value_info(f"{op}.made", 1, None)])
        for op in ("Neg", "Abs")
    ]
    model.graph.node.append(helper.make_node("ReduceSum", [y], ["sum"], keepdims=1))
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))
    model.graph.node.append(helper.make_node("Greater", ["sum", "zero"], ["positive"]))
    model.graph.node.append(helper.make_node("If", ["positive"], ["chosen"], then_branch=branch[0], else_branch=branch[1]))
    model.graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [1, 16, 8, 8]))
    compiler.compile(model, "edge", layerwise=True, objective="throughput").save(tmp_path / "out.onnx")
    x = np.random.default_rng(2).standard_normal([2, 16, 8, 8], dtype=np.float32)
    x[1] = -x[0]  # so that one of them may take the other branch
    apart = [stock(model, {"x": frame[None]})[1] for frame in x]
    np.testing.assert_allclose(stock(str(tmp_path / "out.onnx"), {"x": x})[1], np.concatenate(apart), rtol=1e-4, atol=1e-4)


def _batch() -> ModelProto:
    b = Builder(np.random.default_rng(0), (2, 16, 8, 8))
    return b.model(b.conv("x", 16))


def _vector() -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in "xy"]
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:]))


def _scalar() -> ModelProto:
    """The NPU hands one number to the host."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    model = b.model(b.conv("x", 16))
    model.graph.node.append(helper.make_node("ReduceSum", [model.graph.output[0].name], ["sum"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, []))
    return model


def _fixed() -> ModelProto:
    model = small_model("conv_chain")
    model.graph.node.append(helper.make_node("Constant", [], ["fixed"], value=helper.make_tensor("v", 1, [1], [1.0])))
    model.graph.output.append(helper.make_tensor_value_info("fixed", TensorProto.FLOAT, [1]))
    return model


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (_batch, "is 2 images already"),
        (_vector, "no first axis for frames"),
        (_scalar, "no first axis for frames"),
        (_fixed, "depends on no input"),
    ],
)
def test_what_has_no_frames_is_refused(build, why) -> None:
    with pytest.raises(BadInputError, match=why) as found:
        opened(build())
    assert "\n" not in str(found.value)
    opened(build(), 1)


def test_too_many_frames_are_refused() -> None:
    with pytest.raises(BadInputError, match=naming("frames 1000", 256)):
        opened(small_model("conv_chain"), 1000)
    b = Builder(np.random.default_rng(0), (1, 4, 2048, 2048))
    with pytest.raises(BadInputError, match=naming("frames 100", "tensor 'x'")):
        opened(b.model(b.relu("x")), 100)


def test_a_graph_of_frames_is_another_one() -> None:
    graph = small_graph("conv_chain")
    two, three = with_frames(graph, 2), with_frames(graph, 3)
    assert with_frames(graph, 1) is graph
    assert len({graph.digest, two.digest, three.digest}) == 3
    assert [port.onnx_shape[0] for port in (*three.inputs, *three.outputs)] == [3, 3]
    assert all(port.order[0] == 0 for port in (*two.inputs, *two.outputs))
