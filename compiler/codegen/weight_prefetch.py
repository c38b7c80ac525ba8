"""Prefetch of a segment's weights, before its first tensor.

Queues are in order.  A segment's first tensor cannot be loaded before the previous segment has stored it, and all later loads wait behind
that load.  Loads of constants depend on nothing, so some of them may come first, while the previous segment still computes.  Those that
find free buffers save time; more would delay the tensor.

Only loads into L1 come first: a load into UB would wait for the few slots of the predecessor and delay all later loads of its queue.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.instructions.builders import DDR, L1, MTE2, SHARED, UB
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, Memory
from simulator.npu.program import Code

_ENGINE, _SRC, _DST, _S0 = isa.ENGINE, isa.SRC, isa.DST, isa.S0


def prefetch_weights(code: Code, machine: Machine, constant_blocks: int, size_kib: int) -> None:
    """Move the first loads of constants, at most `size_kib` of them, to the front, in place; all other records keep their order.

    Loads into UB are not moved: the previous segment uses its few slots, so such a load would wait and delay all later loads.  A load into
    an L1 range that an earlier record touches is not moved either, so the program keeps its meaning.
    """
    taken = np.zeros(len(code), np.bool_)
    l1 = np.zeros(machine.buffer_blocks(Memory.L1), np.bool_)
    _mark_loads(code, constant_blocks, size_kib * 1024 // BLOCK_BYTES, l1, taken)
    _bring(code, taken)


@njit(cache=True)
def _mark_loads(code: Code, constant_blocks: int, room: int, l1: NDArray[np.bool_], taken: NDArray[np.bool_]) -> None:
    """Mark loads until one does not fit `room` blocks.  l1: ranges of L1 touched so far."""
    ranges = np.empty((MAX_RANGES, 8), np.int64)
    for i in range(code.shape[0]):
        fresh, size = True, 0
        for r in range(accesses(code, i, ranges)):
            memory, write, first, length, runs, stride, groups, group_stride = ranges[r]
            if memory == SHARED and write:
                size += groups * runs * length
            if memory != L1:
                continue
            for g in range(groups):
                for k in range(runs):
                    address = first + g * group_stride + k * stride
                    fresh = fresh and not l1[address : address + length].any()
                    l1[address : address + length] = True
            if write:
                size += groups * runs * length
        if code[i, _ENGINE] == MTE2 and code[i, _SRC] == DDR and code[i, _DST] != UB and code[i, _S0] < constant_blocks and fresh:
            if size > room:
                return
            room -= size
            taken[i] = True


@njit(cache=True)
def _bring(code: Code, taken: NDArray[np.bool_]) -> None:
    """Move the marked records to the front; records behind the last marked one keep their places."""
    stop, count = taken.shape[0], taken.sum()
    while stop > 0 and not taken[stop - 1]:
        stop -= 1
    first = np.empty((count, code.shape[1]), np.int32)
    cursor = stop
    for i in range(stop - 1, -1, -1):
        if taken[i]:
            count -= 1
            first[count] = code[i]
        else:
            cursor -= 1
            for word in range(code.shape[1]):
                code[cursor, word] = code[i, word]
    code[:cursor] = first
