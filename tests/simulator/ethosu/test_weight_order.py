"""The order of weights in a stream, against loops that count one weight after the other, and records of scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.scale_records import RECORD_BYTES, read_scales
from simulator.ethosu.stream_error import StreamError
from simulator.ethosu.weight_order import KernelShape, kernel_of_stream, stream_places


def up(count: int, step: int) -> int:
    return (count + step - 1) // step * step


def counted(shape: KernelShape) -> list[tuple[int, int, int, int] | None]:
    """The kernel's element of each weight of a stream, None for padding."""
    out: list[tuple[int, int, int, int] | None] = []
    deep = 16 if shape.part_kernel_first or shape.input_bits == 16 else 32
    for block in range(0, shape.outputs, shape.block):
        for source in range(0, 1 if shape.depthwise else shape.inputs, deep):
            for row in range(0, shape.rows, 8 // shape.dilation_rows):
                for column in range(0, shape.columns, 8 // shape.dilation_columns):
                    high, wide = min(8 // shape.dilation_rows, shape.rows - row), min(8 // shape.dilation_columns, shape.columns - column)
                    taps = high * wide
                    if shape.part_kernel_first:
                        taps = up(taps, 2 if shape.input_bits == 16 else 4)
                        outside, inside = range(0, min(deep, shape.inputs - source), 8), range(1)
                    elif shape.depthwise:
                        taps, outside, inside = up(taps, 4), range(1), range(1)
                    else:
                        outside, inside = range(1), range(0, deep, 8)
                    for group in outside:
                        for results in range(0, min(shape.block, shape.outputs - block), 8):
                            for tap in range(taps):
                                for inner in inside:
                                    for result in range(8):
                                        for lane in range(1 if shape.depthwise else 8):
                                            y, x = divmod(tap, wide)
                                            place = (block + results + result, row + y, column + x, source + group + inner + lane)
                                            real = place[0] < shape.outputs and y < high and place[3] < shape.inputs
                                            out.append(place if real else None)
    return out


shapes = st.builds(
    lambda depthwise, part, inputs, **rest: KernelShape(
        inputs=1 if depthwise else inputs, depthwise=depthwise, part_kernel_first=part and not depthwise, **rest
    ),
    depthwise=st.booleans(), part=st.booleans(), inputs=st.integers(1, 40), outputs=st.integers(1, 30), rows=st.integers(1, 10),
    columns=st.integers(1, 10), block=st.sampled_from([8, 16, 24, 64]), input_bits=st.sampled_from([8, 16]),
    dilation_rows=st.integers(1, 2), dilation_columns=st.integers(1, 2),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(shapes)
def test_places_are_those_of_the_loops(shape):
    size = (shape.outputs, shape.rows, shape.columns, shape.inputs)
    expected = [-1 if place is None else int(np.ravel_multi_index(place, size)) for place in counted(shape)]
    assert stream_places(shape).tolist() == expected
    kernel = np.arange(1, np.prod(size) + 1).astype(np.int16)
    flat = np.append(kernel, 0)[expected]
    assert np.array_equal(kernel_of_stream(flat, shape), kernel.reshape(size))


def test_another_number_of_weights_is_refused():
    shape = KernelShape(3, 3, 3, 5, 8, False, False, 8, 1, 1)
    with pytest.raises(StreamError, match="10 weights: expected 2304 for 3x3x3x5"):
        kernel_of_stream(np.zeros(10, np.int16), shape)
    with pytest.raises(StreamError, match="a kernel of 60000x64x64x1 weights"):
        kernel_of_stream(np.zeros(10, np.int16), shape._replace(outputs=60000, rows=64, columns=64, inputs=1))


@given(st.lists(st.tuples(st.integers(-(2**39), 2**39 - 1), st.integers(0, 2**32 - 1), st.integers(0, 63)), min_size=1, max_size=20))
def test_scales_are_read_as_packed(records):
    data = b"".join((bias & (1 << 40) - 1 | factor << 40 | shift << 72).to_bytes(RECORD_BYTES, "little") for bias, factor, shift in records)
    assert list(zip(*(column.tolist() for column in read_scales(data + b"\xff" * 6, len(records))), strict=True)) == records
    with pytest.raises(StreamError, match="expected at least"):
        read_scales(data[:-1], len(records))
    with pytest.raises(StreamError, match="channel 0: reserved bits"):
        read_scales(data[:9] + b"\xff" + data[10:], len(records))
