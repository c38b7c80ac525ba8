"""Residents of the memory that all cores share, chosen by fixed rules: the last step of `space.decode`, for all segments at once.

| candidate                | lives                                        | saves                                            |
|--------------------------|----------------------------------------------|--------------------------------------------------|
| a tensor between segments | from the segment that writes it to the last that reads it | all its loads and stores            |
| an operator's weights    | in its segment                               | all reads except the first                       |

All candidates stay if they fit together.  Else candidates that save most DDR bytes per block and segment come first, and candidates without
room go to DDR.  An exact choice would be a knapsack problem per stretch of segments, solved again for every measured program.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.ops.conv import product_of
from compiler.ops.conv_job import WEIGHT_PIECE_BLOCKS
from compiler.plan.plan import ConvTiling, Infeasible, Plan, SegmentPlan
from compiler.segment.allocator import Buffer, BufferRequest, allocate
from compiler.segment.border_tensors import border_tensors
from compiler.segment.reorder import permute_to
from compiler.segment.transforms import TRANSFORMS
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, Memory


class _Candidate(NamedTuple):
    """Candidate.  name: name of a tensor, or, if `weights`, of the operator in segment `birth` that has the weights.  blocks: size.

    birth, death: first and last segment of its life.  saved: blocks of DDR traffic that it saves.
    """

    name: str
    weights: bool
    blocks: int
    birth: int
    death: int
    saved: int


def with_shared(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]) -> list[SegmentPlan]:
    """Plans of segments with residents of the shared memory, if the machine has one.  segments: (plan, first operator), in order."""
    plans = [plan for plan, _ in segments]
    if target_graph.machine.shared is None:
        return plans
    shared_candidates = _chosen_candidates(
        [*_tensors(target_graph, segments), *_weights(target_graph, segments)],
        len(plans),
        target_graph.machine.buffer_blocks(Memory.SHARED),
    )
    tensors = {candidate.name for candidate in shared_candidates if not candidate.weights}
    weights = {(candidate.birth, candidate.name) for candidate in shared_candidates if candidate.weights}
    completed_plans = []
    for index, (plan, start) in enumerate(segments):
        border = border_tensors(target_graph, start, start + len(plan.operators))
        shared = tuple([tensor.name for tensor in border if tensor.name in tensors])
        staged = tuple([name for name in plan.operators if (index, name) in weights])
        same = shared == plan.shared and staged == plan.staged
        completed_plans.append(plan if same else plan.model_copy(update={"shared": shared, "staged": staged}))
    return completed_plans


def with_residents(target_graph: TargetGraph, plan: Plan) -> Plan:
    """Plan with residents chosen by the rules; its order of operators may differ from the target graph's order.

    Raises `BadInputError` if the plan names other operators.
    """
    if target_graph.machine.shared is None:
        return plan
    in_plan_order = permute_to(target_graph, [name for segment in plan.segments for name in segment.operators])
    if isinstance(in_plan_order, Infeasible):
        raise BadInputError(f"plan: {in_plan_order}")
    starts = accumulate((len(segment.operators) for segment in plan.segments), initial=0)
    segments = list(zip(plan.segments, starts, strict=False))  # one start more: the end of the plan
    return plan.model_copy(update={"segments": tuple(with_shared(in_plan_order, segments))})


def without_shared(plan: SegmentPlan) -> SegmentPlan:
    """Plan of a segment without residents of the shared memory, as from a gene."""
    return plan.model_copy(update={"shared": (), "staged": ()}) if plan.shared or plan.staged else plan


def _tensors(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]) -> list[_Candidate]:
    """Tensors that a segment writes or reads in DDR: all but persistent ones (plan key `held`)."""
    storages = {storage.name: storage for storage in target_graph.storages}
    candidates: dict[str, _Candidate] = {}
    for index, (plan, start) in enumerate(segments):
        for name, stored, loaded in border_tensors(target_graph, start, start + len(plan.operators)):
            if name in plan.held:
                continue
            storage = storages[name]
            # every part of the channels loads all of its input; `stored` and `loaded` are planes
            moved_blocks = (stored + loaded * plan.channels) * storage.plane_blocks * storage.n
            candidate = candidates.get(name) or _Candidate(name, False, storage.n * storage.image_blocks, index, index, 0)
            candidates[name] = candidate._replace(death=index, saved=candidate.saved + moved_blocks)
    return list(candidates.values())


def _weights(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]) -> list[_Candidate]:
    """Weights worth staging: the saved traffic takes longer on the port of DDR than the staged loads' overhead."""
    machine, candidates = target_graph.machine, list[_Candidate]()
    for index, (plan, start) in enumerate(segments):
        if any("staged" in transform.conflicts and transform.wanted(plan) for transform in TRANSFORMS):
            continue  # each part of a transformed segment loads its own weights
        iterations = plan.blocks_of_strips * target_graph.images
        for k, tiling in enumerate(plan.tilings):
            product = product_of(target_graph.operators[start + k])
            if product is None or not product.stored_weight_blocks or not isinstance(tiling, ConvTiling):
                continue
            # every core reads the weights once, or once per iteration; with a split by channels each core reads its part
            reads = iterations if tiling.weights == "streamed" else 1
            if plan.dealt > 1:
                reads = max(reads, plan.dealt)
            blocks = product.stored_weight_blocks
            saved = blocks * (reads - 1)
            if saved * BLOCK_BYTES > _overhead_cycles(machine, blocks, reads) * float(machine.ddr.deliverable):
                candidates.append(_Candidate(plan.operators[k], True, blocks, index, index, saved))
    return candidates


