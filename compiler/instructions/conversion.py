"""VCONVERT between blocks of bytes and float16 blocks (two per block of bytes) or float32 blocks (four per block of bytes)."""

from __future__ import annotations

from numba import njit

from compiler.instructions.builders import along, compile_once, vector
from compiler.instructions.repeats import START, repeats_across, repeats_along
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.program import Code

_VCONVERT = int(Op.VCONVERT)

WIDE = 4  # float32 blocks per block of bytes
HALF = 2  # float16 blocks per block of bytes


@compile_once
@njit(cache=True)
def stride_blocks(
    out: Code, cursor: int, op: int, dtype: int, tag: int, target: int, source: int, blocks: int, dbs: int, dstep: int, sbs: int,
    sstep: int, imm: int,
) -> int:  # fmt: skip
    """Write a VECTOR operation on `blocks` blocks.  dbs, sbs: strides within a repeat.  dstep, sstep: strides of repeats, per block."""
    ds, s0s = (dbs, REPEAT_BLOCKS * dstep), (sbs, REPEAT_BLOCKS * sstep)
    return along(out, cursor, op, dtype, tag, target, source, -1, -1, blocks, ds, s0s, (0, 0), (0, 0), imm)


@njit(cache=True)
def converts_across(size: int, runs: int) -> bool:
    """Whether `convert_runs` converts eight blocks of all runs at a time."""
    (across, of_all), (along, of_runs) = repeats_across(size, runs, 1), repeats_along(size, runs)
    return across + of_all * START < along + of_runs * START


@compile_once
@njit(cache=True)
def convert_runs(
    out: Code, cursor: int, dtype: int, tag: int, target: int, dstep: int, d_run: int, source: int, sstep: int, s_run: int, size: int,
    runs: int, imm: int,
) -> int:  # fmt: skip
    """VCONVERT of `runs` runs of `size` blocks, counted in the type with more lanes.

    dstep, sstep: blocks of target and source per counted block.  d_run, s_run: blocks from run to run.  An instruction takes one run, or
    eight blocks of all runs.
    """
    if runs == 1 or (d_run == size * dstep and s_run == size * sstep):
        return stride_blocks(out, cursor, _VCONVERT, dtype, tag, target, source, runs * size, 1, dstep, 1, sstep, imm)
    if not converts_across(size, runs):
        for run in range(runs):
            cursor = stride_blocks(
                out, cursor, _VCONVERT, dtype, tag, target + run * d_run, source + run * s_run, size, 1, dstep, 1, sstep, imm
            )
        return cursor
    for block in range(0, size, REPEAT_BLOCKS):
        width = min(REPEAT_BLOCKS, size - block)
        for run in range(0, runs, MAX_REPEATS):
            cursor = vector(
                out, cursor, _VCONVERT, dtype, tag, target + block * dstep + run * d_run, source + block * sstep + run * s_run, -1, -1,
                width, min(MAX_REPEATS, runs - run), 1, d_run, 1, s_run, 0, 0, 0, 0, imm,
            )  # fmt: skip
    return cursor
