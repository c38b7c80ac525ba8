"""What a worker does: a genome in, its plan, features and measurements at every contention level out.  Pure, and runs without Ray.

A segment is measured alone (its borders drained), to guide the search; a program is measured whole, and only programs become champions.

Where a runner measures, its cycles take the place of the simulator's, which still says what a board does not: bytes, busy cycles, peaks.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features
from compiler.ir.operators import Concat, Conv, Shuffle
from compiler.ir.region import EMPTY, Rows
from compiler.kinds.build import Packed
from compiler.pipeline import Compiler, CorePart
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.blocks import needed, operand_rows
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from compiler.space.starts import single_operators
from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from simulator.npu.cycles import port_units
from simulator.npu.machine import SHARE_UNIT, DataType, Engine
from simulator.timing import Timing, simulate_levels
from tuner.measure.encode import encoded
from tuner.measure.measurement import Measurement, Request
from tuner.measure.prepared import prepared
from tuner.measure.reading import Bench, Reading
from tuner.measure.runners import RunnerSpec
from tuner.measure.shared import SharedResults
from tuner.store.digests import canonical_json

_BUSY = (Engine.MTE1, Engine.MTE2, Engine.MTE3, Engine.CUBE, Engine.VECTOR, Engine.FIXPIPE, Engine.SCALAR)
_PEAKS = ("L1", "L0A", "L0B", "L0C", "UB")
_KEPT_GENES = 20_000
_COLLECT = (20_000, 10, 10)  # Python's own: 700, 10, 10


@dataclass(frozen=True, eq=False)
class Known:
    """A gene's plan and its features."""

    plan: SegmentPlan
    raw: NDArray[np.float64]

    @cached_property
    def text(self) -> str:
        """The plan as canonical JSON: a program that differs in one segment from another is written with the others' texts."""
        return canonical_json(self.plan.model_dump(mode="json"))


@dataclass(frozen=True, eq=False)
class Board:
    """A runner that measures, and the values of the weights (see `Packed`): it is given whole programs."""

    runner: RunnerSpec
    constants: NDArray[np.uint8]


@dataclass(frozen=True)
class EvaluatorSpec:
    """Makes an Evaluator where it is called: in this process or in an actor.  board: None for the simulator alone."""

    unit: Unit
    levels: tuple[str, ...]
    board: Board | None = None

    def __call__(self) -> Evaluator:
        """Ready to answer: one program is measured first, which compiles the kernels where nobody has yet (half a minute, once).

        What a worker has and remembers are hundreds of thousands of objects, next to none of them garbage that only a collector finds.
        Looking at all of them again and again took a third of the time in which genes are scored: what is there by now is left
        out, and the rest is looked at more rarely.
        """
        evaluator = Evaluator(self.unit, self.levels, records=self.board is not None)
        genome = single_operators(self.unit)
        if not isinstance(genome, Infeasible):
            evaluator.measure(Request("program", genome))
        if self.board is not None:
            evaluator.bench, evaluator.constants = self.board.runner(), self.board.constants
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        return evaluator


