"""What VECTOR does for a pooling whose windows slide (`compiler.emit.pool`)."""

from __future__ import annotations

from functools import lru_cache

from compiler.ir.graph import Pool
from compiler.kinds.grid import cheapest
from compiler.kinds.pool import PoolSpec


@lru_cache(maxsize=1 << 14)
def sliding(spec: PoolSpec, planes: int, rows: int, columns: int) -> tuple[float, float]:
    """(repeats, instructions) of a tile of so many planes by rows by columns of results, on average over the image."""
    pool = spec.kernel
    assert isinstance(pool, Pool)
    wide = spec.wide(columns)
    # rows that follow one another are one long row
    over_rows = cheapest(wide * rows, 1, planes) if pool.stride[0] == 1 else cheapest(wide, rows, planes)
    repeats = instructions = 0.0
    for way, operations, inside in zip((over_rows, cheapest(columns, rows * planes, 1)), spec.operations, spec.inside, strict=True):
        repeats += operations * inside * way.work
        instructions += operations * inside * way.instructions
    return repeats, instructions
