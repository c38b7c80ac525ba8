"""The reader of weight streams against a writer of them; damaged streams are refused, or read as other weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.stream_error import StreamError
from simulator.ethosu.weight_stream import decode_weights
from tests.simulator.ethosu.streams import refusal
from tests.simulator.ethosu.weight_writer import Bits, Slice, weights_of, write_slice


@st.composite
def slices(draw, first: bool, runs: bool, palette: list[int], offset: int) -> Slice:
    count = draw(st.integers(1, 60))
    renewed = first or draw(st.booleans())
    bits = draw(st.integers(2, 9))
    if renewed:
        size = draw(st.sampled_from([0, 2, 3, 5, 16, 32]))
        palette = draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=size, max_size=size))
        offset = draw(st.integers(0, 31))
    raw, truncated = draw(st.booleans()) and renewed, draw(st.booleans())
    divisor = draw(st.integers(0, 5))
    if raw:
        divisor = (len(palette) - 1).bit_length() if palette else bits
    top = (1 << divisor) - 1 if raw else 3 * (1 << divisor) - 1 if truncated else min(40 << divisor, 480)
    indices = draw(st.lists(st.integers(0, min(top, 480)), min_size=count, max_size=count))
    zeros = draw(st.lists(st.integers(0, 30), min_size=count + renewed, max_size=count + renewed)) if runs else None
    return Slice(indices, zeros, divisor, truncated, raw, draw(st.integers(0, 3)), palette if renewed else None, offset, bits)


@st.composite
def streams(draw) -> tuple[bytes, list[int]]:
    bits, weights = Bits(), list[int]()
    runs, palette, offset = draw(st.booleans()), [], 0
    for number in range(draw(st.integers(1, 4))):
        part = draw(slices(number == 0, runs, palette, offset))
        if part.palette is not None:
            palette, offset = part.palette, part.offset
        write_slice(bits, part)
        weights += weights_of(part, palette, offset)
    return bits.data(), weights


@settings(max_examples=60, deadline=None)
@given(streams())
def test_a_written_stream_is_read(stream):
    data, weights = stream
    assert decode_weights(data).tolist() == weights


@settings(max_examples=40, deadline=None)
@given(streams(), st.data())
def test_a_damaged_stream_is_refused_or_read(stream, data):
    damaged = bytearray(stream[0])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    message = refusal(lambda: decode_weights(bytes(damaged)))
    if message is None:
        weights = decode_weights(bytes(damaged))
        assert np.abs(weights.astype(int)).max(initial=0) <= 511
    else:
        assert "\n" not in message
        assert "weight stream" in message


def test_parts_that_no_stream_may_have():
    good = Slice([0, 1, 1], None, 0, False, False, 0, [1, 4], 0, 3)
    refused = {
        "the first slice has no palette": good._replace(palette=None),
        "divisor 6 of weights": good._replace(divisor=6, indices=[0, 1, 1]),
        "divisor 4 of runs": good._replace(zero_divisor=4, runs=[0, 0, 0, 0]),
        "of a weight: expected 0 to 511": good._replace(divisor=5, indices=[500, 600, 1], palette=[]),
    }
    for words, part in refused.items():
        bits = Bits()
        write_slice(bits, part)
        with pytest.raises(StreamError, match=words):
            decode_weights(bits.data())
    bits = Bits()
    write_slice(bits, good)
    write_slice(bits, good._replace(palette=None, runs=[1, 2, 3]))
    with pytest.raises(StreamError, match="runs of zeros begin or end without a new palette"):
        decode_weights(bits.data())


def test_an_end_of_stream_ends_the_palette():
    bits, part = Bits(), Slice([0, 1, 1], None, 0, False, False, 0, [1, 4], 0, 3)
    write_slice(bits, part)
    first = bits.data()
    assert decode_weights(first + first).tolist() == 2 * weights_of(part, [1, 4], 0)
    again = Bits()
    write_slice(again, part._replace(palette=None))
    with pytest.raises(StreamError, match="the first slice has no palette"):
        decode_weights(first + again.data())
