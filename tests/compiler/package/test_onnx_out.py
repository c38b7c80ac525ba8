"""The compiled ONNX file: stock tools read the model in it, we read the container in it."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.frontend.onnx_io.load import load
from compiler.frontend.partition.partition import whole_model
from compiler.package import read_container, write_onnx
from compiler.package.onnx_out import onnx_bytes
from simulator.npu.container import Container, ContainerError, Variant
from simulator.npu.container_file import encode
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.npu.files import atomic_write
from simulator.npu.isa import WORDS
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import DdrBuffer, MemoryMap
from simulator.onnx_container import find_containers
from simulator.onnx_names import SEAL_BYTES, SEAL_KEY
from simulator.session import InferenceSession
from tests.messages import naming
from tests.models import light_path

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
RNG = np.random.default_rng(0)


def container_for(model: ModelProto) -> bytes:
    """A container with the model's inputs and outputs and no instructions."""
    buffers, at = [DdrBuffer("weights", "constant", 0, 3)], 3
    weights = {tensor.name for tensor in model.graph.initializer}
    for kind, ports in (("input", model.graph.input), ("output", model.graph.output)):
        for port in ports:
            if port.name in weights:
                continue
            shape = tuple(d.dim_value for d in port.type.tensor_type.shape.dim)
            n, c, h, w = (*shape, 1, 1, 1, 1)[:4] if len(shape) <= 4 else (1, 1, 1, math.prod(shape))
            planes = -(-c // 16)
            size = n * planes * h * w
            buffers.append(DdrBuffer(port.name, kind, at, size, (n, c, h, w), shape, tuple(range(c)), 16, planes))
            at += size
    streams = tuple(np.zeros((0, WORDS), np.int32) for _ in range(2))
    cycles = {"none": 10, "severe": 20}
    variants = tuple(Variant(level, streams, "a" * 32, cycles) for level in ("none", "severe"))
    memory = MemoryMap(DataType.float16, tuple(buffers), at)
    return encode(Container("1" * 32, load_machine("tiny"), memory, variants, RNG.bytes(96)))


def small_model() -> ModelProto:
    """Conv, a Reshape whose shape is an initialiser, an If that reads an outer initialiser, an unused initialiser."""
    weights = [
        numpy_helper.from_array(RNG.normal(size=(4, 3, 3, 3)).astype(np.float32), "w"),
        numpy_helper.from_array(np.array([1, -1], np.int64), "shape"),
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.float32(3), "three"),
        numpy_helper.from_array(np.float32(4), "unused"),
    ]
    out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Mul", ["flat", "three"], ["b"])], "then", [], [out])
    other = helper.make_graph([helper.make_node("Identity", ["flat"], ["b"])], "else", [], [out])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["flat"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=other),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 144])
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model() -> ModelProto:
    return small_model()


@pytest.fixture(scope="module")
def container(model) -> bytes:
    return container_for(model)


def run_stock(model: ModelProto | str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_function_style_is_a_model_for_everybody(model, container, tmp_path):
    before = model.SerializeToString(deterministic=True)
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], path)
    assert model.SerializeToString(deterministic=True) == before

    onnx.checker.check_model(str(path), full_check=True)
    compiled = onnx.load(path)
    assert [(node.domain, node.op_type) for node in compiled.graph.node] == [("tilefarm", "Partition0")]
    assert {tensor.name for tensor in compiled.graph.initializer} == {"w", "shape", "yes", "three"}
    onnx.shape_inference.infer_shapes(compiled, check_type=True, strict_mode=True, data_prop=True)
    feeds = {"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    expected = run_stock(model, feeds)
    np.testing.assert_array_equal(run_stock(str(path), feeds)[0], expected[0])
    np.testing.assert_allclose(onnx.reference.ReferenceEvaluator(compiled).run(None, feeds)[0], expected[0], rtol=1e-4, atol=1e-5)
    assert read_container(path) == container


def test_weights_beside_the_model_are_written_into_it():
    hollow = load(light_path("squeezenet"), random_weights=0)
    container = container_for(hollow.model)
    beside = onnx_bytes(whole_model(*hollow), [container])
    assert len(hollow.data) > 20
    assert beside == onnx_bytes(whole_model(hollow.filled()), [container])


def test_the_file_is_the_same_every_time(model, container, tmp_path):
    for name in ("a", "b"):
        write_onnx(whole_model(model), [container], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_parser_and_writer_keeps_the_container(model, container, tmp_path):
    write_onnx(whole_model(model), [container], tmp_path / "out.onnx")
    onnx.save(onnx.load(tmp_path / "out.onnx"), tmp_path / "again.onnx")
    assert read_container(tmp_path / "again.onnx") == container


def test_the_session_takes_file_and_bytes(model, container, tmp_path):
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], path)
    for source in (path, str(path), path.read_bytes(), container):
        assert InferenceSession(source).get_inputs()[0].shape == [1, 3, 8, 8]


def test_weight_that_is_an_input_stays_a_weight(container, tmp_path):
    model = small_model()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]))
    write_onnx(whole_model(model), [container], tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    assert [port.name for port in session.get_inputs()] == ["x"]


def test_epcontext_style_has_what_its_readers_look_for(model, container, tmp_path):
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], path, style="epcontext")
    onnx.checker.check_model(str(path), full_check=True)
    (node,) = onnx.load(path).graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert (node.domain, node.op_type) == ("com.microsoft", "EPContext")
    assert (attributes["main_context"], attributes["embed_mode"]) == (1, 1)
    assert attributes["ep_cache_context"] == container
    assert (attributes["source"], attributes["hardware_architecture"], attributes["partition_name"]) == (
        b"tilefarm",
        b"tiny",
        b"Partition0",
    )
    notes = json.loads(attributes["notes"])["levels"]
    cycles = {"none": 10, "severe": 20}
    assert notes["severe"] == {"ddr": {"share": 0.25, "latency_cycles": 0}, "plan": "a" * 32, "same_as": "none", "variant_cycles": cycles}
    assert read_container(path) == container
    # onnxruntime knows the operator and its attributes; what it lacks is an execution provider of ours
    with pytest.raises(Exception, match="EPContext node generated by 'tilefarm'"):
        run_stock(str(path), {})


