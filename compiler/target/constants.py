"""Constants of a target graph in DDR: consecutive sections from block 0 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu.parts import BLOCK_BYTES
from simulator.npu.program import DdrBuffer

_ALIGN_BLOCKS = 4  # 128 bytes: a DRAM burst of any preset


def align_block(block: int) -> int:
    """The first block from `block` on at which a buffer may begin."""
    return -(-block // _ALIGN_BLOCKS) * _ALIGN_BLOCKS


Bytes = NDArray[np.uint8]


class _Section(NamedTuple):
    name: str
    address: int
    size_bytes: int
    fill: Callable[[Bytes], None]

    @property
    def blocks(self) -> int:
        return -(-self.size_bytes // BLOCK_BYTES)


class Constants:
    """Collects constant sections; addresses in blocks."""

    def __init__(self) -> None:
        self.sections: list[_Section] = []
        self.end = 0

    def add(self, name: str, data: Bytes) -> int:
        return self.reserve(name, len(data), lambda out: np.copyto(out, data))

    def reserve(self, name: str, size_bytes: int, fill: Callable[[Bytes], None]) -> int:
        """Add a section whose bytes `fill` writes into the final array, so that large weights are not copied.  Returns its block."""
        section = _Section(name, self.end, size_bytes, fill)
        self.sections.append(section)
        self.end = align_block(section.address + section.blocks)
        return section.address

    def buffers(self) -> list[DdrBuffer]:
        return [DdrBuffer(section.name, "constant", section.address, section.blocks) for section in self.sections]

    def bytes(self) -> Bytes:
        out, end = np.empty(self.end * BLOCK_BYTES, np.uint8), 0
        for section in self.sections:
            start = section.address * BLOCK_BYTES
            out[end:start] = 0
            end = start + section.size_bytes
            section.fill(out[start:end])
        out[end:] = 0
        return out
