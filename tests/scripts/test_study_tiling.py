"""The study of tilings with a tiny budget: it runs, its rows are consistent, and its exhaustive optimum is one."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx

from compiler.ops.matmul import MatMulSpec
from scripts.operators import BATCH, PROVEN, Operator, Shape, count_operators, exhaustive, operator_shape, save_model
from scripts.studies import network
from tests.models import Builder
from tests.scripting import run_script
from tests.tuning import QUICK

LEVELS = ("none", "slight", "severe")


def test_the_table(tmp_path: Path) -> None:
    """A model with the same convolution twice and one that ends in a product: two operators, each once."""
    b = Builder(np.random.default_rng(0), (1, 32, 12, 12))
    onnx.save(b.model(b.conv(b.conv(b.conv("x", 32), 32), 48, kernel=(1, 1), pads=(0, 0, 0, 0))), tmp_path / "net.onnx")
    words = ["--networks", tmp_path / "net.onnx", "--out", tmp_path / "tiling", "--cap", 60]
    words += ["--candidates", 4, "--trained", 4, "--each", 16, "--held-out", 2]
    done = run_script("study", "tiling", *words, *(word for text in QUICK for word in ("--set", text)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "tiling" / "tiling.csv").open(newline="") as file:
        search = list(csv.DictReader(file))
    assert [row["network"] for row in search] == ["32->32_12x12_3x3s1", "32->48_12x12"]
    for row in search:
        assert 0 < int(row["measured"]) <= 60 + 3 * 16 <= int(row["ways"])
        for level in LEVELS:
            assert float(row[f"{level}_search"]) >= 1
            assert 0.002 <= float(row[f"{level}_unproven"]) < 1
    with (tmp_path / "tiling" / "models.csv").open(newline="") as file:
        models = list(csv.DictReader(file))
    assert len({row["shape"] for row in models}) == 2
    assert "rank correlation on shapes that were kept back, without features of stages" in done.stdout
    for level in LEVELS:
        assert f"picked unmeasured, {level}, median over 2 shapes" in done.stdout
        assert f"search, {level}: " in done.stdout


def test_the_optimum_is_that_of_measuring_everything(tmp_path: Path) -> None:
    """tiny has few ways: with bounds, far fewer are measured, and nothing that was left out is faster than they say."""
    operator = Operator(network(str(save_model(Shape(48, 32, 6, 5, (3, 3), pads=(1, 1, 1, 1)), tmp_path)), "tiny"))
    found = exhaustive(operator, 1 << 30)
    everything = np.stack([operator.measure(i) for i in range(len(operator.bounds))])
    assert found.measured < len(everything)
    assert (everything.min(0) >= found.cycles * (1 - PROVEN)).all()
    assert (found.unproven == PROVEN).all()
    capped = exhaustive(operator, 8)
    assert capped.measured < 8 + len(LEVELS) * BATCH
    assert (everything.min(0) >= capped.cycles * (1 - capped.unproven) - 1).all()


def test_shapes_are_the_networks_own(tmp_path: Path) -> None:
    b = Builder(np.random.default_rng(0), (1, 24, 9, 8))
    onnx.save(b.model(b.conv("x", 40, stride=(2, 2))), tmp_path / "net.onnx")
    ((shape, networks),) = count_operators([str(tmp_path / "net.onnx")], "edge").items()
    assert isinstance(shape, Shape)
    assert (shape.c_in, shape.c_out, shape.kernel, shape.stride, shape.out) == (24, 40, (3, 3), (2, 2), (5, 4))
    assert networks == {str(tmp_path / "net.onnx"): 1}


def test_products_of_two_tensors_are_the_networks_own(tmp_path: Path) -> None:
    """Keys and values of BERT: the model of such a product alone has one operator, and it is the same."""
    target_graph = network("made:bert_base-small", "edge")
    specs = [spec for spec in target_graph.operators if isinstance(spec, MatMulSpec)]
    shapes = [operator_shape(target_graph, spec) for spec in specs]
    assert [str(shape) for shape in shapes] == ["2 x 32x32x32 T", "2 x 32x32x32"]
    for spec, shape in zip(specs, shapes, strict=True):
        assert shape is not None
        own = Operator(network(str(save_model(shape, tmp_path)), "edge"))
        assert own.target_graph.operators[0].signature(own.target_graph.storages) == spec.signature(target_graph.storages)
        assert len(own.target_graph.operators) == 1
        streamed = np.flatnonzero(own.space.points[:, 2] == 0)
        assert 0 < len(streamed) < len(own.space.points)
        i = int(streamed[len(streamed) // 2])
        assert (own.measure(i) >= own.bounds[i]).all()
