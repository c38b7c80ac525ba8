"""A writer of weight streams with any header, chunk by chunk as the format's text has it, to hold the reader against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Slice(NamedTuple):
    """indices: of weights.  runs: zeros in front, where a palette is new, and behind each weight; None without them."""

    indices: list[int]
    runs: list[int] | None
    divisor: int
    truncated: bool
    raw: bool
    zero_divisor: int
    palette: list[int] | None
    offset: int
    bits: int


class Bits:
    def __init__(self) -> None:
        self.bits: list[int] = []

    def put(self, value: int, width: int) -> None:
        assert 0 <= value < 1 << width
        self.bits += [value >> bit & 1 for bit in range(width)]

    def data(self) -> bytes:
        """To whole 16 bytes with ends of stream."""
        while len(self.bits) % 128:
            self.bits.append(1)
        return np.packbits(self.bits, bitorder="little").tobytes()


def symbols_of(values: list[int], divisor: int, longest: int | None) -> list[int]:
    """Unary symbols of quotients: 2 goes on, unless `longest` says that it may not."""
    out = []
    for value in values:
        quotient = value >> divisor
        if longest is not None:
            assert quotient <= longest
            out.append(quotient)
        else:
            out += [2] * (quotient // 2) + [quotient % 2]
    return out


def write_slice(bits: Bits, part: Slice) -> None:
    """A slice: header, palette, chunks."""
    bits.put(6 if part.runs is None else part.zero_divisor, 3)
    bits.put(len(part.indices) - 1, 15)
    bits.put(7 if part.raw else part.divisor, 3)
    bits.put(part.truncated, 1)
    bits.put(part.palette is not None, 1)
    if part.palette is not None:
        bits.put(part.offset, 5)
        bits.put(max(0, len(part.palette) - 1), 5)
        bits.put(part.bits - 2, 3)
        for value in part.palette:
            bits.put(value, part.bits)
    _chunks(bits, part)


def _chunks(bits: Bits, part: Slice) -> None:
    symbols = [] if part.raw else symbols_of(part.indices, part.divisor, 2 if part.truncated else None)
    ones = [one for run in part.runs or [] for one in [1] * (run >> part.zero_divisor) + [0]]
    width = 12 if part.zero_divisor < 3 else 8
    begun, runs_begun, count, run_count = 0, 0, len(part.indices), len(part.runs or [])
    written, runs_written = 0, 0
    pending = runs_pending = 0
    most = 8 if part.raw and part.divisor > 5 else 12
    while True:
        ahead = begun - runs_begun if part.runs is not None else 0
        takes = ahead < 8 and begun < count
        takes_runs = part.runs is not None and ahead >= 0 and runs_begun < run_count
        chunk = []
        if takes and not part.raw:
            chunk, symbols = symbols[:12] + [0] * max(0, 12 - len(symbols)), symbols[12:]
            bits.put(sum((symbol > 0) << place for place, symbol in enumerate(chunk)), 12)
        if takes_runs:
            unary, ones = ones[:width] + [0] * max(0, width - len(ones)), ones[width:]
            bits.put(sum(one << place for place, one in enumerate(unary)), width)
        if chunk:
            seconds = [symbol > 1 for symbol in chunk if symbol]
            bits.put(sum(second << place for place, second in enumerate(seconds)), len(seconds))
        for value in part.indices[written : written + pending]:
            bits.put(value & (1 << part.divisor) - 1, part.divisor)
        written = min(count, written + pending)
        for run in (part.runs or [])[runs_written : runs_written + runs_pending]:
            bits.put(run & (1 << part.zero_divisor) - 1, part.zero_divisor)
        runs_written = min(run_count, runs_written + runs_pending)
        pending = 0 if not takes else most if part.raw or part.truncated else sum(symbol < 2 for symbol in chunk)
        runs_pending = sum(not one for one in unary) if takes_runs else 0
        begun, runs_begun = begun + pending, runs_begun + runs_pending
        if not takes and not takes_runs:
            return


def weights_of(part: Slice, palette: list[int], offset: int) -> list[int]:
    """The weights that a slice stands for."""
    out = []
    runs = list(part.runs or [])
    if part.runs is not None and part.palette is not None:
        out += [0] * runs.pop(0)
    for number, index in enumerate(part.indices):
        code = palette[index] if index < len(palette) else index - len(palette) + offset
        out.append(-(code >> 1) if code & 1 else code >> 1)
        if part.runs is not None:
            out += [0] * runs[number]
    return out
