"""What share of the work the NPU has: where most is with the host, where nobody can tell, and `--min-npu-share`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.messages import mentions
from tests.models import Builder
from tests.partial_models import CONV, partial_model
from tuner.cli import main
from tuner.measure.host_lines import host_groups, host_lines
from tuner.summary import HostNodeSummary

HIDDEN, SIZE, STEPS, CLASSES = 32, 16, 10, 8
LSTM = STEPS * 4 * HIDDEN * (SIZE + HIDDEN)
GEMM = HIDDEN * CLASSES


def save_lstm(folder: Path) -> Path:
    """An LSTM and a small Gemm behind it, as classifiers of sequences are."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 4 * HIDDEN, SIZE)) / 4,
        "r": rng.standard_normal((1, 4 * HIDDEN, HIDDEN)) / 6,
        "dense": rng.standard_normal((HIDDEN, CLASSES)) / 6,
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "last"], hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["last", "first"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sequence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, 1, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
        + [numpy_helper.from_array(np.zeros(1, np.int64), "first")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "lstm.onnx")
    return folder / "lstm.onnx"


def save_volume(folder: Path) -> Path:
    """A determinant behind a convolution: products of a kind that is not counted."""
    b = Builder(np.random.default_rng(0), (1, 16, 8, 8))
    graph = b.model(b.conv("x", 16)).graph
    graph.node.append(helper.make_node("Det", [graph.output[0].name], ["volume"]))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("volume", TensorProto.FLOAT, [1, 16]))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "det.onnx")
    return folder / "det.onnx"


def test_lstm_on_the_host_is_most_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", str(save_lstm(tmp_path)), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    share = GEMM / (LSTM + GEMM)
    assert mentions(lines[0], "lstm", "edge", "float16", "1 operators", f"{LSTM + GEMM:,} MACs", f"{share:.1%}")
    assert mentions(lines[1], "warning", f"{share:.1%}")
    assert lines[2].startswith(f"host, {1 - share:.1%} of MACs: LSTM 'last': not supported") or "LSTM" in lines[2]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] == {"arithmetic_on_npu": 1, "arithmetic": 2, "moves_on_npu": 1, "moves": 1}
    assert {row["op"]: row["accepted"] for row in report["host"]}["LSTM"] == "supported operators with the same values"
    assert report["macs"] == LSTM + GEMM
    assert report["npu_mac_share"] == pytest.approx(share)


def test_what_cannot_be_counted_makes_the_share_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", str(save_volume(tmp_path)), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert mentions(lines[0], "det", "edge", "1 operators", "n/a", "Det")
    assert mentions(lines[1], "host", "n/a", "Det 'volume'")
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["macs"], report["npu_mac_share"]) == (None, None)
    assert [(node["op"], node["macs"], node["mac_share"]) for node in report["host"]] == [("Det", None, None)]
    assert main([*words, "--min-npu-share", "0"]) == 3
    assert "Det" in capsys.readouterr().err


def test_no_products_are_no_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder(np.random.default_rng(0), (1, 16, 64, 64))
    onnx.save(b.model(b.node("Sin", [b.relu(b.max_pool("x"))])), tmp_path / "m.onnx")
    assert main(["compile", str(tmp_path / "m.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert mentions(lines[0], "m", "edge", "2 operators", "n/a")
    assert mentions(lines[1], "host", "0 MACs", "Sin 't3'")


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_least_share_is_required_before_any_search(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(partial_model("middle"), tmp_path / "middle.onnx")
    out = tmp_path / "OUT"
    words = [command, str(tmp_path / "middle.onnx"), "--machine", "edge", "--out", str(out)]
    assert main([*words, "--min-npu-share", "0.7"]) == 3
    error = capsys.readouterr().err
    assert error.startswith(
        f"tilefarm: --min-npu-share 0.7: middle on edge: {3 * CONV:,} MACs, 66.7% of them on the NPU; host, 33.3% of MACs:"
    )
    assert error.endswith("; nodes on the NPU: 3 of 5 with arithmetic, 0 of 0 that only move data\n")
    assert error.count("\n") == 1
    assert not out.exists()
    if command == "compile":
        assert main([*words, "--min-npu-share", "0.66"]) == 0
    assert main([*words, "--min-npu-share", "1.5"]) == 2


def test_a_cell_of_a_sweep_with_less_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(partial_model("middle"), tmp_path / "middle.onnx")
    words = ["sweep", str(tmp_path / "middle.onnx"), "--machine", "edge", "--out", str(tmp_path / "S"), "--backend", "serial", "--quiet"]
    assert main([*words, "--candidates", "4", "--min-npu-share", "0.9"]) == 1
    (error,) = set(pd.read_parquet(tmp_path / "S/index.parquet")["error"])
    assert error.startswith("--min-npu-share 0.9: middle on edge: ")


def node(name: str, why: str, macs: int | None = 0, op: str = "Op") -> HostNodeSummary:
    return HostNodeSummary(node=name, op=op, refused=True, why=why, macs=macs, mac_share=None if macs is None else macs / 100)


def test_groups_are_by_reason_in_order_of_work() -> None:
    host = [
        node("a", "input 'p' is int64; float is supported"),
        node("b", "not supported", 10),
        node("c", 'input "it\'s" is int64; float is supported', 30, "Other"),
        node("d", "not supported", None),
        node("e", "axes [1, 2]; the last is supported", 35),
        node("f", "axes [0, 13]; the last is supported", 6),
    ]
    groups = host_groups(host)
    assert [[n.node for n in group.nodes] for group in groups] == [["b", "d"], ["e", "f"], ["a", "c"]]
    assert [group.macs for group in groups] == [None, 41, 30]
    lines = host_lines(host)
    assert mentions(lines[0], "host", "n/a", "2 nodes (Op)", "Op 'b'")
    assert mentions(lines[2], "host", "30.0%", "2 nodes (Op, Other)", "Op 'a'", "'p' is int64")
    accepted = [member.model_copy(update={"accepted": "the last is supported"}) for member in host]
    assert [line.count("the last is supported") for line in host_lines(accepted)] == [1, 1, 1]
    many = [node(f"n{k}", "x" * k) for k in range(20)]
    assert mentions(host_lines(many)[-1], "host", "0.0%", "8 more", "8 other", "(Op)")
