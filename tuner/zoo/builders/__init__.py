"""Networks built here, layer by layer, at their real sizes: `made:inception_v3`.

A name may carry options: `made:vit_b16,layers=2`.  `made:NAME-small` stands for the options of `Network.small`, a model for tests;
further options override them.  Options are the keyword arguments of the function that builds the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from onnx import ModelProto

from simulator.npu.errors import BadInputError
from tuner.zoo.builders.drawn import drawn
from tuner.zoo.builders.efficientnet import efficientnet_b0
from tuner.zoo.builders.inception import inception_v3
from tuner.zoo.builders.llama import llama
from tuner.zoo.builders.mobilenet import mobilenet_v1, mobilenet_v2
from tuner.zoo.builders.nasnet import nasnet_mobile
from tuner.zoo.builders.randwire import randwire
from tuner.zoo.builders.resnet import resnet50, resnet101
from tuner.zoo.builders.segformer import segformer
from tuner.zoo.builders.transformer import bert_base, vit_b16
from tuner.zoo.builders.unet import unet
from tuner.zoo.builders.whisper import whisper
from tuner.zoo.builders.yolo import yolo

SMALL = "-small"
Options = Mapping[str, int | float]


class Network(NamedTuple):
    """Named network.  build: keyword options -> a model without weights.  small: options of its small variant."""

    build: Callable[..., ModelProto]
    small: Options


NETWORKS: dict[str, Network] = {
    "bert_base": Network(bert_base, {"tokens": 32, "layers": 1, "width": 64, "heads": 2, "vocabulary": 100}),
    "drawn": Network(drawn, {"size": 32, "blocks": 3, "widest": 64, "classes": 10}),
    "efficientnet_b0": Network(efficientnet_b0, {"size": 64, "width": 0.25, "classes": 10}),
    "inception_v3": Network(inception_v3, {"size": 75, "width": 0.125, "classes": 10}),
    "llama": Network(llama, {"past": 15, "layers": 1, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 96}),
    "mobilenet_v1": Network(mobilenet_v1, {"size": 64, "width": 0.25, "classes": 10}),
    "mobilenet_v2": Network(mobilenet_v2, {"size": 64, "width": 0.25, "classes": 10}),
    "nasnet_mobile": Network(nasnet_mobile, {"size": 64, "filters": 12, "repeats": 1, "classes": 10}),
    "randwire": Network(randwire, {"size": 64, "nodes": 8, "channels": 20, "classes": 10}),
    "resnet50": Network(resnet50, {"size": 64, "width": 0.25, "classes": 10}),
    "resnet101": Network(resnet101, {"size": 64, "width": 0.25, "classes": 10}),
    "segformer": Network(segformer, {"size": 64, "width": 16, "layers": 1, "decoder": 32, "classes": 10}),
    "unet": Network(unet, {"size": 16, "width": 32, "repeats": 1, "groups": 8}),
    "vit_b16": Network(vit_b16, {"size": 64, "layers": 1, "width": 64, "heads": 2, "classes": 10}),
    "whisper": Network(whisper, {"frames": 64, "mels": 16, "layers": 1, "width": 64, "heads": 2}),
    "yolo": Network(yolo, {"size": 64, "width": 8, "repeats": 1, "classes": 10}),
}


def build_network(name: str) -> ModelProto:
    """Build the model without weights for a name (without `made:`).  Raises `BadInputError` for an unknown name."""
    return parse_name(name)()


def parse_name(name: str) -> Callable[[], ModelProto]:
    """Parse a name to a function that builds its model.  Raises `BadInputError` for an unknown network or option."""
    base, *pairs = name.split(",")
    network = NETWORKS.get(base.removesuffix(SMALL))
    if network is None:
        raise BadInputError(f"made:{name}: no such network is made; expected one of {', '.join(NETWORKS)}, or one of them with {SMALL}")
    defaults = {key: item.default for key, item in inspect.signature(network.build).parameters.items()}
    options: dict[str, int | float] = dict(network.small) if base.endswith(SMALL) else {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        if key not in defaults:
            raise BadInputError(f"made:{name}: {base} has no option {key!r}; expected some of {', '.join(defaults)}")
        try:
            options[key] = type(defaults[key])(text)
        except ValueError:
            raise BadInputError(f"made:{name}: {key} {text!r}; a number such as {defaults[key]} is expected") from None
    return partial(network.build, **options)
