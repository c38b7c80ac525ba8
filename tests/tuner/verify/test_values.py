"""Values against onnxruntime: what rounding does is no error, what is more than that is one, and an index that it turns is neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from compiler.build import containers_of, default_plans, measure, package
from compiler.model import LoweredModel, ModelSpec, lower_model
from simulator.npu.container import Container
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError
from simulator.npu.float_range import holds
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.onnx_container import read_container
from simulator.session import InferenceSession
from tests.messages import mentions, naming
from tests.models import Builder, reference_outputs
from tests.piece_models import piece_model
from tests.tuning import QUICK
from tuner.cli import main
from tuner.runs.list_runs import open_run
from tuner.verify.check import check_file, check_level, random_feeds
from tuner.verify.reference import ReferenceValues, StoredTensors, run_reference
from tuner.verify.values import FACTOR, FLOAT32, FLOOR, MOST, TensorComparison, Values, compare_tensor, compare_values

EDGE = load_machine("edge")
Rng = np.random.Generator
Words = Callable[..., tuple[int, str, str]]


def compiled(model: ModelProto, folder: Path, dtype: DataType = DataType.float16) -> tuple[LoweredModel, Path]:
    """Layer by layer, with all levels."""
    onnx.save(model, folder / "model.onnx")
    opened = lower_model(ModelSpec(folder / "model.onnx", EDGE, dtype))
    package(opened, containers_of(opened, measure(opened, dict.fromkeys(EDGE.contention, default_plans(opened)))), folder / "out.onnx")
    return opened, folder / "out.onnx"


def with_constants(opened: LoweredModel, path: Path, change: Callable[[Container, NDArray[np.uint8]], None]) -> Path:
    """The compiled file with other weights in its container, and the same body."""
    container = decode(read_container(path))
    constants = np.frombuffer(container.constants, np.uint8).copy()
    change(container, constants)
    package(opened, [decode(encode(replace(container, constants=constants)))], path.with_name("changed.onnx"))
    return path.with_name("changed.onnx")


def section(container: Container, constants: NDArray[np.uint8], name: str, dtype: type = np.float16) -> NDArray[Any]:
    """A section of the constants, to be changed in place."""
    (buffer,) = (buffer for buffer in container.memory.buffers if buffer.name == name)
    return constants[buffer.offset_blocks * 32 : (buffer.offset_blocks + buffer.size_blocks) * 32].view(dtype)


def checked(path: Path, seed: int = 0) -> tuple[InferenceSession, dict[str, Any], ReferenceValues, Values]:
    session = InferenceSession(path)
    feeds = random_feeds(session, seed)
    expected = run_reference(path, feeds, StoredTensors.of(session.compiled))
    return session, feeds, expected, compare_values(session, feeds, expected, "none")


# the limit -------------------------------------------------------------------------------------------------------------


def test_limit_is_four_rounding_errors_between_bounds() -> None:
    assert TensorComparison(0.0, 0.01).limit == FACTOR * 0.01 == 0.04
    assert TensorComparison(0.0, 0.0).limit == FLOOR < 2e-3
    assert TensorComparison(0.0, float("nan")).limit == FLOOR
    assert TensorComparison(0.0, 0.05).limit == MOST == 0.1
    assert TensorComparison(0.0, None).limit == FLOAT32 == 1e-4
    assert TensorComparison(0.04, 0.01).ok
    assert not TensorComparison(0.0401, 0.01).ok
    assert not TensorComparison(0.1001, 1.0).ok
    assert not TensorComparison(float("nan"), 1.0).ok


def test_a_softmax_of_the_host_in_float16_underflows() -> None:
    """Whatever type the NPU computes in."""
    logits = np.array([0.0, -20.0], np.float64)
    exact = np.exp(logits) / np.exp(logits).sum()
    expected = ReferenceValues({"y": exact.astype(np.float32)}, (), {"y": 20.0}, frozenset(), frozenset(), {}, False, 1, None)  # type: ignore[arg-type]
    assert compare_tensor(expected, "y", exact.astype(np.float16), DataType.float32).ok
    assert not compare_tensor(expected, "y", np.array([0.5, 0.5], np.float16), DataType.float32).ok
    assert not compare_tensor(expected, "y", np.array([1.0, 0.0], np.float32), DataType.float32).ok


def noisy(rng: Rng) -> ModelProto:
    """Residual blocks on values near 200, whose differences are the output: float16 has steps of an eighth there."""
    b = Builder(rng, (1, 16, 8, 8))
    large = b.constant(np.full((1, 32, 1, 1), 200, np.float32))
    y = b.relu(b.add(b.conv("x", 32), large))
    for _ in range(3):
        y = b.relu(b.add(y, b.conv(b.node("Sub", [y, large]), 32)))
    weights = rng.standard_normal((16, 32, 1, 1)).astype(np.float32) / 6
    weights -= weights.mean(1, keepdims=True)
    return b.model(b.node("Conv", [y, b.constant(weights)]))


def test_what_rounding_alone_does_is_no_fault(tmp_path: Path) -> None:
    """More than 1e-2 off, and right; in float32 it is."""
    opened, path = compiled(noisy(np.random.default_rng(0)), tmp_path)
    *_, values = checked(path)
    worst = values.worst
    assert worst.rounding is not None
    assert worst.error > 1e-2
    assert worst.rounding > 1e-2
    assert worst.error < 2 * worst.rounding
    assert values.faults == ()

    def swapped(container: Container, constants: NDArray[np.uint8]) -> None:
        weights = section(container, constants, f"{opened.target_graphs[0].operators[-1].name}/weights").reshape(-1, 16, 16)
        weights[:] = weights[:, ::-1]

    *_, wrong = checked(with_constants(opened, path, swapped))
    assert wrong.faults
    _, exact = compiled(noisy(np.random.default_rng(0)), tmp_path, DataType.float32)
    *_, values = checked(exact)
    assert (values.worst.rounding, values.faults) == (None, ())
    assert values.worst.error < FLOAT32


def test_a_function_rounds_whatever_it_is_fused_with(tmp_path: Path) -> None:
    """Erf of the largest of one tensor is stored under the name of the largest."""

    def rounding(*operators: str) -> float:
        b = Builder(np.random.default_rng(1), (1, 16, 24, 24))
        y = "x"
        for operator in operators:
            y = b.node(operator, [y])
        _, path = compiled(b.model(y), tmp_path)
        *_, values = checked(path)
        assert values.worst.ok
        assert values.worst.rounding is not None
        return values.worst.rounding

    assert rounding("Erf") > 1.5 * rounding("Max")
    assert rounding("Erf", "Max") == pytest.approx(rounding("Erf"), rel=0.3)


def test_small_fault_is_found_where_rounding_is_small(tmp_path: Path) -> None:
    """One bias off by half a percent of the largest output: below any tolerance that suits all networks."""
    b = Builder(np.random.default_rng(1), (1, 16, 8, 8))
    opened, path = compiled(b.model(b.conv(b.relu(b.conv("x", 32)), 16)), tmp_path)
    *_, right = checked(path)
    assert right.faults == ()
    largest = float(np.abs(next(iter(right.outputs.values()))).max())

    def off(container: Container, constants: NDArray[np.uint8]) -> None:
        section(container, constants, f"{opened.target_graphs[0].operators[-1].name}/bias", np.float32)[3] += 0.005 * largest

    *_, wrong = checked(with_constants(opened, path, off))
    assert right.worst.limit < wrong.worst.error < 1e-2
    (fault,) = wrong.faults
    assert fault.endswith(f"rounding alone {wrong.worst.rounding:.3g}, at most {wrong.worst.limit:.3g}")


def pooled(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 16, 7, 7))
    return b.model(b.node("GlobalAveragePool", [b.conv("x", 64)]))


def classified(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 64, 1, 1))
    return b.model(b.softmax(b.conv("x", 1000, (1, 1), (1, 1), (0, 0, 0, 0))))


@pytest.mark.parametrize("build", [pooled, classified])
def test_what_the_vector_unit_rounds_inside_counts(build: Callable[[Rng], ModelProto], tmp_path: Path) -> None:
    """Sums of many values: without them the error is up to 4.6 and 2.6 times what rounding the stored tensors does."""
    _, path = compiled(build(np.random.default_rng(0)), tmp_path)
    *_, values = checked(path, 1)
    assert values.worst.rounding is not None
    assert 0.5 * values.worst.rounding < values.worst.error < 2 * values.worst.rounding


# what crosses the border -----------------------------------------------------------------------------------------------


def picking(rng: Rng) -> ModelProto:
    """Indices of the largest of channels that differ by less than float16 tells apart, what is chosen by them, and a smooth output."""
    b = Builder(rng, (1, 16, 8, 8))
    weights = np.repeat(rng.standard_normal((1, 16, 3, 3)), 8, 0) / 12 * (1 + 1e-4 * rng.standard_normal((8, 1, 1, 1)))
    y = b.node("Conv", ["x", b.constant(weights.astype(np.float32))], pads=[1, 1, 1, 1])
    b.nodes.append(helper.make_node("ArgMax", [y], ["index"], axis=1))
    b.nodes.append(helper.make_node("Cast", ["index"], ["chosen"], to=TensorProto.FLOAT))
    b.shape["chosen"] = (1, 1, 8, 8)
    model = b.model(b.node("Sin", [y]), "chosen")
    model.graph.output.append(helper.make_tensor_value_info("index", TensorProto.INT64, [1, 1, 8, 8]))
    return model


def test_rounded_indices_are_counted_and_fail_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened, path = compiled(picked := picking(np.random.default_rng(3)), tmp_path)
    session, feeds, expected, values = checked(path)
    border = [buffer.name for buffer in session.compiled.pieces[0].container.memory.of_kind("output")]
    smooth, *_ = (port.name for port in picked.graph.output)
    assert set(values.compared) == {smooth, *border}
    assert set(values.counted) == expected.stepped == {"index", "chosen"}
    for one in values.counted.values():
        assert one.equal is not None
        assert 0 < one.equal < one.count == 64
    theirs = reference_outputs(picked, feeds)
    (mine,) = session.run(["index"], feeds, level="none")
    assert values.counted["index"].equal == int((mine == theirs["index"]).sum())
    assert values.faults == ()
    assert main(["run", str(path), "--input", "random", "--check"]) == 0
    said = capsys.readouterr().out
    assert mentions(said, "output index", values.counted["index"].equal, 64)
    assert f"tensor {border[0]}: max|out-ref|/max|ref| " in said
    assert main(["run", str(path), "--input", "random", "--check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["check"]
    assert report["counted"]["index"] == {"equal": values.counted["index"].equal, "of": 64}

    def less(container: Container, constants: NDArray[np.uint8]) -> None:
        section(container, constants, f"{opened.target_graphs[0].operators[-1].name}/weights")[:] *= np.float16(0.99)

    *_, wrong = checked(with_constants(opened, path, less))
    assert {fault.split(":")[0] for fault in wrong.faults} >= {repr(border[0])}


def test_the_extent_of_an_output_may_be_another(tmp_path: Path) -> None:
    """The NPU's scores lie on the other side of a threshold."""
    b = Builder(np.random.default_rng(4), (1, 16, 8, 8))
    y = b.conv("x", 8)
    b.nodes.append(helper.make_node("Greater", [y, b.constant(np.array(0.0, np.float32))], ["more"]))
    b.nodes.append(helper.make_node("NonZero", ["more"], ["where"]))
    model = b.model(y)
    model.graph.output.append(helper.make_tensor_value_info("where", TensorProto.INT64, [4, None]))
    _, path = compiled(model, tmp_path)
    session, feeds, expected, _ = checked(path)
    fewer = replace(expected, values={**expected.values, "where": expected.values["where"][:, 1:]})
    counted = compare_values(session, feeds, fewer, "none")
    assert counted.faults == ()
    assert str(counted.counted["where"]).startswith(f"another shape than onnxruntime's 4x{expected.values['where'].shape[1] - 1};")


