"""Models in float16 and double keep their types, on the NPU and around it; bfloat16 is converted, with a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.build import build_variants, default_plan, package
from compiler.frontend import load_model
from compiler.model import ModelSpec, lower_model
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_kinds import CONVERTED
from simulator.session import InferenceSession
from tests.models import SMALL_MODELS, Builder, small_model
from tests.partial_models import partial_model
from tuner.cli import main
from tuner.verify.check import check_file, random_feeds
from tuner.verify.values import FLOAT32

EDGE = load_machine("edge")
HALF = ("tensor(float16)", np.dtype(np.float16))


def as_kind(model: ModelProto, kind: int) -> ModelProto:
    """All floats of another type."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for item in (*copy.graph.input, *copy.graph.output):
        if item.type.tensor_type.elem_type == TensorProto.FLOAT:
            item.type.tensor_type.elem_type = kind
    del copy.graph.value_info[:]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    return copy


def compiled(model: ModelProto, folder: Path, dtype: DataType = DataType.float16, style: str = "function") -> Path:
    onnx.save(model, folder / "m.onnx")
    opened = lower_model(ModelSpec(folder / "m.onnx", EDGE, dtype))
    containers = [build_variants(packed, dict.fromkeys(EDGE.contention, default_plan(packed.target_graph))) for packed in opened.packed]
    package(opened, containers, folder / "out.onnx", style)  # type: ignore[arg-type]
    return folder / "out.onnx"


def stock(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, TensorProto.FLOAT16) for name in [*SMALL_MODELS, "middle", "ends", "bridge", "two_outputs"]),
        *((name, TensorProto.DOUBLE) for name in SMALL_MODELS),
    ],
)
def test_types_and_values(name: str, kind: int, tmp_path: Path) -> None:
    """On the NPU as a whole, or with nodes of the host around and between pieces; stock onnxruntime runs the body, which type-checks.

    It has no convolution of double.
    """
    model, dtype = as_kind(small_model(name) if name in SMALL_MODELS else partial_model(name), kind), helper.tensor_dtype_to_np_dtype(kind)
    out = compiled(model, tmp_path)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    session = InferenceSession(out)
    theirs = stock(out) if kind == TensorProto.FLOAT16 else session
    for mine, expected in ((session.get_inputs(), theirs.get_inputs()), (session.get_outputs(), theirs.get_outputs())):
        assert [(port.name, port.type) for port in mine] == [(port.name, port.type) for port in expected]
    feeds = random_feeds(session, 1)
    assert (session.get_inputs()[0].type, feeds["x"].dtype) == ("tensor(double)" if kind == TensorProto.DOUBLE else HALF[0], dtype)
    found = session.run(None, feeds)
    assert [value.dtype for value in found] == [value.dtype for value in theirs.run(None, feeds)] == [dtype] * len(found)
    (checked, *_) = check_file(out, ["none"])
    assert checked.faults == ()
    assert 0 < checked.values.worst.error < 5e-3


def test_float32_on_the_npu_is_rounded_at_output(tmp_path: Path) -> None:
    """So the check grants what that takes; the NPU's own data type says nothing of it."""
    out = compiled(as_kind(small_model("dense_block"), TensorProto.FLOAT16), tmp_path, DataType.float32)
    (checked, *_) = check_file(out, ["none"])
    assert checked.ok
    worst = checked.values.worst
    assert worst.rounding is not None
    assert FLOAT32 < worst.error < worst.limit <= 5e-3
    (plain, *_) = check_file(compiled(small_model("dense_block"), tmp_path, DataType.float32), ["none"])
    assert plain.values.worst.limit == FLOAT32


def test_a_context_keeps_them(tmp_path: Path) -> None:
    session = InferenceSession(compiled(as_kind(partial_model("middle"), TensorProto.FLOAT16), tmp_path, style="epcontext"))
    assert [port.type for port in (*session.get_inputs(), *session.get_outputs())] == [HALF[0]] * 2
    assert session.run(None, random_feeds(session, 0))[0].dtype == HALF[1]


def test_other_widths_are_taken_for_it(tmp_path: Path) -> None:
    session = InferenceSession(compiled(as_kind(small_model("conv_chain"), TensorProto.FLOAT16), tmp_path))
    x = random_feeds(session, 0)["x"]
    results = [session.run(None, {"x": x.astype(kind)})[0] for kind in (np.float16, np.float32, np.float64)]
    assert all(np.array_equal(results[0], other) for other in results)
    beyond = InferenceSession(compiled(scaled(1e5), tmp_path, DataType.float32)).run(None, {"x": np.ones((1, 4, 8, 8))})[0]
    assert np.isinf(beyond).all()
    with pytest.raises(BadInputError, match=r"input 'x': found int64 .* expected float16"):
        session.run(None, {"x": x.astype(np.int64)})


