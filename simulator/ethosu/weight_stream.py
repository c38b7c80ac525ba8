"""The weight stream: Golomb-Rice coded indices of weights in slices, with runs of zeros between them.

A stream is bits, the lowest of a byte first.  A slice has a header, maybe a palette, and chunks.  A chunk has the quotients of up to 12
symbols in unary code, and the remainders of the chunk before it.  Where zeros are coded apart, chunks of weights and chunks of runs take
turns, such that neither gets more than 8 symbols ahead.  A stream ends where only ends of stream are left.
Source: the public decoder of Vela (`mlw_decode.c`, Arm, Apache-2.0).

The positions of chunks depend on each other; a pass in plain Python finds them.  Symbols of all chunks of a slice are then read as arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.stream_error import StreamError

_NO_RUNS, _END, _RAW = 6, 7, 7
_SYMBOLS, _AHEAD = 12, 8
_LONGEST_RUNS = 1 << 28
"""Weights of a stream, at most: a limit of this decoder, so that a damaged stream does not take all memory."""

_ONES = [bin(value).count("1") for value in range(1 << _SYMBOLS)]


class _Palette(NamedTuple):
    """values: of the first indices, sign in the lowest bit.  offset: of the values behind them.  bits: of a raw index."""

    values: NDArray[np.int64]
    offset: int
    bits: int


class _Header(NamedTuple):
    """Of a slice.  zero_divisor: None without runs.  divisor: bits of a remainder.  raw: no quotients.  truncated: they are at most 2."""

    weights: int
    zero_divisor: int | None
    divisor: int
    truncated: bool
    raw: bool
    renewed: bool


class _Bits:
    """A cursor in a stream.  The stream is padded with zeros, and a read that ends behind it is refused."""

    def __init__(self, data: bytes) -> None:
        self.data, self.limit, self.place = data + bytes(16), 8 * len(data), 0

    def take(self, count: int) -> int:
        place, self.place = self.place, self.place + count
        if self.place > self.limit:
            raise StreamError(f"weight stream: ends at bit {self.limit}, within a slice")
        return int.from_bytes(self.data[place >> 3 : (place >> 3) + 8], "little") >> (place & 7) & (1 << count) - 1

    def fields(self, places: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """Fields of equal width at bit positions."""
        if not width or not len(places):
            return np.zeros(len(places), np.int64)
        raw, start = np.frombuffer(self.data, np.uint8).astype(np.int64), places >> 3
        wide = raw[start] | raw[start + 1] << 8
        return wide >> (places & 7) & (1 << width) - 1


def decode_weights(data: bytes) -> NDArray[np.int16]:
    """Weights of a stream in the order of the part, [-255, 255]."""
    bits, palette, header, parts, total = _Bits(data), None, None, list[NDArray[np.int16]](), 0
    while (zero_divisor := _next_slice(bits)) is not None:
        if zero_divisor[1]:
            palette = header = None
        runs_before = header is not None and header.zero_divisor is not None
        header, palette = _read_header(bits, zero_divisor[0], palette)
        if not header.renewed and runs_before != (header.zero_divisor is not None):
            raise StreamError(f"weight stream: bit {bits.place}: runs of zeros begin or end without a new palette")
        parts.append(_read_slice(bits, header, palette, _LONGEST_RUNS - total))
        total += len(parts[-1])
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)


def _next_slice(bits: _Bits) -> tuple[int, bool] | None:
    """The divisor of runs of the next slice, and whether a stream begins with it; None at the end."""
    fresh = bits.place == 0
    while bits.limit - bits.place >= 3:
        divisor = bits.take(3)
        if divisor != _END:
            return divisor, fresh
        bits.place, fresh = (bits.place + 7) // 8 * 8, True
    return None


def _read_header(bits: _Bits, zero_divisor: int, palette: _Palette | None) -> tuple[_Header, _Palette]:
    weights, divisor, truncated, renewed = bits.take(15) + 1, bits.take(3), bits.take(1), bits.take(1)
    if zero_divisor > 3 and zero_divisor != _NO_RUNS:
        raise StreamError(f"weight stream: bit {bits.place}: divisor {zero_divisor} of runs: expected 0 to 3, {_NO_RUNS} or {_END}")
    if renewed:
        offset, size, width = bits.take(5), bits.take(5), bits.take(3) + 2
        size += size > 0
        values = np.array([bits.take(width) for _ in range(size)], np.int64)
        palette = _Palette(values, offset, (size - 1).bit_length() if size else width)
    if palette is None:
        raise StreamError(f"weight stream: bit {bits.place}: the first slice has no palette")
    raw = divisor == _RAW
    if not raw and divisor > 5:
        raise StreamError(f"weight stream: bit {bits.place}: divisor {divisor} of weights: expected 0 to 5 or {_RAW}")
    runs = None if zero_divisor == _NO_RUNS else zero_divisor
    return _Header(weights, runs, palette.bits if raw else divisor, bool(truncated), raw, bool(renewed)), palette


def _read_slice(bits: _Bits, header: _Header, palette: _Palette, room: int) -> NDArray[np.int16]:
    chunks, run_chunks = _find_chunks(bits, header)
    indices = _quotients(bits, header, chunks) << header.divisor
    indices = indices[: header.weights] + bits.fields(_remainder_places(chunks, header.divisor, header.weights), header.divisor)
    if indices.max(initial=0) >= 512:
        raise StreamError(f"weight stream: bit {bits.place}: index {indices.max()} of a weight: expected 0 to 511")
    size = len(palette.values)
    table = np.concatenate((palette.values, np.arange(512) + palette.offset))
    codes = table[indices] if size else indices + palette.offset
    weights = np.where(codes & 1, -(codes >> 1), codes >> 1).astype(np.int16)
    if header.zero_divisor is None:
        return weights
    count = header.weights + header.renewed
    runs = _run_quotients(run_chunks, 12 if header.zero_divisor < 3 else 8)[:count] << header.zero_divisor
    runs = runs + bits.fields(_remainder_places(run_chunks, header.zero_divisor, count), header.zero_divisor)
    if runs.sum() + len(weights) > room:
        raise StreamError(f"weight stream: bit {bits.place}: {runs.sum()} zeros: expected at most {room - len(weights)}")
    out = np.zeros(len(weights) + runs.sum(), np.int16)
    before = np.cumsum(runs)[:-1] if header.renewed else np.concatenate(([0], np.cumsum(runs)[:-1]))
    out[np.arange(len(weights)) + before] = weights
    return out


class _Chunk(NamedTuple):
    """first, second: its unary bits.  symbols: that it has.  remainders: bit position of their remainders."""

    first: int
    second: int
    symbols: int
    remainders: int


def _find_chunks(bits: _Bits, header: _Header) -> tuple[list[_Chunk], list[_Chunk]]:
    """Chunks of weights and of runs of a slice, in order; the cursor moves behind them."""
    data, place, limit, ones = bits.data, bits.place, bits.limit, _ONES
    divisor, zero_divisor, truncated, raw = header.divisor, header.zero_divisor, header.truncated, header.raw
    runs, most_symbols = zero_divisor is not None, 8 if raw and divisor > 5 else _SYMBOLS
    run_bits, run_divisor = (12 if (zero_divisor or 0) < 3 else 8), zero_divisor or 0
    count, run_count = header.weights, header.weights + header.renewed
    begun = run_begun = read = run_read = 0
    weights, zeros = list[_Chunk](), list[_Chunk]()
    pending, run_pending = None, None
    mask = (1 << _SYMBOLS) - 1
    while True:
        ahead = begun - run_begun if runs else 0
        takes, takes_runs = ahead < _AHEAD and begun < count, runs and ahead >= 0 and run_begun < run_count
        first = 0
        if takes and not raw:
            first = int.from_bytes(data[place >> 3 : (place >> 3) + 4], "little") >> (place & 7) & mask
            place += _SYMBOLS
        if takes_runs:
            unary = int.from_bytes(data[place >> 3 : (place >> 3) + 4], "little") >> (place & 7) & (1 << run_bits) - 1
            place += run_bits
        if takes:
            second, symbols = 0, most_symbols
            if not raw:
                length = ones[first]
                second = int.from_bytes(data[place >> 3 : (place >> 3) + 4], "little") >> (place & 7) & (1 << length) - 1
                place += length
                symbols = most_symbols if truncated else most_symbols - ones[second]
            begun += symbols
        if pending:
            weights.append(_Chunk(*pending, place))
            taken = min(pending[2], count - read)
            read, place = read + taken, place + taken * divisor
        if run_pending:
            zeros.append(_Chunk(*run_pending, place))
            taken = min(run_pending[2], run_count - run_read)
            run_read, place = run_read + taken, place + taken * run_divisor
        pending, run_pending = (first, second, symbols) if takes else None, None
        if takes_runs:
            run_pending = (unary, 0, run_bits - ones[unary])
            run_begun += run_pending[2]
        if place > limit:
            raise StreamError(f"weight stream: ends at bit {limit}, within a slice")
        if not pending and not run_pending:
            break
    bits.place = place
    return weights, zeros


def _quotients(bits: _Bits, header: _Header, chunks: list[_Chunk]) -> NDArray[np.int64]:
    """Quotients of the weights of a slice; a symbol of 2 goes on in the next one, unless they are truncated."""
    if header.raw:
        return np.zeros(sum(chunk.symbols for chunk in chunks), np.int64)
    first, second = np.array([(chunk.first, chunk.second) for chunk in chunks], np.int64).T
    places = np.arange(_SYMBOLS)
    unary = first[:, None] >> places & 1
    which = np.cumsum(unary, axis=1) - unary
    codes = (unary + (unary & second[:, None] >> which)).ravel()
    return codes if header.truncated else _joined(codes, codes < 2)


def _run_quotients(chunks: list[_Chunk], width: int) -> NDArray[np.int64]:
    """Quotients of runs: ones up to the next zero."""
    unary = (np.array([chunk.first for chunk in chunks], np.int64)[:, None] >> np.arange(width) & 1).ravel()
    return _joined(unary, unary == 0)


def _joined(codes: NDArray[np.int64], ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sums of codes up to and with each end."""
    sums = np.cumsum(codes)[ends]
    return np.diff(sums, prepend=0)


def _remainder_places(chunks: list[_Chunk], width: int, count: int) -> NDArray[np.int64]:
    """Bit positions of the first `count` remainders."""
    symbols = np.array([chunk.symbols for chunk in chunks], np.int64)
    starts = np.repeat(np.array([chunk.remainders for chunk in chunks], np.int64), symbols)
    rank = np.arange(len(starts)) - np.repeat(np.cumsum(symbols) - symbols, symbols)
    return (starts + rank * width)[:count]
