"""Small `.tflite` files, inputs, and LiteRT's outputs, which `scripts/run_ethosu_streams.py --models` has written.

Those named `tensorflow_*`: `python scripts/tflite_of.py tests/golden/tensorflow/NAME.json NAME.tflite`, then `--add NAME.tflite`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.scripting import ROOT

FILE = ROOT / "tests" / "golden" / "ethosu_models.npz"


class Model(NamedTuple):
    """A file with one input for each of its inputs, and the outputs."""

    name: str
    data: bytes
    inputs: list[NDArray[Any]]
    outputs: list[NDArray[Any]]


@cache
def models() -> list[Model]:
    """All of them."""
    with np.load(FILE) as file:
        names = json.loads(file["names"].tobytes())
        return [
            Model(name, file[f"model{number}"].tobytes(), *(_arrays(file, side, number) for side in ("input", "output")))
            for number, name in enumerate(names)
        ]


def model(name: str) -> Model:
    """One by its name."""
    return next(item for item in models() if item.name == name)


def _arrays(file: Any, side: str, number: int) -> list[NDArray[Any]]:
    count = sum(key.startswith(f"{side}{number}_") for key in file.files)
    return [file[f"{side}{number}_{index}"] for index in range(count)]
