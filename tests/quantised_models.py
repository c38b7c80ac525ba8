"""Samples for networks that tests quantise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from tuner.networks.quantise import inputs_of


def samples_of(model: ModelProto, count: int, seed: int) -> dict[str, NDArray[Any]]:
    """Normal values for inputs of floats, and integers below 100 for others: [count, ...] each."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, 1, (count, *shape)) if dtype.kind == "f" else rng.integers(0, 100, (count, *shape))).astype(dtype)
        for name, (dtype, shape) in inputs_of(model).items()
    }
