"""Quantised networks by their names: made by onnxruntime's quantiser from seeded samples, once, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from onnx import ModelProto

from compiler.frontend.onnx_io.load import model_digest
from simulator.npu.files import atomic_write
from simulator.npu.own_folders import forget_old, private_folder, user_cache
from tuner.zoo import quantise
from tuner.zoo.quantise import quantised, random_samples
from tuner.zoo.quantiser import QuantisedName

SAMPLES = 4  # that ranges are taken from


def quantised_network(model: ModelProto, name: QuantisedName, seed: int) -> bytes:
    """The file of a network whose float model, with weights, is given.  Raises `BadInputError`.

    What is kept is of the same float model, name, samples and versions.  Where nothing can be kept it is made again.
    """
    import onnxruntime

    how = Path(quantise.__file__).read_text()  # what is done to a model before the quantiser sees it
    what = " ".join([str(name), model_digest(model), str(SAMPLES), str(seed), onnxruntime.__version__, how])
    kept = cache_folder() / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.onnx"
    with suppress(OSError):
        found = kept.read_bytes()
        os.utime(kept)
        return found
    made = quantised(model, random_samples(model, SAMPLES, seed), name.how, str(name))
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        forget_old(kept.parent.glob("*.onnx"))  # a network takes as many bytes as it has weights
        atomic_write(kept, [made])
    return made


def cache_folder() -> Path:
    """Raises `BadInputError` for a user without a home whose temporary folder is not to be had."""
    return (user_cache() or private_folder()) / "quantised"
