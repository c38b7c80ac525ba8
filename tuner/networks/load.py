"""A model by its path or by a name, as the compiler takes it in."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from compiler.frontend import load_model
from compiler.frontend.load import Shapes
from tuner.networks.made import build
from tuner.networks.zoo import MADE, is_made, resolve


def load_network(model: Path, shapes: Shapes | None = None, *, random_weights: int | None = None) -> ModelProto:
    """`load_model` of what `resolve` finds.  Raises `BadInputError`."""
    found, seed = resolve(model, random_weights)
    given = build(str(found).removeprefix(MADE)) if is_made(found) else found
    return load_model(given, shapes, random_weights=seed, where=str(found))
