"""EPContext files: they keep onnxruntime's rules, each broken rule is told apart, and they run as the other style does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from compiler.build import containers_of, default_plans, measure, package
from compiler.model import ModelSpec, lower_model
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.onnx_container import find_containers, read_file
from simulator.session import InferenceSession
from tests.epcontext_rules import ATTRIBUTES, RULES, check_epcontext
from tests.models import small_model
from tests.piece_models import piece_model
from tuner.verify.check import random_feeds

EDGE = load_machine("edge")
STYLES = ("function", "epcontext", "epcontext-external")
Change = Callable[[ModelProto, list[NodeProto]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """chain.onnx in three pieces and one.onnx in one, as <name>.<style>.onnx."""
    path = tmp_path_factory.mktemp("epcontext")
    for name, model in (("chain", piece_model("chain")), ("one", small_model("conv_chain"))):
        onnx.save(model, path / f"{name}.onnx")
        opened = lower_model(ModelSpec(path / f"{name}.onnx", EDGE))
        containers = containers_of(opened, measure(opened, dict.fromkeys(EDGE.contention, default_plans(opened))))
        for style in STYLES:
            package(opened, containers, path / f"{name}.{style}.onnx", style)  # type: ignore[arg-type]
    return path


def values(node: NodeProto) -> dict[str, object]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def nodes_of(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == "EPContext"]


@pytest.mark.parametrize("name", ["chain", "one"])
@pytest.mark.parametrize("style", STYLES[1:])
def test_what_is_written_keeps_every_rule(folder: Path, name: str, style: str) -> None:
    path = folder / f"{name}.{style}.onnx"
    assert check_epcontext(path) == ()
    nodes = nodes_of(onnx.load(path))
    assert len(nodes) == (3 if name == "chain" else 1)
    first, *others = map(values, nodes)
    assert set(first) == set(ATTRIBUTES)
    assert first["main_context"] == 1
    assert first["onnx_model_filename"] == f"{name}.onnx".encode()
    assert first["embed_mode"] == (style == "epcontext")
    for other in others:
        assert set(other) == set(ATTRIBUTES) - {"ep_cache_context"}
        assert other["main_context"] == 0
    if style == "epcontext-external":
        assert first["ep_cache_context"] == f"{name}.{style}_tilefarm.bin".encode()
        assert path.stat().st_size < 100_000 < (folder / f"{name}.{style}_tilefarm.bin").stat().st_size + 100_000


@pytest.mark.parametrize("name", ["chain", "one"])
def test_styles_hold_equal_containers_and_equal_values(folder: Path, name: str) -> None:
    held = [find_containers(read_file(folder / f"{name}.{style}.onnx"), style, folder) for style in STYLES]
    assert held[0] == held[1] == held[2]
    sessions = [InferenceSession(folder / f"{name}.{style}.onnx") for style in STYLES]
    feeds = random_feeds(sessions[0], 0)
    for outputs in zip(*(session.run(None, feeds, level="severe") for session in sessions), strict=True):
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[0], outputs[2])


def test_onnxruntime_reads_nodes_and_has_no_provider(folder: Path) -> None:
    """A node that breaks the schema is an error of the graph; ours are valid and only miss their provider."""
    for style in STYLES[1:]:
        with pytest.raises(ort.NotImplemented, match=r"EPContext|not implemented|Could not find an implementation"):
            onnxruntime.InferenceSession(str(folder / f"chain.{style}.onnx"), providers=["CPUExecutionProvider"])
    model = onnx.load(folder / "chain.epcontext.onnx")
    nodes_of(model)[0].attribute.append(helper.make_attribute("max_size", "text"))
    del nodes_of(model)[0].attribute[[item.name for item in nodes_of(model)[0].attribute].index("max_size")]
    with pytest.raises((ort.Fail, ort.InvalidGraph), match="max_size"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def set_to(node: NodeProto, name: str, value: object) -> None:
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)] if value is not None else kept)


def opset(model: ModelProto, nodes: list[NodeProto]) -> None:
    del model.opset_import[[item.domain for item in model.opset_import].index("com.microsoft")]


def opset_twice(model: ModelProto, nodes: list[NodeProto]) -> None:
    next(item for item in model.opset_import if item.domain == "com.microsoft").version = 2


def same_names(model: ModelProto, nodes: list[NodeProto]) -> None:
    nodes[1].name = nodes[0].name
    set_to(nodes[1], "partition_name", nodes[0].name)


def no_outputs(model: ModelProto, nodes: list[NodeProto]) -> None:
    del nodes[0].output[:]


def other_input(model: ModelProto, nodes: list[NodeProto]) -> None:
    nodes[1].input[0] = "elsewhere"


def cut(model: ModelProto, nodes: list[NodeProto]) -> None:
    set_to(nodes[0], "ep_cache_context", values(nodes[0])["ep_cache_context"][:-100])  # type: ignore[index]


def one_short(model: ModelProto, nodes: list[NodeProto]) -> None:
    data = bytes(values(nodes[0])["ep_cache_context"])  # type: ignore[call-overload]
    last = data.rindex(b"\x89TFNPU")
    set_to(nodes[0], "ep_cache_context", data[:last])


def with_value(at: int, name: str, value: object) -> Change:
    return lambda model, nodes: set_to(nodes[at], name, value)


BROKEN: list[tuple[str, str, Change, str]] = [
    ("opset", "epcontext", opset, r"versions \[\], expected \[1\]"),
    ("opset", "epcontext", opset_twice, r"versions \[2\]"),
    ("names", "epcontext", same_names, "2 nodes are called 'Partition0'"),
    ("names", "epcontext", with_value(1, "partition_name", "p"), "partition_name 'p'"),
    ("attributes", "epcontext", with_value(0, "sdk", "1"), "attribute 'sdk' is not of the schema"),
    ("attributes", "epcontext", with_value(0, "notes", 3), "attribute 'notes' is INT, expected STRING"),
    ("attributes", "epcontext", no_outputs, "has no outputs"),
    ("numbers", "epcontext", with_value(1, "embed_mode", 2), "embed_mode is 2, expected 0 or 1"),
    ("numbers", "epcontext", with_value(0, "max_size", -1), "max_size is -1"),
    ("source", "epcontext", with_value(1, "source", "QNN"), "source is 'QNN'"),
    ("source", "epcontext", with_value(0, "source", None), "source is ''"),
    ("main context", "epcontext", with_value(1, "main_context", 1), r"is \[1, 1, 0\], expected 1 for the first alone"),
    ("main context", "epcontext", with_value(0, "ep_cache_context", None), "has main_context 1 and no ep_cache_context"),
    ("main context", "epcontext", with_value(2, "ep_cache_context", "more"), "has main_context 0 and an ep_cache_context"),
    ("main context", "epcontext", with_value(1, "embed_mode", 0), r"embed_mode of the nodes is \[1, 0, 1\]"),
    ("context file", "epcontext-external", with_value(0, "ep_cache_context", "/etc/passwd"), "expected a path relative"),
    ("context file", "epcontext-external", with_value(0, "ep_cache_context", "../up.bin"), "expected a path relative"),
    ("context file", "epcontext-external", with_value(0, "ep_cache_context", "C:\\up.bin"), "expected a path relative"),
    ("context file", "epcontext-external", with_value(0, "ep_cache_context", "other.bin"), "expected 'broken_tilefarm.bin'"),
    ("payload", "epcontext", cut, "says it has"),
    ("payload", "epcontext", one_short, "3 EPContext nodes, their contexts hold 2 containers"),
    ("payload", "epcontext", other_input, r"its inputs are \['elsewhere'\]"),
    ("notes", "epcontext", with_value(0, "notes", "text"), "notes are no table of variants"),
    ("notes", "epcontext", with_value(0, "notes", '{"levels": {}}'), "notes are not those of its container"),
    ("notes", "epcontext", with_value(0, "hardware_architecture", "tiny"), "hardware_architecture is 'tiny'"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "style", "change", "said"), BROKEN, ids=[f"{i}-{rule}" for i, (rule, *_) in enumerate(BROKEN)])
def test_a_broken_rule_is_named(folder: Path, tmp_path: Path, rule: str, style: str, change: Change, said: str) -> None:
    model = onnx.load(folder / f"chain.{style}.onnx")
    if style == "epcontext-external":
        shutil.copy(folder / f"chain.{style}_tilefarm.bin", tmp_path / "broken_tilefarm.bin")
        set_to(nodes_of(model)[0], "ep_cache_context", "broken_tilefarm.bin")
        onnx.save(model, tmp_path / "broken.onnx")
        assert check_epcontext(tmp_path / "broken.onnx") == ()
    change(model, nodes_of(model))
    onnx.save(model, tmp_path / "broken.onnx")
    found = [line for line in check_epcontext(tmp_path / "broken.onnx") if line.startswith(f"{rule}: ")]
    assert any(re.search(said, line) for line in found), found


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_context_that_is_not_beside_the_model(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "chain.epcontext-external.onnx", tmp_path / "moved.onnx")
    with pytest.raises(BadInputError, match=r"chain\.epcontext-external_tilefarm\.bin"):
        InferenceSession(tmp_path / "moved.onnx")
    data = (folder / "chain.epcontext-external.onnx").read_bytes()
    with pytest.raises(BadInputError, match=r"its context is in the file '.*' beside it; open the model by its path"):
        InferenceSession(data)
    (tmp_path / "chain.epcontext-external_tilefarm.bin").symlink_to(folder / "chain.epcontext-external_tilefarm.bin")
    with pytest.raises(BadInputError, match="is not there"):  # a link out of the folder
        InferenceSession(tmp_path / "moved.onnx")


def test_a_damaged_context_file_is_refused(folder: Path, tmp_path: Path) -> None:
    name = "chain.epcontext-external_tilefarm.bin"
    shutil.copy(folder / "chain.epcontext-external.onnx", tmp_path / "m.onnx")
    data = bytearray((folder / name).read_bytes())
    for at, said in ((0, "expected a container"), (200, "damaged"), (len(data) // 2, "damaged|not in canonical form|SHA-256")):
        flipped = bytearray(data)
        flipped[at] ^= 1
        (tmp_path / name).write_bytes(flipped)
        with pytest.raises(BadInputError, match=said):
            InferenceSession(tmp_path / "m.onnx")
    (tmp_path / name).write_bytes(data[:-1])
    with pytest.raises(BadInputError, match="are left"):
        InferenceSession(tmp_path / "m.onnx")


def test_other_files_are_told_apart(folder: Path, tmp_path: Path) -> None:
    assert check_epcontext(folder / "chain.function.onnx")[0].endswith("no node com.microsoft::EPContext")
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(BadInputError, match="not an ONNX file"):
        check_epcontext(tmp_path / "text.onnx")


def test_notes_have_the_variant_table_of_every_piece(folder: Path) -> None:
    path = folder / "chain.epcontext.onnx"
    for node, (name, data) in zip(nodes_of(onnx.load(path)), find_containers(read_file(path), "chain"), strict=True):
        container = decode(data)
        assert node.name == name
        assert values(node)["max_size"] == container.memory.size_blocks * 32
