"""Costs of a schedule's transfers behind an L2: what each draws from DDR depends on all that ran before, so they are those of a program.

A footprint has the costs of its records without a cache.  `Preparer` reads costs from the table of parts, so the schedule gets a table that
names others.  Prepared entries are compared with those of the last program one by one: no transfer has the cost of its part alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compiler.l2_warmth import WarmInputs
from compiler.pipeline import ScheduledShare
from compiler.schedule.instruction_numbers import FIRST_INSTRUCTION
from compiler.schedule.segment_accesses import Ints
from compiler.schedule.segment_table import with_costs
from compiler.schedule.stream_writer import Schedule, find_rows
from simulator.l2_traffic import count_traffic, split_draws
from simulator.npu.machine import Machine
from simulator.npu.transfers import Transfers
from simulator.timing_state import DRAWN_BITS


class L2Costs:
    """Costs on one machine, of programs with `blocks` blocks of DDR.

    l2_bytes: granted part of the cache; None: all of it.  inputs: of segments that are timed alone; None: a program, which begins cold.
    """

    def __init__(self, machine: Machine, blocks: int, l2_bytes: int | None, inputs: WarmInputs | None) -> None:
        self._machine, self._blocks, self._l2_bytes, self._inputs = machine, blocks, l2_bytes, inputs
        self._costs = np.empty(0, np.int64)  # of the last schedule, whose table points to them

    def scheduled(self, schedule: Schedule, parts: Sequence[ScheduledShare]) -> Schedule:
        """Schedule with the costs of its parts in this program; valid until the next call.  Raises `ProgramError`."""
        transfers = [part.lowered.transfers for part in parts]
        counts = [len(part_transfers.row) for part_transfers in transfers]
        joined = Transfers(*map(np.concatenate, zip(*transfers, strict=True))) if parts else None
        self._costs = np.concatenate([part.lowered.footprint.cost for part in parts]) if parts else self._costs[:0]
        if joined is not None and len(joined.row):
            first = np.cumsum([0, *[part.lowered.records for part in parts[:-1]]])
            of_part = np.repeat(np.arange(len(parts)), counts)
            place = _find_places(schedule)[schedule.number[of_part, FIRST_INSTRUCTION] + joined.row]
            core, segment = (np.array(numbers)[of_part] for numbers in zip(*[(part.core, part.segment) for part in parts], strict=True))
            start = None if self._inputs is None else self._inputs.start(joined.access)
            where = joined.access, core, segment, place
            drawn, _ = count_traffic(self._machine, self._blocks, *where, l2_bytes=self._l2_bytes, start=start)
            rows = first[of_part] + joined.row
            units, hits = split_draws(self._machine, joined, self._costs[rows], drawn, "a program's")
            self._costs[rows] = units | hits << DRAWN_BITS
        lengths = np.array([part.lowered.records for part in parts], np.int64)
        table = with_costs(schedule.parts, self._costs, np.cumsum(lengths) - lengths)
        return replace(schedule, parts=table, reused_count=0, same_parts=len(parts))


def _find_places(schedule: Schedule) -> Ints:
    """Row in its core's stream of every instruction, by its number."""
    place = np.empty(len(schedule.engine), np.int32)
    edges = schedule.edge_start, schedule.set_head, schedule.set_next
    for row, length, first in zip(schedule.stream_start, schedule.lengths, schedule.first, strict=True):
        find_rows(first, schedule.stream[row : row + length], schedule.after, *edges, place)
    return place.astype(np.int64)
