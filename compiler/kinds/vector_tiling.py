"""Tilings of VECTOR operators: planes by rows, or columns of one row, that a slot of UB holds."""

from __future__ import annotations

from functools import lru_cache

from compiler.kinds.base import on_vector
from compiler.plan.plan import VectorTiling
from compiler.unit.machine import room_blocks
from compiler.unit.operators import OperatorSpec
from compiler.unit.unit import Unit
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.parts import Memory

UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector operator may hold by default; two of them are live


@lru_cache(maxsize=1 << 14)
def vector_tiling(unit: Unit, spec: OperatorSpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane, or columns of one row; two slots and the constants fit UB where
    anything does."""
    mine, ub, dtype = on_vector(spec), room_blocks(unit.machine, Memory.UB), unit.type_of(spec.y)
    most = _slot_blocks(ub - mine.set_aside(1))
    found = mine.columns_tiling(min(slot_blocks, most), most, dtype)
    return found or mine.slot_tiling(rows, max(REPEAT_BLOCKS, min(slot_blocks, _slot_blocks(ub - mine.set_aside(rows)))), dtype)


def _slot_blocks(ub: int) -> int:
    """Of one of two slots in so much of UB: whole repeats."""
    return ub // (2 * REPEAT_BLOCKS) * REPEAT_BLOCKS
