"""Data of a segment in the memory that all cores share: its records name that memory in place of DDR.

Emitters know DDR alone.  Tensors and weights have the same layout in the shared memory as in DDR.  So this module changes the memory of a
record and leaves its DDR address, until the program is linked (`schedule.shared_memory_allocator`).  A segment's records therefore do
not depend on other data in the shared memory.

*Staged* weights are copied to the shared memory first.  The first core that reads them copies them, before its own first read.  If cores
share the output channels, each core copies the weights of its own channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, MTE2, SHARED, Ints, copy
from compiler.ops.conv import product_of
from compiler.ops.conv_job import WEIGHT_PIECE_BLOCKS
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.border_tensors import border_names, scratch_tensors
from compiler.segment.memory_plan import segment_label
from compiler.segment.segment import CoreShare, Segment
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import WORDS, Op
from simulator.npu.program import Code

_COPY = int(Op.COPY)
OP, DTYPE, TAG, SRC, DST, S0, D, BLOCK = isa.OP, isa.DTYPE, isa.TAG, isa.SRC, isa.DST, isa.S0, isa.D, isa.BLOCK


class Staged(NamedTuple):
    """DDR ranges of a segment whose data are in the shared memory.

    ranges: int64 [n, 2] of (first block in DDR, blocks), tensors first, then weights.  brought: int64 [m, 2], those weight ranges that this
    core copies.
    """

    ranges: Ints
    brought: Ints


_NOTHING = Staged(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64))


def stage_data(segment: Segment, target_graph: TargetGraph, core: int) -> Staged | Infeasible:
    """Data in shared memory of one core's share of a segment.  core: its position among the plan's cores."""
    plan, start = segment.plan, segment.outline.start
    if not (plan.shared or plan.staged):
        return _NOTHING
    if target_graph.machine.shared is None:
        return Infeasible(
            segment_label(plan), f"{(*plan.shared, *plan.staged)[0]!r} in shared memory: {target_graph.machine.name} has none"
        )
    ranges = []
    storages = {storage.name: storage for storage in target_graph.storages}
    for name in plan.shared:
        storage = storages.get(name)
        if storage is None or name not in scratch_tensors(target_graph):
            reason = "no tensor of the model" if storage is None else "the host reads or writes it, or it is a constant"
            return Infeasible(segment_label(plan), f"{name!r} in shared memory: {reason}")
        ranges.append((storage.address, storage.n * storage.image_blocks))
    brought = []
    for name in plan.staged:  # ranges are of the whole operator, `brought` of the core's own channels
        k = start + plan.operators.index(name)
        product = product_of(target_graph.operators[k])
        if product is None or not product.stored_weight_blocks:
            return Infeasible(segment_label(plan), f"weights of {name!r} in shared memory: it has none")
        ranges.append((product.weights_at, product.stored_weight_blocks))
        part = core if len(segment.parts) > 1 else 0
        local = product_of(segment.parts[part].operators[k])
        assert local is not None
        brought.append((local.weights_at, local.stored_weight_blocks if core - part == _first_reader(segment, k - start) else 0))
    return Staged(*(np.array(rows, np.int64).reshape(-1, 2) for rows in (ranges, brought)))


def _first_reader(segment: Segment, operator: int) -> int:
    """First core that computes rows of operator k's result.  If cores share channels, each core is its own first reader.

    The parts of a program run in order, one after the other, so no later core could copy the weights.  Two cores would not be faster
    either: one core already uses the full rate of the port.
    """
    return next((core for core in range(segment.outline.dealt) if _makes(segment.share(core), operator)), 0)


def _makes(share: CoreShare, operator: int) -> bool:
    blocks = {iteration % share.strips[0].blocks.count for iteration in share.iterations}
    return any(
        bool((rows[list(blocks), 1] > rows[list(blocks), 0]).any()) for rows in (strip.blocks.computed[operator] for strip in share.strips)
    )


def find_disagreement(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]) -> Infeasible | None:
    """Refusal of a plan with a tensor that one segment has in shared memory and another in DDR; None if there is none."""
    shared = {name for plan, _ in segments for name in plan.shared}
    if shared:
        for plan, start in segments:
            for name in sorted(border_names(target_graph, start, start + len(plan.operators)) & shared - set(plan.shared)):
                return Infeasible(
                    segment_label(plan), f"{name!r} is in DDR here and in shared memory elsewhere; expected the same of all segments"
                )
    return None


def add_staging(code: Code, staging: Staged) -> Code:
    """The records with accesses to shared memory, and with loads of staged weights in front of their first reader."""
    if not len(staging.ranges):
        return code
    tensors = len(staging.ranges) - len(staging.brought)
    first = np.full(len(staging.ranges), -1, np.int64)
    _rename(code, staging.ranges, first)
    pieces = [-(-blocks // WEIGHT_PIECE_BLOCKS) for _, blocks in staging.brought.tolist()]
    out = np.empty((len(code) + sum(pieces), WORDS), np.int32)
    order = np.argsort(first[tensors:], kind="stable")
    used = _insert(code, staging.brought, first[tensors:], order, out)
    return out[:used]


@njit(cache=True)
def _rename(code: Code, ranges: Ints, first: Ints) -> None:
    """Redirect COPYs of `ranges` to the shared memory; fills `first` with the first record that reads each range."""
    for i in range(code.shape[0]):
        if code[i, OP] != _COPY:
            continue
        reads, writes = code[i, SRC] == DDR, code[i, DST] == DDR
        if not reads and not writes:
            continue
        address = code[i, S0] if reads else code[i, D]
        for r in range(ranges.shape[0]):
            if ranges[r, 0] <= address < ranges[r, 0] + ranges[r, 1]:
                code[i, SRC if reads else DST] = SHARED
                if reads and first[r] < 0:
                    first[r] = i


@njit(cache=True)
def _insert(code: Code, brought: Ints, first: Ints, order: Ints, out: Code) -> int:
    """Write the records to `out`, with the copies of brought[r] before record first[r].  order: ranges by `first`; first is -1 for unread
    ranges."""
    cursor = done = 0
    for r in order:
        if first[r] < 0:
            continue
        out[cursor : cursor + first[r] - done] = code[done : first[r]]
        cursor += first[r] - done
        done = first[r]
        start, stop = brought[r, 0], brought[r, 0] + brought[r, 1]
        while start < stop:
            length = min(WEIGHT_PIECE_BLOCKS, stop - start)
            copy(out, cursor, code[done, DTYPE], code[done, TAG], MTE2, DDR, SHARED, start, start, length, 1, 0, 0, 1, 0, 0)
            out[cursor, BLOCK] = code[done, BLOCK]
            start += length
            cursor += 1
    out[cursor : cursor + code.shape[0] - done] = code[done:]
    return cursor + code.shape[0] - done
