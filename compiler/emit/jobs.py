"""What every operator of a segment is to its emitter: `records.node.Jobs`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.emit.places import operand, places_kept
from compiler.kinds.table import EMITTERS
from compiler.plan.plan import SegmentPlan
from compiler.records.node import OperatorJobs
from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Buffer, BufferKind
from compiler.segment.memory import OF_ALL, POOLED, Places
from compiler.segment.strips import row_blocks_made, row_blocks_read, row_blocks_stored
from compiler.unit.operators import Given, UbKind
from compiler.unit.storages import Piece
from compiler.unit.unit import Unit
from simulator.npu.parts import DataType

_NUMBERS = {job: number for number, job in enumerate(EMITTERS)}
_TYPES = [np.dtype([(name, np.int64) for name in job._fields]) for job in EMITTERS]
_TABLES = [(of, np.zeros(0, of)) for of in _TYPES]  # of each kind, and one without jobs: most segments have operators of a kind or two
_UB_KINDS: tuple[UbKind, ...] = ("constants", "out", "residual", "overlaid", "arriving", "expanded")


class _Fixed(NamedTuple):
    """What jobs say of an operator whatever its segment: operands, each with what follows its place in `OperatorJobs.reads`, what follows
    that of its result in `writes`, numbers of its tables, and how many each has."""

    reads: tuple[tuple[Piece, tuple[int, int, int]], ...]
    writes: tuple[int, ...]
    dtype: DataType
    numbers: NDArray[np.int64]
    lengths: tuple[int, ...]


@lru_cache(maxsize=1 << 14)
def _fixed(unit: Unit, k: int) -> _Fixed:
    spec = unit.operators[k]
    reads = zip(spec.reads, spec.pixels_only, strict=True)
    tables = [table.reshape(-1) for table in spec.tables()]
    return _Fixed(
        tuple((piece, (*row_blocks_read(unit, spec, i), int(one))) for i, (piece, one) in enumerate(reads)),
        (*row_blocks_made(unit, spec), *row_blocks_stored(unit, spec), spec.y.planes),
        unit.type_of(spec.y),
        np.concatenate([np.zeros(0, np.int64), *tables]),
        tuple(map(len, tables)),
    )


def jobs_of(unit: Unit, plan: SegmentPlan, blocks: Blocks, places: Places) -> OperatorJobs:
    """Of all operators of a segment."""
    kinds, tags, dtypes, writes = [], [], [], []
    reads: list[tuple[int, ...]] = []
    constants: list[tuple[int, ...]] = []
    numbers: list[NDArray[np.int64]] = []  # as an annotation, as such a type takes longer to make than the list
    tables: dict[int, list[Any]] = {}
    lists, used, read_start = [], 0, [0]
    in_l1, in_ub = _by_operator(places.l1), _by_operator(places.ub)
    kept = places_kept(blocks)
    for k, tiling in enumerate(plan.tilings):
        spec, fixed, inside = unit.operators[blocks.start + k], _fixed(unit, blocks.start + k), blocks.inside[k]
        streamed = blocks.streamed >> k & 1  # chunks come from DDR, whatever else is in L1
        for i, (piece, row) in enumerate(fixed.reads):
            at = (piece.storage, piece.plane, -1) if streamed and i == 1 else operand(blocks, kept, piece)
            reads.append(at + row)
        read_start.append(len(reads))
        goes = operand(blocks, kept, spec.y) if inside else (spec.y.storage, spec.y.plane, -1)
        writes.append(goes + fixed.writes)
        slots = [in_ub.get((kind, OF_ALL if kind in POOLED else k), ()) for kind in _UB_KINDS]
        given = Given(unit.machine, fixed.dtype, unit.storages, tiling, inside, in_l1.get(("weights", k), ()), *slots)
        job = spec.job(given)
        kind = _NUMBERS[type(job)]
        alike = tables.setdefault(kind, [])
        kinds.append((kind, len(alike)))
        alike.append(job)
        tags.append(spec.tag)
        dtypes.append(fixed.dtype)
        constants += [(k, *fetch) for fetch in spec.fetches(given)]
        begins = []
        for length in (*fixed.lengths, 0, 0, 0)[:3]:
            begins.append((used if length else 0, length))
            used += length
        lists.append(begins)
        numbers.append(fixed.numbers)
    return OperatorJobs(
        np.array(kinds, np.int64),
        np.array(tags, np.int64),
        np.array(dtypes, np.int64),
        np.array(read_start, np.int64),
        np.array(reads, np.int64),
        np.array(writes, np.int64),
        np.array(constants, np.int64).reshape(-1, 6),
        np.array(lists, np.int64),
        np.concatenate(numbers),
        tuple([_records(tables[at], of) if at in tables else none for at, (of, none) in enumerate(_TABLES)]),
    )


def _records(jobs: list[Any], of: np.dtype[Any]) -> NDArray[Any]:
    """Jobs of a kind as records, whose fields are int64 all: numpy makes records of numbers sooner than of tuples."""
    return np.array(jobs, np.int64).view(of).reshape(-1)


def _by_operator(places: dict[Buffer, int]) -> dict[tuple[BufferKind, int], tuple[int, ...]]:
    """(kind, operator) -> addresses of its buffers, a slot after the other: once, as to ask for each buffer costs more."""
    found: dict[tuple[BufferKind, int], tuple[int, ...]] = {}
    for (kind, of, slot), at in places.items():
        if kind != "tensor":
            there = found.get((kind, of), ())
            found[kind, of] = (*there, at) if slot else (at, *there)
    return found
