"""Weights are read back as they were, by the reader of Vela's streams, and take as few bits as their spread allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ethosu.weight_encoder import encode_stream, encode_weights
from simulator.ethosu.weight_order import KernelShape, kernel_of_stream
from simulator.ethosu.weight_stream import decode_weights


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 255), st.sampled_from((0.0, 0.1, 0.6, 0.95)), st.integers(1, 300), st.integers(0, 1 << 30))
def test_a_stream_is_read_back(count, largest, zeros, distinct, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-largest, largest + 1, distinct)
    weights = np.where(rng.random(count) < zeros, 0, rng.choice(values, count)).astype(np.int16)
    data = encode_stream(weights)
    assert len(data) % 16 == 0
    np.testing.assert_array_equal(decode_weights(data), weights)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_kernel_is_read_back(data):
    size = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 10), st.integers(1, 9), st.integers(1, 40)))
    depthwise, part_first = data.draw(st.sampled_from(((False, False), (False, True), (True, False))))
    dilation = data.draw(st.integers(1, 2))
    outputs, rows, columns, inputs = (*size[:3], 1 if depthwise else size[3])
    block = 8 * data.draw(st.integers(1, 16))
    shape = KernelShape(outputs, rows, columns, inputs, block, depthwise, part_first, 8, dilation, dilation)
    weights = (
        np.random.default_rng(data.draw(st.integers(0, 1 << 30))).integers(-127, 128, (outputs, rows, columns, inputs)).astype(np.int16)
    )
    np.testing.assert_array_equal(kernel_of_stream(decode_weights(encode_weights(weights, shape)), shape), weights)


def test_a_stream_of_several_slices_is_read_back():
    weights = np.random.default_rng(0).normal(0, 20, 70_000).round().astype(np.int16)
    weights[40_000:] = 0
    np.testing.assert_array_equal(decode_weights(encode_stream(weights)), weights)


@pytest.mark.parametrize(("spread", "bits"), [(40, 7.7), (10, 5.8), (3, 3.9)])
def test_few_bits_are_more_than_the_entropy(spread, bits):
    """Bits of a normal distribution: the entropy is log2(spread) + 2.05."""
    weights = np.random.default_rng(0).normal(0, spread, 30_000).round().clip(-127, 127).astype(np.int16)
    assert np.log2(spread) + 2 < 8 * len(encode_stream(weights)) / len(weights) < bits


def test_zeros_take_few_bits():
    """Of one channel in eight, as in the first layer of a network."""
    weights = np.zeros(8_000, np.int16)
    weights[::8] = np.random.default_rng(0).integers(-127, 128, 1_000)
    assert len(encode_stream(weights)) < 1_800


@pytest.mark.slow
def test_streams_are_no_longer_than_those_of_vela():
    codec = pytest.importorskip("ethosu.mlw_codec")
    rng = np.random.default_rng(0)
    for spread in (3, 10, 25, 40):
        weights = rng.normal(0, spread, 30_000).round().clip(-127, 127).astype(np.int16)
        assert len(encode_stream(weights)) <= 1.01 * len(codec.encode(weights.tolist()))
