"""Parameters of the emitters of a segment's operators: `instructions.node_context.OperatorJobs`."""

from __future__ import annotations

import numpy as np

from compiler.codegen.block_tables import BlockTables
from compiler.instructions.builders import Ints
from compiler.instructions.node_context import FED, OperatorJobs
from compiler.ops.registry import JOBS
from compiler.plan.plan import SegmentPlan
from compiler.segment.allocator import Buffer, BufferKind
from compiler.segment.blocks import Blocks
from compiler.segment.buffer_demand import SHARED_KINDS
from compiler.segment.memory_plan import OF_ALL, Places
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import EmitInputs, UbKind

_FED = len(JOBS) - 1  # number of the emitter of fed pools
_NUMBERS = {job: number for number, job in enumerate(JOBS[:_FED])}
_UB_KINDS: tuple[tuple[UbKind, bool], ...] = tuple(
    (kind, kind in SHARED_KINDS) for kind in ("constants", "out", "residual", "overlaid", "arriving", "expanded")
)


def jobs_of(target_graph: TargetGraph, plan: SegmentPlan, blocks: Blocks, tables: BlockTables, places: Places) -> OperatorJobs:
    """Jobs of all operators of a segment.  tables: tables of its blocks."""
    kinds: list[tuple[int, int]] = []
    constants: list[tuple[int, ...]] = []
    records: list[Ints] = []
    begin = 0
    in_l1, in_ub, start = _by_operator(places.l1), _by_operator(places.ub), blocks.start
    for k, tiling in enumerate(plan.tilings):
        slots = [in_ub.get((kind, OF_ALL if pooled else k), ()) for kind, pooled in _UB_KINDS]
        inputs = EmitInputs(
            target_graph.machine, tables.types[k], target_graph.storages, tiling, blocks.inside[k], in_l1.get(("weights", k), ()), *slots
        )
        spec = target_graph.operators[start + k]
        job_type, row = spec.job_row(inputs)
        kinds.append((_FED if tables.work.jobs.pool_roles[k] == FED else _NUMBERS[job_type], begin))
        records.append(row)
        begin += row.size
        constants += [(k, *fetch) for fetch in spec.fetches(inputs)]
    fetches = np.array(constants, np.int64).reshape(-1, 6)
    return tables.work.jobs._replace(kind=np.array(kinds, np.int64), constants=fetches, records=np.concatenate(records))


def _by_operator(places: dict[Buffer, int]) -> dict[tuple[BufferKind, int], tuple[int, ...]]:
    """(kind, operator) -> addresses of its buffers, one per slot; made once, because separate look-ups take longer."""
    addresses: dict[tuple[BufferKind, int], tuple[int, ...]] = {}
    for (kind, operator, slot), address in places.items():
        if kind != "tensor":
            slots = addresses.get((kind, operator), ())
            addresses[kind, operator] = (*slots, address) if slot else (address, *slots)
    return addresses