def test_every_piece_is_given_onnxruntimes_own_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TopK between two pieces picks another row: the second piece's output is another then, and yet each piece is right."""
    _, path = compiled(piece_model("detector"), tmp_path)
    apart = []
    for seed in range(3, 9):
        session, feeds, expected, values = checked(path, seed)
        (name,) = (port.name for port in session.get_outputs())
        (mine,) = session.run(None, feeds, level="none")
        apart.append(compare_tensor(expected, name, mine, DataType.float16).error)
        assert values.faults == ()
        assert name in values.compared
    assert max(apart) > 0.1
    seed = 3 + int(np.argmax(apart))
    out = tmp_path / "out.npz"
    assert main(["run", str(path), "--input", f"random:{seed}", "--check", "--out", str(out)]) == 0
    assert "check of level none: passed" in capsys.readouterr().out
    session = InferenceSession(path)
    with np.load(out) as arrays:  # what the model computes, not what its last piece makes of onnxruntime's inputs
        np.testing.assert_array_equal(arrays[name], session.run(None, random_feeds(session, seed), level="none")[0])


# what is not finite ----------------------------------------------------------------------------------------------------


def overflowing(rng: Rng) -> ModelProto:
    """Values grow by 60 with every convolution; the fourth result is beyond float16, the last one is back in range."""
    b = Builder(rng, (1, 16, 8, 8))
    y = "x"
    for _ in range(4):
        y = b.relu(b.node("Conv", [y, b.normal((16, 16, 3, 3), 5.0)], pads=[1, 1, 1, 1]))
    return b.model(b.node("Conv", [y, b.normal((16, 16, 3, 3), 1e-7)], pads=[1, 1, 1, 1]))


