"""Tilings of VECTOR kernels: planes by rows, or columns of one row, that a slot of UB holds."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

from compiler.kinds.chain import VectorSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.pool import PoolSpec
from compiler.kinds.resample import ResampleSpec
from compiler.kinds.softmax import SoftmaxSpec
from compiler.kinds.ub_footprint import vector_slot
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import KernelSpec
from compiler.unit.unit import Unit
from simulator.npu.machine import DataType, Memory

UB_SLOT_BLOCKS = 1280  # 40 KiB: what one slot of a vector kernel may hold by default; two of them are live


@lru_cache(maxsize=1 << 14)
def vector_tiling(unit: Unit, spec: KernelSpec, rows: int, slot_blocks: int = UB_SLOT_BLOCKS) -> VectorTiling:
    """As many whole planes as fit a slot, else as many rows of one plane, or columns of one row; two slots and the constants fit UB where
    anything does."""
    constants = spec.y.planes
    if isinstance(spec, LayerNormSpec):
        constants *= 3
    elif isinstance(spec, VectorSpec):
        constants *= 2 * len(spec.steps) if (spec.steps[:, 3] >= 0).any() else 0
    elif isinstance(spec, PoolSpec):
        constants = rows * spec.out_w if spec.counts_at >= 0 else 0
    elif isinstance(spec, ResampleSpec):
        constants = 0
    ub = unit.machine.buffer_blocks(Memory.UB)
    most = (ub - (spec.out_w if isinstance(spec, PoolSpec) and constants else constants)) // 16 * 8
    found = columns_tiling(spec, min(slot_blocks, most), most, unit.dtype)
    return found or slot_tiling(spec, rows, max(8, min(slot_blocks, (ub - constants) // 16 * 8)), unit.dtype)


def columns_tiling(spec: KernelSpec, slot_blocks: int, most: int, dtype: DataType) -> VectorTiling | None:
    """Columns of one row that fit a slot of so many blocks, at least one; None where a whole row fits `most` blocks."""
    planes = _granule(spec)
    if spec.out_w == 1 or vector_slot(spec, planes, 1, spec.out_w, int(dtype)) <= most:
        return None
    columns = bisect_right(range(1, spec.out_w), slot_blocks, key=lambda c: vector_slot(spec, planes, 1, c, int(dtype)))
    return VectorTiling(tile_planes=planes, tile_rows=1, tile_columns=max(1, columns))


def _granule(spec: KernelSpec) -> int:
    """Planes that can only be worked on together."""
    return spec.group_planes if isinstance(spec, SoftmaxSpec) else spec.y.planes if isinstance(spec, LayerNormSpec) else 1


def slot_tiling(spec: KernelSpec, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
    """As many whole planes as fit a slot of so many blocks, else as many rows of one plane (or of those that belong together)."""
    granule = _granule(spec)

    def taken(tile_rows: int) -> int:
        return vector_slot(spec, granule, tile_rows, spec.out_w, int(dtype))

    if isinstance(spec, SoftmaxSpec):
        tile_rows = max(1, min(rows, slot_blocks // ((granule + 2) * spec.out_w)))
        groups = max(1, (slot_blocks // (tile_rows * spec.out_w) - 2) // granule)
        return VectorTiling(tile_planes=min(spec.groups, groups) * granule, tile_rows=tile_rows)
    if isinstance(spec, LayerNormSpec):
        return VectorTiling(tile_planes=granule, tile_rows=max(1, min(rows, slot_blocks // taken(1))))
    whole = max(1, taken(max(1, rows)))
    if whole <= slot_blocks:
        return VectorTiling(tile_planes=max(1, min(spec.y.planes, slot_blocks // whole)), tile_rows=max(1, rows))
    if isinstance(spec, ResampleSpec):
        fitting = bisect_right(range(1, rows + 1), slot_blocks, key=taken)
    else:
        fitting = 1 + (slot_blocks - taken(1)) // (taken(2) - taken(1))
    return VectorTiling(tile_planes=1, tile_rows=max(1, min(rows, fitting)))