class Evaluator:
    """Holds the unit, the compiler's caches and the plans of genes seen.

    clock: the machine whose time is taken; another one than the unit's stands for a board that is not as it was described.
    bench: the runner, None for the simulator alone; it is given records and constants, which are kept for nothing else.  shared: what
    others measured, for the simulator alone: a board's readings are its own.
    """

    def __init__(self, unit: Unit, levels: tuple[str, ...], cache_bytes: int = 128 << 20, records: bool = False) -> None:
        self.unit, self.levels = unit, levels
        self.compiler = Compiler(unit, cache_bytes, records)
        self.structures = Structures(unit)
        self._known: OrderedDict[Gene, Known | None] = OrderedDict()
        self._roofline = Roofline(unit)
        self._digest = unit.digest
        self._empty = canonical_json({"unit": self._digest, "plan": plan_of(unit, []).model_dump(mode="json")})
        self.clock = unit.machine
        self.bench: Bench | None = None
        self.constants: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.shared: SharedResults | None = None

    def measure(self, request: Request) -> Measurement:
        genome = tuple(Gene(*gene) for gene in request.genome)
        request = Request(request.kind, genome, request.measure)
        known = []
        for gene in genome:
            segment = self._look_at(gene)
            if segment is None:
                error = f"operators {gene.start}..{gene.stop - 1} in {gene.blocks} blocks: no tiling fits L1"
                return Measurement("infeasible", error, request.task(request.without_plan(self._digest)) if request.measure else "")
            known.append(segment)
        raw = known[0].raw if len(known) == 1 else np.sum([segment.raw for segment in known], 0)
        if not request.measure:
            return Measurement("ok", features=raw)
        if request.kind == "segment":
            return self._segment(request, known[0].plan, raw)
        if request.kind == "stage":
            return self._stage(request, [segment.plan for segment in known], raw)
        plan = plan_of(self.unit, [segment.plan for segment in known])
        payload = self._payload(known)
        return self._measured(request, partial(self.compiler.parts, plan), range(len(self.unit.operators)), plan.segments, payload, raw)

    def failed(self, request: Request, status: Literal["crash", "timeout"], error: str) -> Measurement:
        """The measurement of what raised, or took its worker along."""
        return Measurement(status, error, request.task(request.without_plan(self._digest)))

    def plan(self, gene: Gene) -> SegmentPlan | None:
        known = self._look_at(gene)
        return None if known is None else known.plan

    def cycles_alone(self, plan: SegmentPlan, start: int) -> NDArray[np.int64] | None:
        """int64 [levels]: a segment measured alone; None where it does not fit."""
        parts = self.compiler.alone(plan, start)
        return None if isinstance(parts, Infeasible) else self._timed(parts, range(start, start + len(plan.operators)))[:, 0]

    def _look_at(self, gene: Gene) -> Known | None:
        if gene in self._known:
            self._known.move_to_end(gene)
            return self._known[gene]
        plan = decode(self.unit, gene)
        known = self._known[gene] = None if plan is None else Known(plan, raw_features(self.unit, plan, gene.start))
        if len(self._known) > _KEPT_GENES:
            self._known.popitem(last=False)
        return known

    def _payload(self, segments: Sequence[Known]) -> str:
        """Canonical JSON of a program's task."""
        before, name, behind = self._empty.partition('"segments":[')
        return f"{before}{name}{','.join([segment.text for segment in segments])}{behind}"

    def _segment(self, request: Request, plan: SegmentPlan, raw: NDArray[np.float64]) -> Measurement:
        gene = request.genome[0]
        content: dict[str, Any] = plan.model_dump(mode="json", exclude={"operators"}) | {"cores": list(range(len(plan.cores)))}
        payload = canonical_json({"structure": self.structures.structure(gene.start, gene.stop), "plan": content})
        return self._measured(request, partial(self.compiler.alone, plan, gene.start), range(gene.start, gene.stop), (plan,), payload, raw)

    def _stage(self, request: Request, plans: list[SegmentPlan], raw: NDArray[np.float64]) -> Measurement:
        payload = canonical_json({"unit": self._digest, "stage": [plan.model_dump(mode="json") for plan in plans]})
        parts = partial(self.compiler.some, [(plan, gene.start) for plan, gene in zip(plans, request.genome, strict=True)])
        return self._measured(request, parts, [k for gene in request.genome for k in range(gene.start, gene.stop)], plans, payload, raw)

    def _measured(
        self,
        request: Request,
        lowered: Callable[[], list[CorePart] | Infeasible],
        operators: Sequence[int],
        plans: Sequence[SegmentPlan],
        payload: str,
        raw: NDArray[np.float64],
    ) -> Measurement:
        """As another search measured it; else measured, by the simulator and then by the runner."""
        task = request.task(payload)
        if self.shared is not None and (shared := self.shared.find(task)) is not None:
            return Measurement("ok", None, task, payload, raw, shared, True)
        parts = lowered()
        if isinstance(parts, Infeasible):
            return Measurement("infeasible", str(parts), task, payload, raw)
        values = self._timed(parts, operators)
        if self.bench is not None:
            expected = dict(zip(self.levels, values[:, 0].tolist(), strict=True))
            program = encoded(Packed(self.unit, self.constants), request.kind, self.compiler.link(parts), plans, expected)
            found = self.bench.cycles(program, self.levels)
            if isinstance(found, Reading):
                status = "invalid" if found.status == "ok" else found.status
                return Measurement(status, found.error, task, payload, raw)
            values[:, 0] = found
        if self.shared is not None:
            self.shared.add(task, values)
        return Measurement("ok", None, task, payload, raw, values)

    def _timed(self, parts: list[CorePart], operators: Sequence[int]) -> NDArray[np.int64]:
        footprints = [part.lowered.footprint for part in parts]
        program = prepared(self.clock, self.compiler.schedule(parts), footprints)
        timings = simulate_levels(program, self.clock, self.levels)
        peaks = [max(part.lowered.peak_bytes[name] for part in parts) for name in _PEAKS]
        rows = [measured(timings[level], self._roofline.of(operators, level), peaks) for level in self.levels]
        return np.array(rows, np.int64)


