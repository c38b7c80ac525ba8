"""Files that cannot be right are refused in one line that says what, where and what would be accepted."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from compiler.frontend import load_model, lower, model_digest
from compiler.frontend.onnx_io.attributes import opset_of
from compiler.frontend.onnx_io.load import OPSET, prepare
from simulator.npu.errors import BadInputError, TilefarmError
from tests.fuzz.builder import values_of
from tests.fuzz.graphs import draw_graph
from tests.messages import naming
from tests.models import SMALL_MODELS, light_path, small_model
from tests.same_programs import graph_of
from tuner.cli.parse import parse_shapes


def save(model: ModelProto, folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def refusal(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(BadInputError) as caught:
        load_model(path, shapes)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def dynamic(dims: list[int | str | None]) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "dynamic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_missing_folder_and_empty(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.onnx")
    assert "not a file" in refusal(tmp_path)
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "empty" in refusal(tmp_path / "empty.onnx")


@pytest.mark.parametrize("content", [b"hello, world\n", b"\x00" * 100, b"\x7fELF" + bytes(range(256)), b'{"ir_version": 8}'])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    assert "not a" in refusal(path)


def test_truncated_anywhere(tmp_path: Path) -> None:
    data = small_model("conv_chain").SerializeToString()
    for size in np.linspace(1, len(data) - 1, 40).astype(int):
        path = tmp_path / "cut.onnx"
        path.write_bytes(data[: int(size)])
        refusal(path)


def test_flipped_bytes_never_escape(tmp_path: Path) -> None:
    """Any damage is either harmless or a BadInputError."""
    data = bytearray(small_model("residual_block").SerializeToString())
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        # half of them in the nodes, which come first
        end = len(data) if rng.integers(2) else 1500
        damaged[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
        path = tmp_path / "damaged.onnx"
        path.write_bytes(bytes(damaged))
        try:
            load_model(path)
        except BadInputError:
            refused += 1
    assert refused > 10


def test_dynamic_shape_says_how_to_fix_it(tmp_path: Path) -> None:
    path = save(dynamic(["batch", 3, None, None]), tmp_path)
    assert "'x'" in refusal(path)
    assert "--shape x=1,3,224,224" in refusal(path)
    model = load_model(path, {"x": (2, 3, 8, 8)})
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [2, 3, 8, 8]


def of_inputs(nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str | None]], y: list[int | str | None], **constants) -> ModelProto:
    """A model of float inputs, with one output."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in {**inputs, "y": y}.items()]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "inputs", ports[:-1], ports[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CACHE = [helper.make_node("Concat", ["past", "new"], ["all"], axis=1), helper.make_node("Add", ["all", "mask"], ["y"])]
CONV = [helper.make_node("Conv", ["x", "w"], ["y"])]
ASKED = [
    (
        of_inputs(CACHE, {"past": ["B", "past len", 8], "new": ["B", "seq", 8], "mask": ["total", 8]}, ["B", "total", 8]),
        "'past' [B,past len,8], 'new' [B,seq,8], 'mask' [total,8]; "
        "give them with --shape B=1 --shape 'past len=1' --shape seq=1 --shape total=2",
    ),
    (
        of_inputs(CONV, {"x": ["N", "C", "H", "W"]}, ["N", 5, "H2", "W2"], w=np.zeros((5, 7, 3, 3), np.float32)),
        "'x' [N,C,H,W]; give them with --shape N=1 --shape C=7 --shape H=224 --shape W=224",
    ),
    (
        of_inputs(CONV, {"x": ["N", None, "L"]}, ["N", 5, "M"], w=np.zeros((5, 600, 3), np.float32)),
        "'x' [N,?,L]; give them with --shape x=1,600,224",
    ),
]


@pytest.mark.parametrize(("model", "said"), ASKED, ids=["sizes of results", "channels of weights", "no name"])
def test_dynamic_shapes_are_one_line_with_working_options(tmp_path: Path, model: ModelProto, said: str) -> None:
    path = save(model, tmp_path)
    line = refusal(path)
    assert line == f"{path}: inputs of dynamic shapes: {said}"
    given = parse_shapes(word for word in shlex.split(line.partition("give them with ")[2]) if word != "--shape")
    ports = load_model(path, given).graph
    assert all(dim.dim_value > 0 for item in (*ports.input, *ports.output) for dim in item.type.tensor_type.shape.dim)


