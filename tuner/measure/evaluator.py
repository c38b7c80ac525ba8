"""Evaluator of a worker: a genome in; its plan, features and measurements at every contention level out.  Pure, and runs without Ray.

A segment is measured alone (its borders drained), to guide the search; a program is measured whole, and only programs become champions.
The target gives their times (`tuner.measure.target`).
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import decode, decode_all, plan_of, sharing, spaces_of
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from compiler.space.persistent import FREE, Space
from compiler.space.shared_memory import with_shared
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from tuner.config import NPU
from tuner.log.digests import canonical_json
from tuner.log.drift import NO_BOARD, BoardReading
from tuner.log.record import RESULTS
from tuner.measure.npu_target import Npu
from tuner.measure.request import Measurement, Request
from tuner.measure.roofline import Roofline
from tuner.measure.runner_api import Reading
from tuner.measure.runners import RunnerSpec
from tuner.measure.store_lookup import Memo
from tuner.measure.target import Target, Timed, find_target

_CYCLES, _ROOFLINE = RESULTS.index("cycles"), RESULTS.index("roofline_cycles")
_KEPT_GENES = 20_000  # genes whose plans are cached
_COLLECT = (20_000, 10, 10)  # Python's own: 700, 10, 10


@dataclass(frozen=True, eq=False)
class PlannedGene:
    """A gene's plan and its features."""

    plan: SegmentPlan
    features: NDArray[np.float64]

    @cached_property
    def text(self) -> str:
        """Plan as canonical JSON; texts of unchanged segments are reused."""
        return canonical_json(self.plan.model_dump(mode="json"))


# key of a cached gene: without a space for a gene alone; with its shared and staged tensors in a program
_Key = Gene | tuple[Gene, Space] | tuple[Gene, Space, tuple[str, ...], tuple[str, ...]]
_CacheEntry = TypeVar("_CacheEntry", PlannedGene, None)


@dataclass(frozen=True, eq=False)
class Board:
    """Runner that measures, and the values of the weights (see `Packed`), which whole programs need."""

    runner: RunnerSpec
    constants: NDArray[np.uint8]


def build_evaluator(target_graph: TargetGraph, levels: tuple[str, ...], board: Board | None = None, target: str = NPU) -> Evaluator:
    """Evaluator of this process.  It has measured one program, so its kernels are compiled.

    board: board of the NPU; None: the simulator only.  target: name of the target, see `find_target`.

    A worker holds hundreds of thousands of objects, and the collector finds next to no garbage among them.  Full collections took a third
    of the time in which genes are scored: objects of the start are frozen, later ones are collected more rarely.  Garbage of the start
    stays: a collection takes seconds in a process that holds much else.
    """
    npu = Npu(target_graph, levels, records=board is not None) if target == NPU else None
    evaluator = Evaluator(target_graph, levels, npu or find_target(target)(target_graph, levels))
    genome = single_operators(target_graph)
    if not isinstance(genome, Infeasible):
        evaluator.measure(Request("program", genome))
    if board is not None and npu is not None and (bench := board.runner()) is not None:
        plan = None if isinstance(genome, Infeasible) else decode_all(target_graph, genome)
        npu.attach_board(bench, board.constants, None if isinstance(plan, Infeasible) else plan, board.runner.canary)
    gc.freeze()
    gc.set_threshold(*_COLLECT)
    return evaluator


