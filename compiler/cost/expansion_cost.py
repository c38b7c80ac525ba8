"""Cost of expanding an operator's weights (`target.weight_expansion`): the price of the records, which depends on sizes alone."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.cost.ranking import tiling_of
from compiler.instructions.node_context import SLOT_STATES
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass
from compiler.ops.expanded_weights import expansion_job
from compiler.ops.weight_expansion_emitter import ExpansionJob, expand, expand_all
from compiler.plan.plan import ConvTiling
from compiler.target.zero_blocks import Ints, mark_multiplied
from simulator.npu.cycles import price
from simulator.npu.fractal_sizes import COLUMNS
from simulator.npu.isa import ENGINE, WORDS
from simulator.npu.parts import Engine
from simulator.npu.program import Code

_FIRST = 256  # initial length of the array of records


class ExpansionCost(NamedTuple):
    """Cycles of VECTOR and MTE3, and records of both."""

    vector: float = 0.0
    mte3: float = 0.0
    records: float = 0.0


_NOTHING = ExpansionCost()


def price_expansion(kind: CostClass, tiling: ConvTiling) -> ExpansionCost:
    """Cost of expanding all of an operator's weights once."""
    spec = product_of(kind.spec)
    if spec is None or spec.expansion is None:
        return _NOTHING
    resident = tiling.weights == "resident"
    chunk = (spec.n1, spec.k1) if resident else (tiling.chunk_n1, tiling.chunk_k1)
    tile_n1 = tiling.tile_n1 if resident and spec.is_packed else 1
    return _expanding(kind, resident, *chunk, tile_n1, tiling.tile_k1 if spec.needed.size else 1)


@lru_cache(maxsize=1 << 12)
def _expanding(kind: CostClass, resident: bool, chunk_n1: int, chunk_k1: int, tile_n1: int, tile_k1: int) -> ExpansionCost:
    spec = product_of(kind.spec)
    assert spec is not None
    assert spec.expansion is not None
    tiling = tiling_of("resident" if resident else "streamed", chunk_n1, chunk_k1, 0, tile_n1, tile_k1, 0)
    job, runs = expansion_job(spec, tiling), np.array(spec.expansion.runs, np.int64)
    needed, used, room = mark_multiplied(spec.needed, chunk_k1, tile_k1), -1, _FIRST
    while used < 0:
        out = np.empty((room, WORDS), np.int32)
        used, room = _records(out, job, runs, needed, resident, chunk_n1, chunk_k1, spec.groups, spec.k1, spec.n1), 4 * room
    code = out[:used]
    busy, engine = price(code, kind.target_graph.machine).busy, code[:, ENGINE]
    vector, mte3 = engine == Engine.VECTOR, engine == Engine.MTE3
    return ExpansionCost(float(busy[vector].sum()), float(busy[mte3].sum()), float(vector.sum() + mte3.sum()))


@njit(cache=True)
def _records(
    out: Code, job: ExpansionJob, runs: Ints, needed: Ints, resident: bool, chunk_n1: int, chunk_k1: int, groups: int, k1: int, n1: int
) -> int:  # fmt: skip
    """Write all records, with meaningless addresses; returns their count, -1 if `out` is too short."""
    slot_state, row, nowhere = np.zeros(SLOT_STATES, np.int64), 0, np.empty((0, 0), np.int64)
    if resident:
        return expand_all(out, row, job, runs, needed, 0, slot_state, 0, groups, k1, n1, 0)
    for _ in range(groups):
        for n in range(0, n1, chunk_n1):
            for k in range(0, k1, chunk_k1):
                size = min(chunk_k1, k1 - k)
                columns = min(chunk_n1, n1 - n)
                row = expand(out, row, job, runs, needed, nowhere, 0, slot_state, 0, 1, k, size, n, columns, 0, size * COLUMNS, 0)
                if row < 0:
                    return -1
    return row
