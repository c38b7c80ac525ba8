"""Addresses of buffers with lifetimes: the largest first, each at the lowest address that is free for as long as it lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

ALIGN = 16


class TimedBuffer(NamedTuple):
    """Bytes from time `begin` to time `end`, both included."""

    key: Any
    size: int
    begin: int
    end: int


class Placed(NamedTuple):
    """A buffer at an address."""

    buffer: TimedBuffer
    address: int


def allocate(buffers: Iterable[TimedBuffer], fixed: Iterable[Placed] = ()) -> tuple[dict[Any, int], int]:
    """Address of each buffer by its key, and the end of the highest one.  fixed: buffers that have addresses already."""
    placed, addresses = list(fixed), dict[Any, int]()
    for buffer in sorted(buffers, key=lambda item: (-item.size, item.begin, str(item.key))):
        address = 0
        for neighbour, first in sorted(placed, key=lambda item: item.address):
            together = neighbour.begin <= buffer.end and buffer.begin <= neighbour.end
            if together and first < address + buffer.size and address < first + neighbour.size:
                address = -(-(first + neighbour.size) // ALIGN) * ALIGN
        addresses[buffer.key] = address
        placed.append(Placed(buffer, address))
    return addresses, max((address + buffer.size for buffer, address in placed), default=0)
