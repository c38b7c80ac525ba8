"""How VECTOR pools a window of whole rows of an image: repeats that add to one block, eight channels or eight pixels at a time.

An instruction per pixel, as of windows that slide, would work on one block in eight and start as often as there are pixels.
"""

from __future__ import annotations

from numba import njit

START = 6  # repeats that starting a VECTOR instruction is worth, about, on any machine


@njit(cache=True)
def pixelwise(planes: int, pixels: int) -> bool:
    """Whether every plane's pixels are pooled eight at a time, and then its last eight: for few planes, which fill no instruction."""
    groups = (planes + 7) // 8
    by_pixels = planes * (START + pixels // 8 - 1) + groups * (2 * START + 8 + pixels % 8)
    return pixels >= 16 and by_pixels < groups * (START + pixels)


@njit(cache=True)
def work(planes: int, pixels: int) -> tuple[int, int]:
    """(repeats, instructions) of one window."""
    groups = (planes + 7) // 8
    if pixelwise(planes, pixels):
        return planes * (pixels // 8 - 1) + groups * (8 + pixels % 8), planes + groups * (1 + (pixels % 8 > 0))
    return groups * pixels, groups
