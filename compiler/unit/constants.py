"""Constants of a unit in DDR: sections one after the other, from block 0 on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.npu.parts import BLOCK_BYTES
from simulator.npu.program import DdrBuffer

_ALIGN_BLOCKS = 4  # 128 bytes: a DRAM burst of any preset


def aligned(block: int) -> int:
    """The first block from `block` on at which a buffer may begin."""
    return -(-block // _ALIGN_BLOCKS) * _ALIGN_BLOCKS


class Constants:
    """Collects constant sections; addresses in blocks."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, NDArray[np.uint8]]] = []
        self.offsets: list[int] = []
        self.end = 0

    def add(self, name: str, data: NDArray[np.uint8]) -> int:
        at = self.end
        self.parts.append((name, data))
        self.offsets.append(at)
        blocks = -(-len(data) // BLOCK_BYTES)
        self.end = aligned(at + blocks)
        return at

    def buffers(self) -> list[DdrBuffer]:
        return [
            DdrBuffer(name, "constant", at, -(-len(data) // BLOCK_BYTES)) for (name, data), at in zip(self.parts, self.offsets, strict=True)
        ]

    def bytes(self) -> NDArray[np.uint8]:
        out = np.zeros(self.end * BLOCK_BYTES, np.uint8)
        for (_, data), at in zip(self.parts, self.offsets, strict=True):
            out[at * BLOCK_BYTES : at * BLOCK_BYTES + len(data)] = data
        return out
