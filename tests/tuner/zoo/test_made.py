"""Networks that are built here: the sizes that their papers give, and values that float16 holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.macs import model_macs
from compiler.ir.interpret import evaluate
from simulator.npu.errors import BadInputError
from tests.models import random_feeds, reference_outputs
from tests.zoo_exports import FOLDER, node_lines
from tuner.cli import main
from tuner.measure.reopen import open_tuned
from tuner.zoo.builders import NETWORKS, build_network
from tuner.zoo.load import load_network
from tuner.zoo.names import model_title, resolve_model

# millions of parameters (statistics of BatchNormalization not counted) and of multiply-accumulates as published: torchvision's tables,
# Zoph et al. 2018 table 2, Xie et al. 2019 table 3 (mean of five wirings), Dosovitskiy et al. 2021 table 1, Devlin et al. 2019 (the
# encoder and the pooler are what is left of 110 without 24 of embeddings), SmolLM-135M's card (without 28 of embeddings; its products, and
# two of 256 tokens per layer), Xie et al. 2021 table 1, the tables of YOLOv8 (half of the FLOPs), Ho et al. 2020 appendix B and Fang et al.
# 2023 table 1, Whisper's checkpoint (the encoder of tiny; two convolutions, and in a layer 12 width^2 and two products with 1,500 tokens
# for each token)
PUBLISHED = {
    "efficientnet_b0": (5.3, 386, 0.01),
    "inception_v3": (23.8, 5713, 0.01),
    "mobilenet_v1": (4.2, 569, 0.02),
    "mobilenet_v2": (3.5, 301, 0.01),
    "nasnet_mobile": (5.3, 564, 0.02),
    "randwire": (5.6, 583, 0.10),
    "resnet50": (25.6, 4089, 0.01),
    "resnet101": (44.5, 7801, 0.01),
    "vit_b16": (86.6, 17560, 0.01),
    "bert_base": (85.6, 11174, 0.01),
    "llama": (106.2, 115, 0.01),
    "segformer": (3.8, 8400, 0.02),
    "unet": (35.7, 6100, 0.025),
    "whisper": (8.21, 18469, 0.01),
    "yolo": (3.2, 4350, 0.02),
}


def parameters(model: onnx.ModelProto) -> int:
    """Weights that are still to be drawn, without the mean and the variance of a BatchNormalization."""
    shapes = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    sizes = {node.output[0]: int(np.prod(shapes[node.input[0]])) for node in model.graph.node if node.op_type == "ConstantOfShape"}
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    return sum(size for name, size in sizes.items() if name not in statistics)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes_are_those_of_the_paper(name: str) -> None:
    million, macs, tolerance = PUBLISHED[name]
    model = prepare(build_network(name))
    assert parameters(model) / 1e6 == pytest.approx(million, rel=tolerance)
    assert model_macs(model) / 1e6 == pytest.approx(macs, rel=tolerance)


@pytest.mark.parametrize("name", [f"{name}-small" for name in sorted(NETWORKS)] + ["bert_base-small,lookup=1"])
def test_small_ones_are_valid_and_stay_within_float16(name: str) -> None:
    model = load_network(Path(f"made:{name}"), random_weights=0)
    onnx.checker.check_model(model, full_check=True)
    ends = {item.name for item in model.graph.output}
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    probed.graph.output.extend(onnx.ValueInfoProto(name=out) for node in model.graph.node for out in node.output if out not in ends)
    feeds = random_feeds(model)
    if "lookup" in name:
        feeds["input_ids"] = np.arange(32)[None]
        feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])
    values = reference_outputs(probed, feeds)
    assert all(np.isfinite(value).all() for value in values.values())
    assert max(float(np.abs(value).max()) for value in values.values()) < 2**15  # float16 holds twice that
    for end in ends:
        assert 0.3 < float(values[end].std()) < (100 if "yolo" in name else 5)  # boxes in pixels


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_nodes_are_those_of_an_export(file: Path) -> None:
    name = f"{file.stem}-small"
    assert node_lines(build_network(name)) == file.read_text().splitlines()
    model = load_network(Path(f"made:{name}"))
    (graph,), part = lower_partition(model)
    assert part.whole
    feeds = random_feeds(model)
    values = evaluate(graph, feeds)
    for output, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(values[output], expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max()))


def test_name_fixes_weights_and_a_seed_gives_others() -> None:
    path, seed = resolve_model(Path("made:mobilenet_v2-small"), None)
    first, again, other = (load_network(path, random_weights=s) for s in (seed, seed, 1))
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert [item.name for item in first.graph.initializer] == [item.name for item in other.graph.initializer]
    assert first.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)


def test_drawn_networks_are_those_of_their_seeds() -> None:
    """Each another one, the same every time; among a few there is every kind of block."""
    made = [build_network(f"drawn,seed={seed}") for seed in range(12)]
    assert len({model.SerializeToString(deterministic=True) for model in made}) == 12
    assert build_network("drawn,seed=3").SerializeToString(deterministic=True) == made[3].SerializeToString(deterministic=True)
    operators = {node.op_type for model in made for node in model.graph.node}
    assert operators >= {"Conv", "Add", "Concat", "Softmax", "MatMul", "MaxPool", "AveragePool", "Sigmoid", "Clip", "LayerNormalization"}
    groups = {a.i for model in made for node in model.graph.node for a in node.attribute if a.name == "group"}
    assert max(groups) > 1, "depthwise"
    for model in made:
        widths = [shape.dims[0] for shape in model.graph.initializer if len(shape.dims) == 1]
        assert widths
        assert model_macs(prepare(model)) < 3e9


def test_wirings_differ_by_their_seed() -> None:
    one, two = build_network("randwire-small"), build_network("randwire-small,graph=1")
    assert [list(node.input) for node in one.graph.node] != [list(node.input) for node in two.graph.node]


def test_options_override_those_of_the_small_variant() -> None:
    layers = [
        sum(node.op_type == "Softmax" for node in build_network(name).graph.node) for name in ("vit_b16-small", "vit_b16-small,layers=3")
    ]
    assert layers == [1, 3]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inception", "made:inception: no such network is made; expected one of bert_base, drawn, efficientnet_b0"),
        ("vit_b16,depth=2", "has no option 'depth'; expected some of size, layers"),
        ("vit_b16,layers=two", "layers 'two'; a number such as 12 is expected"),
    ],
)
def test_names_that_mean_nothing(name: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        load_network(Path(f"made:{name}"))
    assert main(["compile", f"made:{name}", "--machine", "edge", "--out", str(tmp_path / "o.onnx")]) == 2
    assert message in capsys.readouterr().err


def test_a_made_network_through_the_command_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    name = "made:mobilenet_v1-small,width=0.25"
    assert main(["tune", name, "--machine", "edge", "--out", str(run), "--candidates", "4", "--backend", "serial", "--quiet"]) == 0
    opened, saved = open_tuned(run)
    assert str(saved.source.model) == name
    assert opened.name == model_title(Path(name)) == "mobilenet_v1-small,width=0.25"
    assert model_macs(opened.model) == opened.target_graph.macs
    assert main(["run", str(run / "best.onnx"), "--input", "random", "--level", "none", "--check"]) == 0
