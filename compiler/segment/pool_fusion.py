"""Pool fusion (`fed`): convolutions write the input of a pool's tile directly into the tile's slot of UB, tile after tile.

Without pool fusion, FIXPIPE writes the pool's input to L1, and MTE1, which also feeds the matrix unit, moves the input to UB.  A tile has
some rows of all planes.  The convolutions compute the rows of a tile that no earlier tile read; VECTOR copies the other rows from the
previous slot.  So a block computes no row twice; the halo between two blocks is computed twice.

The records of the convolutions come with the records of the pool, so inputs of the convolutions live until the pool is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from compiler.ops.conv import ConvSpec
from compiler.ops.pool import PoolSpec
from compiler.plan.plan import ConvTiling, Infeasible, Tiling, VectorTiling
from compiler.target.capabilities import writes_result
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.parts import Memory


@lru_cache(maxsize=1 << 14)
def feed_refusal(target_graph: TargetGraph, start: int, kernel: int) -> str:
    """Reason why operator `kernel` cannot be fed in a segment that begins with operator `start`, or ''."""
    pool, sources = target_graph.operators[kernel], target_graph.producers[kernel]
    if not isinstance(pool, PoolSpec) or not pool.can_be_fed:
        return "accepted: pools by the largest value, or whose windows do not overlap, that slide over whole rows"
    planes = [*range(pool.reads[0].plane, pool.reads[0].plane + pool.reads[0].planes)]
    produced_planes = list[int]()
    for c in sources:
        spec = target_graph.operators[c]
        if c < start or not isinstance(spec, ConvSpec) or spec.right is not None or spec.expansion is not None:
            return "accepted: pools of convolutions of the segment whose weights lie in DDR as in L1"
        if target_graph.consumers[c] != (kernel,) or c in target_graph.escapes:
            return f"{spec.name!r} is read by others too; accepted: convolutions that it alone reads"
        produced_planes += range(spec.y.plane, spec.y.plane + spec.y.planes)
    if sorted(produced_planes) != planes:
        return "accepted: pools of whole results of convolutions"
    return "" if _has_paths(target_graph.machine) else "accepted: on machines whose matrix unit has one way to L1 and UB"


def _has_paths(machine: Machine) -> bool:
    if not machine.has(Memory.UB) or not machine.has(Memory.L0A):
        return False
    by_ub, by_l1 = machine.path(Memory.L0C, Memory.UB), machine.path(Memory.L0C, Memory.L1)
    return by_ub is not None and (by_l1 is None or not writes_result(machine, True) or by_l1.engine == by_ub.engine)


def tiling_refusal(target_graph: TargetGraph, start: int, tilings: Sequence[Tiling], index: int) -> str:
    """Reason in the tilings of a segment why pool `index` cannot be fed, or ''."""
    pool, tiling = target_graph.operators[start + index], tilings[index]
    if not isinstance(tiling, VectorTiling) or tiling.tile_planes < pool.y.planes or tiling.tile_columns:
        return "a tile of it is accepted of all planes, and of whole rows"
    for c in target_graph.producers[start + index]:
        spec, conv_tiling = target_graph.operators[c], tilings[c - start]
        assert isinstance(conv_tiling, ConvTiling)
        if conv_tiling.weights == "streamed" or conv_tiling.constants == "streamed":
            return f"{spec.name!r} has weights or a bias that are streamed; accepted: resident ones"
    return ""


def fed_operators(target_graph: TargetGraph, start: int, tilings: Sequence[Tiling], divided: bool, held: int) -> int | Infeasible:
    """Fed pools, as bits from operator `start` on; or the reason why a pool cannot be fed.

    divided: whether the segment is split by channels or in strips.  held: persistent storages, as bits.
    """
    operators = 0
    for k, tiling in enumerate(tilings):
        if isinstance(tiling, VectorTiling) and tiling.fed:
            why = feed_refusal(target_graph, start, start + k) or tiling_refusal(target_graph, start, tilings, k)
            if divided or held >> target_graph.operators[start + k].reads[0].storage & 1:
                why = why or "accepted: where channels are not shared, rows are whole, and what it reads is not held"
            if why:
                return Infeasible(target_graph.operators[start + k].name, f"fed: {why}")
            operators |= 1 << k
    return operators
