"""The compiler, from top to bottom: the one place to read first.

load      frontend.load        ONNX file -> checked, cleaned ModelProto
lower     frontend.lower       ModelProto -> Graph, rewritten
unit      tile.spec            Graph x Machine x data type -> storages, kernels, constants, DDR addresses
plan      derive               which segments, how many blocks, what stays on chip, every tiling
blocks    schedule.blocks      which rows every block of a segment computes, loads and keeps
memory    schedule.memory      where: L1 and UB, with lifetimes, or why it does not fit
segment   emit.segment         sequential records of one segment (cached by its plan)
stream    schedule.sync        flags and issue order -> one stream
program   simulator.npu        streams + memory map, verified
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from compiler.derive.plan import Infeasible, Plan, SegmentPlan
from compiler.emit.segment import Lowered, lower_segment, new_scratch
from compiler.schedule.sync import Footprint, Schedule, Synchroniser
from compiler.tile.spec import Unit
from simulator.npu import isa
from simulator.npu.program import Program


class Compiler:
    """Compiles plans of one unit; keeps lowered segments by (plan, place), so that a mutated plan lowers only what changed."""

    def __init__(self, unit: Unit, cache_bytes: int = 512 << 20) -> None:
        self.unit = unit
        self.synchroniser = Synchroniser(unit.machine, unit.memory)
        self._scratch = new_scratch()
        self._cache: OrderedDict[tuple[int, bool, str], Lowered | Infeasible] = OrderedDict()
        self._footprints: WeakKeyDictionary[Lowered, Footprint] = WeakKeyDictionary()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes

    def segment(self, plan: SegmentPlan, start: int, flip: bool = False) -> Lowered | Infeasible:
        """Sequential records of one segment whose first kernel is `start`."""
        key = (start, flip, plan.key)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        lowered = lower_segment(self.unit, plan, start, flip, self._scratch)
        self._cache[key] = lowered
        self._cached_bytes += _size(lowered)
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            _, old = self._cache.popitem(last=False)
            self._cached_bytes -= _size(old)
        return lowered

    def compile(self, plan: Plan) -> Program | Infeasible:
        """The whole plan as one program: the same plan gives the same bytes."""
        parts = self.parts(plan)
        return parts if isinstance(parts, Infeasible) else self.link(parts)

    def link(self, parts: Sequence[Lowered]) -> Program:
        """Segments in their order as one program; a single one is what a task measures."""
        stream = self.synchroniser.write(self.schedule(parts), [part.code for part in parts])
        machine = self.unit.machine
        idle = np.zeros((0, isa.WORDS), np.int32)
        return Program(machine.digest, (stream, *(idle for _ in range(machine.cores - 1))), self.unit.memory)

    def schedule(self, parts: Sequence[Lowered]) -> Schedule:
        """The order of the program that `link` would write.  Valid until the next call."""
        return self.synchroniser.schedule([self.footprint(part) for part in parts])

    def footprint(self, part: Lowered) -> Footprint:
        """What a program's schedule and time need of a segment; kept as long as the segment is."""
        found = self._footprints.get(part)
        if found is None:
            found = self._footprints[part] = self.synchroniser.footprint(part.code)
        return found

    def parts(self, plan: Plan) -> list[Lowered] | Infeasible:
        """The plan's segments, lowered; the first one that does not fit otherwise."""
        names = [name for segment in plan.segments for name in segment.operators]
        if names != [spec.name for spec in self.unit.kernels]:
            return Infeasible("plan", f"its {len(names)} operators are not the model's {len(self.unit.kernels)} in their topological order")
        start, parts = 0, []
        for index, segment in enumerate(plan.segments):
            lowered = self.segment(segment, start, bool(index % 2))
            if isinstance(lowered, Infeasible):
                return Infeasible(f"segment {index}, {lowered.where.removeprefix('segment ')}", lowered.what)
            parts.append(lowered)
            start += len(segment.operators)
        return parts


def _size(part: Lowered | Infeasible) -> int:
    # a footprint takes about half of what its records take
    return part.code.nbytes * 3 // 2 if isinstance(part, Lowered) else 0
