"""Values reach the lanes that the memory map names and come back from there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.host_layout import load_input, read_blocks, read_output
from simulator.npu.errors import BadInputError
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType
from simulator.npu.program import DdrBuffer
from tests.messages import naming
from tests.simulator.micro import TYPES, look

AT = 3


def storage(buffer: DdrBuffer) -> np.ndarray:
    """DDR full of ones, so that what is not written shows."""
    return np.full((AT + buffer.size_blocks + 2) * BLOCK_BYTES, 1, np.uint8)


def buffer_of(shape, lanes, planes, pixel_lanes, blocks) -> DdrBuffer:
    return DdrBuffer("b", "input", AT, blocks, shape, shape, tuple(lanes), pixel_lanes, planes)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_round_trip(data):
    """Any map of channels to lanes: values come back rounded to the data type, all other lanes are zero, nothing else changes."""
    dtype = data.draw(st.sampled_from(DataType))
    n, h, w = (data.draw(st.integers(1, limit)) for limit in (2, 4, 9))
    four = dtype in (DataType.float16, *BYTES) and data.draw(st.booleans())
    planes = 1 if four else data.draw(st.integers(1, 3))
    capacity = 4 if four else planes * dtype.lanes
    lanes = data.draw(st.permutations(range(capacity)))[: data.draw(st.integers(1, capacity))]
    blocks = n * h * -(-w // (dtype.lanes // 4)) if four else n * planes * h * w
    order = tuple(data.draw(st.permutations(range(4))))
    buffer = replace(buffer_of((n, len(lanes), h, w), lanes, planes, 4 if four else dtype.lanes, blocks), order=order)
    ddr = storage(buffer)
    array = np.random.default_rng(0).standard_normal([buffer.shape[axis] for axis in order]).astype(np.float32) + 10
    array = array if dtype.is_float else array.astype(dtype.storage)
    load_input(ddr, buffer, array, dtype)
    narrow = TYPES[int(dtype)]
    out = read_output(ddr, buffer, dtype)
    assert out.dtype == (np.float32 if dtype.is_float else narrow)
    np.testing.assert_array_equal(out, array.astype(narrow).astype(out.dtype))
    if not four:  # the last pixel of channel 0, found by hand
        plane, lane = divmod(lanes[0], dtype.lanes)
        pixel = [0 if axis < 2 else -1 for axis in order]
        assert ddr[AT * BLOCK_BYTES :].view(narrow)[((plane + 1) * h * w - 1) * dtype.lanes + lane] == narrow(array[tuple(pixel)])
    inside = ddr[AT * BLOCK_BYTES : (AT + blocks) * BLOCK_BYTES].view(narrow)
    assert np.count_nonzero(inside) == array.size
    assert (ddr[: AT * BLOCK_BYTES] == 1).all()
    assert (ddr[(AT + blocks) * BLOCK_BYTES :] == 1).all()
    # the blocks that count as read are those with a value in them
    used = inside.reshape(blocks, -1).any(axis=1)
    np.testing.assert_array_equal(read_blocks(buffer, dtype), used)


def test_places_of_planes_and_lanes():
    """Channel 1 in lane 17: plane 1, lane 1."""
    buffer = buffer_of((1, 2, 2, 3), (4, 17), 2, 16, 12)
    ddr = storage(buffer)
    array = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
    load_input(ddr, buffer, array, DataType.float16)
    planes = look(ddr, AT, (2, 2, 3, 16), np.float16)
    np.testing.assert_array_equal(planes[0, :, :, 4], array[0, 0])
    np.testing.assert_array_equal(planes[1, :, :, 1], array[0, 1])


def test_four_lane_image_has_four_pixel_pitch():
    buffer = buffer_of((1, 3, 2, 5), (0, 1, 2), 1, 4, 4)
    ddr = storage(buffer)
    array = np.arange(1, 31, dtype=np.float32).reshape(1, 3, 2, 5)
    load_input(ddr, buffer, array, DataType.float16)
    pixels = look(ddr, AT, (2, 8, 4), np.float16)
    np.testing.assert_array_equal(pixels[:, :5, :3], array[0].transpose(1, 2, 0))
    assert not pixels[:, 5:].any()
    assert not pixels[:, :, 3].any()


def test_beyond_float16_is_infinity():
    buffer = buffer_of((1, 1, 1, 1), (0,), 1, 16, 1)
    ddr = storage(buffer)
    load_input(ddr, buffer, np.array([1e6]), DataType.float16)
    assert np.isposinf(read_output(ddr, buffer, DataType.float16)).all()


@pytest.mark.parametrize(("dtype", "given"), [(DataType.int8, np.float32), (DataType.uint8, np.int8), (DataType.float16, np.int8)])
def test_integers_are_of_their_own_type(dtype, given):
    buffer = buffer_of((1, 1, 1, 1), (0,), 1, dtype.lanes, 1)
    with pytest.raises(BadInputError, match=f"input 'b': found {np.dtype(given)}, expected {dtype.name}"):
        load_input(storage(buffer), buffer, np.zeros(1, given), dtype)


def test_what_does_not_fit_is_refused():
    good = buffer_of((1, 2, 1, 3), (0, 1), 1, 16, 3)
    ddr = storage(good)
    with pytest.raises(BadInputError, match=naming("[2, 2]", "[1, 2, 1, 3]")):
        load_input(ddr, good, np.zeros((2, 2)), DataType.float16)
    with pytest.raises(BadInputError, match="does not fit 2 blocks"):
        read_output(ddr, buffer_of((1, 2, 1, 3), (0, 1), 1, 16, 2), DataType.float16)
    with pytest.raises(BadInputError, match=r"lanes 0\.\.16, expected 0\.\.15"):
        read_output(ddr, buffer_of((1, 2, 1, 3), (0, 16), 1, 16, 3), DataType.float16)
    with pytest.raises(BadInputError, match="1 lanes for 2 channels"):
        read_output(ddr, buffer_of((1, 2, 1, 3), (0,), 1, 16, 3), DataType.float16)
