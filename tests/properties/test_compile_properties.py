"""Random model x random plan x machine x data type: a readable refusal, or a program of which everything holds."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.parts import DataType
from tests.corner_models import CORNER_MODELS, corner_model
from tests.everywhere import MACHINES, hold
from tests.models import SMALL_MODELS, random_model, small_model


@pytest.mark.parametrize(
    ("dtype", "i"),
    [
        ("float16", 0),
        ("float32", 1),
        pytest.param("float16", 1, marks=pytest.mark.slow),
        pytest.param("float32", 0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", list(CORNER_MODELS))
def test_corners(name: str, dtype: str, i: int) -> None:
    """Each on two machines, in one data type on either; slow: in the other."""
    machine = MACHINES[list(MACHINES)[(list(CORNER_MODELS).index(name) + i) % len(MACHINES)]]
    assert hold(corner_model(name), machine, DataType[dtype], seed=i)


@pytest.mark.parametrize("seed", range(30))
def test_random_models(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    machine = list(MACHINES.values())[int(rng.integers(len(MACHINES)))]
    names = list(SMALL_MODELS)
    model = small_model(names[seed % len(names)], seed) if seed % 4 == 0 else random_model(seed)
    hold(model, machine, DataType(int(rng.integers(2))), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 430))
def test_more_random_models(seed: int) -> None:
    test_random_models(seed)