def measured(timing: Timing, roofline: int, peaks: list[int]) -> list[int]:
    """One level's results in the order of `RESULTS`."""
    busy = timing.busy_cycles.sum(0)
    return [
        timing.cycles,
        roofline,
        timing.ddr_read_bytes,
        timing.ddr_write_bytes,
        *(int(busy[engine]) for engine in _BUSY),
        timing.load_store_cycles,
        *peaks,
    ]


class Roofline:
    """The model's own lower bound: MACs over all cores' peak, or unpadded bytes of weights, inputs and outputs over the bandwidth.

    Of rows that somebody reads.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._works: dict[tuple[int, ...], tuple[int, int]] = {}
        machine, shapes = unit.machine, unit.graph.shapes
        self.peak = {DataType[name]: int(macs * machine.cores) for name, macs in machine.macs_per_cycle.items()}
        layout = unit.layout
        images = {storage.name: storage.n for storage in unit.storages}
        self.row_bytes = {
            name: images[layout.placements[name].storage] * shape[1] * shape[3] * layout.type_of(name).size_bytes
            for name, shape in shapes.items()
        }
        # a concatenation or a shuffle moves nothing: what it is made of counts
        self._leaves: dict[str, set[str]] = {name: {name} for name in shapes}
        for op in unit.graph.operators:
            if isinstance(op, Concat | Shuffle):
                self._leaves[op.y] = set().union(*(self._leaves[name] for name in op.inputs))
        self.weight_bytes = [
            (int(spec.operator.weights.size) + int(spec.operator.bias.size)) * unit.type_of(spec.reads[0]).size_bytes
            if isinstance(spec.operator, Conv)
            else 0
            for spec in unit.operators
        ]

    def cycles(self, start: int, stop: int, level: str) -> int:
        """Of operators [start, stop) alone."""
        return self.of(range(start, stop), level)

    def of(self, operators: Sequence[int], level: str) -> int:
        """Of some operators, ascending, alone."""
        products, moved = self._work(tuple(operators))
        port = port_units(self.unit.machine, self.unit.machine.share_units(level))
        return max(products, -(-moved * SHARE_UNIT // port))

    def _work(self, operators: tuple[int, ...]) -> tuple[int, int]:
        """(Cycles of products at all cores' peak, unpadded bytes)."""
        found = self._works.get(operators)
        if found is not None:
            return found
        unit, inside = self.unit, set(operators)
        specs = [unit.operators[k] for k in operators]
        rows = needed(unit)
        macs: dict[DataType, int] = {}
        for spec in specs:
            dtype = unit.type_of(spec.reads[0])
            macs[dtype] = macs.get(dtype, 0) + spec.macs * rows[spec.index].size // spec.out_h * unit.images
        products = sum(-(-count // self.peak[dtype]) for dtype, count in macs.items())
        made = {spec.operator.y for spec in specs}
        read: dict[str, Rows] = {}
        for spec in specs:
            for name, wanted in zip(spec.operator.inputs, operand_rows(unit, spec.index), strict=True):
                for leaf in self._leaves[name] - made:
                    read[leaf] = read.get(leaf, EMPTY).hull(wanted)
        leaving = {
            spec.operator.y: rows[spec.index]
            for spec in specs
            if spec.index in unit.escapes or not inside.issuperset(unit.consumers[spec.index])
        }
        moved = sum(self.row_bytes[name] * wanted.size for name, wanted in (*read.items(), *leaving.items()))
        moved += sum(self.weight_bytes[k] for k in operators)
        self._works[operators] = products, moved
        return products, moved