@pytest.fixture(scope="module")
def overflown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """A tuned run; the first tensor beyond float16 and its largest value, by onnxruntime on the model alone."""
    folder = tmp_path_factory.mktemp("overflown")
    model = overflowing(np.random.default_rng(5))
    onnx.save(model, folder / "model.onnx")
    settings = [word for text in QUICK for word in ("--set", text)]
    words = ["tune", str(folder / "model.onnx"), "--machine", "edge", "--out", str(folder / "RUN"), "--candidates", "6", *settings]
    assert main([*words, "--backend", "serial", "--quiet"]) == 4
    relus = [node.output[0] for node in model.graph.node if node.op_type == "Relu"]
    every = ModelProto()
    every.CopyFrom(model)
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in relus)
    values = reference_outputs(every, random_feeds(InferenceSession(folder / "RUN" / "best.onnx"), 0))
    first = next(name for name in relus if np.abs(values[name]).max() > 65504)
    assert first != relus[0]
    return folder / "RUN", first, float(np.abs(values[first]).max())


def test_a_run_that_overflows_says_what_and_where(overflown: tuple[Path, str, float]) -> None:
    run, first, largest = overflown
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["schema_version"], summary["status"]) == (4, "unconfirmed")
    assert summary["first_beyond"]["tensor"] == first
    assert summary["first_beyond"]["largest"] == pytest.approx(largest, rel=1e-4)
    assert summary["first_beyond"]["held"] == 65504
    assert all(row["max_rel_error"] is None for row in summary["levels"].values())
    assert summary["unconfirmed"][-1].endswith(
        f"the first tensor beyond float16 is {first!r}, up to {largest:.6g} in float32; float16 holds at most 65504"
    )
    assert {"best.onnx", "plans", "log"} <= {path.name for path in run.iterdir()}
    assert open_run(run).state == "unconfirmed"


