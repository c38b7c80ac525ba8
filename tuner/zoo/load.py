"""Loading of a model by path or name, for the compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from compiler.frontend import load_model
from compiler.frontend.onnx_io.load import Shapes, check_session
from compiler.frontend.partition.partition import AllOnHostError
from compiler.model import LoweredModel, ModelSpec, lower_model
from tuner.zoo import quantiser
from tuner.zoo.builders import build_network
from tuner.zoo.names import MADE, SEED, is_made, is_quantised, model_title, resolve_model
from tuner.zoo.quantised_cache import quantised_network


def load_network(model: str | Path, shapes: Shapes | None = None, *, random_weights: int | None = None) -> ModelProto:
    """Load a model by `load_model` after `resolve_model`.  Raises `BadInputError`."""
    path, seed = resolve_model(Path(model), random_weights)
    return load_model(_build_or_find(path) or path, shapes, random_weights=seed, where=str(path))


def open_network(source: ModelSpec) -> LoweredModel:
    """Lower a model by `lower_model` after `resolve_model`; the result's source has the resolved path.

    Raises as `lower_model`, and `BadInputError` for a file that onnxruntime does not load.
    """
    path, seed = resolve_model(source.model, source.random_weights)
    built = _build_or_find(path)
    try:
        lowered = lower_model(replace(source, model=path, random_weights=seed), built, model_title(path))
    except AllOnHostError as on_host:
        if built is None:
            check_session(on_host.part.model, str(path))
        raise
    if built is None:
        check_session(lowered.model, str(path))
    return lowered


def _build_or_find(path: Path) -> ModelProto | bytes | None:
    """Built network, or the file of a quantised one; None for a path of a file."""
    if is_quantised(path):
        name = quantiser.parse_quantised_name(str(path))
        seed = SEED if name.weights is None else name.weights
        return quantised_network(load_network(name.network, random_weights=seed), name, seed)
    return build_network(str(path).removeprefix(MADE)) if is_made(path) else None
