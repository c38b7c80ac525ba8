"""Lowering of a segment to instructions: sequential records with real addresses, not yet synchronised.

`draft_segment` and `lower_draft` are the hot path of the compiler: they run once per distinct segment plan.  This module makes the tables
of operators and addresses; `node_kernel` does the work per block and per instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.codegen.addresses import allocations_of
from compiler.codegen.block_tables import block_tables
from compiler.codegen.legalize_buffers import legalize_records
from compiler.codegen.node_kernel import write_nodes
from compiler.codegen.op_jobs import jobs_of
from compiler.codegen.shared_memory import Staged, add_staging, stage_data
from compiler.instructions.builders import Ints
from compiler.instructions.node_context import Work
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.schedule.sliding_window import load_cycles, node_cycles, node_sequence, schedule_nodes, window_edges
from compiler.segment.allocator import Buffer
from compiler.segment.blocks import Blocks
from compiler.segment.engine_lanes import MATRIX, lanes
from compiler.segment.memory_plan import Places, mirrored, segment_label
from compiler.segment.persistent import PersistentLayout, held_blocks
from compiler.segment.segment import CoreShare, Segment, StripBlocks
from compiler.target.target_graph import TargetGraph
from simulator.npu.cycles import price, record_cycles
from simulator.npu.isa import BLOCK, DST, ENGINE, WORDS, D
from simulator.npu.parts import Memory
from simulator.npu.program import Code

_L1 = int(Memory.L1)
CAPACITY = 1 << 19  # records of one segment; more is refused as infeasible


@dataclass(frozen=True, eq=False)
class Records:
    """Records (TAG has the operator's index, BLOCK the iteration), and the peak bytes of each buffer.

    code: valid until its scratch is overwritten.  staged: ranges in the shared memory.
    """

    code: Code
    peak_bytes: dict[str, int]
    staged: Ints


class PartWork(NamedTuple):
    """Common part of cores with the same channels: buffer addresses counted from the bottom of L1 and UB, and per end of memory (`flip`)
    and strip the tables, known after the first `lower_draft`."""

    places: Places
    tables: dict[tuple[bool, int], Work]


class DraftShare(NamedTuple):
    """Share of one core in a segment before lowering: its data in shared memory, and per sliding strip the order of nodes,
    int64 [nodes, 2], known after the first `lower_draft`."""

    segment: Segment
    resident_tensors: Staged
    share: CoreShare
    part: PartWork
    orders: list[Ints | None]


def lower_draft(draft: DraftShare, flip: bool = False, scratch: Code | None = None) -> Records | Infeasible:
    """Lower a draft.  flip: see `segment.memory_plan.mirrored`.  scratch: reusable room for records, int32 [CAPACITY or more, 32]."""
    segment, staging, share, (places, tables), orders = draft
    target_graph = segment.parts[0]
    if flip:
        places = mirrored(target_graph.machine, places)
    plan, core_iterations = segment.plan, share.iterations
    strip_iterations = target_graph.images * plan.blocks
    out = scratch[:CAPACITY] if scratch is not None else new_scratch()
    constants_loaded, codes = np.zeros(len(plan.operators), np.bool_), list[Code]()
    for number, strip in enumerate(share.strips):
        iterations = range(number * strip_iterations + core_iterations.start, number * strip_iterations + core_iterations.stop)
        if (flip, number) not in tables:
            tables[flip, number] = _work(strip.target_graph, plan, strip.blocks, places)
        work = tables[flip, number]
        code = _strip_records(segment, strip, work, iterations, out[sum(map(len, codes)) :], constants_loaded, orders, number)
        if code is None:
            return Infeasible(segment_label(plan), f"needs more than {CAPACITY:,} instructions")
        codes.append(code)
    code = add_staging(codes[0] if len(codes) == 1 else np.concatenate(codes), staging)
    code = legalize_records(code, target_graph.machine)
    _outlive(code, segment, places)
    return Records(code, places.peak_bytes, staging.ranges)


def draft_segment(
    target_graph: TargetGraph, plan: SegmentPlan, start: int, core: int = 0, held: PersistentLayout | None = None,
    sibling: DraftShare | None = None,
) -> DraftShare | Infeasible:  # fmt: skip
    """Draft one core's share of the segment whose first operator is `start`, without orders.

    core: index of the core among the plan's cores.  held: see `Segment.memory`.  sibling: draft of another core with the same arguments.
    """
    segment = Segment.of(target_graph, plan, start) if sibling is None else sibling.segment
    if isinstance(segment, Infeasible):
        return segment
    staging = stage_data(segment, target_graph, core)
    if isinstance(staging, Infeasible):
        return staging
    share = segment.share(core)
    if sibling is not None and share.strips[0].target_graph is sibling.share.strips[0].target_graph:  # the same part of the channels
        return DraftShare(segment, staging, share, sibling.part, [])
    places = segment.memory(share, held=held)
    return places if isinstance(places, Infeasible) else DraftShare(segment, staging, share, PartWork(places, {}), [])


def _outlive(code: Code, segment: Segment, places: Places) -> None:
    """Mark records that write persistent tensors, in place."""
    target_graph = segment.parts[0]
    for storage, _ in places.held.places:
        first = places.l1[Buffer("tensor", storage)]
        _say_outlived(code, first, first + held_blocks(target_graph, storage))


@njit(cache=True)
def _say_outlived(code: Code, first: int, stop: int) -> None:
    """Mark records that write blocks [first, stop) of L1: their BLOCK is inverted."""
    for i in range(code.shape[0]):
        if code[i, DST] == _L1 and first <= code[i, D] < stop:
            code[i, BLOCK] = ~code[i, BLOCK]


def _strip_records(
    segment: Segment, strip: StripBlocks, work: Work, iterations: range, out: Code, constants_loaded: NDArray[np.bool_],
    orders: list[Ints | None], number: int,
) -> Code | None:  # fmt: skip
    """Records of a strip; None if `out` is too short for them.

    constants_loaded: see `write_nodes`.  orders: node order of each strip.  Where the order of strip `number` is missing, it is computed
    and appended.
    """
    plan, (target_graph, blocks) = segment.plan, strip
    order = orders[number] if number < len(orders) else None
    nodes = node_sequence(blocks.stop - blocks.start, iterations) if order is None else order
    rows = np.zeros((len(nodes), 2), np.int64)
    before = constants_loaded.copy()
    used = write_nodes(out, nodes, work, rows, constants_loaded)
    if used < 0:
        return None
    if number == len(orders):
        slides = plan.sliding and bool(iterations)
        orders.append(_slid(target_graph, plan, blocks, work, segment.slots(strip), iterations, out, rows, before) if slides else None)
    return out[:used]


def _work(target_graph: TargetGraph, plan: SegmentPlan, blocks: Blocks, places: Places) -> Work:
    tables = block_tables(target_graph, blocks)
    allocations = allocations_of(target_graph, blocks, plan.prefetch, plan.window, places.l1)
    return tables.work._replace(allocations=allocations, jobs=jobs_of(target_graph, plan, blocks, tables, places))


def _slid(
    target_graph: TargetGraph, plan: SegmentPlan, blocks: Blocks, work: Work, slots: dict[int, int], iterations: range, out: Code,
    rows: Ints, constants_loaded: NDArray[np.bool_],
) -> Ints:  # fmt: skip
    """Write the nodes again in the order of the sliding window, so that double buffers alternate in that order; returns it.

    constants_loaded: state before the first writing, see `write_nodes`.
    """
    code = out[: rows[-1, 1]]
    cycles = node_cycles(rows, record_cycles(code, price(code, target_graph.machine), target_graph.machine), code[:, ENGINE])
    cycles = np.ascontiguousarray(cycles.reshape(len(iterations), blocks.stop - blocks.start, -1).swapaxes(0, 1))
    loads = load_cycles(target_graph, blocks, iterations), work.readers
    window = None if plan.window == "all" else plan.window
    lane_of = lanes(target_graph, blocks.start, blocks.stop)
    lane_of[[bool(blocks.fed >> k & 1) for k in range(len(lane_of))]] = MATRIX  # fed pools run in the lane of their convolutions
    table = schedule_nodes(cycles, window_edges(target_graph, blocks, slots), lane_of, window, *loads)
    nodes: Ints = table.nodes + (0, iterations.start)
    used = write_nodes(out, nodes, work, rows, constants_loaded)
    assert used == len(code), "the same records in another order"
    return nodes


def new_scratch(more: int = 0) -> Code:
    """Room for the records of any segment, and for some more."""
    return np.empty((CAPACITY + more, WORDS), np.int32)
