"""Efficiency of a farm: two actors against two separate processes, cost of the driver, rate of model scores, memory of an actor.

    python scripts/bench_farm.py [--network light:resnet50] [--machine ascend310] [--epochs 16] [--pairs 5] [--busy] [--out FILE.json]

Rates are measured tasks per second of a search without model training, over its first --epochs evolving epochs.  Earlier epochs are left
out: their tasks are smaller, and two actors finish them sooner.

A pair is one search on two actors, and the same search in two separate processes at the same time.  Both parts of a pair run one after the
other, in alternating order, so that other load affects both.  With --busy that load is a spinning process, which shares two cores with
them.  All three searches measure the same tasks, which is checked: with equal time instead, two actors would reach later tasks, which take
longer.

Cost of the driver: CPU time of its process (with Ray's threads and the log's) per task committed meanwhile.

Scores: of unseen genes, from gene to plan, features and predictions at every level; and of whole programs, children of measured ones, most
of whose segments are known.  About six minutes on two idle cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

import simulator
from compiler.target.target_graph import TargetGraph
from scripts.studies import network
from simulator import terminal
from tuner.cli.text import print_table
from tuner.config import TuneConfig, load_config
from tuner.cost_model.interface import conditions_of
from tuner.cost_model.model_file import TrainingOutcome
from tuner.cost_model.training_rows import pack_rows, rows_of_search
from tuner.farm.actor_pool import ActorPool, JobWorker
from tuner.farm.commit_log import Ledger, RunBudget
from tuner.farm.coordinator import Coordinator, Jobs, SerialJobs
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.jobs import Training, Update, build_job_runner
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_spec import SearchSpec
from tuner.log.columns import from_bytes
from tuner.log.record import EPOCH
from tuner.log.task_numbers import first
from tuner.log.writer import Origin, RunLog
from tuner.measure.budgeted import Deadline
from tuner.measure.request import Measurement, Request
from tuner.platform.actors import Announce
from tuner.platform.local_files import LocalPath
from tuner.platform.ray_actors import RayActors
from tuner.platform.ray_cluster import connect
from tuner.platform.real import REAL
from tuner.search.ask_tell import run_to_end
from tuner.search.champions import Champions
from tuner.search.context import SearchContext
from tuner.search.epoch import EVOLVING
from tuner.search.explore import propose_segments
from tuner.search.hill_climb import grow_children
from tuner.search.knowledge import Knowledge

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
GOALS = {"ratio": 0.9, "driver_us": 100.0, "scored_per_s": 3320.0}  # the last: ten times what MetaSchedule scores (332)
SCORED_AT_ONCE, SCORING_S = 192, 4.0


def specification(target_graph: TargetGraph, config: TuneConfig, seed: int) -> SearchSpec:
    levels = tuple(target_graph.machine.contention)
    origin = Origin("bench", target_graph.graph.name, target_graph.machine.name, simulator.VERSION, seed=seed)
    return SearchSpec(origin, target_graph, levels, config)


@dataclass
class Window:
    """Range of evolving epochs of a search.  findings: all committed findings, epoch by epoch.  rows: training rows."""

    epochs: int
    tasks: int = 0
    begun_s: float = 0.0
    wall_s: float = 0.0
    driver_s: float = 0.0
    workers_s: float = 0.0
    findings: list[list[bytes]] = field(default_factory=list)
    rows: bytes = b""

    def run(self, spec: SearchSpec, jobs: Jobs, worked_s: Callable[[], float] = time.process_time) -> Window:
        """Run a search until the end of the window.  worked_s: total CPU time of the measuring processes."""
        levels, config = spec.levels, spec.config
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / ".tmp").mkdir()
            schedule = EpochSchedule(config.search.shards, config.search.behind)
            budget = RunBudget(deadline=Deadline(REAL.clock, REAL.clock.monotonic_s() + 3600))
            with RunLog(LocalPath(folder), REAL, spec.origin, FEATURE_SETS) as log:
                ledger = Ledger(levels, log, Champions(len(levels)), budget)
                marks: list[tuple[float, float, float, int]] = []  # wall, driver and worker seconds, and tasks, at the window's ends

                def committed(findings: bytes) -> None:
                    epoch, shard = schedule.frontier
                    if shard == 1 or schedule.shards == 1 or len(self.findings) == 0:
                        self.findings.append([])
                    self.findings[-1].append(findings)
                    if shard == 0 and epoch in (EVOLVING, EVOLVING + self.epochs):
                        log.flush()  # earlier rows are no cost of the window; rows not yet written at its end are
                        marks.append((time.monotonic(), time.process_time(), worked_s(), ledger.counted.tasks))
                    if len(marks) == 2:
                        budget.deadline = Deadline(REAL.clock, REAL.clock.monotonic_s())

                conductor = Coordinator(jobs, schedule, ledger, None, committed)
                conductor.begin(())
                conductor.run()
                self.wall_s, self.driver_s, self.workers_s, tasks = (end - begin for begin, end in zip(*marks, strict=True))
                self.begun_s, self.tasks = marks[0][0], int(tasks)
            conditions = np.stack(list(conditions_of(spec.target_graph, levels).values()))
            seqs = first(ledger.numbers, self.tasks)
            self.rows = pack_rows(rows_of_search(LocalPath(folder), spec.origin.run, seqs, conditions))
        return self

    @property
    def rate(self) -> float:
        return self.tasks / self.wall_s


class TimedWorker(JobWorker):
    """Worker that logs the start and end of each job, by the monotonic clock, which all processes share."""

    def __init__(self, spec: SearchSpec, folder: str) -> None:
        super().__init__(spec)
        self._file = (Path(folder) / str(os.getpid())).open("w", buffering=1)

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        begin_s = time.monotonic()
        result = super().work(packed, shared, announce)
        self._file.write(f"{begin_s} {time.monotonic()}\n")
        return result


def on_actors(spec: SearchSpec, epochs: int) -> tuple[Window, float, list[dict[str, float]]]:
    """Window of a search on two actors, their seconds without a job in it, and the memory of each."""
    with (
        TemporaryDirectory() as folder,
        RayActors(partial(TimedWorker, spec, folder), WORKERS, run_id=f"bench-{os.getpid()}") as actors,
    ):
        farm = ActorPool(actors, REAL.clock, terminal.say)
        window = Window(epochs).run(spec, farm, lambda: sum(cpu_s(pid) for pid in _pids(farm.names)))
        begin_s, end_s = window.begun_s, window.begun_s + window.wall_s
        jobs = [np.array(path.read_text().split(), float).reshape(-1, 2).clip(begin_s, end_s) for path in Path(folder).iterdir()]
        waited_s = WORKERS * window.wall_s - sum(float((job[:, 1] - job[:, 0]).sum()) for job in jobs)
        return window, waited_s, [process_memory(pid) for pid in _pids(farm.names)]


def _pids(names: Sequence[str]) -> list[int]:
    return [int(name.rsplit(":")[-1]) for name in names]


def cpu_s(pid: int) -> float:
    """CPU time of a process, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_memory(pid: int) -> dict[str, float]:
    """MB of a process: resident, and private."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kib = {name: float(text.split()[0]) for name, text in rows.items()}
    return {"rss_mb": kib["Rss"] / 1024, "unique_mb": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024}


def serial_command(name: str, machine: str, epochs: int, seed: int, overrides: Sequence[str]) -> list[str]:
    words = ["--network", name, "--machine", machine, "--epochs", str(epochs), "--serial-seed", str(seed)]
    return [sys.executable, __file__, *words, *(word for text in overrides for word in ("--set", text))]


def run_alone(commands: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """Run searches in separate processes at the same time."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for command in commands]
    texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a search on its own failed")
    return [json.loads(text) for text in texts]


