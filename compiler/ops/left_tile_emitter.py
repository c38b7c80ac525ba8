"""Tiles of the left operand of a product: IM2COL of an image, part by part where one instruction cannot encode the window."""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.instructions.builders import im2col
from compiler.ops.conv_job import ROOM, ConvJob
from simulator.npu.isa import MAX_WINDOW
from simulator.npu.program import Code


@njit(cache=True)
def load_left(out: Code, cursor: int, job: ConvJob, base: int, target: int, first: int, m: int, mpad: int, k_start: int, k: int) -> int:
    """Load blocks [k_start, k_start + k) of a tile of the left operand, part by part (`ir.im2col`); -1 if `out` is too short.

    If the padding above the image exceeds its field, kernel rows that cover only padding get a separate instruction.  If they cover only
    padding for the first pixels of the tile, these pixels are zeroed, and another instruction loads one block of k for the other pixels.
    The padding above the other pixels fits its field (`ir.im2col.MAX_PADDED_STRIDE`).
    """
    geometry = job.geometry
    row = first // geometry.out_w
    padding_rows = job.block.pad_top - row * geometry.sh  # rows between the image and the window of the tile's first pixel
    spread = ((first + m - 1) // geometry.out_w - row) * geometry.sh  # rows from the first window to the last one
    per_block = geometry.fractal_lanes // geometry.lanes
    by_columns = geometry.part_columns < geometry.kw
    plane_k = (geometry.kh * geometry.kw + per_block - 1) // per_block
    if geometry.part_rows == geometry.kh and not by_columns and padding_rows <= MAX_WINDOW:
        return _load_part(out, cursor, job, base, target, first, m, mpad, np.int64(0), np.int64(0), geometry.kh, geometry.kw, k_start, k)
    done = 0
    while done < k:
        if cursor + 2 + ROOM >= out.shape[0]:
            return -1
        plane, inside = (k_start + done) // plane_k, (k_start + done) % plane_k
        ky, kx, kh, kw = 0, 0, 1, geometry.part_columns
        if by_columns:
            row_k, part_k = (geometry.kw + per_block - 1) // per_block, (geometry.part_columns + per_block - 1) // per_block
            ky, inside = inside // row_k, inside % row_k
            kx = inside // part_k * geometry.part_columns
            kw = min(kw, geometry.kw - kx)
        else:
            part_k = geometry.part_rows * geometry.kw // per_block if geometry.part_rows < geometry.kh else plane_k
            ky = inside // part_k * geometry.part_rows
            kh = min(geometry.part_rows, geometry.kh - ky)
        skip = inside % part_k
        size = min(k - done, (kh * kw + per_block - 1) // per_block - skip)
        plane_base, to = base + plane * job.block.in_plane, target + done * mpad
        if padding_rows - ky * geometry.dh > MAX_WINDOW and per_block == 1:
            whole_rows = skip // kw
            ky, kh, skip = ky + whole_rows, kh - whole_rows, skip - whole_rows * kw
            top = padding_rows - ky * geometry.dh
            if top > spread:
                kh = min(kh, (top - spread + geometry.dh - 1) // geometry.dh)
                size = min(size, kh * kw - skip)
            elif top > MAX_WINDOW:
                zeros = (
                    ((top + geometry.sh - 1) // geometry.sh * geometry.out_w - (first - row * geometry.out_w))
                    // geometry.fractal_rows
                    * geometry.fractal_rows
                )
                cursor = _load_part(out, cursor, job, plane_base, to, first, zeros, zeros, ky, kx, np.int64(1), kw, skip, np.int64(1))
                cursor = _load_part(
                    out, cursor, job, plane_base, to + zeros, first + zeros, m - zeros, mpad - zeros, ky, kx, np.int64(1), kw, skip,
                    np.int64(1),
                )  # fmt: skip
                done += 1
                continue
        cursor = _load_part(out, cursor, job, plane_base, to, first, m, mpad, ky, kx, kh, kw, skip, size)
        done += size
    return cursor


@njit(cache=True)
def _load_part(
    out: Code, cursor: int, job: ConvJob, base: int, target: int, first: int, m: int, mpad: int, ky: int, kx: int, kh: int, kw: int,
    koff: int, k: int,
) -> int:  # fmt: skip
    """IM2COL of a part of the kernel, rows [ky, ky + kh) and columns [kx, kx + kw): its blocks [koff, koff + k), pixels from `first` on.

    The image is cut to begin at the first pixel under the first window of this part.
    """
    geometry, operands, block = job.geometry, job.operands, job.block
    row = first // geometry.out_w
    spread = ((first + m - 1) // geometry.out_w - row) * geometry.sh
    pad_top, pad_left = block.pad_top - row * geometry.sh - ky * geometry.dh, geometry.pad_left - kx * geometry.dw
    height, width, begin, ring_first = block.in_rows, geometry.in_w, base, block.in_first
    if pad_top < 0:
        height += pad_top
        if block.in_ring > 0:
            ring_first = (ring_first - pad_top) % block.in_ring
        else:
            begin -= pad_top * geometry.in_pitch
        pad_top = 0
    if pad_left < 0:
        per_block = geometry.fractal_lanes // geometry.lanes
        blocks = -pad_left // per_block
        begin += blocks
        width -= blocks * per_block
        pad_left += blocks * per_block
    if height <= 0 or width <= 0 or pad_top > spread + (kh - 1) * geometry.dh:  # only padding: windows below an image of one pixel
        return im2col(
            out, cursor, operands.dtype, job.tag, base, target, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, geometry.out_w, geometry.out_w, m, mpad,
            0, k, geometry.lanes, 0, 0, operands.pad,
        )  # fmt: skip
    return im2col(
        out, cursor, operands.dtype, job.tag, begin, target, height, width, geometry.in_pitch, block.in_plane, kh, kw, geometry.sh,
        geometry.sw, geometry.dh if kh > 1 else 1, geometry.dw if kw > 1 else 1, pad_top, pad_left, geometry.out_w,
        first - row * geometry.out_w, m, mpad, koff, k, geometry.lanes, block.in_ring, ring_first, operands.pad,
    )  # fmt: skip
