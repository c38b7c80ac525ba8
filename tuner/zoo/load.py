"""A model by its path or by a name, as the compiler takes it in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from compiler.frontend import load_model
from compiler.frontend.onnx_io.load import Shapes, check_session
from compiler.frontend.partition.partition import AllOnHostError
from compiler.model import LoweredModel, ModelSpec, lower_model
from tuner.zoo import quantiser
from tuner.zoo.builders import build
from tuner.zoo.names import MADE, SEED, is_made, is_quantised, resolve, title
from tuner.zoo.quantised_cache import quantised_network


def load_network(model: str | Path, shapes: Shapes | None = None, *, random_weights: int | None = None) -> ModelProto:
    """`load_model` of what `resolve` finds.  Raises `BadInputError`."""
    found, seed = resolve(Path(model), random_weights)
    return load_model(_built(found) or found, shapes, random_weights=seed, where=str(found))


def open_network(source: ModelSpec) -> LoweredModel:
    """`open_source` of what `resolve` finds, which the source of the answer names.

    Raises as `open_source`, and `BadInputError` for a file that onnxruntime does not load.
    """
    found, seed = resolve(source.model, source.random_weights)
    built = _built(found)
    try:
        opened = lower_model(replace(source, model=found, random_weights=seed), built, title(found))
    except AllOnHostError as nothing:
        if built is None:
            check_session(nothing.part.model, str(found))
        raise
    if built is None:
        check_session(opened.model, str(found))
    return opened


def _built(found: Path) -> ModelProto | bytes | None:
    """A made network, or the file of a quantised one; None for a file."""
    if is_quantised(found):
        asked = quantiser.understood(str(found))
        seed = SEED if asked.weights is None else asked.weights
        return quantised_network(load_network(asked.network, random_weights=seed), asked, seed)
    return build(str(found).removeprefix(MADE)) if is_made(found) else None