@contextmanager
def background_load(busy: bool) -> Iterator[int | None]:
    """Process id of a spinning process that runs inside the context, None if not `busy`.

    It has a session of its own: Linux divides time by session first (`sched_autogroup_enabled`), and Ray's actors have a session different
    from that of this process and its children.  In this session it would take half of the time of two separate processes, but less of the
    actors'.
    """
    if not busy:
        yield None
        return
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield spinning.pid
    finally:
        spinning.kill()
        spinning.wait()


class Scorer:
    """Candidate scoring of a worker, without measurements."""

    def __init__(self, spec: SearchSpec, window: Window) -> None:
        epochs = window.findings[: EVOLVING + (len(window.findings) - EVOLVING) // 2]
        self.job_runner = build_job_runner(spec)
        begin = time.process_time()
        self.job_runner.hear(Update(0, [[], *epochs], None))
        heard_s = time.process_time() - begin
        learnt_rows = sum(len(from_bytes(entry, EPOCH)["kind"]) for epoch in epochs for entry in epoch)
        self.absorbed_us = heard_s / max(1, learnt_rows) * 1e6
        trained = self.job_runner.work(Training(1, len(epochs) + 1, 0, window.rows), Update(len(epochs) + 1, (), None))
        assert isinstance(trained, TrainingOutcome)
        self.job_runner.hear(Update(len(epochs) + 1, (), trained.models))
        self.knowledge: Knowledge = self.job_runner.known

    def context(self, seed: int = 0) -> SearchContext:
        rules = self.job_runner.rules
        return SearchContext(rules, self.knowledge, 0, EVOLVING, seed, self.job_runner.predictors)

    def _measure(self, requests: Sequence[Request]) -> list[Measurement]:
        return [self.job_runner.evaluator.measure(request) for request in requests]

    def genes_per_s(self, seconds: float) -> float:
        """New genes scored per second of CPU time."""
        rules, table, rng = self.job_runner.rules, self.knowledge.table, np.random.default_rng(0)
        segmentations = [entry[0] for level in range(len(rules.levels)) if (entry := table.segmentation(level)) is not None]
        scored_genes: set[Any] = set()

        def score() -> tuple[int, float]:
            shares = rules.config.segments
            proposed = propose_segments(rules.target_graph, table, segmentations, SCORED_AT_ONCE, rng, rules.moves, shares)
            genes = [gene for gene in proposed if gene not in scored_genes]
            scored_genes.update(genes)
            context, begin = self.context(), time.process_time()
            raws = [raw for raw in run_to_end(context.features(genes), self._measure) if raw is not None]
            if raws:
                context.predict(np.stack(raws))
            return len(genes), time.process_time() - begin

        return _rate(score, seconds)

    def programs_per_s(self, seconds: float) -> float:
        """Mutations that hill climbing simulates for a child, per second of CPU time."""
        seeds = count(1)

        def score() -> tuple[int, float]:
            begin, batch = time.process_time(), list[Request]()

            def measure(requests: Sequence[Request]) -> list[Measurement]:
                batch.extend(request for request in requests if request.kind == "program")
                return self._measure(requests)

            run_to_end(grow_children(self.context(next(seeds)), 1, ()), measure)
            return len(batch), time.process_time() - begin

        return _rate(score, seconds)


def _rate(score: Callable[[], tuple[int, float]], seconds: float) -> float:
    count, total_s = 0, 0.0
    while total_s < seconds:
        scored, took = score()
        if not scored:  # a small network has no more
            break
        count, total_s = count + scored, total_s + took
    return count / max(total_s, 1e-9)


def _compare_pair(seed: int, window: Window, waited_s: float, reports: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Figures of one pair.  waited_s: seconds of actors without a job.  reports: of the separate processes."""
    if {report["tasks"] for report in reports} != {window.tasks}:
        raise SystemExit(f"seed {seed}: one search, and other tasks on actors than on its own")
    alone_per_s = sum(report["tasks"] / report["wall_s"] for report in reports)
    return {
        "actors_per_s": window.rate,
        "alone_per_s": alone_per_s,
        "ratio": window.rate / alone_per_s,
        "driver_us": window.driver_s / window.tasks * 1e6,
        "work": window.workers_s * WORKERS / sum(report["workers_s"] for report in reports),
        "waits": waited_s / window.wall_s / WORKERS,
        "cpu": window.workers_s / window.wall_s / sum(report["workers_s"] / report["wall_s"] for report in reports),
        "tasks": window.tasks,
        "wall_s": window.wall_s,
        "workers_s": window.workers_s,
    }


def bench(name: str, machine: str, epochs: int, pairs: int, seed: int, overrides: Sequence[str], busy: bool) -> dict[str, Any]:
    """All figures.  busy: run beside a spinning process."""
    target_graph = network(name, machine)
    config = load_config(None, (*overrides, "model.min_rows=1000000000"))
    connection = connect(None, WORKERS)
    rows, memories, window = [], [], None
    try:
        for pair in range(pairs):
            spec = specification(target_graph, config, seed + pair)
            commands = [serial_command(name, machine, epochs, seed + pair, overrides)] * WORKERS
            with background_load(busy):  # both orders, so that a trend of the load cancels
                reports = run_alone(commands) if pair % 2 else []
                window, waited_s, memory = on_actors(spec, epochs)
                reports = reports or run_alone(commands)
            memories += memory
            rows.append(_compare_pair(seed + pair, window, waited_s, reports))
    finally:
        connection.close()
    assert window is not None
    middle = {
        key: median(row[key] for row in rows) for key in ("ratio", "actors_per_s", "alone_per_s", "driver_us", "work", "waits", "cpu")
    }
    scorer = Scorer(specification(target_graph, load_config(None, overrides), seed), window)
    result = {"network": name, "machine": machine, "epochs": epochs, "beside_busy": busy, "pairs": rows, **middle}
    result["actors_per_driver"] = WORKERS / middle["actors_per_s"] * 1e6 / middle["driver_us"]
    result["absorbed_us"] = scorer.absorbed_us
    result["scored_per_s"], result["programs_scored_per_s"] = (
        scorer.genes_per_s(SCORING_S),
        scorer.programs_per_s(SCORING_S),
    )
    return result | {key: max(memory[key] for memory in memories) for key in ("rss_mb", "unique_mb")}


def report(figures: dict[str, Any]) -> None:
    """Print the pairs, and the figures with their goals."""
    print_table(
        ["<pair", "2 actors /s", "2 processes /s", "ratio", "driver us per task"],
        [
            [str(i), *(f"{row[key]:.1f}" for key in ("actors_per_s", "alone_per_s")), f"{row['ratio']:.3f}", f"{row['driver_us']:.0f}"]
            for i, row in enumerate(figures["pairs"])
        ],
    )
    rows = [
        [
            "2 actors / 2 processes" + (" beside a busy one" if figures["beside_busy"] else "") + " (median)",
            f"{figures['ratio']:.3f}",
            *_goal_text(figures, "ratio", 1),
        ],
        ["  CPU time that they need, over that of a process for the same tasks", f"{figures['work']:.3f}", "", ""],
        ["  CPU time that they get in a second, over that of the two processes", f"{figures['cpu']:.3f}", "", ""],
        ["  share of the time in which an actor has no job", f"{figures['waits']:.3f}", "", ""],
        ["driver CPU per task, us", f"{figures['driver_us']:.0f}", *_goal_text(figures, "driver_us", -1)],
        ["actors that a driver feeds", f"{figures['actors_per_driver']:.0f}", "", ""],
        ["genes scored per s and core", f"{figures['scored_per_s']:,.0f}", *_goal_text(figures, "scored_per_s", 1)],
        ["programs scored per s and core", f"{figures['programs_scored_per_s']:,.0f}", "", ""],
        ["an actor hears of a task of others, us", f"{figures['absorbed_us']:.0f}", "", ""],
        ["memory of an actor, MB: resident", f"{figures['rss_mb']:.0f}", "", ""],
        ["memory of an actor, MB: its own", f"{figures['unique_mb']:.0f}", "", ""],
    ]
    print()
    print_table(["<figure", "measured", "asked", "<"], rows)


def _goal_text(figures: dict[str, Any], key: str, sign: int) -> tuple[str, str]:
    """Goal of a figure as text, and whether it is reached."""
    return f"{'>=' if sign > 0 else '<='} {GOALS[key]:,}", "reached" if sign * figures[key] >= sign * GOALS[key] else "not reached"


def main(
    network_name: Annotated[str, typer.Option("--network", help="light:NAME, made:NAME or a file.")] = "light:resnet50",
    machine: Annotated[str, typer.Option(help="Machine that is tuned for.")] = "ascend310",
    epochs: Annotated[int, typer.Option(min=1, help="Of every search, from its first evolving one on.")] = 16,
    pairs: Annotated[int, typer.Option(min=1, help="Comparisons; medians are reported.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the first search.")] = 0,
    settings: Annotated[list[str] | None, typer.Option("--set", help="a.b=c, as of `tilefarm tune`.")] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Rates beside a process that spins.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON of everything.")] = None,
    serial_seed: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Efficiency of a farm: two actors against two separate processes; cost of the driver, rate of model scores, memory of an actor."""
    overrides = tuple(settings or ())
    if serial_seed is not None:
        config = load_config(None, (*overrides, "model.min_rows=1000000000"))
        spec = specification(network(network_name, machine), config, serial_seed)
        with SerialJobs(spec) as jobs:
            window = Window(epochs).run(spec, jobs)
        print(json.dumps({"tasks": window.tasks, "wall_s": window.wall_s, "workers_s": window.workers_s}))
        return
    outcome = bench(network_name, machine, epochs, pairs, seed, overrides, busy)
    report(outcome)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(outcome, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
