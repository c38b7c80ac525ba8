"""Models of which the NPU runs a part: the compiled file, its values through host and container, and what the commands say."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from compiler.build import build_variants, default_plan, package
from compiler.frontend.onnx_io.load import prepare
from compiler.model import ModelSpec, lower_model
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.onnx_container import find_containers, read_container
from simulator.onnx_names import DOMAIN
from simulator.session import InferenceSession
from tests.messages import mentions, naming
from tests.models import Builder, reference_outputs
from tests.partial_models import CONV, PARTIAL, partial_model
from tuner.cli import main
from tuner.verify.check import check_file, random_feeds

EDGE = load_machine("edge")


@pytest.fixture(scope="module", params=list(PARTIAL))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Name and folder with model.onnx, function.onnx and epcontext.onnx."""
    folder = tmp_path_factory.mktemp(request.param)
    write(request.param, folder)
    return request.param, folder


def write(name: str, folder: Path) -> None:
    onnx.save(partial_model(name), folder / "model.onnx")
    opened = lower_model(ModelSpec(folder / "model.onnx", EDGE))
    container = build_variants(opened.packed[0], dict.fromkeys(EDGE.contention, default_plan(opened.target_graph)))
    package(opened, [container], folder / "function.onnx", "function")
    package(opened, [container], folder / "epcontext.onnx", "epcontext")


