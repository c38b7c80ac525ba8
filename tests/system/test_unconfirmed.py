"""What onnxruntime does not run is refused before a search; a search is kept whatever becomes of its check."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import ModelProto

from simulator.npu.errors import BadInputError, UnsupportedError
from tests.models import Builder, small_model
from tests.tuning import QUICK
from tuner.cli import main
from tuner.verify.reference import _run as asked_child  # others ask in their own process (`tests.inline_reference`)

WORDS = ("--machine", "tiny", "--candidates", "2", "--backend", "serial", "--quiet", *(word for text in QUICK for word in ("--set", text)))


def transposed(sizes: list[int]) -> ModelProto:
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    return b.model(b.node("ConvTranspose", ["x", b.normal((4, 4, 3, 3))], strides=[2, 2], output_shape=sizes))


def looked_up() -> ModelProto:
    """An index beyond its table, which only a run shows."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    y = b.relu(b.node("Conv", ["x", b.normal((4, 4, 3, 3))]))
    largest = b.node("ReduceMax", [y], keepdims=0)
    index = b.node(
        "Cast",
        [b.node("Add", [b.node("Mul", [largest, b.constant(np.zeros((), np.float32))]), b.constant(np.full((), 9, np.float32))])],
        to=7,
    )
    return b.model(b.node("Gather", [y, index], axis=1))


def of_no_opset() -> ModelProto:
    model = small_model("conv_chain")
    model.opset_import[0].version = 99
    return model


@pytest.mark.parametrize(
    "make",
    [lambda: transposed([50, 50]), lambda: transposed([50, 7]), lambda: transposed([0, 0]), looked_up, of_no_opset],
    ids=["too large", "one axis smaller", "nothing", "index", "opset"],
)
def test_unrunnable_model_is_refused_before_the_search(
    make: Callable[[], ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(make(), tmp_path / "m.onnx")
    monkeypatch.setattr("tuner.verify.reference._run", asked_child)
    monkeypatch.setattr("tuner.driver.session", lambda *_: 1 // 0)
    assert main(["tune", str(tmp_path / "m.onnx"), "--out", str(tmp_path / "RUN"), *WORDS]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize(
    "error",
    [
        BadInputError("best.onnx: onnxruntime died on its body (signal 9)"),
        UnsupportedError("best.onnx: a body that cannot be written"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_search_is_kept_where_nothing_is_compared(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise error

    onnx.save(small_model("conv_chain"), tmp_path / "m.onnx")
    run, sweep = tmp_path / "RUN", tmp_path / "SWEEP"
    with monkeypatch.context() as patch:
        patch.setattr("tuner.finalize.compile.run_reference", broken)
        assert main(["tune", str(tmp_path / "m.onnx"), "--out", str(run), *WORDS]) == 4
        said = f"not compared with onnxruntime: {type(error).__name__}: {error}"
        assert f"values not confirmed: {said}" in capsys.readouterr().out
        assert main(["sweep", str(tmp_path / "m.onnx"), "--out", str(sweep), *WORDS]) == 4
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["unconfirmed"]) == ("unconfirmed", [said])
    assert {row[key] for row in summary["levels"].values() for key in ("max_rel_error", "rounding_rel_error", "limit_rel_error")} == {None}
    assert pd.read_parquet(sweep / "index.parquet")["max_rel_error"].isna().all()
    for words in (["best", run], ["report", run], ["report", sweep], ["run", run / "best.onnx", "--input", "random", "--check"]):
        assert main([str(word) for word in words]) == 0, words
    assert said in (run / "report.html").read_text()
    assert main(["tune", str(tmp_path / "m.onnx"), "--out", str(run), "--resume", *WORDS]) == 0  # the check alone is made again
    assert json.loads((run / "summary.json").read_text())["status"] == "done"