def test_every_command_says_so(overflown: tuple[Path, str, float], capsys: pytest.CaptureFixture[str]) -> None:
    run, first, largest = overflown
    said = f"the first tensor beyond float16 is {first!r}, up to {largest:.6g} in float32"
    for words, code, text in (
        (["best", run], 0, f"values not confirmed: level none: {said}"),
        (["status", run], 0, "unconfirmed"),
        (["ls", run.parent], 0, "unconfirmed"),
        (["run", run / "best.onnx", "--input", "random", "--check"], 1, f"FAILED {said}"),
        (["report", run], 0, "report.html"),
    ):
        assert main([str(word) for word in words]) == code, words
        assert text in capsys.readouterr().out, words
    page = (run / "report.html").read_text()
    assert "The values of this run are not confirmed." in page
    assert f"up to {largest:.6g} in float32" in page
    assert main(["run", str(run / "best.onnx"), "--input", "random", "--check", "--json"]) == 1
    check = json.loads(capsys.readouterr().out)["check"]
    assert (check["ok"], check["max_rel_error"], check["first_beyond"]["tensor"]) == (False, None, first)


def test_tune_itself_says_so(overflown: tuple[Path, str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the console, by a sweep's table and its exit code, and by the file without a body."""
    run, first, _ = overflown
    settings = [word for text in QUICK for word in ("--set", text)]
    model = str(run.parent / "model.onnx")
    common = [model, "--machine", "edge", "--candidates", "2", *settings, "--backend", "serial", "--quiet"]
    assert main(["tune", *common, "--out", str(tmp_path / "RUN"), "--style", "epcontext"]) == 4
    out = capsys.readouterr().out
    assert f"the first tensor beyond float16 is {first!r}" in out
    assert f"{tmp_path / 'RUN'}: unconfirmed; " in out
    assert main(["sweep", *common, "--out", str(tmp_path / "SWEEP")]) == 4
    assert "model-edge-s0: values not confirmed: level none: " in capsys.readouterr().out
    index = pd.read_parquet(tmp_path / "SWEEP" / "index.parquet")
    assert set(index["state"]) == {"unconfirmed"}
    assert index["max_rel_error"].isna().all()
    assert index["cycles"].notna().all()
    assert main(["status", str(tmp_path / "SWEEP")]) == 0
    assert "runs unconfirmed  1" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "SWEEP")]) == 0
    page = (tmp_path / "SWEEP" / "report.html").read_text()
    assert "not finite" in page
    assert "<td" in page[page.index("Failed, not confirmed") :]