def stock(model: ModelProto | Path, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_values_of_the_whole_chain(case: tuple[str, Path]) -> None:
    """Through host, container and host again, for both styles; the same as onnxruntime on the model as it was."""
    name, folder = case
    for style in ("function", "epcontext"):
        session = InferenceSession(folder / f"{style}.onnx")
        feeds = random_feeds(session, 1)
        outputs = session.run(None, feeds, level="severe")
        expected = stock(partial_model(name), feeds)
        for mine, theirs in zip(outputs, expected, strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert np.abs(mine - theirs).max() <= 1e-2 * np.abs(theirs).max()
            assert mine.dtype != np.float32 or not np.array_equal(mine, theirs)  # float16 on the NPU: the body did not run


def test_stock_onnxruntime_runs_the_file_by_its_body(case: tuple[str, Path]) -> None:
    name, folder = case
    onnx.checker.check_model(onnx.load(folder / "function.onnx"), full_check=True)
    feeds = random_feeds(InferenceSession(folder / "function.onnx"), 2)
    for mine, theirs in zip(stock(folder / "function.onnx", feeds), stock(partial_model(name), feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["middle", "tokens", "unknown_extent"])
def test_check_passes_on_the_container_itself(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    (checked, *_) = check_file(tmp_path / "function.onnx", ["none"])
    assert checked.faults == ()
    container = decode(read_container(tmp_path / "function.onnx"))
    constants = np.frombuffer(container.constants, np.uint8).copy()
    constants[: constants.size // 2] = 0
    opened = lower_model(ModelSpec(tmp_path / "model.onnx", EDGE))
    package(opened, [decode(encode(replace(container, constants=constants)))], tmp_path / "changed.onnx")
    (changed, *_) = check_file(tmp_path / "changed.onnx", ["none"])
    assert any("max|out-ref|" in fault for fault in changed.faults)


def test_file_holds_the_unchanged_nodes_of_the_host(case: tuple[str, Path]) -> None:
    name, folder = case
    given = partial_model(name)
    before = {node.SerializeToString(deterministic=True) for node in (prepare(given) if given.functions else given).graph.node}
    for style in ("function", "epcontext"):
        model = onnx.load(folder / f"{style}.onnx")
        host = [node for node in model.graph.node if node.domain != DOMAIN and node.op_type != "EPContext"]
        assert len(model.graph.node) == len(host) + 1
        assert {node.SerializeToString(deterministic=True) for node in host} <= before
        assert sorted(node.op_type for node in host) == sorted((*PARTIAL[name].refused, *PARTIAL[name].others))
        assert [port.name for port in model.graph.input] == [port.name for port in partial_model(name).graph.input]


def test_compiling_again_gives_the_same_bytes(case: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = case
    assert main(["compile", str(folder / "model.onnx"), "--machine", "edge", "--layerwise", "--out", str(tmp_path / "again.onnx")]) == 0
    assert (tmp_path / "again.onnx").read_bytes() == (folder / "function.onnx").read_bytes()


# the commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def middle(tmp_path: Path) -> Path:
    onnx.save(partial_model("middle"), tmp_path / "middle.onnx")
    return tmp_path / "middle.onnx"


def test_compile_says_what_stays_behind(middle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", str(middle), "--machine", "edge", "--out", str(middle.parent / "out.onnx")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert mentions(lines[0], "middle", "edge", "float16", "2 operators", f"{3 * CONV:,} MACs", "66.7%")
    assert lines[1].startswith("host, 33.3% of MACs: Conv 't3': supported, but not worth a piece of its own: ")
    assert mentions(lines[2], "host", "0.0%", "Sin 't4'")
    assert lines[3] == "nodes on the NPU: 3 of 5 with arithmetic, 0 of 0 that only move data"
    assert lines[4].startswith("level")
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["npu_mac_share"] == pytest.approx(2 / 3)
    assert [(node["op"], node["refused"], node["macs"]) for node in report["host"]] == [("Conv", False, CONV), ("Sin", True, 0)]
    assert sum(node["mac_share"] for node in report["host"]) + report["npu_mac_share"] == pytest.approx(1)
    host, values = load_machine("edge").host, 16 * 8 * 8  # of Sin, which reads and writes them in float32
    assert report["host"][1]["least_us"] == pytest.approx(1e6 * 2 * 4 * values / host.bytes_per_s)
    assert mentions(lines[2], "(at least", f"{report['host'][1]['least_us']:.1f} us)")


def on_host(b: Builder, kind: str) -> onnx.ModelProto:
    if kind == "an input":
        model = b.model(b.node("Sin", ["x"]))
        model.graph.output[0].name = "x"
        return model
    return b.model(b.node("Cos", [b.node("Sin", ["x"])]))


@pytest.mark.parametrize("kind", ["operators", "an input"])
def test_model_without_npu_nodes_is_a_host_file(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(on_host(Builder(np.random.default_rng(0), (1, 4, 8, 8)), kind), model)
    words = ["compile", str(model), "--machine", "edge", "--out", str(out)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("nothing of it can run on the NPU: ")
    assert lines[0].endswith("; the file is the model itself, run by the host")
    assert "supported are" not in lines[0]
    assert any(line.startswith("host, 0 MACs: ") for line in lines) == (kind != "an input")
    session = InferenceSession(str(out))
    feeds = random_feeds(session, 0)
    for run in (session, InferenceSession(out.read_bytes())):
        assert (run.levels, run.get_providers()) == ((), ["CPUExecutionProvider"])
        for level in (None, "severe"):
            for got, expected in zip(run.run(None, feeds, level=level), reference_outputs(onnx.load(model), feeds).values(), strict=True):
                np.testing.assert_array_equal(got, expected)
    assert main(["run", str(out), "--input", "random", "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("onnxruntime ran all of it, so there is nothing to check")
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["operators"], report["pieces"], report["levels"], report["file_bytes"]) == (0, [], {}, out.stat().st_size)


def test_missing_program_is_reported_where_one_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "sin.onnx", tmp_path / "out.onnx"
    onnx.save(on_host(Builder(np.random.default_rng(0), (1, 4, 8, 8)), "operators"), model)
    words = ["compile", str(model), "--machine", "edge"]
    asked = {
        "--min-npu-share 0.5: nothing of it can run on the NPU: Sin": (3, [*words, "--out", str(out), "--min-npu-share", "0.5"]),
        "nothing of it can run on the NPU: Sin 't1': not supported; supported are ": (2, [*words, "--dump", "graph"]),
        "nothing of it can run on the NPU: Sin 't1'": (2, ["tune", *words[1:], "--out", str(tmp_path / "run")]),
    }
    for said, (code, call) in asked.items():
        assert main(call) == code
        error = capsys.readouterr().err
        assert error.startswith(f"tilefarm: {said}")
        assert error.count("\n") == 1
    assert not out.exists()
    assert main([*words, "--out", str(out)]) == 0
    for command in ("simulate", "disasm"):
        capsys.readouterr()
        assert main([command, str(out)]) == 2
        assert "nothing of this model runs on the NPU" in capsys.readouterr().err
    out.write_bytes(out.read_bytes().replace(b"Sin", b"Cos"))
    assert main(["run", str(out), "--input", "random"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_refused_nodes_are_grouped_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    y = b.conv("x", 16)
    for _ in range(15):
        y = b.node("Cos", [b.node("Sin", [y])])
    onnx.save(b.model(y), tmp_path / "m.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("host")]
    assert mentions(line, "host", "0.0%", "30 nodes (Sin, Cos)", "Sin 't4'")


def test_every_command_takes_such_a_file(middle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = middle.parent / "out.onnx"
    assert main(["compile", str(middle), "--machine", "edge", "--out", str(out)]) == 0
    for words in (
        ("run", out, "--input", "random:3", "--level", "severe", "--check"),
        ("simulate", out),
        ("simulate", out, "--segments"),
        ("simulate", out, "--trace", "step:1", "--inferences", "5"),
        ("trace", out, "--out", middle.parent / "t.json"),
        ("disasm", out, "--out", middle.parent / "out.asm"),
    ):
        assert main([str(word) for word in words]) == 0, words
    assert "check of level severe: passed" in capsys.readouterr().out


def test_tune_and_export(middle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = middle.parent / "RUN", middle.parent / "export.onnx"
    words = ["tune", str(middle), "--machine", "edge", "--out", str(run), "--candidates", "6", "--backend", "serial"]
    assert main(words) == 0
    assert mentions(capsys.readouterr().err, "host", "0.0%", "Sin 't4'")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["npu_mac_share"] == pytest.approx(2 / 3)
    assert [node["op"] for node in summary["host"]] == ["Conv", "Sin"]
    assert max(row["max_rel_error"] for row in summary["levels"].values()) <= 1e-2
    assert main(["export", str(run), "--out", str(out)]) == 0
    assert out.read_bytes() == (run / "best.onnx").read_bytes()


def test_integers_and_booleans_are_fed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(partial_model("tokens"), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(out)]) == 0
    session = InferenceSession(out)
    assert [(port.name, port.shape, port.type) for port in session.get_inputs()] == [
        ("ids", [1, 12], "tensor(int64)"),
        ("mask", [1, 12, 1], "tensor(bool)"),
    ]
    ids = random_feeds(session, 0)["ids"]
    assert ids.max() > 1  # up to the table's 50 rows, not only 0 and 1
    assert ids.max() < 50
    np.savez(tmp_path / "x.npz", ids=ids, mask=np.ones((1, 12, 1), bool))
    assert main(["run", str(out), "--input", str(tmp_path / "x.npz"), "--check"]) == 0
    capsys.readouterr()
    for wrong, said in (
        ({"ids": ids.astype(np.float32)}, "input 'ids': found float32 [1, 12], expected int64 [1, 12]"),
        ({"ids": ids[:, :3]}, "input 'ids': found int64 [1, 3], expected int64 [1, 12]"),
        ({}, "input 'ids': missing; expected int64 [1, 12]"),
    ):
        with pytest.raises(BadInputError) as caught:
            session.run(None, {"mask": np.ones((1, 12, 1), bool), **wrong})
        assert str(caught.value) == said
    with pytest.raises(BadInputError, match=naming("onnxruntime", "host", "indices")):
        session.run(None, {"ids": ids + 1000, "mask": np.ones((1, 12, 1), bool)})


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("damaged")
    write("middle", folder)
    return (folder / "function.onnx").read_bytes()


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
    cut=st.none() | st.floats(0, 1),
)
def test_a_damaged_file_is_read_or_refused(whole_file: bytes, changes: list[tuple[float, int]], cut: float | None) -> None:
    """Not run: a node of the host that is still valid may ask onnxruntime for anything."""
    data = bytearray(whole_file)
    ((_, outside),) = find_containers(memoryview(whole_file), "file")
    start = whole_file.index(outside)
    places = [*range(start), *range(start + len(outside), len(data))]  # the container has its own tests
    for at, flip in changes:
        data[places[int(at * len(places))]] ^= flip
    with contextlib.suppress(BadInputError):
        InferenceSession(bytes(data[: len(data) if cut is None else int(cut * len(data))])).get_inputs()


def test_sizes_in_a_damaged_file_are_bounded(whole_file: bytes) -> None:
    model = onnx.load_model_from_string(whole_file)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 40
    with pytest.raises(BadInputError, match=naming("input 'x'", "shape")):
        InferenceSession(model.SerializeToString())
    model.graph.input[0].type.tensor_type.elem_type = 77
    with pytest.raises(BadInputError, match="'x' has data type 77"):
        InferenceSession(model.SerializeToString())


def test_file_with_a_node_of_another_container(tmp_path: Path) -> None:
    onnx.save(partial_model("middle"), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(out)]) == 0
    model = onnx.load(out)
    (node,) = (node for node in model.graph.node if node.domain == DOMAIN)
    node.input[0] = "elsewhere"
    with pytest.raises(BadInputError, match=naming("['t4']", "['elsewhere']")):
        InferenceSession(model.SerializeToString())
    ((_, container),) = find_containers(memoryview(model.SerializeToString()), "m")
    assert container == read_container(out)
