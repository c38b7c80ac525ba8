"""Memory as the part sees it: up to eight regions, each an array of bytes in one memory behind an AXI port, and the shared buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.stream_error import StreamError

REGIONS = 8
SHARED = -1
"""Number that stands for the shared buffer among regions."""
SHARED_BYTES = 48 * 1024
"""Bytes of the shared buffer of a core."""
LARGEST_SPAN = 1 << 26
"""Elements of a feature map or copy: a limit of this executor, as strides of 0 would allow any number of them."""
TABLES, TABLE_BYTES = SHARED_BYTES - 2048, 256
"""Tables of activation functions: their place in the shared buffer, and the bytes from one to the next."""


class Region(NamedTuple):
    """data: uint8 [bytes].  memory: its name, such as `sram`.  port: AXI port, 0 or 1.  writable: whether a stream may write there."""

    data: NDArray[np.uint8]
    memory: str
    port: int
    writable: bool = True


class Span(NamedTuple):
    """Bytes of a region, as an array with strides: first address, sizes and strides of the axes, bytes of an element."""

    region: int
    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element: int

    @property
    def low(self) -> int:
        """The first byte."""
        return self.first + sum(min(0, self._reach(axis)) for axis in range(len(self.sizes)))

    @property
    def high(self) -> int:
        """The byte behind the last; without any element it is the first."""
        if not all(self.sizes):
            return self.low
        return self.first + sum(max(0, self._reach(axis)) for axis in range(len(self.sizes))) + self.element

    def _reach(self, axis: int) -> int:
        return max(0, self.sizes[axis] - 1) * self.strides[axis]

    def overlaps(self, other: Span) -> bool:
        """Whether a byte is of both."""
        if self.region != other.region or self.high <= other.low or other.high <= self.low:
            return False
        low, high = max(self.low, other.low), min(self.high, other.high)
        return bool((self._touched(low, high) & other._touched(low, high)).any())

    def _touched(self, low: int, high: int) -> NDArray[np.bool_]:
        places: NDArray[np.int64] = np.full((1,), self.first)
        for size, stride in zip(self.sizes, self.strides, strict=True):
            places = places[..., None] + stride * np.arange(size)
        places = (places[..., None] + np.arange(self.element)).ravel()
        touched = np.zeros(high - low, bool)
        touched[places[(places >= low) & (places < high)] - low] = True
        return touched


def flat_span(region: int, first: int, count: int) -> Span:
    """Bytes that follow each other."""
    return Span(region, first, (count,), (1,), 1)


class RegionMemory:
    """Regions and the shared buffer, with every access inside of them."""

    def __init__(self, regions: Mapping[int, Region]) -> None:
        for number, region in regions.items():
            if not 0 <= number < REGIONS:
                raise StreamError(f"region {number}: expected 0 to {REGIONS - 1}")
            if region.data.dtype != np.uint8 or region.data.ndim != 1:
                raise StreamError(f"region {number}: an array of {region.data.dtype} with {region.data.ndim} axes: expected uint8 and 1")
        self.regions = dict(regions)
        self.shared = Region(np.zeros(SHARED_BYTES, np.uint8), "shared", 0)

    def region(self, number: int) -> Region:
        """A region, or the shared buffer."""
        if number == SHARED:
            return self.shared
        if number not in self.regions:
            raise StreamError(f"region {number}: expected one of {', '.join(map(str, sorted(self.regions)))}")
        return self.regions[number]

    def check(self, span: Span, writes: bool = False) -> Region:
        """The region of a span that is inside of it; an error where it is not, or has more elements than are executed."""
        region = self.region(span.region)
        if math.prod(span.sizes) > LARGEST_SPAN:
            raise StreamError(f"{math.prod(span.sizes)} elements of region {span.region}: expected at most {LARGEST_SPAN}")
        if writes and not region.writable:
            raise StreamError(f"bytes {span.low} to {span.high} of region {span.region}: are written, and the region is constant")
        if span.low < 0 or span.high > len(region.data):
            raise StreamError(f"bytes {span.low} to {span.high} of region {span.region}: expected 0 to {len(region.data)}")
        return region

    def view(self, span: Span, dtype: np.dtype[Any], writes: bool = False) -> NDArray[Any]:
        """The bytes of a span as an array of its sizes; no copy."""
        return np.ndarray(span.sizes, dtype, self.check(span, writes).data.data, span.first, span.strides)

    def read_bytes(self, span: Span) -> bytes:
        """Bytes that follow each other."""
        return self.view(span, np.dtype(np.uint8)).tobytes()
