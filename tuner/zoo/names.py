"""Networks at hand under a name: `light:squeezenet` is a file that the onnx package ships, `made:mobilenet_v2` is built on the spot.

Both have the real architecture and shapes, but their weights are constants (one number each), which would check nothing: weights
are drawn from a seed unless the file itself is named by its path.  Both are there quantised as well (`zoo.quantiser`).
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from simulator.npu.errors import BadInputError
from tuner.zoo import quantiser
from tuner.zoo.quantiser import MARK

PREFIX = "light:"
MADE = "made:"  # then a name of `made`, with options
SEED = 0


def is_made(model: str | Path) -> bool:
    """Whether a model is a name, of a made or a quantised network, and no file."""
    return str(model).startswith(MADE) or is_quantised(model)


def is_quantised(model: str | Path) -> bool:
    """Whether a model is the name of a quantised network."""
    return str(model).startswith((MADE, PREFIX)) and MARK in str(model)


def title(model: Path) -> str:
    """What a model is called in logs and summaries: its file's name, or that of a network with its options."""
    return str(model).removeprefix(MADE).removeprefix(PREFIX) if is_made(model) else model.stem


def shipped() -> dict[str, Path]:
    """Name -> file, sorted by name.  Finds the onnx package without importing it."""
    spec = find_spec("onnx")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [file for root in roots for file in (root / "backend/test/data/light").glob("light_*.onnx")]
    return {PREFIX + file.stem.removeprefix("light_").removeprefix("bvlc_"): file for file in sorted(files)}


def resolve(model: Path, random_weights: int | None) -> tuple[Path, int | None]:
    """File (or name of what is made) and seed of the weights; a path stays as it is.

    A quantised network's name has its seed: to draw its weights again would take integers for floats.
    Raises `BadInputError` for a name that stands for nothing.
    """
    name = str(model)
    if is_quantised(model):
        asked = quantiser.understood(name)
        resolve(Path(asked.network), None)
        if random_weights is not None and asked.weights not in (None, random_weights):
            raise BadInputError(f"{name}: weights of seed {asked.weights}, and of seed {random_weights} are asked for; expected one seed")
        return Path(str(asked if random_weights is None else asked._replace(weights=random_weights))), None
    if is_made(model):
        from tuner.zoo.builders import understood  # onnx takes a second to import

        understood(name.removeprefix(MADE))
        return model, SEED if random_weights is None else random_weights
    if not name.startswith(PREFIX):
        return model, random_weights
    found = shipped()
    if name not in found:
        raise BadInputError(f"{name}: no such network; expected one of {', '.join(found) or 'none, this onnx package ships no networks'}")
    return found[name], SEED if random_weights is None else random_weights


def file_digest(model: Path) -> str:
    """32 hex digits over the file, or the name of a built network.  Raises `BadInputError` where there is none."""
    if is_made(model):
        return str(model)
    try:
        with model.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()[:32]
    except OSError as error:
        raise BadInputError(f"{model}: cannot be read: {error.strerror or error}") from None
