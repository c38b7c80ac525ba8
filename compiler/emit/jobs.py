"""What every operator of a segment is to its emitter: `records.node.Jobs`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.emit.places import operand
from compiler.kinds.table import EMITTERS
from compiler.plan.plan import SegmentPlan
from compiler.records.node import OperatorJobs
from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Buffer, BufferKind
from compiler.segment.memory import OF_ALL, POOLED, Places
from compiler.segment.strips import row_blocks_made, row_blocks_read, row_blocks_stored
from compiler.unit.operators import Given, UbKind
from compiler.unit.unit import Unit

_NUMBERS = {job: number for number, job in enumerate(EMITTERS)}
_TYPES = [np.dtype([(name, np.int64) for name in job._fields]) for job in EMITTERS]
_NONE = [np.zeros(0, of) for of in _TYPES]  # most segments have operators of a kind or two
_UB_KINDS: tuple[UbKind, ...] = ("constants", "out", "residual", "overlaid", "arriving", "expanded")


def jobs_of(unit: Unit, plan: SegmentPlan, blocks: Blocks, places: Places) -> OperatorJobs:
    """Of all operators of a segment."""
    kinds, reads, writes, constants = [], list[tuple[int, ...]](), [], list[tuple[int, ...]]()
    tables: list[list[Any]] = [[] for _ in EMITTERS]
    numbers, lists, used, read_start = list[NDArray[np.int64]](), [], 0, [0]
    in_l1, in_ub = _by_operator(places.l1), _by_operator(places.ub)
    for k, tiling in enumerate(plan.tilings):
        spec = unit.operators[blocks.start + k]
        sources = [operand(blocks, piece) for piece in spec.reads]
        if blocks.streamed >> k & 1:
            sources[1] = (spec.reads[1].storage, spec.reads[1].plane, -1)  # chunks come from DDR, whatever else is in L1
        reads += [(*at, *row_blocks_read(unit, spec, i), one) for i, (at, one) in enumerate(zip(sources, spec.pixels_only, strict=True))]
        read_start.append(len(reads))
        goes = operand(blocks, spec.y) if blocks.inside[k] else (spec.y.storage, spec.y.plane, -1)
        writes.append((*goes, *row_blocks_made(unit, spec), *row_blocks_stored(unit, spec), spec.y.planes))
        slots = (in_l1.get(("weights", k), ()), *(in_ub.get((kind, OF_ALL if kind in POOLED else k), ()) for kind in _UB_KINDS))
        given = Given(unit.machine, unit.type_of(spec.y), unit.storages, tiling, blocks.inside[k], *slots)
        job = spec.job(given)
        kind = _NUMBERS[type(job)]
        kinds.append((kind, len(tables[kind])))
        tables[kind].append(job)
        constants += [(k, *fetch) for fetch in spec.fetches(given)]
        mine = [table.reshape(-1) for table in spec.tables()]
        lists.append([(used + sum(map(len, mine[:i])), len(mine[i])) if i < len(mine) else (0, 0) for i in range(3)])
        numbers += mine
        used += sum(map(len, mine))
    return OperatorJobs(
        np.array(kinds, np.int64),
        np.array([spec.tag for spec in unit.operators[blocks.start : blocks.stop]], np.int64),
        np.array([unit.type_of(spec.y) for spec in unit.operators[blocks.start : blocks.stop]], np.int64),
        np.array(read_start, np.int64),
        np.array(reads, np.int64),
        np.array(writes, np.int64),
        np.array(constants, np.int64).reshape(-1, 6),
        np.array(lists, np.int64),
        np.concatenate(numbers) if numbers else np.zeros(0, np.int64),
        tuple(np.array(table, of) if table else none for table, of, none in zip(tables, _TYPES, _NONE, strict=True)),
    )


def _by_operator(places: dict[Buffer, int]) -> dict[tuple[BufferKind, int], tuple[int, ...]]:
    """(kind, operator) -> addresses of its buffers, a slot after the other: once, as to ask for each buffer costs more."""
    found: dict[tuple[BufferKind, int], tuple[int, ...]] = {}
    for (kind, of, slot), at in places.items():
        if kind != "tensor":
            there = found.get((kind, of), ())
            found[kind, of] = (*there, at) if slot else (at, *there)
    return found