def scaled(by: float) -> ModelProto:
    """From float16 to float32 and back."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    model = b.model(b.node("Mul", ["x", b.constant(np.array(by, np.float32))]))
    model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT))
    model.graph.node[1].input[0] = "wide"
    return cast_at_the_end(model, TensorProto.FLOAT16)


def cast_at_the_end(model: ModelProto, kind: int) -> ModelProto:
    model.graph.node.append(helper.make_node("Cast", [model.graph.output[0].name], ["y"], to=kind))
    model.graph.output[0].name = "y"
    model.graph.output[0].type.tensor_type.elem_type = kind
    return model


def test_model_of_both_types_keeps_each_in_place(tmp_path: Path) -> None:
    """float32 in, float16 between the pieces, float32 out."""
    b = Builder(np.random.default_rng(0), (1, 16, 32, 32))
    small = b.node("Cast", [b.conv("x", 16)], to=TensorProto.FLOAT16)
    turned = b.node("Sin", [small])
    b.shape[turned] = b.shape["x"]
    model = b.model(b.conv(b.node("Cast", [turned], to=TensorProto.FLOAT), 16))
    out = compiled(model, tmp_path)
    session = InferenceSession(out)
    assert [port.type for port in (*session.get_inputs(), *session.get_outputs())] == ["tensor(float)"] * 2
    onnx.checker.check_model(onnx.load(out), full_check=True)
    (checked, *_) = check_file(out, ["none"])
    assert checked.faults == ()


def test_an_output_of_another_width(tmp_path: Path) -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    session = InferenceSession(compiled(cast_at_the_end(b.model(b.conv("x", 16)), TensorProto.DOUBLE), tmp_path))
    assert session.get_outputs()[0].type == "tensor(double)"
    assert session.run(None, random_feeds(session, 0))[0].dtype == np.float64


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_random_weights_are_of_the_models_type(kind: int, tmp_path: Path) -> None:
    onnx.save(as_kind(small_model("conv_chain"), kind), tmp_path / "m.onnx")
    onnx.save(small_model("conv_chain"), tmp_path / "f.onnx")
    drawn, wide = (load_model(tmp_path / name, random_weights=3).graph.initializer for name in ("m.onnx", "f.onnx"))
    of_wide = {item.name: numpy_helper.to_array(item) for item in wide}
    for item in drawn:
        if of_wide[item.name].dtype == np.float32:
            assert item.data_type == kind
            np.testing.assert_array_equal(numpy_helper.to_array(item), of_wide[item.name].astype(helper.tensor_dtype_to_np_dtype(kind)))


def test_the_command_runs_and_checks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(as_kind(small_model("residual_block"), TensorProto.FLOAT16), tmp_path / "m.onnx")
    out = str(tmp_path / "out.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", out]) == 0
    assert main(["run", out, "--input", "random", "--check", "--out", str(tmp_path / "y.npz")]) == 0
    assert "check of level none: passed" in capsys.readouterr().out
    with np.load(tmp_path / "y.npz") as arrays:
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}


def test_bfloat16_is_converted_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Large and small weights, a Constant and a Cast, as well as inputs and outputs."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    model = as_kind(b.model(b.conv(b.relu(b.conv("x", 16)), 4)), TensorProto.BFLOAT16)
    last = model.graph.output[0].name
    half = helper.make_tensor("half", TensorProto.BFLOAT16, [], [0.5])
    model.graph.node.extend([
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("Mul", [last, "half"], ["less"]),
        helper.make_node("Cast", ["less"], ["y"], to=TensorProto.BFLOAT16),
    ])  # fmt: skip
    model.graph.output[0].name = "y"
    out = compiled(model, tmp_path)
    for item in (*onnx.load(out).graph.initializer, *(port.type.tensor_type for port in onnx.load(out).graph.value_info)):
        assert TensorProto.BFLOAT16 not in (getattr(item, "data_type", 0), getattr(item, "elem_type", 0))
    session = InferenceSession(out)
    assert [port.type for port in (*session.get_inputs(), *session.get_outputs())] == ["tensor(float)"] * 2
    assert session.get_modelmeta().custom_metadata_map[CONVERTED] == "bfloat16 to float32"
    (checked, *_) = check_file(out, ["none"])
    assert checked.faults == ()
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(out)]) == 0
    assert "converted bfloat16 to float32, inputs and outputs as well" in capsys.readouterr().out.splitlines()
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["converted bfloat16 to float32, inputs and outputs as well"]


def test_double_on_the_npu_and_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between two products an operator of the host, which computes in double."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node(*of) for of in (("MatMul", ["x", "v"], ["a"]), ("Sin", ["a"], ["b"]), ("MatMul", ["b", "w"], ["y"]))]
    ports = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [64, 256]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(rng.standard_normal((256, 256)) / 16, name) for name in ("v", "w")]
    graph = helper.make_graph(nodes, "double", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(out), "--check"]) == 0
    assert capsys.readouterr().out.count("computes double in float16; inputs and outputs stay double\n") == 1
    feeds = {"x": rng.standard_normal((64, 256))}
    (mine,), (wanted,) = InferenceSession(out).run(None, feeds), stock(tmp_path / "m.onnx").run(None, feeds)
    assert mine.dtype == wanted.dtype == np.float64
    np.testing.assert_allclose(mine, wanted, atol=1e-2 * np.abs(wanted).max())
