"""Operator space: all legal ways to run one convolution alone, as arrays, each with a lower bound of its cycles.

A point of the space has a number of blocks, load slots, resident or streamed weights, and a tiling of the blocks.
`tuner.cost_model.tiling_model` picks points by prediction.  `scripts/study_tiling.py` measures all points that the bound does not exclude.

| name     | dtype         | meaning                                                                             |
|----------|---------------|-------------------------------------------------------------------------------------|
| points   | int64 [p, 9]  | blocks, prefetch, resident, chunk_n1, chunk_k1, tile_m, tile_n1, tile_k1, n_outer       |
| engines  | int64 [p, 3]  | busy cycles of CUBE, MTE1 and FIXPIPE, start-ups included                             |
| moved    | int64 [p, 2]  | bytes read from DDR and written to it                                               |
| estimate | int64 [p]     | cycles by `cost.tiling_space.estimate`, summed over blocks, filling and draining included |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost.ddr_traffic import ddr_rates, fetched_blocks, loaded_blocks, stored_blocks, stored_weights
from compiler.cost.ranking import CHUNK_BUDGETS, chunk_choices, tiling_of
from compiler.cost.tiling_space import engine_cycles, estimate, legal_points, shape_of
from compiler.ops.conv import ConvSpec, product_of
from compiler.plan.plan import SegmentPlan
from compiler.segment.allocator import fits
from compiler.segment.blocks import cut_blocks
from compiler.segment.memory_plan import tensor_requests, weight_requests
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import BLOCK_BYTES, Memory

_COLUMNS = 9  # columns of `points`
_PREFETCH: tuple[Literal[1, 2], ...] = (2, 1)


class OperatorSpace(NamedTuple):
    """Arrays of a space: see the table at the top of this file."""

    operator: str
    points: NDArray[np.int64]
    engines: NDArray[np.int64]
    moved: NDArray[np.int64]
    estimate: NDArray[np.int64]

    def bound(self, target_graph: TargetGraph, level: str) -> NDArray[np.int64]:
        """Lower bounds of the cycles of every point at a level, int64 [p]."""
        share = target_graph.machine.contention[level].share
        rates = np.array(ddr_rates(target_graph.machine, 1, share))
        transfers = np.maximum((self.moved / rates).max(1), self.moved.sum(1) / (float(target_graph.machine.ddr.deliverable) * share))
        return np.maximum(self.engines.max(1), transfers.astype(np.int64))

    def plan(self, point: int) -> SegmentPlan:
        """Plan of the segment of a point."""
        blocks, prefetch, resident, *sizes = self.points[point].tolist()
        tiling = tiling_of("resident" if resident else "streamed", *sizes)
        return SegmentPlan.model_construct(operators=(self.operator,), blocks=blocks, prefetch=prefetch, window=1, tilings=(tiling,))


def operator_space(target_graph: TargetGraph, index: int, block_counts: Sequence[int]) -> OperatorSpace:
    """Points of the space of a convolution, operator `index`, as a segment of its own with the given numbers of blocks; only points that
    fit L1."""
    spec = product_of(target_graph.operators[index])
    assert spec is not None, target_graph.operators[index].name
    machine, images = target_graph.machine, target_graph.storages[0].n
    l1 = room_blocks(machine, Memory.L1)
    parts: list[tuple[NDArray[np.int64], ...]] = []
    for blocks in block_counts:
        resident_layout = cut_blocks(target_graph, index, index + 1, blocks)
        sizes = resident_layout.heights[0]
        rows = max(sizes)
        stored = stored_blocks(target_graph, resident_layout, 0)
        # chunks of weights, then all legal tiles of each, with the slots that fit L1
        for resident, chunk in _chunks(target_graph, spec, rows):
            right = spec.right_blocks
            layout = resident_layout if resident or not right else cut_blocks(target_graph, index, index + 1, blocks, streamed=1)
            loaded = sum(loaded_blocks(target_graph, layout, load) for load in layout.loads)
            read = loaded + (stored if spec.residual is not None and spec.residual.storage not in layout.allocations else 0)
            shape = shape_of(machine, target_graph.type_of(spec.reads[0]), spec, rows, False, chunk)
            points = legal_points(machine, shape)
            if not len(points):
                continue
            tiling = tiling_of("resident" if resident else "streamed", *chunk, *points[0].tolist())
            slots = [
                prefetch
                for prefetch in (_PREFETCH if blocks * images > 1 else _PREFETCH[:1])
                if fits((*tensor_requests(target_graph, layout, prefetch, 1), *weight_requests(target_graph, layout, 0, tiling)), l1)
            ]
            engines, guess = np.zeros((len(points), 3), np.int64), np.zeros(len(points), np.int64)
            for size, count in sizes.items():
                block_shape = shape._replace(pixels=size * spec.out_w)
                engines += count * images * engine_cycles(machine, block_shape, spec.n1, spec.k1, points)
                guess += count * images * estimate(machine, block_shape, points)
            chunks_n = -(-spec.n1 // min(chunk[0], spec.n1))
            every_block = float(layout.count * images)
            fetched = fetched_blocks(stored_weights(spec), spec.bias_blocks, right, resident, True, chunks_n, 1.0, every_block)
            moved = np.array([(read * images + int(sum(fetched))) * BLOCK_BYTES, stored * images * BLOCK_BYTES])
            for prefetch in slots:
                head = np.array([blocks, prefetch, resident, *chunk], np.int64)
                full = np.concatenate([np.broadcast_to(head, (len(points), len(head))), points], 1)
                parts.append((full, engines, np.broadcast_to(moved, (len(points), 2)), guess))
    empty = (np.empty((0, _COLUMNS), np.int64), np.empty((0, 3), np.int64), np.empty((0, 2), np.int64), np.empty(0, np.int64))
    columns = zip(*(parts or [empty]), strict=True)
    return OperatorSpace(spec.name, *(np.concatenate(column) for column in columns))


def _chunks(target_graph: TargetGraph, spec: ConvSpec, rows: int) -> list[tuple[bool, tuple[int, int]]]:
    """Chunks of weights or of the right operand, (resident, (chunk_n1, chunk_k1)): all at once, and every chunk of every budget once."""
    streamed: dict[tuple[int, int], None] = {}
    l0c = room_blocks(target_graph.machine, Memory.L0C)
    for budget in CHUNK_BUDGETS:
        streamed.update(dict.fromkeys(chunk_choices(spec, rows, budget, l0c)))
    return [(True, (spec.n1, spec.k1)), *((False, chunk) for chunk in streamed)]