def _overhead_cycles(machine: Machine, blocks: int, reads: int) -> int:
    """Cycles of start-ups of all staged loads, and of the flag to other cores."""
    path = machine.path(Memory.SHARED, Memory.L1)
    assert path is not None
    assert machine.shared is not None
    pieces = -(-blocks // WEIGHT_PIECE_BLOCKS)
    return pieces * reads * (path.startup_cycles + machine.shared.latency_cycles) + machine.flags.between_cores_cycles


def _chosen_candidates(candidates: list[_Candidate], segments: int, capacity: int) -> list[_Candidate]:
    """Candidates that fit together.  segments: number of segments.  capacity: blocks of the shared memory."""
    ordered = sorted(candidates, key=lambda c: (-c.saved / (c.blocks * (c.death - c.birth + 1)), c.birth, c.weights, c.name))
    rows = np.array([(c.blocks, c.birth, c.death) for c in ordered], np.int64).reshape(-1, 3)
    admitted = _admit_candidates(rows, np.zeros(segments, np.int64), capacity)
    chosen = [candidate for candidate, fits in zip(ordered, admitted.tolist(), strict=True) if fits]
    while chosen and _allocated_blocks(chosen) > capacity:  # fragmentation: drop the candidate that saves least
        chosen.pop()
    return chosen


def _allocated_blocks(candidates: Sequence[_Candidate]) -> int:
    """Blocks that candidates take together, with the gaps that the allocator leaves."""
    requests = [BufferRequest(Buffer("tensor", i), c.blocks, c.birth, c.death) for i, c in enumerate(candidates)]
    return allocate(requests)[1]


@njit(cache=True)
def _admit_candidates(rows: np.ndarray, live: np.ndarray, capacity: int) -> np.ndarray:
    """Candidates with room in every segment of their lives, bool [n]; earlier candidates take room first.

    rows: int64 [n, 3], (blocks, birth, death).  live: int64 [segments], blocks in use.  capacity: blocks of the memory.
    """
    admitted = np.zeros(rows.shape[0], np.bool_)
    for i in range(rows.shape[0]):
        blocks, birth, death = rows[i]
        if live[birth : death + 1].max() + blocks <= capacity:
            live[birth : death + 1] += blocks
            admitted[i] = True
    return admitted