def test_a_named_dimension_is_that_of_all_inputs(tmp_path: Path) -> None:
    path = save(ASKED[0][0], tmp_path)
    found = load_model(path, {"past": (2, 3, 8), "seq": (4,), "total": (7,)}).graph
    sizes = {item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim] for item in (*found.input, *found.output)}
    assert sizes == {"past": [2, 3, 8], "new": [2, 4, 8], "mask": [7, 8], "y": [2, 7, 8]}
    with pytest.raises(BadInputError, match=r"give them with --shape total=7$"):
        load_model(path, {"past": (2, 3, 8), "seq": (4,)})
    with pytest.raises(BadInputError, match=naming("--shape seq=4,4", 1, "B, past len, seq, total")):
        load_model(path, {"seq": (4, 4)})


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"z": (1, 3, 8, 8)}, "inputs: x"),
        ({"x": (1, 3, 8)}, "4 dimensions"),
        ({"x": (1, 4, 8, 8)}, "axis 1 is 3"),
        ({"x": (0, 3, 8, 8)}, "at least 1"),
    ],
)
def test_wrong_shape_option(tmp_path: Path, shapes: dict[str, tuple[int, ...]], said: str) -> None:
    assert said in refusal(save(dynamic(["batch", 3, None, None]), tmp_path), shapes)


def test_zero_sized_input(tmp_path: Path) -> None:
    assert "at least 1" in refusal(save(dynamic([1, 0, 8, 8]), tmp_path))


def conv_with(**attributes: object) -> ModelProto:
    weights = np.zeros((8, 4, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", "h", "w"])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"group": 0}, "group 0"),
        ({"group": -1}, "group -1"),
        ({"group": 3}, "not divisible by group 3"),
        ({"strides": [0, 1]}, "strides"),
        ({"strides": [1, 2**40]}, "strides"),
        ({"dilations": [1, 0]}, "dilations"),
        ({"kernel_shape": [0, 3]}, "kernel_shape"),
        ({"kernel_shape": [5, 3]}, "kernel_shape"),
        ({"pads": [-1, 0, 0, 0]}, "pads"),
        ({"pads": [1, 1, 1]}, "pads"),
        ({"strides": [1, 1, 1], "kernel_shape": [3, 3]}, "axes"),
        ({"auto_pad": "SAME"}, "auto_pad"),
    ],
)
def test_attributes_out_of_range(tmp_path: Path, attributes: dict[str, object], said: str) -> None:
    assert said in refusal(save(conv_with(**attributes), tmp_path))


def test_constant_shorter_than_its_shape(tmp_path: Path) -> None:
    """Large and small alike: the checker sees neither."""
    for name, dims in (("w", [8, 4, 3, 4]), ("b", [9])):
        model = conv_with()
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.float32), "b"))
        model.graph.node[0].input.append("b")
        tensor = next(item for item in model.graph.initializer if item.name == name)
        del tensor.dims[:]
        tensor.dims.extend(dims)
        assert f"'{name}'" in refusal(save(model, tmp_path))


def test_attribute_that_is_no_number(tmp_path: Path) -> None:
    model = small_model("lrn_chain")
    node = next(node for node in model.graph.node if node.op_type == "LRN")
    next(item for item in node.attribute if item.name == "alpha").f = float("inf")
    assert "alpha inf" in refusal(save(model, tmp_path))


def test_tensor_beyond_all_memory(tmp_path: Path) -> None:
    assert "more than" in refusal(save(conv_with(pads=[2**20, 2**20, 0, 0]), tmp_path))


def damaged(rng: np.random.Generator) -> ModelProto:
    """A small model in which one attribute, one input, one operator or one constant is something else."""
    model = small_model(str(rng.choice(list(SMALL_MODELS))))
    numbers = [0, -1, 1, 2, 3, 100, 2**31, 2**62, -(2**62)]
    number = int(numbers[int(rng.integers(len(numbers)))])
    node = model.graph.node[int(rng.integers(len(model.graph.node)))]
    tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
    kind = int(rng.integers(5))
    integers = [item for node in model.graph.node for item in node.attribute if item.ints]
    if kind == 0 and integers:
        item = integers[int(rng.integers(len(integers)))]
        item.ints[int(rng.integers(len(item.ints)))] = number
    elif kind == 1:
        node.input[int(rng.integers(len(node.input)))] = str(rng.choice(["x", model.graph.node[0].output[0], tensor.name]))
    elif kind == 2:
        node.op_type = str(
            rng.choice(["Relu", "Conv", "Gemm", "Reshape", "Transpose", "Concat", "DepthToSpace", "Squeeze", "MaxPool", "LRN"])
        )
    elif kind == 3 and tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = number
    elif tensor.data_type == TensorProto.INT64:
        values = numpy_helper.to_array(tensor).copy()
        values.flat[int(rng.integers(values.size))] = number
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


