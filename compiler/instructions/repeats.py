"""Counts of VECTOR repeats and instructions over a grid of blocks, and the cheapest assignment of its axes.

An instruction takes eight blocks along one axis and repeats along another.  The choice of these axes decides how many repeats have fewer
than eight blocks, and the number of instructions.

A window of whole rows of an image is pooled by repeats that accumulate in one block each, eight channels or eight pixels at a time.  An
instruction per pixel would fill one block in eight.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS

START = 6  # cost of starting a VECTOR instruction, in repeats: an estimate for all machines


@njit(cache=True)
def pools_pixelwise(planes: int, pixels: int) -> bool:
    """Whether repeats pool eight pixels of a plane, and then the eight results, because too few planes fill a repeat."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    by_pixels = planes * (START + pixels // REPEAT_BLOCKS - 1) + groups * (2 * START + REPEAT_BLOCKS + pixels % REPEAT_BLOCKS)
    return pixels >= 2 * REPEAT_BLOCKS and by_pixels < groups * (START + pixels)


@njit(cache=True)
def pool_repeats(planes: int, pixels: int) -> tuple[int, int]:
    """(repeats, instructions) of one window of whole rows with `pixels` pixels, in `planes` planes."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    if pools_pixelwise(planes, pixels):
        full, remainder = pixels // REPEAT_BLOCKS, pixels % REPEAT_BLOCKS
        return planes * (full - 1) + groups * (REPEAT_BLOCKS + remainder), planes + groups * (1 + (remainder > 0))
    return groups * pixels, groups


class Way(NamedTuple):
    """Axes of an instruction.  blocks, repeats: axes of its blocks and of its repeats; if equal, repeats continue behind the blocks."""

    blocks: int
    repeats: int
    work: int  # repeats of all instructions
    instructions: int


@njit(cache=True)
def repeats_across(blocks: int, repeats: int, outer: int) -> tuple[int, int]:
    """(repeats, instructions) of instructions with blocks along one axis and repeats along another axis, `outer` times."""
    groups = outer * -(-blocks // REPEAT_BLOCKS)
    return groups * repeats, groups * -(-repeats // MAX_REPEATS)


@njit(cache=True)
def repeats_along(length: int, outer: int) -> tuple[int, int]:
    """(repeats, instructions) of one axis, eight blocks at a time and then the remainder, `outer` times."""
    full, partial = length // REPEAT_BLOCKS, length % REPEAT_BLOCKS > 0
    return outer * (full + partial), outer * (-(-full // MAX_REPEATS) + partial)


@njit(cache=True)
def cheapest_way(inner: int, middle: int, outer: int) -> Way:
    """Fastest way over inner x middle x outer blocks, with the start-ups of instructions."""
    sizes = (inner, middle, outer)
    best = Way(0, 0, 0, 0)
    for blocks in range(3):
        for repeats in range(3):
            if blocks == repeats:
                work, instructions = repeats_along(sizes[blocks], inner * middle * outer // max(1, sizes[blocks]))
            else:
                work, instructions = repeats_across(sizes[blocks], sizes[repeats], sizes[3 - blocks - repeats])
            if best.instructions == 0 or work + START * instructions < best.work + START * best.instructions:
                best = Way(blocks, repeats, work, instructions)
    return best


@njit(cache=True)
def by_planes(planes: int, pixels: int) -> bool:
    """Whether a repeat takes eight pixels of one plane; else it takes one pixel of eight planes."""
    groups = (planes + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS
    return planes * (START + (pixels + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS) <= groups * (START + pixels)