def test_values_off_make_a_run_unconfirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finite, and wrong: a limit that nothing can keep stands in for a compiler that is."""
    monkeypatch.setattr("tuner.verify.values.FLOOR", 0.0)
    monkeypatch.setattr("tuner.verify.values.FACTOR", 1e-6)
    b = Builder(np.random.default_rng(6), (1, 16, 8, 8))
    onnx.save(b.model(b.conv("x", 16)), tmp_path / "model.onnx")
    settings = [word for text in QUICK for word in ("--set", text)]
    words = ["tune", str(tmp_path / "model.onnx"), "--machine", "edge", "--out", str(tmp_path / "RUN"), "--candidates", "2", *settings]
    assert main([*words, "--backend", "serial", "--quiet"]) == 4
    summary = json.loads((tmp_path / "RUN" / "summary.json").read_text())
    assert summary["first_beyond"] is None
    assert 0 < summary["levels"]["none"]["max_rel_error"] < 1e-2
    assert "rounding alone" in summary["unconfirmed"][0]


def test_inner_value_of_an_operator_may_overflow(tmp_path: Path) -> None:
    """Squares of 300 are beyond float16: a tensor of the model, though the NPU does not store it, or none."""
    b = Builder(np.random.default_rng(7), (1, 16, 8, 8))
    large = b.add(b.conv("x", 16), b.constant(np.full((1, 16, 1, 1), 300, np.float32)))
    squares = b.node("Mul", [large, large])
    _, path = compiled(b.model(b.node("Mul", [squares, b.constant(np.full((1, 16, 1, 1), 1e-4, np.float32))])), tmp_path)
    *_, values = checked(path)
    assert values.beyond is not None
    assert values.beyond.tensor == squares
    b.nodes = b.nodes[:2]
    _, path = compiled(b.model(b.node("ReduceL2", [large], axes=[1])), tmp_path)
    *_, values = checked(path)
    assert values.beyond is None
    assert mentions(values.faults[-1], "not finite", "float16")


def test_weights_beyond_float16_are_named_when_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the model has them, or, where a batch normalisation makes them so, after their operator."""
    b = Builder(np.random.default_rng(8), (1, 16, 8, 8))
    huge = b.constant(np.full((16, 16, 1, 1), 1e5, np.float32))
    y = b.conv(b.node("Conv", ["x", huge]), 16)
    ones, zeros = b.constant(np.ones(16, np.float32)), b.constant(np.zeros(16, np.float32))
    tiny = b.constant(np.full(16, 1e-14, np.float32))
    model = b.model(b.node("BatchNormalization", [y, ones, zeros, zeros, tiny], epsilon=1e-14))
    for k, node in enumerate(model.graph.node):
        node.name = f"node{k}"
    onnx.save(model, tmp_path / "model.onnx")
    words = ["compile", str(tmp_path / "model.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]
    assert main(words) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights beyond")]
    assert mentions(lines[0], f"{huge!r}", 100000, 65504)
    assert "/weights', up to 1.9" in lines[1]
    assert len(lines) == 2
    assert main([*words, "--json"]) == 0
    beyond = json.loads(capsys.readouterr().out)["weights_beyond"]
    assert beyond[0] == {"tensor": huge, "largest": 1e5, "held": 65504.0}
    assert main([*words, "--dtype", "float32"]) == 0
    assert "weights beyond" not in capsys.readouterr().out


def test_weights_that_vanish_are_named_with_their_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a convolution of tiny weights a large one would bring values back."""
    b = Builder(np.random.default_rng(8), (1, 16, 8, 8))
    tiny, large = (b.constant(np.full((16, 16, 1, 1), value, np.float32)) for value in (2.0**-26, 1e4))
    onnx.save(b.model(b.node("Conv", [b.node("Relu", [b.node("Conv", ["x", tiny])]), large])), tmp_path / "model.onnx")
    out = str(tmp_path / "out.onnx")
    said = f"weights below float16: {tiny!r}, largest 1.49012e-08: all become 0"
    assert main(["compile", str(tmp_path / "model.onnx"), "--machine", "edge", "--out", out]) == 0
    assert said in capsys.readouterr().out.splitlines()
    assert main(["run", out, "--input", "random", "--check"]) == 1
    assert any(line.startswith("FAILED the first operator") and line.endswith(f"; {said}") for line in capsys.readouterr().out.splitlines())
    assert main(["compile", str(tmp_path / "model.onnx"), "--machine", "edge", "--out", out, "--dtype", "float32"]) == 0
    assert "weights below" not in capsys.readouterr().out


@pytest.mark.parametrize("magnitude", [0.0, 2.0**-25, 2.0**-24, 3.1e-8, 1.0, 65504.0, 65519.0, 65520.0, np.inf, np.nan])
def test_float16_range_is_that_of_numpy(magnitude: float) -> None:
    with np.errstate(all="ignore"):
        kept = np.float16(magnitude)
    assert holds(DataType.float16, magnitude) is bool(np.isfinite(kept) and (kept != 0) == (magnitude != 0))
    assert holds(DataType.float32, magnitude) is bool(np.isfinite(magnitude))


def test_weight_is_named_where_no_tensor_is_beyond(tmp_path: Path) -> None:
    """Zeros go in: in float32 zeros come out, and infinite times zero is not a number."""
    b = Builder(np.random.default_rng(9), (1, 16, 8, 8))
    huge = b.constant(np.full((16, 16, 1, 1), 1e5, np.float32))
    _, path = compiled(b.model(b.node("Conv", ["x", huge])), tmp_path)
    session = InferenceSession(path)
    feeds = {"x": np.zeros((1, 16, 8, 8), np.float32)}
    level = check_level(session, feeds, run_reference(path, feeds, StoredTensors.of(session.compiled)), "none")
    assert level.faults[-1].startswith(f"the first tensor beyond float16 is {huge!r}, up to 100000 in float32")


def test_a_summary_of_another_version_is_refused(overflown: tuple[Path, str, float], tmp_path: Path) -> None:
    run, *_ = overflown
    (tmp_path / "run.json").write_bytes((run / "run.json").read_bytes())
    summary = json.loads((run / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "schema_version": 1}))
    with pytest.raises(BadInputError, match=naming("summary.json", "version 1", 4)):
        open_run(tmp_path)


def test_levels_of_a_file_share_one_reference(tmp_path: Path) -> None:
    b = Builder(np.random.default_rng(10), (1, 16, 8, 8))
    _, path = compiled(b.model(b.conv("x", 16)), tmp_path)
    levels = check_file(path)
    assert [level.level for level in levels] == list(EDGE.contention)
    assert len({level.values.worst for level in levels}) == 1
