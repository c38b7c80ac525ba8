"""What every operator of a segment is to its emitter: `records.node.Jobs`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.emit.tables import BlockTables
from compiler.kinds.table import EMITTERS
from compiler.plan.plan import SegmentPlan
from compiler.records.node import OperatorJobs
from compiler.records.writers import Ints
from compiler.segment.asked import POOLED
from compiler.segment.blocks import Blocks
from compiler.segment.buffers import Buffer, BufferKind
from compiler.segment.memory import OF_ALL, Places
from compiler.unit.operators import Given, UbKind
from compiler.unit.unit import Unit

_NUMBERS = {job: number for number, job in enumerate(EMITTERS)}
_TYPES = [np.dtype([(name, np.int64) for name in job._fields]) for job in EMITTERS]
_NONE = [np.zeros(0, of) for of in _TYPES]  # tables without jobs: most segments have operators of a kind or two
_UB_KINDS: tuple[tuple[UbKind, bool], ...] = tuple(
    (kind, kind in POOLED) for kind in ("constants", "out", "residual", "overlaid", "arriving", "expanded")
)


def jobs_of(unit: Unit, plan: SegmentPlan, blocks: Blocks, known: BlockTables, places: Places) -> OperatorJobs:
    """Of all operators of a segment.  known: of these blocks."""
    kinds: list[tuple[int, int]] = []
    constants: list[tuple[int, ...]] = []
    tables: dict[int, list[Ints]] = {}
    in_l1, in_ub, start = _by_operator(places.l1), _by_operator(places.ub), blocks.start
    for k, tiling in enumerate(plan.tilings):
        slots = [in_ub.get((kind, OF_ALL if pooled else k), ()) for kind, pooled in _UB_KINDS]
        given = Given(unit.machine, known.types[k], unit.storages, tiling, blocks.inside[k], in_l1.get(("weights", k), ()), *slots)
        spec = unit.operators[start + k]
        of, row = spec.job_row(given)
        kind = _NUMBERS[of]
        alike = tables.setdefault(kind, [])
        kinds.append((kind, len(alike)))
        alike.append(row)
        constants += [(k, *fetch) for fetch in spec.fetches(given)]
    every = list(_NONE)
    for kind, rows in tables.items():
        every[kind] = _records(rows, _TYPES[kind])
    fetches = np.array(constants, np.int64).reshape(-1, 6)
    return known.work.jobs._replace(kind=np.array(kinds, np.int64), constants=fetches, tables=tuple(every))


def _records(rows: list[Ints], of: np.dtype[Any]) -> NDArray[Any]:
    """Jobs of a kind as records, whose fields are int64 all."""
    return np.ndarray((len(rows),), of, rows[0] if len(rows) == 1 else np.concatenate(rows))  # `view` looks at every field


def _by_operator(places: dict[Buffer, int]) -> dict[tuple[BufferKind, int], tuple[int, ...]]:
    """(kind, operator) -> addresses of its buffers, a slot after the other: once, as to ask for each buffer costs more."""
    found: dict[tuple[BufferKind, int], tuple[int, ...]] = {}
    for (kind, of, slot), at in places.items():
        if kind != "tensor":
            there = found.get((kind, of), ())
            found[kind, of] = (*there, at) if slot else (at, *there)
    return found