class Evaluator:
    """Holds the target graph and the plans of seen genes; the target times them (default: the NPU).

    memo: measurements of other runs, only for the NPU; other targets do not share theirs.  published: see `use_published`.
    """

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...], target: Target | None = None) -> None:
        self.target_graph, self.levels = target_graph, levels
        self.target: Target = Npu(target_graph, levels) if target is None else target
        self.structures = Structures(target_graph)
        self._segments: OrderedDict[_Key, PlannedGene | None] = OrderedDict()
        self._roofline = Roofline(target_graph)
        self._graph_digest = target_graph.digest
        self._empty_task = canonical_json({"unit": self._graph_digest, "plan": plan_of(target_graph, []).model_dump(mode="json")})
        self.memo: Memo | None = None
        self.published: Mapping[str, Measurement] = {}
        self._some_request_crashed = False

    def measure(self, request: Request) -> Measurement:
        """Measure a request by the target.

        With `measure=False` nothing is measured: the answer has features, or for a program the cycles that the simulator predicts.
        """
        genome = tuple([gene if isinstance(gene, Gene) else Gene(*gene) for gene in request.genome])
        request = Request(request.kind, genome, request.measure)
        # a request that crashed its worker was published without a plan, so it must be looked up before it is planned
        if self._some_request_crashed and request.measure:
            task = request.task(payload := request.without_plan(self._graph_digest))
            if (measurement := self.published.get(task)) is not None:
                return replace(measurement, payload=payload)
        if request.kind == "program" and not request.measure:
            return self._predict_by_simulator(genome)
        segments = self._find_segments(request)
        if isinstance(segments, Measurement):
            return segments
        features = segments[0].features if len(segments) == 1 else np.sum([segment.features for segment in segments], 0)
        if not request.measure:
            return Measurement("ok", features=features)
        if request.kind == "segment":
            return self._measure_segment(request, segments[0].plan, features)
        if request.kind == "stage":
            return self._measure_stage(request, [segment.plan for segment in segments], features)
        plan = plan_of(self.target_graph, [segment.plan for segment in segments])
        return self._answer_or_measure(
            request, partial(self.target.program, plan), range(len(self.target_graph.operators)), self._payload(segments), features
        )

    def _find_segments(self, request: Request) -> list[PlannedGene] | Measurement:
        """Segments of a request, which share memory in a program or a stage; a measurement if one does not fit."""
        genome = request.genome
        segments = []
        spaces = spaces_of(self.target_graph, genome) if request.kind == "program" else [FREE] * len(genome)
        for gene, space in zip(genome, spaces, strict=True):
            segment = self._find_segment(gene, space)
            if segment is None:
                error = f"operators {gene.start}..{gene.stop - 1} in {gene.blocks} blocks: no tiling fits L1"
                return Measurement("infeasible", error, request.task(request.without_plan(self._graph_digest)) if request.measure else "")
            segments.append(segment)
        return segments if request.kind == "segment" else self._program_segments(genome, segments, spaces)

    def _predict_by_simulator(self, genome: Genome) -> Measurement:
        """Expected cycles of a program by the simulator, even if a board measures; None for targets other than the NPU."""
        if not isinstance(self.target, Npu):
            return Measurement("ok")
        plan = decode_all(self.target_graph, genome)
        values = plan if isinstance(plan, Infeasible) else self.target.simulated(plan)
        return Measurement("infeasible", str(values)) if isinstance(values, Infeasible) else Measurement("ok", values=values)

    @property
    def board_reading(self) -> BoardReading:
        """Board of the last measurement; empty without one."""
        return self.target.board_reading if isinstance(self.target, Npu) else NO_BOARD

    def failed(self, request: Request, status: Literal["crash", "timeout"], error: str) -> Measurement:
        """Measurement for a request that raised or crashed its worker."""
        return Measurement(status, error, request.task(request.without_plan(self._graph_digest)))

    def use_published(self, published: Mapping[str, Measurement], crashed: bool | None = None) -> None:
        """Use published results of the run, by task, instead of measuring.  crashed: whether one of them may have crashed its worker; None:
        searched for here."""
        if crashed is None:
            crashed = any(measurement.status in ("crash", "timeout") for measurement in published.values())
        self.published, self._some_request_crashed = published, crashed

    def plan(self, gene: Gene) -> SegmentPlan | None:
        segment = self._find_segment(gene)
        return None if segment is None else segment.plan

    def cycles_alone(self, plan: SegmentPlan, start: int) -> NDArray[np.int64] | None:
        """int64 [levels]: cycles of a segment measured alone; None if it does not fit."""
        measured = self.target.alone(plan, start)
        return measured[:, _CYCLES] if isinstance(measured, np.ndarray) else None

    def _find_segment(self, gene: Gene, space: Space = FREE) -> PlannedGene | None:
        """Plan and features of a gene alone, with all possible tensors in the shared memory.  space: its part of held tensors."""
        unheld_gene = gene._replace(held=0) if gene.held else gene
        key: _Key = unheld_gene if space == FREE else (unheld_gene, space)
        try:
            segment = self._segments[key]
        except KeyError:
            return self._plan_gene(unheld_gene, space, key)
        self._segments.move_to_end(key)
        return segment

    def _plan_gene(self, gene: Gene, space: Space, key: _Key) -> PlannedGene | None:
        """Plan and features of a gene that was not seen before."""
        if gene.same_end:  # the same plan, at the other end of memory
            counterpart = self._find_segment(gene._replace(same_end=False), space)
            if counterpart is None:
                return self._cache(key, None)
            return self._cache(key, PlannedGene(counterpart.plan.model_copy(update={"same_end": True}), counterpart.features))
        plan = decode(self.target_graph, gene, *space)
        if plan is None:
            return self._cache(key, None)
        (plan,) = with_shared(sharing(self.target_graph, [gene]), [(plan, gene.start)])
        return self._cache(key, PlannedGene(plan, raw_features(self.target_graph, plan, gene.start)))

    def _program_segments(self, genome: Sequence[Gene], segments: Sequence[PlannedGene], spaces: Sequence[Space]) -> list[PlannedGene]:
        """Segments of one program: they divide the shared memory."""
        starts = [gene.start for gene in genome]
        plans = with_shared(
            sharing(self.target_graph, genome), [(segment.plan, start) for segment, start in zip(segments, starts, strict=True)]
        )
        joined = []
        for gene, isolated, plan, space in zip(genome, segments, plans, spaces, strict=True):
            if plan is isolated.plan:
                joined.append(isolated)
                continue
            key = (gene._replace(held=0), space, plan.shared, plan.staged)
            if (cached_segment := self._segments.get(key)) is not None:
                self._segments.move_to_end(key)
                joined.append(cached_segment)
            else:
                joined.append(self._cache(key, PlannedGene(plan, raw_features(self.target_graph, plan, gene.start))))
        return joined

    def _cache(self, key: _Key, entry: _CacheEntry) -> _CacheEntry:
        self._segments[key] = entry
        if len(self._segments) > _KEPT_GENES:
            self._segments.popitem(last=False)
        return entry

    def _payload(self, segments: Sequence[PlannedGene]) -> str:
        """Canonical JSON of a program's task."""
        head, name, tail = self._empty_task.partition('"segments":[')
        return f"{head}{name}{','.join([segment.text for segment in segments])}{tail}"

    def _measure_segment(self, request: Request, plan: SegmentPlan, features: NDArray[np.float64]) -> Measurement:
        gene = request.genome[0]
        # excluded: what does not change the cycles of a lone segment, so that equal segments of different models are one task
        excluded = {"operators", "shared", "staged", "same_end"}
        content: dict[str, Any] = plan.model_dump(mode="json", exclude=excluded) | {"cores": list(range(len(plan.cores)))}
        payload = canonical_json({"structure": self.structures.structure(gene.start, gene.stop), "plan": content})
        return self._answer_or_measure(
            request, partial(self.target.alone, plan, gene.start), range(gene.start, gene.stop), payload, features
        )

    def _measure_stage(self, request: Request, plans: list[SegmentPlan], features: NDArray[np.float64]) -> Measurement:
        payload = canonical_json({"unit": self._graph_digest, "stage": [plan.model_dump(mode="json") for plan in plans]})
        segments = [(plan, gene.start) for plan, gene in zip(plans, request.genome, strict=True)]
        operators = [k for gene in request.genome for k in range(gene.start, gene.stop)]
        return self._answer_or_measure(request, partial(self.target.stage, segments), operators, payload, features)

    def _answer_or_measure(
        self, request: Request, time_plan: Callable[[], Timed], operators: Sequence[int], payload: str, features: NDArray[np.float64]
    ) -> Measurement:
        """Measurement of a task: from the run, from another run, or by the target."""
        task = request.task(payload)
        if (measurement := self.published.get(task)) is not None:
            return replace(measurement, payload=payload, features=features)
        stored_result = None if self.memo is None else self.memo.find(task, self.board_reading)
        if self.memo is not None and stored_result is not None and not self.memo.must_measure(request, task, stored_result.values):
            return Measurement("ok", None, task, payload, features, stored_result.values, stored_result.pack)
        measured = self._measure_on_target(time_plan, operators, task, payload, features)
        if self.memo is not None:
            self.memo.measured(request, task, measured.values, stored_result)
        return measured

    def _measure_on_target(
        self, time_plan: Callable[[], Timed], operators: Sequence[int], task: str, payload: str, features: NDArray[np.float64]
    ) -> Measurement:
        """Measurement of a task by the target, and its roofline."""
        values = time_plan()
        if isinstance(values, Infeasible):
            return Measurement("infeasible", str(values), task, payload, features)
        if isinstance(values, Reading):  # a failure: a reading that claims to be ok has no cycles of levels
            return Measurement("invalid" if values.status == "ok" else values.status, values.error, task, payload, features)
        fits = values[:, _CYCLES] > 0
        values[:, _ROOFLINE] = [
            self._roofline.cycles_of(operators, level) if fit else 0 for level, fit in zip(self.levels, fits, strict=True)
        ]
        return Measurement("ok", None, task, payload, features, values)
