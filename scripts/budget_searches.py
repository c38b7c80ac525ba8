"""Searches of the study of budgets: cases, and the curve of each arm.  A search appends one line to a file when it ends."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import simulator
import tuner
from compiler.autoplan import quick_plans
from compiler.bound.bound import Bound
from compiler.plan.plan import Plan, SegmentPlan
from compiler.space.gene import Gene, Genome, Weights, block_counts
from compiler.target.target_graph import TargetGraph
from scripts.search_spaces import PlanSpace
from scripts.studies import ALL_PROGRAMS, Row, load_kernels, network, opened, run_apart
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from tuner.calibrate.hidden import hidden_machine
from tuner.config import load_config
from tuner.farm.initial_plans import compiled_genomes
from tuner.log.digests import digest
from tuner.log.record import RESULTS
from tuner.measure.evaluator import Evaluator, build_evaluator
from tuner.measure.grants import NEVER
from tuner.measure.npu_target import Npu
from tuner.measure.request import CYCLES, Request, with_never
from tuner.measure.target import Timed

ANOTHER_CHANGE = 0.5
BUSY = [place for place, name in enumerate(RESULTS) if name.startswith("busy_")]


class Case(NamedTuple):
    """levels: None for all.  board: seed of the hidden machine that is its clock.  max_cuts: programs of its longest search."""

    network: str
    machine: str = "edge"
    levels: tuple[str, ...] | None = None
    board: int | None = None
    max_cuts: int = 6_000

    @property
    def clock(self) -> Machine:
        machine = load_machine(self.machine)
        return machine if self.board is None else hidden_machine(machine, self.board)


SQUEEZENET, BERT = "light:squeezenet", "made:bert_base,layers=2"
LITTLE = "edge:buffers_bytes.L1=524288,buffers_bytes.UB=131072"
CASES = {
    "squeezenet": Case(SQUEEZENET), "squeezenet-shared": Case(SQUEEZENET, "edge-shared", ("severe",)),
    "squeezenet-little": Case(SQUEEZENET, LITTLE), "squeezenet-cores": Case(SQUEEZENET, "ascend310"),
    "squeezenet-board": Case(SQUEEZENET, board=1), "bert": Case(BERT), "bert-shared": Case(BERT, "edge-shared", ("severe",)),
    "bert-little": Case(BERT, LITTLE), "bert-cores": Case(BERT, "ascend310"), "bert-board": Case(BERT, board=1),
    "inception_v1": Case("light:inception_v1"), "densenet121": Case("light:densenet121"), "mobilenet_v2": Case("made:mobilenet_v2"),
    "drawn0": Case("made:drawn,seed=0,blocks=2", max_cuts=50_000), "drawn2": Case("made:drawn,seed=2,blocks=2", max_cuts=50_000),
}  # fmt: skip
"""Chosen before anything was measured: five networks, the first two drawn ones of ten operators or fewer, and two on other machines."""


class Task(NamedTuple):
    """Search of a case by an arm.  cpu_s: CPU time of random mutations."""

    case: Case
    arm: str
    seed: int
    programs: int
    settings: tuple[str, ...]
    cpu_s: float = 0.0

    @property
    def key(self) -> str:
        """Digest of all inputs of the result except its length."""
        config = load_config(None, self.settings)
        graph = network(self.case.network, self.case.machine, config.search.order)
        return digest([graph.digest, self.case.clock.digest, self.case.levels, config.digest, simulator.VERSION, self.arm, self.seed])


class CountingNpu(Npu):
    """Target that counts simulations, and has the best of the first programs: `points` of programs, CPU s, simulations, cycles [levels].

    Jobs that run at a time may measure the same program: a budget counts it once, and its simulation again.
    busiest: cycles [levels] in which the busiest engine of the best program works, a mean over cores.
    """

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...], clock: Machine) -> None:
        super().__init__(target_graph, levels, clock=clock)
        self.simulations, self.points, self.begun_s = Counter[str](), list[list[float]](), time.process_time()
        self.distinct, self.lowest = set[int](), np.full(len(levels), NEVER)
        self.busiest, self._cores = np.zeros(len(levels), np.int64), clock.cores

    def alone(self, plan: SegmentPlan, start: int) -> Timed:
        return self._count("segment", super().alone(plan, start))

    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Timed:
        return self._count("stage", super().stage(segments))

    def simulated(self, plan: Plan) -> Any:
        return self._count("foreseen", super().simulated(plan))

    def program(self, plan: Plan) -> Timed:
        values = self._count("program", super().program(plan))
        self.distinct.add(hash(tuple([(segment.key, segment.cores, segment.same_end) for segment in plan.segments])))
        cycles = with_never(values[:, CYCLES]) if isinstance(values, np.ndarray) else self.lowest
        if not self.points or (cycles < self.lowest).any() or len(self.distinct) >= 1.01 * self.points[-1][0]:
            if isinstance(values, np.ndarray):
                self.busiest = np.where(cycles < self.lowest, values[:, BUSY].max(1) // self._cores, self.busiest)
            self.lowest = np.minimum(self.lowest, cycles)
            self.end()
        return values

    def end(self) -> None:
        cpu_s = round(time.process_time() - self.begun_s, 3)
        self.points.append([len(self.distinct), cpu_s, self.simulations.total(), *map(int, self.lowest)])

    def _count(self, kind: str, values: Timed) -> Timed:
        self.simulations[kind] += isinstance(values, np.ndarray)
        return values


def measure(task: Task) -> Row:
    """The record of a search, in the process that has it alone."""
    load_kernels()
    case, begun_s = task.case, time.process_time()
    levels = case.levels or tuple(load_machine(case.machine).contention)
    record: Row = {"key": task.key, "arm": task.arm, "seed": task.seed, "programs": task.programs, "levels": levels}
    if task.arm == "compile":
        record |= compile_plans(case, levels)
    else:
        target_graph = network(case.network, case.machine, load_config(None, task.settings).search.order)
        evaluator = build_evaluator(target_graph, levels)
        evaluator.target = target = CountingNpu(target_graph, levels, case.clock)
        if task.arm == "search":
            result = tuner.Search(
                target_graph, settings=(ALL_PROGRAMS, *task.settings), candidates=task.programs, seed=task.seed, evaluator=evaluator
            ).run()
            record["cuts"] = {level: name_cuts(champion.genome) for level, champion in zip(levels, result.best, strict=True)}
        elif task.arm == "random":
            change_randomly(evaluator, task)
        else:
            record["cuts"] = simulate_cuts(evaluator)
        target.end()
        record |= {"points": target.points, "simulations": target.simulations, "busiest": target.busiest.tolist()}
    return record | {"cpu_s": round(time.process_time() - begun_s, 2)}


def compile_plans(case: Case, levels: Sequence[str]) -> Row:
    """Programs of `compile` as a curve of one point, and the bounds of the machine that measures."""
    model, lines, begun_s = opened(case.network, case.machine, "float16"), list[str](), time.process_time()
    plans = quick_plans(model, progress=lines.append)
    cpu_s, simulations, cycles = time.process_time() - begun_s, sum("simulated" in line for line in lines), []
    for level in levels:
        values = Npu(model.target_graph, (level,), clock=case.clock).program(plans[level])
        assert isinstance(values, np.ndarray), values
        cycles.append(int(values[0, CYCLES]))
    graph = opened(case.network, case.clock, "float16").target_graph
    return {"points": [[len(plans), cpu_s, simulations, *cycles]], "bounds": [Bound(graph).of(level).cycles for level in levels]}


def change_randomly(evaluator: Evaluator, task: Task) -> None:
    """Random mutations, one to several at a time, of a level's best program, the levels in turn, until the CPU seconds are spent."""
    begun_s, graph, rng = time.process_time(), evaluator.target_graph, np.random.default_rng(task.seed)
    space, genomes = PlanSpace(graph), set[Genome]()
    best = [(NEVER, space.start)] * len(evaluator.levels)

    def try_program(genome: Genome) -> None:
        genomes.add(genome)
        cycles = evaluator.measure(Request("program", genome)).cycles
        for place, took in enumerate([] if cycles is None else cycles.tolist()):
            best[place] = min(best[place], (took, genome), key=lambda entry: entry[0])

    for genome in compiled_genomes(graph, evaluator.levels, load_config(None, task.settings)):
        try_program(genome)
    for place in itertools.cycle(range(len(best))):
        if time.process_time() - begun_s > task.cpu_s:
            return
        genome = best[place][1]
        for _ in range(int(rng.geometric(ANOTHER_CHANGE))):
            genome = space.neighbour(genome, rng)
        if genome not in genomes:
            try_program(genome)


