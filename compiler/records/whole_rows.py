"""How VECTOR pools a window of whole rows of an image: repeats that add to one block, eight channels or eight pixels at a time.

An instruction per pixel, as of windows that slide, would work on one block in eight and start as often as there are pixels.
"""

from __future__ import annotations

from numba import njit

from simulator.npu.isa import REPEAT_BLOCKS

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
        whole, rest = pixels // REPEAT_BLOCKS, pixels % REPEAT_BLOCKS
        return planes * (whole - 1) + groups * (REPEAT_BLOCKS + rest), planes + groups * (1 + (rest > 0))
    return groups * pixels, groups
