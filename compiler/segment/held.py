"""Tensors that are held: they lie whole in L1 from the first segment that makes them to the last that reads them, in place of DDR.

Whoever makes or reads one does so in place: its rows are a ring that holds all of them (`records.places`).  They lie at the top of L1, each
at one address for its life; what is below the lowest of those that are alive is a segment's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.buffers import Buffer, BufferRequest, allocate
from compiler.segment.residence import border_names, hidden
from compiler.unit.machine import room_blocks
from compiler.unit.operators import rounded
from compiler.unit.unit import Unit
from simulator.npu.parts import BLOCK_BYTES, L1_ALIGN_BLOCKS, Memory


class Held(NamedTuple):
    """Of a segment.  blocks: of the top of L1, which are not its own.  at: (storage, block of L1) of those that it makes or reads."""

    blocks: int
    at: tuple[tuple[int, int], ...]


NOTHING = Held(0, ())


def held_blocks(unit: Unit, storage: int) -> int:
    """Blocks of L1 that a tensor takes while it is held."""
    found = unit.storages[storage]
    return rounded(found.n * found.planes * found.h * found.row_blocks, L1_ALIGN_BLOCKS)


def held_storages(unit: Unit, plan: SegmentPlan, start: int) -> int | Infeasible:
    """What a segment makes or reads of what is held, as bits; why not where it cannot."""
    if not plan.held:
        return 0
    where = f"segment {plan.label}"
    for what, there in (("several cores", len(plan.cores) > 1), ("strips", plan.columns > 1)):
        if there:
            return Infeasible(where, f"{plan.held[0]!r} held, and {what}: one of the two is accepted")
    number = {storage.name: at for at, storage in enumerate(unit.storages)}
    touched = {piece.storage for spec in unit.operators[start : start + len(plan.operators)] for piece in (*spec.reads, spec.y)}
    for name in plan.held:
        if number.get(name) not in touched or name not in hidden(unit):
            what = "the segment neither makes nor reads it" if name in hidden(unit) else "no tensor that the NPU alone sees"
            return Infeasible(where, f"{name!r} held: {what}")
    return sum(1 << number[name] for name in plan.held)


@lru_cache(maxsize=4096)
def alone(unit: Unit, storages: int) -> Held:
    """Of a segment without others: what it makes or reads, at the top of L1."""
    if not storages:
        return NOTHING
    at, have = [], room_blocks(unit.machine, Memory.L1)
    top = have
    for storage in range(storages.bit_length()):
        if storages >> storage & 1:
            top = (top - held_blocks(unit, storage)) // L1_ALIGN_BLOCKS * L1_ALIGN_BLOCKS
            at.append((storage, top))
    return Held(have - top, tuple(at))


def tops(unit: Unit, lives: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Storage -> blocks from its first one to the top of L1; lives: in segments (first, last), of those that one core holds."""
    asked = [BufferRequest(Buffer("tensor", storage), held_blocks(unit, storage), *life) for storage, life in lives.items()]
    at, _ = allocate(asked)
    return {request.buffer.of: at[request.buffer] + request.size for request in asked}


def beside(unit: Unit, ends: Sequence[int]) -> int:
    """Blocks of L1 that are no segment's own while these are held; ends: see `tops`."""
    have = room_blocks(unit.machine, Memory.L1)
    return have - (have - max(ends)) // L1_ALIGN_BLOCKS * L1_ALIGN_BLOCKS


def placed(unit: Unit, segments: Sequence[tuple[SegmentPlan, int]]) -> list[Held | None] | Infeasible:
    """Where the segments of a program, each with its first operator, have what is held; None of each where nothing is.

    Infeasible where a segment has in DDR what another one holds, or holds what is its own, where they run on several cores, or where it
    is more than L1.
    """
    if not any(plan.held for plan, _ in segments):
        return [None] * len(segments)
    lives: dict[str, tuple[int, int]] = {}
    for index, (plan, _) in enumerate(segments):
        for name in plan.held:
            lives[name] = (lives.get(name, (index, 0))[0], index)
    for index, (plan, start) in enumerate(segments):
        if isinstance(why := held_storages(unit, plan, start), Infeasible):
            return Infeasible(f"segment {index}, {why.where.removeprefix('segment ')}", why.what)
        borders = border_names(unit, start, start + len(plan.operators))
        for name in sorted(borders & lives.keys() - set(plan.held)):
            what = f"{name!r} is in DDR here and held in L1 elsewhere; expected the same of all segments"
            return Infeasible(f"segment {index}, {plan.label}", what)
        for name in plan.held:
            if name not in borders:
                what = f"{name!r} held: no border of the segment cuts it; accepted: tensors that others make or read as well"
                return Infeasible(f"segment {index}, {plan.label}", what)
            if plan.cores != (other := segments[lives[name][0]][0].cores):
                what = f"{name!r} held by {_cores(other)}, read on {_cores(plan.cores)}; expected the same of all segments"
                return Infeasible(f"segment {index}, {plan.label}", what)
    number = {storage.name: at for at, storage in enumerate(unit.storages)}
    ends = dict[str, int]()
    for core in dict.fromkeys(segments[birth][0].cores[0] for birth, _ in lives.values()):
        mine = {name: life for name, life in lives.items() if segments[life[0]][0].cores[0] == core}
        found_tops = tops(unit, {number[name]: life for name, life in mine.items()})
        ends |= {name: found_tops[number[name]] for name in mine}
    have = room_blocks(unit.machine, Memory.L1)
    found: list[Held | None] = []
    for index, (plan, _) in enumerate(segments):
        alive = [name for name, (birth, death) in lives.items() if birth <= index <= death and segments[birth][0].cores[0] in plan.cores]
        blocks = beside(unit, [ends[name] for name in alive]) if alive else 0
        if blocks > have:
            what = f"{blocks * BLOCK_BYTES:,} B are held, L1 has {have * BLOCK_BYTES:,}"
            return Infeasible(f"segment {index}, {plan.label}", what)
        at = tuple((number[name], have - beside(unit, [ends[name]])) for name in plan.held)
        found.append(Held(blocks, at) if alive else None)
    return found


def _cores(numbers: Sequence[int]) -> str:
    return f"core{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
