"""Quantised networks under a name: what `tilefarm quantize` would make of the float one, kept, and everywhere a model may be named."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from simulator.npu.errors import BadInputError
from tuner.zoo import quantised_cache
from tuner.zoo.load import load_network
from tuner.zoo.names import is_made, model_title, resolve_model
from tuner.zoo.quantise import quantise_model, random_samples
from tuner.zoo.quantised_cache import SAMPLES, cache_folder
from tuner.zoo.quantiser import Quantiser, parse_quantised_name

SMALL = "made:mobilenet_v2-small"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def test_quantised_name_is_the_quantiser_over_float_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{SMALL},quantised=qop,activations=int8,per_channel=1"
    found = load_network(name, random_weights=3)
    model = load_network(SMALL, random_weights=3)
    expected = quantise_model(model, random_samples(model, SAMPLES, 3), Quantiser("qop", "int8", True))
    assert [node.op_type for node in found.graph.node] == [n.op_type for n in onnx.load_model_from_string(expected).graph.node]
    (file,) = folder.iterdir()
    assert file.read_bytes() == expected
    monkeypatch.setattr(quantised_cache, "quantise_model", None)  # not made again
    assert load_network(f"{name},weights=3") == found
    with pytest.raises(TypeError):
        load_network(name, random_weights=4)


def test_names_are_those_of_no_file() -> None:
    name = Path(f"{SMALL},quantised=qdq")
    assert resolve_model(name, None) == (name, None)
    seeded, seed = resolve_model(name, 7)
    assert (str(seeded), seed) == (f"{name},weights=7", None)
    assert resolve_model(seeded, None) == resolve_model(seeded, 7) == (seeded, None)
    assert is_made(name)
    assert model_title(seeded) == "mobilenet_v2-small,quantised=qdq,weights=7"
    assert model_title(Path("light:squeezenet,quantised=qdq")) == "squeezenet,quantised=qdq"
    assert parse_quantised_name(str(seeded)).quantiser == Quantiser()
    assert not is_made(Path("mine,quantised=qdq.onnx"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{SMALL},quantised=int8", "quantised 'int8'; expected qdq or qop"),
        (f"{SMALL},quantised=qdq,width=1", "'width=1'; expected, once each, some of activations=, per_channel=, weights="),
        (f"{SMALL},quantised=qdq,weights=1,weights=1", "'weights=1'; expected, once each"),
        (f"{SMALL},quantised=qdq,activations=int4", "activations 'int4'; expected uint8 or int8"),
        (f"{SMALL},quantised=qdq,per_channel=", "per_channel ''; expected 0 or 1"),
        (f"{SMALL},quantised=qdq,weights=-1", "weights '-1'; expected a seed, a number from 0 on"),
        ("made:resnet,quantised=qdq", "no such network is made"),
        ("light:resnet,quantised=qdq", "light:resnet: no such network"),
        (f"{SMALL},quantised=qdq,weights=1", "weights of seed 1, and of seed 2 are asked for"),
    ],
)
def test_what_a_name_must_not_say(name: str, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        resolve_model(Path(name), 2)
