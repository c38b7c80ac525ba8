"""Names of networks: `light:squeezenet` is a file of the onnx package, `made:mobilenet_v2` is built on demand.

Both have the real architecture and shapes, but constant weights (one number each), which would check nothing: weights are drawn from a
seed unless the file itself is given by its path.  Quantised variants of both exist (`zoo.quantiser`).
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from simulator.npu.errors import BadInputError
from tuner.zoo import quantiser
from tuner.zoo.quantiser import MARK

PREFIX = "light:"
MADE = "made:"  # then a name of `builders`, with options
SEED = 0


def is_made(model: str | Path) -> bool:
    """Whether a model is the name of a built or quantised network, not a file."""
    return str(model).startswith(MADE) or is_quantised(model)


def is_quantised(model: str | Path) -> bool:
    """Whether a model is the name of a quantised network."""
    return str(model).startswith((MADE, PREFIX)) and MARK in str(model)


def model_title(model: Path) -> str:
    """Title of a model in logs and summaries: the file's name, or the network's name with its options."""
    return str(model).removeprefix(MADE).removeprefix(PREFIX) if is_made(model) else model.stem


def shipped_networks() -> dict[str, Path]:
    """Networks of the onnx package: name -> file, sorted by name.  Finds the package without importing it."""
    spec = find_spec("onnx")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec is not None else []
    files = [file for root in roots for file in (root / "backend/test/data/light").glob("light_*.onnx")]
    return {PREFIX + file.stem.removeprefix("light_").removeprefix("bvlc_"): file for file in sorted(files)}


def resolve_model(model: Path, random_weights: int | None) -> tuple[Path, int | None]:
    """Resolve a name to a file (or a network to build) and the seed of its weights; a path stays as it is.

    A quantised network's name contains its seed: weights drawn again would replace integers by floats.
    Raises `BadInputError` for an unknown name.
    """
    name = str(model)
    if is_quantised(model):
        parsed = quantiser.parse_quantised_name(name)
        resolve_model(Path(parsed.network), None)
        if random_weights is not None and parsed.weights not in (None, random_weights):
            raise BadInputError(f"{name}: weights of seed {parsed.weights}, and of seed {random_weights} are asked for; expected one seed")
        return Path(str(parsed if random_weights is None else parsed._replace(weights=random_weights))), None
    if is_made(model):
        from tuner.zoo.builders import parse_name  # onnx takes a second to import

        parse_name(name.removeprefix(MADE))
        return model, SEED if random_weights is None else random_weights
    if not name.startswith(PREFIX):
        return model, random_weights
    networks = shipped_networks()
    if name not in networks:
        raise BadInputError(
            f"{name}: no such network; expected one of {', '.join(networks) or 'none, this onnx package ships no networks'}"
        )
    return networks[name], SEED if random_weights is None else random_weights


def file_digest(model: Path) -> str:
    """Digest of the file in 32 hex digits, or the name of a built network.  Raises `BadInputError` for a missing file."""
    if is_made(model):
        return str(model)
    try:
        with model.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()[:32]
    except OSError as error:
        raise BadInputError(f"{model}: cannot be read: {error.strerror or error}") from None
