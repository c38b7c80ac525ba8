"""Loops and operands of an operator on a block; `segment.dataflow` derives moves and computations from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from compiler.ir.im2col import WHOLE, Cut
from compiler.target.capabilities import L0, SINGLE_TILE
from compiler.target.zero_blocks import Ints, no_zero_blocks
from simulator.npu.parts import Fractal, Memory


class Operand(NamedTuple):
    """A tensor of a computation: loops that index it, its bits, its memory before (after) the computation, and the memory during it.

    lies L1: the segment keeps it on chip.  A read that lacks a loop of the result is a broadcast over it.
    """

    tensor: str
    loops: tuple[str, ...]
    bits: int
    lies: Memory
    wanted: Memory


@dataclass(frozen=True)
class Nest:
    """A computation on one block: extents of the loops, operands read, operand written.

    g groups of (m pixels x k blocks of C0) by (k x n times 16 channels), or p planes of C0 channels x h rows x w columns.
    lanes: C0.  source_planes, source_blocks: planes of the main input, and blocks that a block in the middle of the image reads of each.
    steps: computations of VECTOR, one after the other on the same tile.  fractal: None on VECTOR.  l0: tiles that stay in L0.
    cut: where IM2COL ends along k (`ir.im2col`).  needed: which blocks of weights a product multiplies (`target.zero_blocks`).
    """

    unit: Literal["CUBE", "VECTOR"]
    loops: dict[str, int]
    reads: tuple[Operand, ...]
    write: Operand
    lanes: int
    source_planes: int
    source_blocks: int
    steps: int = 1
    cut: Cut = WHOLE
    fractal: Fractal | None = None
    l0: L0 = SINGLE_TILE
    needed: Ints = field(default_factory=no_zero_blocks, compare=False)

    @property
    def source_elements(self) -> int:
        return self.source_planes * self.source_blocks * self.lanes
