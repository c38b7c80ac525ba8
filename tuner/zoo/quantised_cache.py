"""Cache of quantised networks by name: quantised by onnxruntime from seeded samples, once, in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from onnx import ModelProto

from compiler.frontend.onnx_io.load import model_digest
from simulator.npu.files import atomic_write
from simulator.npu.own_folders import private_folder, remove_old, user_cache
from tuner.zoo import quantise
from tuner.zoo.quantise import quantise_model, random_samples
from tuner.zoo.quantiser import QuantisedName

SAMPLES = 4  # for the ranges


def quantised_network(model: ModelProto, name: QuantisedName, seed: int) -> bytes:
    """Quantised file of a network.  model: the float model with weights.  Raises `BadInputError`.

    A cached file has the same float model, name, samples and versions.  Without a writable cache the file is made every time.
    """
    import onnxruntime

    source_text = Path(quantise.__file__).read_text()  # source of the steps before the quantiser
    key = " ".join([str(name), model_digest(model), str(SAMPLES), str(seed), onnxruntime.__version__, source_text])
    path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.onnx"
    with suppress(OSError):
        content = path.read_bytes()
        os.utime(path)
        return content
    encoded = quantise_model(model, random_samples(model, SAMPLES, seed), name.quantiser, str(name))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_old(path.parent.glob("*.onnx"))  # a network takes as many bytes as it has weights
        atomic_write(path, [encoded])
    return encoded


def cache_folder() -> Path:
    """Folder of the cache.  Raises `BadInputError` for a user without a home and without an own temporary folder."""
    return (user_cache() or private_folder()) / "quantised"