@pytest.mark.parametrize("seed", range(5))
def test_damaged_models_are_lowered_or_refused(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(40):
        path = save(damaged(rng), tmp_path)
        try:
            lower(load_model(path))
        except TilefarmError:
            refused += 1
    assert refused > 5


def test_group_of_right_model_is_accepted(tmp_path: Path) -> None:
    load_model(save(conv_with(group=1, pads=[1, 1, 1, 1], auto_pad="NOTSET"), tmp_path))


def test_groups_that_do_not_fit_the_input(tmp_path: Path) -> None:
    """The checker and shape inference let it pass."""
    with pytest.raises(BadInputError, match=naming("4 input channels", "2 groups of 4")):
        lower(load_model(save(conv_with(group=2), tmp_path)))


def external(folder: Path, location: str) -> Path:
    model = conv_with()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return save(model, folder)


def test_external_data_inside_the_folder(tmp_path: Path) -> None:
    values = np.arange(8 * 4 * 9, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    model = load_model(external(tmp_path, "w.bin"))
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]).ravel(), values)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "sub/../../w.bin", "gone.bin"])
def test_external_data_elsewhere(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(4 * 8 * 4 * 9))
    assert "external data" in refusal(external(inner, location))


def test_external_data_through_a_link(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(4 * 8 * 4 * 9))
    (inner / "link.bin").symlink_to(tmp_path / "w.bin")
    assert "external data" in refusal(external(inner, "link.bin"))


def hugging_face(folder: Path, of_model: str = "blobs", of_data: str = "blobs") -> Path:
    """A snapshot of links, as its cache has: the model and its data lie in a folder of blobs; or in others."""
    model = external(folder, "w.bin")
    for name in ("blobs", "other", "snapshot"):
        (folder / name).mkdir()
    model.rename(folder / of_model / "a1")
    (folder / of_data / "b2").write_bytes(np.arange(8 * 4 * 9, dtype=np.float32).tobytes())
    (folder / "snapshot" / "m.onnx").symlink_to(f"../{of_model}/a1")
    (folder / "snapshot" / "w.bin").symlink_to(f"../{of_data}/b2")
    return folder / "snapshot" / "m.onnx"


def test_external_data_in_a_cache_of_links(tmp_path: Path) -> None:
    model = load_model(hugging_face(tmp_path))
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]).ravel(), np.arange(8 * 4 * 9))


@pytest.mark.parametrize(("of_model", "of_data"), [("other", "blobs"), ("blobs", "other"), ("snapshot", "blobs")])
def test_links_that_leave_the_folder_of_the_model(of_model: str, of_data: str, tmp_path: Path) -> None:
    path = hugging_face(tmp_path, of_model, of_data)
    assert "symbolic link" in refusal(path)


def test_external_data_of_several_names(tmp_path: Path) -> None:
    """As uv and pip have files in their caches; what is read is what is there, and the model's file is left alone."""
    values = np.arange(8 * 4 * 9, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    (tmp_path / "second.bin").hardlink_to(tmp_path / "w.bin")
    path = external(tmp_path, "w.bin")
    before = path.read_bytes()
    np.testing.assert_array_equal(numpy_helper.to_array(load_model(path).graph.initializer[0]).ravel(), values)
    assert path.read_bytes() == before


@pytest.mark.parametrize("stripped", [False, True])
def test_random_weights_need_no_data(stripped: bool, tmp_path: Path) -> None:
    path, whole = external(tmp_path, "gone.bin"), save(conv_with(), tmp_path, "whole.onnx")
    if stripped:
        model = conv_with()
        model.graph.initializer[0].ClearField("raw_data")
        path = save(model, tmp_path)
    assert "weight 'w': no values here or as external data; --random-weights SEED draws some" in refusal(path)
    mine, theirs = (load_model(each, random_weights=5).graph.initializer[0] for each in (path, whole))
    np.testing.assert_array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))


def test_stripped_weight_is_sized_before_it_exists(tmp_path: Path) -> None:
    model = conv_with()
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(BadInputError, match=BEYOND):
        load_model(save(model, tmp_path), random_weights=1)


def test_a_sequence_as_an_output(tmp_path: Path) -> None:
    model = conv_with()
    model.graph.node.append(helper.make_node("SequenceConstruct", ["y"], ["s"]))
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    assert "output 's' is a sequence_type; expected a tensor, as ConcatFromSequence makes one" in refusal(save(model, tmp_path))


