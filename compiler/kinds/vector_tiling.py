"""Tilings of VECTOR operators: planes by rows, or columns of one row, that a slot of UB holds."""

from __future__ import annotations

from functools import lru_cache

from compiler.kinds.base import on_vector
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import OperatorSpec
from compiler.unit.unit import Unit
from simulator.npu.machine import Memory

UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector operator may hold by default; two of them are live


@lru_cache(maxsize=1 << 14)
def vector_tiling(unit: Unit, spec: OperatorSpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane, or columns of one row; two slots and the constants fit UB where
    anything does."""
    mine, ub = on_vector(spec), unit.machine.buffer_blocks(Memory.UB)
    most = (ub - mine.set_aside(1)) // 16 * 8
    found = mine.columns_tiling(min(slot_blocks, most), most, unit.dtype)
    return found or mine.slot_tiling(rows, max(8, min(slot_blocks, (ub - mine.set_aside(rows)) // 16 * 8)), unit.dtype)
