"""Persistent tensors (`held`): tensors in L1, instead of DDR, from the first segment that writes them to the last that reads them.

All segments access a persistent tensor in place: its buffer is a ring that holds all rows (`instructions.addressing`).  Persistent tensors
lie at the top of L1, each at one address for its life; a segment may use L1 below the lowest live one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.allocator import Buffer, BufferRequest, first_fit, size_order
from compiler.segment.border_tensors import border_names, scratch_tensors
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import round_up
from simulator.npu.parts import BLOCK_BYTES, L1_ALIGN_BLOCKS, Memory

Ints = NDArray[np.int64]
_ALIGN = L1_ALIGN_BLOCKS


class PersistentLayout(NamedTuple):
    """Persistent tensors during a segment.  blocks: blocks at the top of L1 that all live persistent tensors take.

    places: (storage, first block in L1) of every persistent tensor that the segment accesses.
    """

    blocks: int
    places: tuple[tuple[int, int], ...]


NO_TENSORS = PersistentLayout(0, ())


def held_blocks(target_graph: TargetGraph, storage: int) -> int:
    """Number of blocks that a persistent tensor takes in L1."""
    spec = target_graph.storages[storage]
    return round_up(spec.n * spec.planes * spec.h * spec.row_blocks, L1_ALIGN_BLOCKS)


def held_storages(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> int | Infeasible:
    """Persistent storages that a segment accesses, as bits; or the reason why a tensor cannot be persistent."""
    if not plan.held:
        return 0
    where = f"segment {plan.label}"
    for reason, conflict in (("several cores", len(plan.cores) > 1), ("strips", plan.columns > 1)):
        if conflict:
            return Infeasible(where, f"{plan.held[0]!r} held, and {reason}: one of the two is accepted")
    number, touched = storage_numbers(target_graph), _touched(target_graph, start, start + len(plan.operators))
    for name in plan.held:
        if number.get(name) not in touched or name not in scratch_tensors(target_graph):
            reason = (
                "the segment neither makes nor reads it" if name in scratch_tensors(target_graph) else "no tensor that the NPU alone sees"
            )
            return Infeasible(where, f"{name!r} held: {reason}")
    return sum([1 << number[name] for name in plan.held])


@lru_cache(maxsize=1024)
def storage_numbers(target_graph: TargetGraph) -> dict[str, int]:
    """Name -> number of the storage."""
    return {storage.name: number for number, storage in enumerate(target_graph.storages)}


@lru_cache(maxsize=1 << 14)
def _touched(target_graph: TargetGraph, start: int, stop: int) -> frozenset[int]:
    """Storages that operators [start, stop) access."""
    return frozenset(piece.storage for spec in target_graph.operators[start:stop] for piece in (*spec.reads, spec.y))


@lru_cache(maxsize=4096)
def isolated_layout(target_graph: TargetGraph, storages: int) -> PersistentLayout:
    """Layout for a segment alone: only its own persistent tensors lie at the top of L1.  storages: persistent storages, as bits."""
    if not storages:
        return NO_TENSORS
    addresses, capacity = [], room_blocks(target_graph.machine, Memory.L1)
    top = capacity
    for storage in range(storages.bit_length()):
        if storages >> storage & 1:
            top = (top - held_blocks(target_graph, storage)) // L1_ALIGN_BLOCKS * L1_ALIGN_BLOCKS
            addresses.append((storage, top))
    return PersistentLayout(capacity - top, tuple(addresses))


def lives_in_order(target_graph: TargetGraph, lives: Mapping[int, tuple[int, int]]) -> tuple[list[int], Ints]:
    """Persistent storages of one core in the order of allocation, and their spans for `place_persistent`, int64 [n, 3].

    lives: (first segment, last segment) by storage.
    """
    requests = [BufferRequest(Buffer("tensor", storage), held_blocks(target_graph, storage), *life) for storage, life in lives.items()]
    requests.sort(key=size_order)
    return [request.buffer.of for request in requests], np.array([request[1:4] for request in requests], np.int64).reshape(-1, 3)


@njit(cache=True)
def place_persistent(spans: Ints, room: int, places: Ints, reserved: Ints) -> None:
    """Allocate persistent tensors from the top of L1 down, whether they fit or not.  room: blocks of L1.

    spans: int64 [n, 3], (blocks, first segment, last segment), in the order of allocation.
    places: int64 [n], filled with the first block of every tensor.
    reserved: int64 [segments], filled with the number of blocks from the lowest live tensor to the top of L1.
    """
    reserved[:] = 0
    depths = np.empty(spans.shape[0], np.int64)
    first_fit(spans, np.zeros((0, 0), np.bool_), True, depths)
    for i in range(spans.shape[0]):
        size, birth, death = spans[i]
        places[i] = address = (room - depths[i] - size) // _ALIGN * _ALIGN
        for segment in range(birth, death + 1):
            reserved[segment] = max(reserved[segment], room - address)


def place_program(target_graph: TargetGraph, segments: Sequence[tuple[SegmentPlan, int]]) -> list[PersistentLayout | None] | Infeasible:
    """Layouts of persistent tensors for the segments of a program, each with its first operator; None if no persistent tensor is live.

    Infeasible if one segment has a tensor in DDR and another has it persistent, if a persistent tensor crosses no border, if segments
    access a persistent tensor on several cores, or if L1 is too small.
    """
    if not any(plan.held for plan, _ in segments):
        return [None] * len(segments)
    lives: dict[str, tuple[int, int]] = {}
    for index, (plan, _) in enumerate(segments):
        for name in plan.held:
            lives[name] = (lives.get(name, (index, 0))[0], index)
    for index, (plan, start) in enumerate(segments):
        if isinstance(refusal := held_storages(target_graph, plan, start), Infeasible):
            return Infeasible(f"segment {index}, {refusal.where.removeprefix('segment ')}", refusal.reason)
        borders = border_names(target_graph, start, start + len(plan.operators))
        for name in sorted(name for name in borders if name in lives and name not in plan.held):
            reason = f"{name!r} is in DDR here and held in L1 elsewhere; expected the same of all segments"
            return Infeasible(f"segment {index}, {plan.label}", reason)
        for name in plan.held:
            if name not in borders:
                reason = f"{name!r} held: no border of the segment cuts it; accepted: tensors that others make or read as well"
                return Infeasible(f"segment {index}, {plan.label}", reason)
            if plan.cores != (other_cores := segments[lives[name][0]][0].cores):
                reason = f"{name!r} held by {_cores(other_cores)}, read on {_cores(plan.cores)}; expected the same of all segments"
                return Infeasible(f"segment {index}, {plan.label}", reason)
    # addresses, core by core
    number, capacity = storage_numbers(target_graph), room_blocks(target_graph.machine, Memory.L1)
    by_core: dict[int, dict[int, tuple[int, int]]] = {}
    for name, life in lives.items():
        by_core.setdefault(segments[life[0]][0].cores[0], {})[number[name]] = life
    first, beside = dict[int, int](), dict[int, list[int]]()
    for core, core_lives in by_core.items():
        storages, spans = lives_in_order(target_graph, core_lives)
        places, blocks = np.empty(len(storages), np.int64), np.empty(len(segments), np.int64)
        place_persistent(spans, capacity, places, blocks)
        beside[core] = blocks.tolist()
        first |= zip(storages, places.tolist(), strict=True)
    layouts: list[PersistentLayout | None] = []
    for index, (plan, _) in enumerate(segments):
        size = max([beside[core][index] for core in plan.cores if core in beside], default=0)
        if size > capacity:
            reason = f"{size * BLOCK_BYTES:,} B are held, L1 has {capacity * BLOCK_BYTES:,}"
            return Infeasible(f"segment {index}, {plan.label}", reason)
        layouts.append(PersistentLayout(size, tuple([(number[name], first[number[name]]) for name in plan.held])) if size else None)
    return layouts


def _cores(numbers: Sequence[int]) -> str:
    return f"core{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