@settings(max_examples=25, deadline=None)
@drawn(seed=st.integers(0, 10_000), old=st.booleans(), data=st.data())
def test_what_onnxruntime_does_not_ask_for(seed: int, old: bool, data: st.DataObject) -> None:
    """Nodes in any order, no name of the graph, equal names of nodes, outputs without or with another shape: the same model."""
    sample = draw_graph(seed, quantised=False)
    plain = sample.model
    assume(not {item.name for item in plain.graph.input} & {item.name for item in plain.graph.output})
    loose = ModelProto()
    loose.CopyFrom(plain)
    nodes = data.draw(st.permutations(list(loose.graph.node)))
    del loose.graph.node[:]
    loose.graph.node.extend(nodes)
    for node in loose.graph.node:
        node.name = "same" if old else ""
    loose.graph.name = ""
    for item in loose.graph.output:
        kind = item.type.tensor_type
        kind.ClearField("shape")
        if data.draw(st.booleans()):
            kind.shape.dim.add(dim_value=7)
    if old:
        loose.ir_version = 3
    names = [item.name for item in plain.graph.output]
    wanted, mine = values_of(prepare(plain), sample.feeds, names), values_of(prepare(loose), sample.feeds, names)
    for name in names:
        np.testing.assert_allclose(mine[name], wanted[name], rtol=1e-4, atol=1e-4)
    # how a tensor lies, and which of several sets that are as good is a piece, is decided in the file's order
    in_order = {node.output[0]: i for i, node in enumerate(plain.graph.node)}
    loose.graph.node.sort(key=lambda node: in_order[node.output[0]])
    assert graph_of(loose) == graph_of(plain)


def test_nodes_in_a_circle(tmp_path: Path) -> None:
    model = conv_with()
    model.graph.node[0].input[0] = "z"
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    assert "nodes are in a cycle" in refusal(save(model, tmp_path))


def test_external_data_too_short(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(100))
    refusal(external(tmp_path, "w.bin"))


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(import_module("compiler.frontend.onnx_io.load"), "load_external_data_for_tensor", read)


BEYOND = "bytes with all weights; at most 2,147,483,647 are accepted, in the file and beside it together"


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vast.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # a sparse file takes no room
    monkeypatch.setattr(onnx, "load_model", None)
    assert f"3,221,225,472 {BEYOND}" in refusal(path)


def with_weights_beside(*headers: tuple[list[int], dict[str, str]], kind: int = TensorProto.FLOAT, inside: bool = False) -> ModelProto:
    """Constants of which the file has no more than headers.  inside: the last one is an attribute of a node in a branch."""
    tensors = []
    for number, (dims, place) in enumerate(headers):
        tensor = TensorProto(name=f"v{number}", dims=dims, data_type=kind, data_location=TensorProto.EXTERNAL)
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    model = conv_with()
    if inside:
        value = helper.make_tensor_value_info("c", kind, None)
        branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensors.pop())], "branch", [], [value])
        model.graph.node.append(helper.make_node("If", ["flag"], ["z"], then_branch=branch, else_branch=branch))
    model.graph.initializer.extend(tensors)
    return model


HALF = {"location": "w.bin", "offset": "0", "length": str(5 << 28)}  # 1.25 GiB


@pytest.mark.parametrize(
    ("model", "least"),
    [
        (with_weights_beside(([5 << 26], HALF), ([5 << 26], HALF)), 5 << 29),
        (with_weights_beside(([5 << 26], {"location": "gone.bin"}), ([5 << 26], {"location": "gone.bin"})), 5 << 29),
        (with_weights_beside(([4], {"location": "w.bin"})), 5 << 30),  # all of the file, as no length is given
        (with_weights_beside(([4], {"location": "w.bin", "offset": str(1 << 31)})), 3 << 30),
        (with_weights_beside(([4], {"location": "w.bin", "length": str(1 << 40)})), 1 << 40),
        (with_weights_beside(([5 << 26], HALF), ([5 << 26], HALF), inside=True), 15 << 28),  # in both branches
        (with_weights_beside(([5 << 27], HALF), kind=TensorProto.BFLOAT16), 5 << 29),  # float32 in memory
    ],
)
@pytest.mark.usefixtures("nothing_is_read")
def test_external_weights_beyond_the_limit_are_not_read(tmp_path: Path, model: ModelProto, least: int) -> None:
    """Their headers tell."""
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(5 << 30)
    text = refusal(save(model, tmp_path))
    size = int(text.removeprefix(f"{tmp_path / 'm.onnx'}: ").partition(" ")[0].replace(",", ""))
    assert BEYOND in text
    assert least <= size < least + 10_000


