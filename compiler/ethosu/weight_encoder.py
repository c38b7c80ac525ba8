"""Weights as the coded stream that the part reads: Golomb-Rice codes, or raw ones, of the weights themselves or of places in a palette.

The format is that of the decoder (`simulator.ethosu.weight_stream`), the order of weights that of `simulator.ethosu.weight_order`.
A slice has one divisor, and runs of zeros are coded apart where that takes fewer bits: kernels of few channels are filled up with zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.weight_order import KernelShape, stream_places

_SLICE = 1 << 15
_CHUNK, _RAW, _NO_RUNS, _END = 12, 7, 6, 7
_DIVISORS, _RUN_DIVISORS = range(6), range(4)
_PALETTE, _WIDTH, _LARGEST_OFFSET = 32, 9, 31
_AHEAD = 8
_STREAM_ALIGN = 128
"""Bits to which a stream is filled with ends."""

Bits = NDArray[np.uint8]
"""A bit each, the lowest of a byte first."""


class _Coding(NamedTuple):
    """Of a slice.  indices: of its weights.  palette: codes of weights; empty where indices are codes less `offset`.

    divisor: 7 for raw indices.  runs: zeros in front of all weights and behind each, where they are coded apart, with their divisor.
    """

    indices: NDArray[np.int64]
    palette: NDArray[np.int64]
    offset: int
    divisor: int
    runs: NDArray[np.int64] | None = None
    run_divisor: int = _NO_RUNS

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
    """The coding with the fewest bits."""
    coding, cost = _codes_of(weights, raw=True)
    filled = np.flatnonzero(weights)
    if 0 < len(filled) < len(weights):
        runs = np.diff(np.concatenate(([-1], filled, [len(weights)]))) - 1
        costs = {divisor: _bits(runs, divisor) for divisor in _RUN_DIVISORS}
        divisor = min(costs, key=lambda value: costs[value])
        with_runs, with_runs_cost = _codes_of(weights[filled], raw=False)
        if with_runs_cost + costs[divisor] < cost:
            return with_runs._replace(runs=runs, run_divisor=divisor)
    return coding


def _codes_of(weights: NDArray[np.int64], raw: bool) -> tuple[_Coding, int]:
    """Indices of weights and their bits.  raw: whether they may be as they are."""
    codes = 2 * np.abs(weights) + (weights < 0)
    counts = np.bincount(codes)
    values = np.flatnonzero(counts)
    palette, offset = np.zeros(0, np.int64), int(min(_LARGEST_OFFSET, values[0]))
    indices = codes - offset
    if 1 < len(values) <= _PALETTE:
        palette, offset = values[np.argsort(-counts[values], kind="stable")], 0
        places = np.zeros(len(counts), np.int64)
        places[palette] = np.arange(len(palette))
        indices = places[codes]
    coding = _Coding(indices, palette, offset, _RAW)
    costs = {divisor: _bits(indices, divisor) for divisor in _DIVISORS}
    if raw:
        costs[_RAW] = len(indices) * coding.raw_bits
    divisor = min(costs, key=lambda value: costs[value])
    return coding._replace(divisor=divisor), costs[divisor]


def _bits(values: NDArray[np.int64], divisor: int) -> int:
    """Bits of values with a quotient in unary code and a remainder."""
    return int((values >> divisor).sum()) + len(values) * (1 + divisor)


def _slice_bits(coding: _Coding) -> Bits:
    if coding.runs is not None:
        return np.concatenate([_header(coding), _chunks_with_runs(coding, coding.runs)])
    return np.concatenate([_header(coding), _raw_chunks(coding) if coding.divisor == _RAW else _divided_chunks(coding)])


def _header(coding: _Coding) -> Bits:
    palette, width = coding.palette, _WIDTH
    if len(palette):
        width = max(2, int(palette.max()).bit_length())
    fields = [(coding.run_divisor, 3), (len(coding.indices) - 1, 15), (coding.divisor, 3), (0, 1), (1, 1)]
    fields += [(coding.offset, 5), (max(0, len(palette) - 1), 5), (width - 2, 3), *((int(value), width) for value in palette)]
    return _joined(fields)


def _joined(fields: list[tuple[int, int]]) -> Bits:
    """Bits of (value, width)."""
    return np.array([value >> bit & 1 for value, width in fields for bit in range(width)], np.uint8)


def _chunks_with_runs(coding: _Coding, runs: NDArray[np.int64]) -> Bits:
    """Chunks of weights and of runs in turns; neither gets more than 8 symbols ahead."""
    width, divisor, run_divisor = 12 if coding.run_divisor < 3 else 8, coding.divisor, coding.run_divisor
    symbols = [symbol for value in (coding.indices >> divisor).tolist() for symbol in [2] * (value // 2) + [value % 2]]
    ones = [one for value in (runs >> run_divisor).tolist() for one in [1] * value + [0]]
    remainders, run_remainders = (coding.indices & (1 << divisor) - 1).tolist(), (runs & (1 << run_divisor) - 1).tolist()
    fields, place, run_place = list[tuple[int, int]](), 0, 0
    begun = run_begun = written = run_written = pending = run_pending = 0
    while True:
        takes = begun - run_begun < _AHEAD and begun < len(remainders)
        takes_runs = begun - run_begun >= 0 and run_begun < len(run_remainders)
        chunk, unary = list[int](), list[int]()
        if takes:
            chunk = (symbols[place : place + _CHUNK] + [0] * _CHUNK)[:_CHUNK]
            place += _CHUNK
            fields += [(int(symbol > 0), 1) for symbol in chunk]
        if takes_runs:
            unary = (ones[run_place : run_place + width] + [0] * width)[:width]
            run_place += width
            fields += [(one, 1) for one in unary]
        fields += [(symbol - 1, 1) for symbol in chunk if symbol]
        fields += [(value, divisor) for value in remainders[written : written + pending]]
        fields += [(value, run_divisor) for value in run_remainders[run_written : run_written + run_pending]]
        written, run_written = written + pending, run_written + run_pending
        pending, run_pending = sum(symbol < 2 for symbol in chunk), unary.count(0)
        begun, run_begun = begun + pending, run_begun + run_pending
        if not takes and not takes_runs:
            return _joined(fields)


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
    symbols[ends] = quotients % 2
    symbols[ends[-1] + 1 :] = 0
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
