"""Splitting of large windows into parts that one IM2COL instruction can encode, and the windows that no splitting can encode.

An instruction has fields up to `MAX_WINDOW` for kernel, strides, dilations and leading padding.  A larger kernel is cut into parts: runs
of its rows or, where one row is too long, runs of columns of a row.  Each part is a window of its own, whose instruction writes its own
blocks of the tile in L0A.  So there is still one product, without additional rounding.

Along k, in blocks, a part ends at every multiple of `length`, counted from each multiple of `period`, wherever a tile begins.  The counts
of this module equal the number of instructions that `compiler.ops.conv_emitter` writes for tiles inside the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from numba import njit

from compiler.ir.operators.conv import Convolution
from simulator.npu.fractal_sizes import ROWS
from simulator.npu.isa import MAX_WINDOW

# Limit of strides with top padding above MAX_WINDOW: pixels that see only padding are zeroed by fractals, and one field has to hold the
# rows of the remaining pixels, fewer than a fractal has
MAX_PADDED_STRIDE = MAX_WINDOW // (ROWS - 1)
MAX_COLUMNS = 1 << 20  # columns of a result: limit of IM2COL's field
MAX_PIXELS = 1 << 24  # pixels of a result: limit of IM2COL's field for the first pixel of a tile
_FAR = 1 << 40  # blocks: beyond every window

Cut = tuple[int, int]  # period and length
WHOLE: Cut = (_FAR, _FAR)


class Parts(NamedTuple):
    """Rows and columns of a part; a part of several rows has all columns.  cut: ends of parts along k."""

    rows: int
    columns: int
    cut: Cut


def split_kernel(kernel: Sequence[int], dilation: Sequence[int], per_block: int) -> Parts:
    """Parts of a kernel.  per_block: taps in a block of k, several for a four-lane image (where `Convolution.takes_fours` is true)."""
    (high, wide), (dilation_h, dilation_w) = kernel, dilation
    limit = MAX_WINDOW // per_block * per_block  # a part begins with a block
    if wide > MAX_WINDOW or (wide > 1 and dilation_w > MAX_WINDOW):
        columns = 1 if dilation_w > MAX_WINDOW else limit
        return Parts(1, columns, (-(-wide // per_block), -(-columns // per_block)))
    if high > MAX_WINDOW or (high > 1 and dilation_h > MAX_WINDOW):
        rows = 1 if dilation_h > MAX_WINDOW else limit
        return Parts(rows, wide, (-(-high * wide // per_block), rows * wide // per_block))
    return Parts(high, wide, WHOLE)


def unencodable_window(conv: Convolution) -> str:
    """Reason why instructions cannot encode a window, with the limit; '' where they can."""
    pad_top, pad_left = conv.pads[:2]
    kernel, limit_text = conv.weights.shape[2:], f"at most {MAX_WINDOW} is supported"
    if max(conv.stride) > MAX_WINDOW:
        return f"strides {list(conv.stride)}; {limit_text} where an image has rows and columns"
    if any(size == 1 and dilation > MAX_WINDOW for size, dilation in zip(kernel, conv.dilation, strict=True)):
        return f"dilations {list(conv.dilation)} of a kernel {list(kernel)}; {limit_text} where it has one place"
    if pad_left > MAX_WINDOW:
        return f"{pad_left} columns of padding in front; {limit_text}"
    if pad_top > MAX_WINDOW and conv.stride[0] > MAX_PADDED_STRIDE:
        return f"{pad_top} rows of padding in front with stride {conv.stride[0]}; {limit_text}, or a stride of at most {MAX_PADDED_STRIDE}"
    return ""


@njit(cache=True)
def _instructions(cut: Cut, start: int, stop: int) -> int:
    """Number of IM2COL of one tile, blocks [start, stop) of k."""
    period, length = cut
    parts, last = (period + length - 1) // length, stop - 1
    return last // period * parts + last % period // length - start // period * parts - start % period // length + 1


@njit(cache=True)
def count_instructions(cut: Cut, start: int, stop: int, chunk: int, tile: int) -> int:
    """Number of IM2COL for blocks [start, stop) of k: chunks of `chunk` blocks, each in tiles of `tile` blocks."""
    full_chunks, remaining_blocks = (stop - start) // chunk, (stop - start) % chunk
    if cut[1] >= stop:
        return full_chunks * ((chunk + tile - 1) // tile) + (remaining_blocks + tile - 1) // tile
    count = 0
    for begin in range(start, stop, chunk):
        end = min(begin + chunk, stop)
        for first_block in range(begin, end, tile):
            count += _instructions(cut, first_block, min(first_block + tile, end))
    return count