def test_a_place_that_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    assert "external data: " in refusal(save(with_weights_beside(([4], {"location": "w.bin", "length": "many"})), tmp_path))


def test_ports_without_a_shape_are_named(tmp_path: Path) -> None:
    for kind in ("output", "input"):
        model = conv_with()
        (port,) = getattr(model.graph, kind)
        if kind == "output":  # of an operator that nobody knows
            model.graph.node.append(helper.make_node("Strange", [port.name], ["z"], domain="elsewhere"))
            model.opset_import.append(helper.make_opsetid("elsewhere", 1))
            port.name = "z"
        port.type.tensor_type.ClearField("shape")
        assert f"{kind} {port.name!r} has no shape" in refusal(save(model, tmp_path))


RECORDED: dict[str, Callable[[onnx.ValueInfoProto], None]] = {
    "no shape": lambda port: port.type.tensor_type.ClearField("shape"),
    "no type": lambda port: port.ClearField("type"),
    "no axes": lambda port: port.type.tensor_type.shape.ClearField("dim"),
    "another batch": lambda port: setattr(port.type.tensor_type.shape.dim[0], "dim_value", 4),
}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("shapes", [{}, {"x": (1, 4, 8, 8)}], ids=["recorded", "given"])
def test_shapes_of_outputs_follow_from_those_of_inputs(tmp_path: Path, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    model = conv_with()
    RECORDED[name](model.graph.output[0])
    loaded = load_model(save(model, tmp_path), shapes)
    assert [d.dim_value for d in loaded.graph.output[0].type.tensor_type.shape.dim] == [1, 8, 6, 6]
    assert lower(loaded).outputs[0].onnx_shape == (1, 8, 6, 6)


def test_nodes_of_one_name_are_named_apart(tmp_path: Path) -> None:
    """onnxruntime would not load what is compiled of them."""
    model = conv_with()
    names = ["c", "c", "", "", "c.2"]
    for name in names:
        model.graph.node.append(helper.make_node("Relu", [model.graph.node[-1].output[0]], [f"r{len(model.graph.node)}"], name=name))
    model.graph.output[0].name = model.graph.node[-1].output[0]
    assert [node.name for node in load_model(save(model, tmp_path)).graph.node][-5:] == ["c", "c.3", "", "", "c.2"]


def test_light_model_is_brought_up_to_date() -> None:
    model = load_model(light_path("squeezenet"))
    assert opset_of(model) == OPSET
    assert [item.name for item in model.graph.input] == ["data_0"]


def test_digest() -> None:
    model = small_model("conv_chain")
    digest = model_digest(model)
    assert len(digest) == 32
    assert int(digest, 16) >= 0
    assert model_digest(model) == digest
    assert model_digest(small_model("conv_chain", seed=1)) != digest


def test_bytes_and_models_are_loaded_as_their_file(tmp_path: Path) -> None:
    model = small_model("conv_chain")
    path = save(model, tmp_path)
    from_file = load_model(path, random_weights=3).SerializeToString(deterministic=True)
    for given in (str(path), path.read_bytes(), model):
        assert load_model(given, random_weights=3).SerializeToString(deterministic=True) == from_file


@pytest.mark.parametrize(("data", "said"), [(b"", "no graph"), (b"\xff" * 40, "not an ONNX file")])
def test_bytes_that_are_no_model(data: bytes, said: str) -> None:
    with pytest.raises(BadInputError, match=f"^model: .*{said}"):
        load_model(data)
    with pytest.raises(BadInputError, match=f"^mine: .*{said}"):
        load_model(data, where="mine")


def test_a_model_in_memory_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_read: None) -> None:
    """Not even one that lies where the process stands."""
    (tmp_path / "w.bin").write_bytes(bytes(4 * 8 * 4 * 9))
    path = external(tmp_path, "w.bin")
    monkeypatch.chdir(tmp_path)
    for given in (path.read_bytes(), onnx.load_model(path, load_external_data=False)):
        with pytest.raises(BadInputError, match=naming("external data")):
            load_model(given)


def test_a_name_is_a_path_to_the_compiler() -> None:
    with pytest.raises(BadInputError, match=r"^made:vit_b16-small: no such file"):
        load_model("made:vit_b16-small")


def test_the_argument_is_left_alone(tmp_path: Path) -> None:
    for name in SMALL_MODELS:
        model = small_model(name)
        before = model.SerializeToString()
        onnx.checker.check_model(load_model(save(model, tmp_path)), full_check=True)
        assert model.SerializeToString() == before
