"""VCONVERT between bytes and the four blocks of float32 that a block of them becomes."""

from __future__ import annotations

from numba import njit

from compiler.records.writers import general, vector
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

WIDE = 4  # blocks of float32 for a block of bytes


@general
@njit(cache=True)
def paced(
    out: Code, at: int, op: int, dtype: int, tag: int, d: int, s: int, blocks: int, dbs: int, dstep: int, sbs: int, sstep: int, imm: int
) -> int:  # fmt: skip
    """A VECTOR operation on `blocks` blocks that lie dstep and sstep apart; dbs, sbs: the same in runs of what is converted."""
    done = 0
    while done < blocks:
        left = blocks - done
        width, repeats = (REPEAT_BLOCKS, min(MAX_REPEATS, left // REPEAT_BLOCKS)) if left >= REPEAT_BLOCKS else (left, 1)
        at = vector(
            out, at, op, dtype, tag, d + done * dstep, s + done * sstep, -1, -1, width, repeats, dbs, REPEAT_BLOCKS * dstep, sbs,
            REPEAT_BLOCKS * sstep, 0, 0, 0, 0, imm,
        )  # fmt: skip
        done += width * repeats
    return at
