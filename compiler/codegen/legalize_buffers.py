"""Legalisation of records for a machine without UB or L0, from records for a machine with all memories (`target.capabilities`).

UB is replaced by a region of L1.  A COPY from L1 to UB, or back, moves on the path L1 -> L1, on the engine of that path.  Without L0A and
L0B, every MMAD becomes one MMAD_IM2COL for each IM2COL of its tile, and reads weights directly from L1.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.target.capabilities import room_blocks
from simulator.npu import isa
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Code

_L1, _UB, _L0B, _CUBE = int(Memory.L1), int(Memory.UB), int(Memory.L0B), int(Engine.CUBE)
_COPY, _IM2COL, _MMAD, _MMAD_IM2COL = int(Op.COPY), int(Op.IM2COL), int(Op.MMAD), int(Op.MMAD_IM2COL)
_PARTS = 1 << 12  # IM2COLs of a tile, at most
_WEIGHT_BLOCKS = isa.WEIGHT_BLOCKS
OP, ENGINE, DTYPE, TAG, SRC, DST, D, S0, S1, S2, BLOCK = (
    isa.OP, isa.ENGINE, isa.DTYPE, isa.TAG, isa.SRC, isa.DST, isa.D, isa.S0, isa.S1, isa.S2, isa.BLOCK,
)  # fmt: skip
I_KH, I_OW, I_MPAD, I_K = isa.I_KH, isa.I_OW, isa.I_MPAD, isa.I_K
W_KERNEL, W_N1, W_ACC, W_RIGHT, W_RSTRIDE = isa.W_KERNEL, isa.W_N1, isa.W_ACC, isa.W_RIGHT, isa.W_RSTRIDE
M_MPAD, M_K, M_N1, M_ACC, M_RIGHT = isa.M_MPAD, isa.M_K, isa.M_N1, isa.M_ACC, isa.M_RIGHT
C_COUNT, C_SSTRIDE = isa.C_COUNT, isa.C_SSTRIDE
_paired = njit(cache=True, inline="always")(isa.pack_pair)


def legalize_records(code: Code, machine: Machine) -> Code:
    """Rewrite records for the memories of a machine; the argument itself if it has all."""
    if not machine.has(Memory.L0A):
        code = _without_l0(code, machine)
    return code if machine.has(Memory.UB) else _without_ub(code, machine)


def _without_ub(code: Code, machine: Machine) -> Code:
    code = code.copy()
    for word in (SRC, DST):
        code[code[:, word] == _UB, word] = _L1
    code[code[:, OP] == Op.FIXPIPE, isa.F_SIDE] = _L1
    path = machine.path(Memory.L1, Memory.L1)
    assert path is not None, "check_machine"
    code[(code[:, OP] == _COPY) & (code[:, SRC] == _L1) & (code[:, DST] == _L1), ENGINE] = int(Engine[path.engine])
    return code


def _without_l0(code: Code, machine: Machine) -> Code:
    halves = room_blocks(machine, Memory.L0A) // 2, room_blocks(machine, Memory.L0B) // 2
    products, parts = int((code[:, OP] == _MMAD).sum()), int((code[:, OP] == _IM2COL).sum())
    room = len(code) + products
    while (used := _fused(code, out := np.empty((room, isa.WORDS), np.int32), *halves)) == -1:
        room += max(1, products) * max(1, parts)
    if used < 0:
        reason = (
            "pads by more rows than a window says"
            if used == -2
            else "has a right operand that is computed, which only L0B brings into order"
        )
        raise UnsupportedError(f"machine {machine.name}: a product {reason}; accepted: on a machine with L0A and L0B")
    return out[:used]


@njit(cache=True)
def _fused(code: Code, out: Code, half_a: int, half_b: int) -> int:
    """Write the records to `out`, with one MMAD_IM2COL per IM2COL.  Returns their count; -1: `out` is too short; -2, -3: no such
    instruction."""
    parts = np.zeros((2, _PARTS), np.int64)
    count, right, cursor = np.zeros(2, np.int64), np.zeros(2, np.int64), 0
    for i in range(code.shape[0]):
        # IM2COLs and right operands of a slot are remembered until an MMAD reads it; each IM2COL then becomes a product of its own
        op = code[i, OP]
        if op == _IM2COL:
            slot = code[i, D] // half_a
            if code[i, D] == slot * half_a:
                count[slot] = 0
            if count[slot] == _PARTS:
                return -2
            parts[slot, count[slot]] = i
            count[slot] += 1
        elif code[i, DST] == _L0B and (op == _COPY or code[i, SRC] == _L1):
            if op != _COPY:
                return -3
            right[code[i, D] // half_b] = i
        elif op == _MMAD:
            slot = code[i, S0] // half_a
            weights = code[right[code[i, S1] // half_b]]
            mpad, wide = code[i, M_MPAD], _WEIGHT_BLOCKS[code[i, DTYPE]]
            stride = weights[C_SSTRIDE] if weights[C_COUNT] > 1 else code[i, M_K] * wide
            for p in range(count[slot]):
                if cursor >= out.shape[0]:
                    return -1
                image, row = code[parts[slot, p]], out[cursor]
                if image[I_MPAD] != mpad:
                    return -2
                row[:] = image
                row[OP], row[ENGINE], row[DST], row[TAG], row[BLOCK] = _MMAD_IM2COL, _CUBE, code[i, DST], code[i, TAG], code[i, BLOCK]
                row[D], row[S1] = code[i, D], weights[S0] + (image[D] - slot * half_a) // mpad * wide
                for pair in range(4):
                    row[W_KERNEL + pair] = _paired(np.int64(image[I_KH + 2 * pair]), np.int64(image[I_KH + 2 * pair + 1]))
                row[W_N1], row[W_RIGHT], row[W_RSTRIDE] = code[i, M_N1], code[i, M_RIGHT], stride
                # only the first product of a tile may set the sums
                row[W_ACC] = code[i, M_ACC] if p == 0 else 1
                cursor += 1
        else:
            if cursor >= out.shape[0]:
                return -1
            out[cursor] = code[i]
            cursor += 1
    return cursor
