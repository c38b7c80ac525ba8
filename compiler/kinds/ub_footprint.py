"""What a tile of a vector kernel takes of UB: planes by rows by columns, and the constants of its planes."""

from __future__ import annotations

from compiler.kinds.chain import VectorSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.pool import PoolSpec
from compiler.kinds.resample import ResampleSpec
from compiler.kinds.softmax import SoftmaxSpec
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import KernelSpec
from simulator.npu.machine import DataType


def softmax_planes(spec: SoftmaxSpec, tiling: VectorTiling) -> int:
    """Planes of a tile: whole groups."""
    deep = spec.group_planes
    return min(spec.y.planes, max(deep, tiling.tile_planes // deep * deep))


def tile_planes(spec: KernelSpec, tiling: VectorTiling) -> int:
    """Planes of a tile of a vector kernel."""
    if isinstance(spec, LayerNormSpec):
        return spec.y.planes
    return softmax_planes(spec, tiling) if isinstance(spec, SoftmaxSpec) else min(spec.y.planes, tiling.tile_planes)


def vector_slot(spec: KernelSpec, planes: int, rows: int, columns: int, dtype: int) -> int:
    """Blocks of one UB slot of a vector kernel, for a tile of so many planes, rows and columns."""
    if isinstance(spec, PoolSpec):
        return planes * spec.slot_blocks(rows, columns)
    if isinstance(spec, SoftmaxSpec):
        return (planes + 2) * rows * columns
    if isinstance(spec, LayerNormSpec):
        # values, and their squares in float32
        return rows * columns * (planes * (3 if dtype == DataType.float16 else 2) + 1)
    if isinstance(spec, ResampleSpec):
        return spec.slot_blocks(planes, rows, columns)
    return (spec.buffers if isinstance(spec, VectorSpec) else 1) * planes * rows * columns


def constant_blocks(spec: KernelSpec, planes: int) -> int:
    """Blocks of UB for the constants of so many planes of a vector kernel; a pooling's counts, which belong to pixels, are none."""
    if isinstance(spec, VectorSpec):
        return 2 * len(spec.steps) * planes if (spec.steps[:, 3] >= 0).any() else 0
    if isinstance(spec, SoftmaxSpec):
        return planes if spec.gaps else 0
    return 3 * planes if isinstance(spec, LayerNormSpec) else 0
