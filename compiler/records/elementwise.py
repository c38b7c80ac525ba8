"""What VECTOR does for an element-wise chain (`compiler.kinds.chain_emitter`)."""

from __future__ import annotations

from numba import njit

from compiler.records.whole_rows import START
from simulator.npu.isa import REPEAT_BLOCKS


@njit(cache=True)
def by_planes(planes: int, pixels: int) -> bool:
    """Whether a block for every plane meets the plane's pixels eight at a time; else every pixel meets those of eight planes."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    return planes * (START + (pixels + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS) <= groups * (START + pixels)