@pytest.mark.parametrize(
    "path",
    [
        each if "shuffle" in each.stem or "squeeze" in each.stem else pytest.param(each, marks=pytest.mark.slow)
        for each in sorted(LIGHT.glob("*.onnx"))
    ],
    ids=lambda path: path.stem,
)
def test_the_light_networks_stay_what_they_are(path, tmp_path):
    model = onnx.load(path)
    container = container_for(model)
    out = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], out)
    onnx.checker.check_model(str(out), full_check=True)
    assert read_container(out) == container
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = {
        port.name: RNG.normal(size=[d.dim_value for d in port.type.tensor_type.shape.dim]).astype(np.float32)
        for port in model.graph.input
        if port.name not in weights
    }
    for mine, theirs in zip(run_stock(str(out), feeds), run_stock(model, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_compiling_twice_is_refused(model, container, tmp_path):
    write_onnx(whole_model(model), [container], tmp_path / "out.onnx")
    with pytest.raises(UnsupportedError, match="compiled already"):
        write_onnx(whole_model(onnx.load(tmp_path / "out.onnx")), [container], tmp_path / "again.onnx")


def test_a_container_of_another_model_is_refused(container, tmp_path):
    model = small_model()
    model.graph.input[0].name = "other"
    with pytest.raises(BadInputError, match=naming("['x']", "['other']")):
        write_onnx(whole_model(model), [container], tmp_path / "out.onnx")


def test_a_damaged_container_is_never_written(model, container, tmp_path):
    with pytest.raises(ContainerError):
        write_onnx(whole_model(model), [container[:-1]], tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_what_holds_no_container_is_refused(model, container, tmp_path):
    (tmp_path / "plain.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_bytes(b"not a model at all, just a line of text\n")
    write_onnx(whole_model(model), [container], tmp_path / "one.onnx")
    data = (tmp_path / "one.onnx").read_bytes()
    both = onnx.load_model_from_string(data + data)  # protobuf merges messages: a model with both nodes
    (tmp_path / "two.onnx").write_bytes(both.SerializeToString())
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    for name, message in [
        ("plain", "holds no container"),
        ("empty", "empty"),
        ("text", "not an ONNX model|holds no container"),
        ("two", "2 containers"),
        ("cut", "cut short"),
        ("missing", "cannot be read"),
    ]:
        with pytest.raises(BadInputError, match=message):
            read_container(tmp_path / f"{name}.onnx")
    with pytest.raises(BadInputError, match="cannot be read"):
        read_container(tmp_path)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_arbitrary_damage_is_bad_input_at_most(model_bytes, draw):
    data = bytearray(model_bytes)
    at = draw.draw(st.integers(0, len(data) - 1))
    some = draw.draw(st.binary(min_size=1, max_size=12))
    if draw.draw(st.booleans()):
        data[at : at + len(some)] = some
    else:
        del data[at : at + len(some)]
    message = ""
    try:
        InferenceSession(bytes(data))
    except BadInputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.fixture(scope="module")
def model_bytes(model, container, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "out.onnx"
    write_onnx(whole_model(model), [container], path)
    return path.read_bytes()


def test_every_cut_of_the_file_is_refused(model_bytes):
    # also between two fields, which leaves a shorter model
    for length in (*range(1, len(model_bytes), 7), len(model_bytes) - SEAL_BYTES):
        with pytest.raises(BadInputError):
            find_containers(memoryview(model_bytes)[:length], "here")


@pytest.mark.parametrize("style", ["function", "epcontext", "epcontext-external"])
def test_flipped_bit_anywhere_is_refused(model, container, tmp_path, style):
    """In names, attributes and weights of the body as in the container; in the digest's own frame it is no damage to the model."""
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], path, style)
    data = path.read_bytes()
    assert onnx.load(path).metadata_props[-1].key == SEAL_KEY
    frame = range(len(data) - SEAL_BYTES, len(data) - 64)
    rng = np.random.default_rng(0)
    for at in (*rng.integers(0, len(data) - SEAL_BYTES, 300).tolist(), *range(len(data) - 64, len(data)), *frame):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        if at in frame:
            with contextlib.suppress(BadInputError):
                InferenceSession(path)
            continue
        with pytest.raises(BadInputError) as caught:
            InferenceSession(path)
        assert len(str(caught.value).splitlines()) == 1


def test_flipped_weight_of_the_body_is_damage(model, container, tmp_path):
    path = tmp_path / "out.onnx"
    write_onnx(whole_model(model), [container], path)
    data, weight = path.read_bytes(), model.graph.initializer[0].raw_data
    assert data.count(weight) == 1
    at = data.index(weight) + 5
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    onnx.checker.check_model(onnx.load(path))  # nobody else would know
    with pytest.raises(BadInputError, match=naming("out.onnx", "damaged", "digest")):
        read_container(path)


def test_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks():
        yield b"new"
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        atomic_write(path, chunks())
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"
    atomic_write(path, [b"new", memoryview(b"er")])
    assert path.read_bytes() == b"newer"
    with pytest.raises(BadInputError, match="cannot be written"):
        atomic_write(tmp_path / "no folder" / "file", [b""])
    with pytest.raises(BadInputError, match="cannot be written"):
        atomic_write(tmp_path, [b""])
