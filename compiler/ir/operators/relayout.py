"""Relayout: a copy of runs of channels to other places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.base import ROWS, Floats, Mask, Shape, Spell, UnaryOperator, Values
from compiler.ir.reach import LISTED

Ints = NDArray[np.int64]


class Digit(NamedTuple):
    """Digit of a place of y, 0 <= i < size.  It adds i * group and i * pixel to the place of x; outside [low, high) y is filled."""

    size: int
    group: int
    pixel: int
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Relayout(UnaryOperator):
    """Blocks of x at other places of y: transposition, slice, padding, repetition and reversal of axes.

    channels: channels of a group, which keep their lanes.  x is groups of `wide` channels (0: of `channels`) at pixels; its channels behind
    the first `channels` of a group are equal to `fill`, and have no place in y.
    groups, pixels: digits of the groups and of the pixels of y, the slowest first.  first: group and pixel of x for digits that are all 0.
    of: groups, height and width of x.  width: pixels of a row of y.  fill: value of places without a source.
    """

    name: str
    x: str
    y: str
    channels: int
    groups: tuple[Digit, ...]
    pixels: tuple[Digit, ...]
    of: tuple[int, int, int]
    first: tuple[int, int] = (0, 0)
    width: int = 1
    wide: int = 0
    fill: float = 0.0

    @property
    def moves(self) -> bool:
        return True

    @property
    def x_channels(self) -> int:
        """Channels of a group of x."""
        return self.wide or self.channels

    @property
    def filled(self) -> bool:
        """Whether some places have no source."""
        return any(digit.low > 0 or digit.high < digit.size for digit in (*self.groups, *self.pixels))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        groups, pixels = (math.prod(digit.size for digit in digits) for digits in (self.groups, self.pixels))
        return inputs[0][0], groups * self.channels, pixels // self.width, self.width

    def unfit(self, inputs: Sequence[Shape]) -> str:
        _, channels, h, w = inputs[0]
        if (channels, h, w) != (self.of[0] * self.x_channels, *self.of[1:]):
            return f"{channels} x {h} x {w} for {self.of[0]} groups of {self.x_channels} channels of {self.of[1]} x {self.of[2]} pixels"
        if math.prod(digit.size for digit in self.pixels) % self.width:
            return f"rows of {self.width} pixels do not divide its pixels"
        for place, size, name in zip(self.first, (self.of[0], h * w), ("group", "pixel"), strict=True):
            steps = [getattr(d, name) * i for d in (*self.groups, *self.pixels) if d.low < d.high for i in (d.low, d.high - 1)]
            ends = [place + sum(pick(pair) for pair in zip(steps[::2], steps[1::2], strict=True)) for pick in (min, max)]
            if ends[0] < 0 or ends[1] >= size:
                return f"its places of x are {name}s {ends[0]} to {ends[1]} of {size}"
        return ""

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        digits = [f"{name}={_spelt(digits)}" for name, digits in (("groups", self.groups), ("pixels", self.pixels))]
        first = [f"first={self.first[0]},{self.first[1]}"] if any(self.first) else []
        wide, fill = ([f"{name}={value:g}"] if value else [] for name, value in (("wide", self.wide), ("fill", self.fill)))
        return [f"channels={self.channels}", *digits, *first, f"width={self.width}", *wide, *fill]

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        return LISTED, in_size, first, 0, 0, 0

    def bounds(self, axis: int = ROWS) -> NDArray[np.int64]:
        return self.row_bounds

    @cached_property
    def row_bounds(self) -> Ints:
        """int64 [rows of y, 2]: first row of x that a row reads and one past the last; (2^31, 0) for a row of fill."""
        by_group, by_pixel = (places_of(digits) for digits in (self.groups, self.pixels))
        pixels = by_group.pixel[by_group.inside]
        if not len(pixels):
            return np.tile(np.array([[2**31, 0]], np.int64), (len(by_pixel.pixel) // self.width, 1))
        low, high = (self.first[1] + pick(pixels) for pick in (np.min, np.max))
        sources = by_pixel.pixel.reshape(-1, self.width)
        inside = by_pixel.inside.reshape(sources.shape)
        lowest = np.where(inside, sources, 2**31).min(1)
        highest = np.where(inside, sources, -(2**31)).max(1)
        rows = np.stack([(lowest + low) // self.of[2], (highest + high) // self.of[2] + 1], 1)
        rows[~inside.any(1)] = 2**31, 0
        return rows

    @property
    def has_halo(self) -> bool:
        bounds = self.row_bounds
        return bool((bounds[1:, 0] < bounds[:-1, 1]).any())

    @property
    def keeps_planes(self) -> bool:
        """Whether only pixels move, so that channels may lie in any lanes."""
        return self.of[0] == 1 and not self.groups and not self.wide

    @property
    def follows(self) -> tuple[str, ...]:
        return (self.x,) if self.keeps_planes else ()

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        if self.keeps_planes:
            return ()
        return (self.x, self.of[0]), (self.y, math.prod(digit.size for digit in self.groups))

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return inputs[0] | {self.fill} if self.filled or self.wide else inputs[0]

    def blocks_read(self, channels: Mask, rows: Mask, columns: Mask) -> tuple[Mask, int]:
        groups, pixels = places_of(self.groups), places_of(self.pixels)
        wanted = np.outer(channels.reshape(-1, self.channels).any(1) & groups.inside, np.outer(rows, columns)) & pixels.inside
        read = np.zeros((self.of[0], self.of[1] * self.of[2]), np.bool_)
        group, pixel = (np.add.outer(a, b)[wanted] for a, b in ((groups.group, pixels.group), (groups.pixel, pixels.pixel)))
        read[group + self.first[0], pixel + self.first[1]] = True
        counts = read.sum(1)
        channels_read = np.zeros((self.of[0], self.x_channels), np.bool_)
        channels_read[counts > 0, : self.channels] = True
        return channels_read.reshape(-1), int(counts[counts > 0].min(initial=read.shape[1])) if counts.any() else 0

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        n, _, h, w = x.shape
        by_group, by_pixel = (places_of(digits) for digits in (self.groups, self.pixels))
        group = self.first[0] + by_group.group[:, None] + by_pixel.group[None, :]
        pixel = self.first[1] + by_group.pixel[:, None] + by_pixel.pixel[None, :]
        inside = by_group.inside[:, None] & by_pixel.inside[None, :]
        blocks = x.reshape(n, self.of[0], self.x_channels, h * w)[:, :, : self.channels]
        taken = blocks[:, np.where(inside, group, 0), :, np.where(inside, pixel, 0)]  # [groups, pixels, n, channels]
        taken = np.where(inside[:, :, None, None], taken, np.asarray(self.fill, x.dtype))
        return np.ascontiguousarray(taken.transpose(2, 0, 3, 1).reshape(self.output_shape([x.shape])))


class DigitPlaces(NamedTuple):
    """Places of x of all values of some digits, [values]: groups and pixels, and whether there is a source."""

    group: Ints
    pixel: Ints
    inside: NDArray[np.bool_]


def places_of(digits: Sequence[Digit]) -> DigitPlaces:
    group, pixel, inside = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    for digit in digits:
        values = np.arange(digit.size)
        group = np.add.outer(group, values * digit.group).reshape(-1)
        pixel = np.add.outer(pixel, values * digit.pixel).reshape(-1)
        inside = np.logical_and.outer(inside, (values >= digit.low) & (values < digit.high)).reshape(-1)
    return DigitPlaces(group, pixel, inside)


def whole_digit(size: int, group: int = 0, pixel: int = 0) -> Digit:
    """Digit all of whose values have a source."""
    return Digit(size, group, pixel, 0, size)


def merge_digits(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """Fewer digits for the same places."""
    merged: list[Digit] = []
    for digit in digits:
        last, size = merged[-1] if merged else None, digit.size
        sourced = (digit.low, digit.high) == (0, size)
        if size == 1 and sourced:
            continue
        if last is not None and sourced and (last.group, last.pixel) == (digit.group * size, digit.pixel * size):
            merged[-1] = Digit(last.size * size, digit.group, digit.pixel, last.low * size, last.high * size)
        else:
            merged.append(digit)
    return tuple(merged)


def _spelt(digits: Sequence[Digit]) -> str:
    """Text of digits: size@group,pixel, with the range of values that have a source."""
    texts = (f"{d.size}@{d.group},{d.pixel}" + (f"[{d.low}:{d.high}]" if d.low or d.high < d.size else "") for d in digits)
    return ":".join(texts) or "1"
