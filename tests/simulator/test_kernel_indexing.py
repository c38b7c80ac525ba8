"""Elements of arrays in kernels are those that numpy reads and writes, whatever the layout, the types and the signs of indices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numba import njit

import simulator  # noqa: F401  its kernels index so


@njit
def exchange_1(array: Any, i: Any, value: Any) -> Any:
    before = array[i]
    array[i] = value
    return before


@njit
def exchange_2(array: Any, i: Any, j: Any, value: Any) -> Any:
    before = array[i, j]
    array[i, j] = value
    return before


@njit
def exchange_3(array: Any, i: Any, j: Any, k: Any, value: Any) -> Any:
    before = array[i, j, k]
    array[i, j, k] = value
    return before


@njit
def exchange_last(array: Any, value: Any) -> Any:
    before = array[-1], array[2]
    array[-1] = value
    array[2] = value
    return before


@njit
def take_out(array: Any, i: Any) -> Any:
    row = array[i]
    row[:] = 7
    return row.copy()


EXCHANGES = {1: exchange_1, 2: exchange_2, 3: exchange_3}
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "A": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32, np.bool_])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", EXCHANGES)
def test_elements(axes: int, layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(axes)
    shape = (3, 4, 5)[:axes]
    array: Any = LAYOUTS[layout](rng.integers(0, 2 if dtype is np.bool_ else 100, shape).astype(dtype))
    expected = array.copy()
    for number, index in enumerate(itertools.product(*(range(-size, size) for size in shape))):
        kinds = [kind(i) if i >= 0 or kind is not np.uint32 else i for kind, i in zip((np.int64, np.uint32, np.int32), index, strict=False)]
        value = dtype(number % 2 if dtype is np.bool_ else number % 100)
        assert EXCHANGES[axes](array, *kinds, value) == expected[index]
        expected[index] = value
    assert (array == expected).all()


def test_constant_indices_and_rows() -> None:
    array = np.arange(5)
    assert exchange_last(array, 9) == (4, 2)
    assert array.tolist() == [0, 1, 9, 3, 9]
    table = np.arange(12).reshape(3, 4)
    assert take_out(table, -1).tolist() == [7] * 4
    assert table[2].tolist() == [7] * 4


@njit
def assign(array: Any, other: Any) -> None:
    array[1:] = other


def test_slice_of_another_size() -> None:
    with pytest.raises(ValueError, match="cannot assign slice from input of different size"):
        assign(np.arange(4), np.arange(2))
