"""Weights as the coded stream that the part reads: Golomb-Rice codes, or raw ones, of the weights themselves or of places in a palette.

The format is that of the decoder (`simulator.ethosu.weight_stream`), the order of weights that of `simulator.ethosu.weight_order`.
Runs of zeros are not coded apart, and a slice has one divisor: the one with the fewest bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.weight_order import KernelShape, stream_places

_SLICE = 1 << 15
_CHUNK, _RAW, _NO_RUNS, _END = 12, 7, 6, 7
_DIVISORS = range(6)
_PALETTE, _WIDTH = 32, 9
_STREAM_ALIGN = 128
"""Bits to which a stream is filled with ends."""

Bits = NDArray[np.uint8]
"""A bit each, the lowest of a byte first."""


class _Coding(NamedTuple):
    """Of a slice.  indices: of its weights.  palette: codes of weights; empty where indices are the codes.  divisor: 7 for raw ones."""

    indices: NDArray[np.int64]
    palette: NDArray[np.int64]
    divisor: int

    @property
    def raw_bits(self) -> int:
        """Bits of an index that is not divided."""
        return max(0, (len(self.palette) - 1).bit_length()) if len(self.palette) else _WIDTH


def encode_weights(weights: NDArray[np.int16], shape: KernelShape) -> bytes:
    """The stream of weights [outputs, rows, columns, inputs], [-255, 255]; a multiple of 16 bytes."""
    flat = np.append(weights.ravel(), np.int16(0))[stream_places(shape)]  # -1 is the 0 behind them
    return encode_stream(flat)


def encode_stream(flat: NDArray[np.int16]) -> bytes:
    """The stream of weights in the order of the part."""
    parts = [_slice_bits(_coding_of(flat[first : first + _SLICE].astype(np.int64))) for first in range(0, len(flat), _SLICE)]
    bits = np.concatenate([*parts, np.ones(3, np.uint8)])
    return np.packbits(np.append(bits, np.ones(-len(bits) % _STREAM_ALIGN, np.uint8)), bitorder="little").tobytes()


def _coding_of(weights: NDArray[np.int64]) -> _Coding:
    codes = 2 * np.abs(weights) | (weights < 0)
    values, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    palette, indices = np.zeros(0, np.int64), codes
    if 1 < len(values) <= _PALETTE:
        order = np.argsort(-counts, kind="stable")
        palette, indices = values[order], np.argsort(order)[places]
    raw = _Coding(indices, palette, _RAW)
    costs = {divisor: int((indices >> divisor).sum()) + len(indices) * (1 + divisor) for divisor in _DIVISORS}
    costs[_RAW] = len(indices) * raw.raw_bits
    return raw._replace(divisor=min(costs, key=lambda divisor: costs[divisor]))


def _slice_bits(coding: _Coding) -> Bits:
    return np.concatenate([_header(coding), _raw_chunks(coding) if coding.divisor == _RAW else _divided_chunks(coding)])


def _header(coding: _Coding) -> Bits:
    palette, width = coding.palette, _WIDTH
    if len(palette):
        width = max(2, int(palette.max()).bit_length())
    fields = [(_NO_RUNS, 3), (len(coding.indices) - 1, 15), (coding.divisor, 3), (0, 1), (1, 1), (0, 5), (max(0, len(palette) - 1), 5)]
    fields += [(width - 2, 3), *((int(value), width) for value in palette)]
    return np.array([value >> bit & 1 for value, count in fields for bit in range(count)], np.uint8)


def _raw_chunks(coding: _Coding) -> Bits:
    return (coding.indices[:, None] >> np.arange(coding.raw_bits) & 1).astype(np.uint8).ravel()


def _divided_chunks(coding: _Coding) -> Bits:
    """Chunks of 12 symbols: their first bits, second bits of those that have one, and the remainders of what ended a chunk before.

    A quotient is a symbol 2 for each two of it, and a last symbol of 0 or 1.
    """
    quotients = coding.indices >> coding.divisor
    counts = quotients // 2 + 1
    ends = np.cumsum(counts) - 1
    symbols = np.full(-(-int(counts.sum()) // _CHUNK) * _CHUNK, 2, np.int64)
    symbols[ends], symbols[ends[-1] + 1 :] = quotients % 2, 0
    chunks = symbols.reshape(-1, _CHUNK)
    ones = (chunks > 0).sum(axis=1)
    ended = np.bincount(ends // _CHUNK, minlength=len(chunks))
    remainders = coding.divisor * np.concatenate(([0], ended))
    starts = np.cumsum(np.concatenate(([0], _CHUNK + ones))) + np.cumsum(remainders) - remainders
    bits = np.zeros(int(starts[-1] + remainders[-1]), np.uint8)
    bits[(starts[:-1, None] + np.arange(_CHUNK)).ravel()] = symbols > 0
    rank = (np.cumsum(chunks > 0, axis=1) - 1)[chunks > 0]
    bits[np.repeat(starts[:-1] + _CHUNK, ones) + rank] = symbols[symbols > 0] > 1
    # remainders of a chunk are in the next one, behind its second bits
    first = starts + np.append(_CHUNK + ones, 0)
    order = np.arange(len(ends)) - np.repeat(np.cumsum(ended) - ended, ended)
    places = np.repeat(first[1:], ended) + coding.divisor * order
    lanes = np.arange(coding.divisor)
    bits[(places[:, None] + lanes).ravel()] = (coding.indices[:, None] >> lanes & 1).ravel()
    return bits