def name_cuts(genome: Genome) -> str:
    return " ".join(str(gene.start) for gene in genome[1:])


def simulate_cuts(evaluator: Evaluator) -> dict[str, dict[str, int]]:
    """Level -> division -> cycles of the program of the segments that are fastest alone."""
    graph, count = evaluator.target_graph, len(evaluator.target_graph.operators)
    fastest: dict[tuple[int, int], list[Gene | None]] = {}
    for span in itertools.combinations(range(count + 1), 2):
        weights: tuple[Weights, ...] = ("resident", "streamed")
        genes = [Gene(*span, blocks, weights=w, cached=c) for blocks in block_counts(graph, *span) for w in weights for c in (0, -1)]
        took = [(gene, cycles) for gene in genes if (cycles := evaluator.measure(Request("segment", (gene,))).cycles) is not None]
        for place, _ in enumerate(evaluator.levels):
            fitting = [(int(cycles[place]), rank, gene) for rank, (gene, cycles) in enumerate(took) if cycles[place] < NEVER]
            fastest.setdefault(span, []).append(min(fitting)[2] if fitting else None)
    level_cycles: dict[str, dict[str, int]] = {level: {} for level in evaluator.levels}
    for mask in itertools.product((False, True), repeat=count - 1):
        borders = [0, *(k for k, is_cut in enumerate(mask, 1) if is_cut), count]
        for place, level in enumerate(evaluator.levels):
            genome = [gene for span in itertools.pairwise(borders) if (gene := fastest[span][place]) is not None]
            cycles = evaluator.measure(Request("program", tuple(genome))).cycles if len(genome) == len(borders) - 1 else None
            if cycles is not None and cycles[place] < NEVER:
                level_cycles[level][name_cuts(tuple(genome))] = int(cycles[place])
    return level_cycles


class Searches:
    """Records in OUT/searches.jsonl."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.records: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    @property
    def cpu_s(self) -> float:
        return sum(record["cpu_s"] for record in self.records)

    def find(self, task: Task) -> Row | None:
        """Longest recorded search of a task, if it has enough programs."""
        key = task.key
        long_enough = [record for record in self.records if record["key"] == key and record["programs"] >= task.programs]
        return max(long_enough, key=lambda record: record["programs"], default=None)

    def run(self, name: str, tasks: Sequence[Task], own_process: bool) -> None:
        """Run the tasks without a record, one after the other; random mutations take as long as the search before them."""
        cpu_s = 0.0
        for task in tasks:
            record: Row | None = self.find(task)
            if record is None:
                task = task._replace(cpu_s=cpu_s)
                record = {"case": name} | (run_apart(measure, task) if own_process else measure(task))
                self.records.append(record)
                with self.path.open("ab", buffering=0) as file:  # one write: searches of two processes do not mix
                    file.write(json.dumps(record).encode() + b"\n")
                print(f"{name}: {task.arm}, seed {task.seed}: {record['cpu_s']:,.0f} s", file=sys.stderr, flush=True)
            cpu_s = float(record["points"][-1][1])
