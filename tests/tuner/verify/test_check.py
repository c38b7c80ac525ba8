"""How far values are from onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.npu.parts import DataType
from tuner.verify.values import relative_error


def test_errors_before_a_softmax():
    logits = np.array([1.0, -2.0, 4.0, -9.0])
    p = np.exp(logits) / np.exp(logits).sum()
    off = logits + np.array([0, 0.4, 0, 0])
    q = np.exp(off) / np.exp(off).sum()
    found = relative_error(q, p, DataType.float32, 9.0)
    assert found == pytest.approx(0.4 / 9, rel=0.02)
    # below the smallest normal float16 nothing is compared, above it everything
    assert relative_error(p * [1, 1, 1, 0.5], p, DataType.float16, 9.0) == 0.0
    assert relative_error(p * [1, 1, 1, 1e4], p, DataType.float16, 9.0) > 0.1
    assert relative_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]), DataType.float16) == 0.5
    assert relative_error(np.zeros(2), np.zeros(2), DataType.float16) == 0.0
    assert np.isnan(relative_error(np.array([1.0, np.nan]), np.array([1.0, 4.0]), DataType.float16))
    assert np.isnan(relative_error(np.array([np.nan, 1.0]), np.array([0.5, 0.5]), DataType.float16, 1.0))
