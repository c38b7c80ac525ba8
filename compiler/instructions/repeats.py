"""How VECTOR goes over a grid of blocks: eight of one axis at a time, repeated along an axis, one instruction after another over the rest.

Which axes these are decides how many repeats work on fewer than eight blocks, and how often an instruction has to start.

What VECTOR does for an element-wise chain (`compiler.ops.elementwise_emitter`).

How VECTOR pools a window of whole rows of an image: repeats that add to one block, eight channels or eight pixels at a time.

An instruction per pixel, as of windows that slide, would work on one block in eight and start as often as there are pixels.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS

START = 6  # repeats that starting a VECTOR instruction is worth, about, on any machine


@njit(cache=True)
def pixelwise(planes: int, pixels: int) -> bool:
    """Whether every plane's pixels are pooled eight at a time, and then its last eight: for few planes, which fill no instruction."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    by_pixels = planes * (START + pixels // REPEAT_BLOCKS - 1) + groups * (2 * START + REPEAT_BLOCKS + pixels % REPEAT_BLOCKS)
    return pixels >= 2 * REPEAT_BLOCKS and by_pixels < groups * (START + pixels)


@njit(cache=True)
def work(planes: int, pixels: int) -> tuple[int, int]:
    """(repeats, instructions) of one window."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    if pixelwise(planes, pixels):
        full, remainder = pixels // REPEAT_BLOCKS, pixels % REPEAT_BLOCKS
        return planes * (full - 1) + groups * (REPEAT_BLOCKS + remainder), planes + groups * (1 + (remainder > 0))
    return groups * pixels, groups


class Way(NamedTuple):
    """blocks, repeats: axes that an instruction's blocks and its repeats go along; the same one: end to end along it."""

    blocks: int
    repeats: int
    work: int  # repeats of all instructions
    instructions: int


@njit(cache=True)
def apart(blocks: int, repeats: int, outer: int) -> tuple[int, int]:
    """(repeats, instructions) of blocks along one axis, repeats along another, and `rest` times that."""
    groups = outer * -(-blocks // REPEAT_BLOCKS)
    return groups * repeats, groups * -(-repeats // MAX_REPEATS)


@njit(cache=True)
def end_to_end(length: int, outer: int) -> tuple[int, int]:
    """(repeats, instructions) of one axis, eight blocks after eight blocks and then what is left."""
    full, partial = length // REPEAT_BLOCKS, length % REPEAT_BLOCKS > 0
    return outer * (full + partial), outer * (-(-full // MAX_REPEATS) + partial)


@njit(cache=True)
def cheapest(inner: int, middle: int, outer: int) -> Way:
    """Over a x b x c blocks: the way that takes the least time, starting included."""
    sizes = (inner, middle, outer)
    best = Way(0, 0, 0, 0)
    for blocks in range(3):
        for repeats in range(3):
            if blocks == repeats:
                work, instructions = end_to_end(sizes[blocks], inner * middle * outer // max(1, sizes[blocks]))
            else:
                work, instructions = apart(sizes[blocks], sizes[repeats], sizes[3 - blocks - repeats])
            if best.instructions == 0 or work + START * instructions < best.work + START * best.instructions:
                best = Way(blocks, repeats, work, instructions)
    return best


@njit(cache=True)
def by_planes(planes: int, pixels: int) -> bool:
    """Whether a block for every plane meets the plane's pixels eight at a time; else every pixel meets those of eight planes."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    return planes * (START + (pixels + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS) <= groups * (START + pixels)
