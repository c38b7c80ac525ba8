"""What VECTOR does for an element-wise chain (`compiler.emit.vector`)."""

from __future__ import annotations

from functools import lru_cache

from numba import njit

from compiler.kinds.chain import VectorSpec
from compiler.kinds.grid import end_to_end
from compiler.kinds.whole_rows import START
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op

_VCOPY, _VMADD = int(Op.VCOPY), int(Op.VMADD)


@njit(cache=True)
def by_planes(planes: int, pixels: int) -> bool:
    """Whether a block for every plane meets the plane's pixels eight at a time; else every pixel meets those of eight planes."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    return planes * (START + (pixels + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS) <= groups * (START + pixels)


@lru_cache(maxsize=1 << 14)
def chain(spec: VectorSpec, planes: int, pixels: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Of a tile of so many planes by pixels: (opcode, repeats) of every step, and instructions in all."""
    found = [(_VCOPY, *end_to_end(planes * pixels, 1))] if spec.keeps_input else []
    for op, _, operand, *_ in spec.steps.tolist():
        pixel = 0 <= operand < len(spec.pixels) and spec.pixels[operand]
        if not pixel and (op != _VMADD):
            found.append((op, *end_to_end(planes * pixels, 1)))
        elif pixel or by_planes(planes, pixels):
            found.append((op, *end_to_end(pixels, planes)))
        else:
            groups = -(-planes // REPEAT_BLOCKS)
            found.append((op, groups * pixels, groups * -(-pixels // MAX_REPEATS)))
    return tuple([(op, repeats) for op, repeats, _ in found]), sum([calls for _, _, calls in found])
