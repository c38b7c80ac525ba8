"""Addresses of a segment's tensors, as tables of `instructions.addressing`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from compiler.instructions.addressing import Allocations
from compiler.instructions.builders import Ints
from compiler.plan.plan import Window
from compiler.segment.allocator import Buffer
from compiler.segment.blocks import Blocks, row_span
from compiler.segment.memory_plan import slot_counts
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph


def allocations_of(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window, l1: dict[Buffer, int]) -> Allocations:
    """Tables of a segment's allocations.  l1: buffers of its resident storages (see `segment.memory_plan`)."""
    table, rows, buffers, max_slots = _tables_without_addresses(target_graph, blocks, prefetch, window)
    slots = [l1[slot if slot in l1 else first] for first, slot in buffers]
    return Allocations(_in_ddr(target_graph), table, np.array(slots, np.int64).reshape(len(table), max_slots), rows)


@lru_cache(maxsize=4096)
def _tables_without_addresses(
    target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window
) -> tuple[Ints, Ints, list[tuple[Buffer, Buffer]], int]:
    """(`Allocations.table`, `Allocations.rows`, buffers, largest number of slots).

    buffers: for each slot of every resident storage, the buffer of the first slot, and its own.
    """
    allocations, slots, images = list(blocks.allocations.values()), slot_counts(target_graph, blocks, prefetch, window), target_graph.images
    max_slots = max(slots.values(), default=1)
    table = np.zeros((len(allocations), 8), np.int64)
    rows = np.zeros((len(allocations), blocks.count, 2), np.int64)
    buffers = list[tuple[Buffer, Buffer]]()
    for index, allocation in enumerate(allocations):
        count, storage = slots[allocation.storage], target_graph.storages[allocation.storage]
        first, last = row_span(allocation.rows) if allocation.cached else (0, storage.h if allocation.held else 0)
        ring = allocation.high(count, images) if allocation.cached or allocation.held else 0
        table[index] = allocation.plane, storage.row_blocks, count, ring, first, last - first, storage.first, target_graph.together
        buffers += [(Buffer("tensor", allocation.storage), Buffer("tensor", allocation.storage, slot)) for slot in range(max_slots)]
        rows[index] = allocation.rows
    return table, rows, buffers, max_slots


@lru_cache(maxsize=1024)
def _in_ddr(target_graph: TargetGraph) -> Ints:
    """`Allocations.ddr`: address, then strides between groups of images, planes, rows, and images of a group."""
    rows = []
    for storage in target_graph.storages:
        size = storage.image_blocks if storage.n else 0
        group_stride = size * target_graph.together if storage.n > 1 else 0
        rows.append((storage.address, group_stride, storage.plane_blocks, storage.ddr_row_blocks, size))
    return np.array(rows, np.int64)


def resident_positions(blocks: Blocks) -> dict[int, int]:
    """Storage -> its position among the resident storages."""
    return {storage: position for position, storage in enumerate(blocks.allocations)}


def locate_tensor(blocks: Blocks, positions: Mapping[int, int], tensor: TensorSlice) -> tuple[int, int, int]:
    """(storage, plane, allocation) of a tensor.  The allocation is in L1 if the whole storage is resident.  positions: see
    `resident_positions`."""
    storage, plane, planes = tensor
    index = positions.get(storage, -1)
    if index >= 0:
        allocation = blocks.allocations[storage]
        if not allocation.plane <= plane <= plane + planes <= allocation.plane + allocation.planes:
            index = -1
    return storage, plane, index
