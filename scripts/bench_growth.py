"""Scaling of a search with workers: speed-ups on W workers, the limit for any number of workers, and the critical chain of jobs.

    python scripts/bench_growth.py [MODEL] [--machine edge] [--programs 384] [--set a.b=c] [--trace FILE] [--real] [--json]

One search in this process records the CPU time of every job and training.  The limit is their sum over the longest chain of dependent jobs:
unlimited workers, free messages.  Speed-ups are of the real driver (coordinator, schedule, pool, supervision) with actors in virtual time,
whose jobs take as long as recorded.  A job takes longer on a worker with cold caches: the search is repeated here with W job runners and
the assignment of the virtual run, and the CPU time of its jobs is compared.  All figures are of jobs; the time before the first job and
after the last one is reported separately.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, Self

import typer

from scripts.virtual_search import TRAINED, Played, VirtualActors, job_key, play
from tuner.cli.text import print_table
from tuner.cost_model.model_file import TrainingOutcome
from tuner.farm.actor_pool import ActorPool
from tuner.farm.coordinator import Key, SerialJobs
from tuner.farm.epoch_schedule import BEGAN, EpochSchedule
from tuner.farm.jobs import Job, JobResult, Training, build_job_runner
from tuner.farm.search_spec import SearchSpec
from tuner.in_process import Search
from tuner.search.epoch import BEGINNING, EVOLVING, FIRST

WORKERS = (1, 4, 16, 64, 256, 1000)
MOST_RUNNERS = 64  # job runners in this process, 0.2 GB each; more workers are taken to be as cold
OUTSTANDING = (64, 1000)  # workers of the driver whose time for a task is measured; it deals as many jobs as the lag permits
WARM = 8  # programs of a search that only loads kernels
MESSAGE_US = 500.0  # of a call on Ray (docs/scaling.md)
REAL = (("light:squeezenet", "edge-shared"), ("light:resnet50", "ascend310", "budget.candidates=96"))  # model, machine, settings
ROUNDS = 3


class Node(NamedTuple):
    """Job or training.  epochs, models: complete epochs, and number of the model, that it depends on."""

    key: Key
    epochs: int
    models: int
    cpu_s: float
    message_bytes: int
    result_bytes: int
    tasks: int

    @property
    def training(self) -> bool:
        return self.key[0] == TRAINED


@dataclass
class Trace:
    """Recorded search.  words: model, machine, programs and settings.  nodes: in the order in which they ran.  driver_s: of all commits.

    shards, behind: see `EpochSchedule`.  begin_s, end_s: before the first job and after the last.
    cold: workers -> CPU time of jobs on so many job runners, over that on one.  champions: cycles of every level's best program.
    differing: numbers of job runners with other champions.  driver_us: workers -> CPU time of the driver for a task.
    """

    words: list[str]
    nodes: list[Node]
    shards: int
    behind: int
    driver_s: float
    begin_s: float
    end_s: float
    champions: dict[str, int] = field(default_factory=dict)
    cold: dict[int, float] = field(default_factory=dict)
    differing: list[int] = field(default_factory=list)
    driver_us: dict[int, float] = field(default_factory=dict)

    @property
    def commit_us(self) -> float:
        """Driver's CPU time per job, on one worker."""
        return self.driver_s / len(self.nodes) * 1e6

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> Trace:
        fields = json.loads(path.read_text())
        nodes = [Node((epoch, shard), *values) for (epoch, shard), *values in fields["nodes"]]
        numbered = {name: {int(count): value for count, value in fields[name].items()} for name in ("cold", "driver_us")}
        return cls(**{**fields, "nodes": nodes, **numbered})


class RecordingJobs(SerialJobs):
    """Jobs on one or more job runners of this process, with the CPU time of each.

    assignment: job -> its job runner; {}: the first one.  results: job -> its packed result.  Job runners have copies of the specification,
    as actors do, because caches are keyed by target graph.
    """

    def __init__(self, spec: SearchSpec, recordings: list[RecordingJobs], runners: int, assignment: Mapping[Key, int]) -> None:
        recordings.append(self)
        super().__init__(spec)
        copies = [pickle.loads(pickle.dumps(spec)) for _ in range(1, runners)]
        self.workers, self._runners = runners, [self.job_runner, *map(build_job_runner, copies)]
        self._assignment, self._models, self._started = assignment, [0] * runners, deque[tuple[Key, Job | Training]]()
        self.nodes, self.results, self.driver_s, self.search = list[Node](), dict[Key, bytes](), 0.0, spec.config.search
        self.begun_s = self.mark_s = 0.0

    @property
    def free(self) -> bool:
        return len(self._started) < self.workers

    def start(self, key: Key, job: Job | Training) -> None:
        self._started.append((key, job))

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        begin_s = time.process_time()
        self.begun_s, self.driver_s = self.begun_s or begin_s, self.driver_s + begin_s - (self.mark_s or begin_s)
        key, job = self._started.popleft()
        index = self._assignment.get(job_key(job), 0)
        update = self.broadcast.update(job, (self._runners[index].known.version, self._models[index]))
        self._models[index] = job.models or self._models[index]
        begin_s = time.process_time()
        result = self._runners[index].work(job, update)
        cpu_s = time.process_time() - begin_s
        packed = self.results[job_key(job)] = pickle.dumps(result)
        message_bytes, result_bytes = len(pickle.dumps((job, update.epochs))), len(packed)
        tasks = result.batch.opened().measured if isinstance(result, JobResult) else 0
        self.nodes.append(Node(job_key(job), job.version - BEGAN, job.models, cpu_s, message_bytes, result_bytes, tasks))
        self.mark_s = time.process_time()
        return [(key, result)]


class PlayedJobs(ActorPool):
    """Jobs on virtual actors that return recorded results.  times_s: receives the driver's CPU time at starts of jobs and queries for
    results.
    """

    def __init__(self, actors: VirtualActors, times_s: list[float]) -> None:
        super().__init__(actors, actors, lambda _: None, None)
        self._times_s = times_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start(self, key: Key, job: Job | Training) -> None:
        self._times_s.append(time.process_time())
        super().start(key, job)

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        self._times_s.append(time.process_time())
        return super().finished(patience_s)


def search_options(search: Search) -> list[str]:
    return [str(search.model), str(search.machine), str(search.candidates), *search.settings]


def record(search: Search, runners: int, assignment: Mapping[Key, int]) -> tuple[Trace, dict[Key, bytes]]:
    """Trace of a search on one or more job runners, and the packed results of its jobs.  Trainings without a job that uses their models are
    left out of the trace: no job waits for them.
    """
    recordings, begin_s = list[RecordingJobs](), time.process_time()
    jobs_of = partial(RecordingJobs, recordings=recordings, runners=runners, assignment=assignment)
    cycles = replace(search, jobs=jobs_of).run().cycles
    (jobs,), end_s = recordings, time.process_time()
    used = max(node.models for node in jobs.nodes if not node.training)
    nodes = [node for node in jobs.nodes if not node.training or node.key[1] <= used]
    begin_s, end_s = jobs.begun_s - begin_s, end_s - jobs.mark_s
    return Trace(search_options(search), nodes, jobs.search.shards, jobs.search.behind, jobs.driver_s, begin_s, end_s, cycles), jobs.results


def trace_search(search: Search, workers: Sequence[int], message_us: float) -> Trace:
    """Trace of a search, and the CPU time of its jobs with this number of workers."""
    replace(search, candidates=WARM).run()
    trace, results = record(search, 1, {})
    seconds = {node.key: node.cpu_s for node in trace.nodes[:-1]}  # the budget ends within the last one, elsewhere on several workers
    for count in sorted({min(count, MOST_RUNNERS) for count in workers} - {1}):
        farm, _ = record(search, count, replay(trace, count, message_us).assignment)
        pairs = [(node.cpu_s, seconds[node.key]) for node in farm.nodes if node.key in seconds]
        trace.cold[count] = sum(cold_s for cold_s, _ in pairs) / sum(warm_s for _, warm_s in pairs)
        if farm.champions != trace.champions:
            trace.differing.append(count)
    tasks = sum(node.tasks for node in trace.nodes)
    for count in OUTSTANDING:
        trace.driver_us[count] = (time_driver(search, trace, results, count) * 1e6 + message_us * len(trace.nodes)) / tasks
    return trace


def time_driver(search: Search, trace: Trace, results: Mapping[Key, bytes], workers: int) -> float:
    """CPU time of the driver, s, from the first job to the last result: schedule, supervision, commits, log and checkpoints, with recorded
    results.
    """
    seconds, times_s = {node.key: node.cpu_s for node in trace.nodes}, list[float]()

    def jobs_of(spec: SearchSpec) -> PlayedJobs:
        del spec
        return PlayedJobs(VirtualActors(workers, lambda key, _: seconds.get(key, 0.0), 0.0, results), times_s)

    replace(search, jobs=jobs_of).run()
    return times_s[-1] - times_s[0]


# the graph of decisions


def predecessors(nodes: Sequence[Node]) -> dict[Key, list[Key]]:
    """Direct predecessors of each node, without those that are implied by others."""
    epochs: dict[int, list[Key]] = {}
    for node in nodes:
        epochs.setdefault(node.key[0], []).append(node.key)

    def dependences(node: Node) -> list[Key]:
        training = (TRAINED, node.models)  # a prior was not trained
        jobs = [key for epoch in range(max(FIRST, node.epochs - 2), node.epochs) for key in epochs.get(epoch, ())]
        return [*jobs, training] if training in epochs.get(TRAINED, ()) else jobs

    return {node.key: dependences(node) for node in nodes}


def critical_path(seconds: Mapping[Key, float], inputs: Mapping[Key, Sequence[Key]]) -> list[Key]:
    """Longest chain of nodes.  seconds: of each node without waiting.  inputs: direct predecessors of each node."""
    end_s: dict[Key | None, float] = {None: 0.0}
    previous: dict[Key, Key | None] = {}
    for key, own_s in seconds.items():
        previous[key] = max(inputs[key], key=end_s.__getitem__, default=None)
        end_s[key] = end_s[previous[key]] + own_s
    path, node = list[Key](), max(seconds, key=end_s.__getitem__, default=None)
    while node is not None:
        path.append(node)
        node = previous[node]
    return path[::-1]


def describe_chain(path: Sequence[Key], seconds: Mapping[Key, float]) -> list[str]:
    """A line for each part of a chain of nodes: where its time goes."""
    parts = {"first epoch": [FIRST], "beginning": [BEGINNING], "trainings": [TRAINED]}
    lines = []
    for name, epochs in {**parts, "evolving epochs": range(EVOLVING, sys.maxsize)}.items():
        if keys := [key for key in path if key[0] in epochs]:
            longest, count = max(keys, key=seconds.__getitem__), len(keys)
            place = f"training {longest[1]}" if longest[0] == TRAINED else f"job {longest}"
            repeats = f" in {count}, the longest {seconds[longest]:.2f} s" if count > 1 else ""
            lines.append(f"{name}: {sum(map(seconds.__getitem__, keys)):.2f} s{repeats} in {place}")
    return lines


def replay(trace: Trace, workers: int, message_us: float) -> Played:
    """Play recorded jobs on a number of workers in virtual time.

    Workers start jobs before the driver knows that the budget is spent; these are not recorded, and take the median time.
    """
    seconds = {node.key: node.cpu_s for node in trace.nodes}
    usual_s, factor = median(seconds.values()), max(1.0, trace.cold.get(min(workers, MOST_RUNNERS), 1.0))
    schedule, trainings = EpochSchedule(trace.shards, trace.behind), {node.key: node.epochs for node in trace.nodes if node.training}
    if any(node.models for node in trace.nodes) and (TRAINED, 1) not in trainings:
        schedule.begin_trained()
    jobs, message_s, commit_s = len(trace.nodes) - len(trainings), message_us / 1e6, trace.commit_us / 1e6
    return play(schedule, jobs, workers, lambda key, _: factor * seconds.get(key, usual_s), trainings.values(), message_s, commit_s)


def analyse(trace: Trace, programs: int, workers: Sequence[int], message_us: float) -> dict[str, Any]:
    """All figures of a trace."""
    seconds = {node.key: node.cpu_s for node in trace.nodes}
    work_s, path = sum(seconds.values()), critical_path(seconds, predecessors(trace.nodes))
    return {
        "s_inf": {str(programs): work_s / sum(map(seconds.__getitem__, path))},
        "speedup": {str(programs): {str(count): work_s / replay(trace, count, message_us).commits_s[-1] for count in workers}},
        "chain": describe_chain(path, seconds),
        "same_champions": not trace.differing,
        "driver_us": {str(count): cost_us for count, cost_us in trace.driver_us.items()},
        "commit_us": trace.commit_us,
        "message_us": message_us,
        "cold": {str(count): ratio for count, ratio in trace.cold.items()},
        "jobs": len(trace.nodes),
        "tasks": sum(node.tasks for node in trace.nodes),
        "work_s": work_s,
        "begin_s": trace.begin_s,
        "end_s": trace.end_s,
        "message_bytes": median(node.message_bytes for node in trace.nodes),
        "result_bytes": median(node.result_bytes for node in trace.nodes),
    }


def time_commands(settings: Sequence[str]) -> dict[str, dict[str, float]]:
    """Wall time of whole commands: in one process, and on two actors, in turns.  Medians."""

    def took_s(words: Sequence[str]) -> float:
        with TemporaryDirectory() as folder:
            begin_s = time.monotonic()
            command = [sys.executable, "-m", "tuner", "tune", *words, "--out", f"{folder}/RUN", "--quiet"]
            if code := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                raise SystemExit(f"{' '.join(command)}: ended with {code}")
            return time.monotonic() - begin_s

    result = {}
    for name, machine, *options in REAL:
        words = [name, "--machine", machine, *(word for text in (*options, *settings) for word in ("--set", text))]
        took_s([*words, "--backend", "serial", "--candidates", str(WARM)])  # compiles kernels
        serial, actors = ["--backend", "serial"], ["--backend", "ray", "--workers", "2"]
        times = [(took_s([*words, *serial]), took_s([*words, *actors])) for _ in range(ROUNDS)]
        serial_s, actors_s = map(median, zip(*times, strict=True))
        result[f"{name} on {machine}"] = {"serial_s": serial_s, "actors_s": actors_s, "ratio": serial_s / actors_s}
    return result


def report(result: dict[str, Any], programs: str) -> None:
    """Tables of the figures."""
    rows = [
        [f"{count} workers", f"{x:.2f}", f"{result['cold'].get(str(min(int(count), MOST_RUNNERS)), 1):.3f}"]
        for count, x in result["speedup"][programs].items()
    ]
    rows.append(["any number", f"{result['s_inf'][programs]:.2f}", "1"])
    print_table([f"<{programs} programs", "speed-up", "CPU time of a job"], rows)
    print("\nthe chain of jobs that bounds it:", *result["chain"], sep="\n  ")
    print()
    names = {
        "jobs": "jobs and trainings",
        "tasks": "tasks measured by them",
        "work_s": "CPU time of them, s",
        "begin_s": "before the first one, s",
        "end_s": "after the last one, s",
        "commit_us": "driver per job on one worker, us",
        "message_us": "driver per message and answer, us",
        "message_bytes": "message to a job, bytes",
        "result_bytes": "result of a job, bytes",
    }
    print_table(["<figure", "measured"], [[name, f"{result[key]:,.{2 * key.endswith('_s')}f}"] for key, name in names.items()])
    print()
    print_table(
        ["<outstanding jobs of", "driver per task, us"], [[f"{n} workers", f"{time_us:,.0f}"] for n, time_us in result["driver_us"].items()]
    )
    print(f"champions with other numbers of workers: {'the same' if result['same_champions'] else 'others'}")
    if "real" in result:
        print()
        rows = [[name, *(f"{row[key]:.2f}" for key in ("serial_s", "actors_s", "ratio"))] for name, row in result["real"].items()]
        print_table(["<whole command", "one process, s", "two actors, s", "ratio"], rows)


def main(
    model: Annotated[str, typer.Argument(help="light:NAME, made:NAME or a file.")] = "light:squeezenet",
    machine: Annotated[str, typer.Option(help="Machine that is tuned for.")] = "edge",
    programs: Annotated[int, typer.Option(min=1, help="Budget: measured programs.")] = 384,
    settings: Annotated[list[str] | None, typer.Option("--set", help="a.b=c, as of `tilefarm tune`.")] = None,
    workers: Annotated[list[int] | None, typer.Option(min=1, help=f"Numbers of workers [default: {WORKERS}].")] = None,
    message_us: Annotated[float, typer.Option(min=0, help="Driver's time for a message and its answer.")] = MESSAGE_US,
    trace: Annotated[Path | None, typer.Option(help="JSON of the recorded search; read where it exists.")] = None,
    real: Annotated[bool, typer.Option("--real", help="Also time whole commands in one process and on two actors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Scaling of a search with workers: speed-ups, their limit, and the chain of jobs that sets it."""
    overrides, counts = tuple(settings or ()), workers or WORKERS
    search = Search(model, machine, overrides, candidates=programs)
    if trace is None or not trace.is_file():
        recorded = trace_search(search, counts, message_us)
        if trace is not None:
            recorded.save(trace)
    else:
        recorded = Trace.load(trace)
        if recorded.words != search_options(search) or {min(count, MOST_RUNNERS) for count in counts} - {*recorded.cold, 1}:
            raise SystemExit(f"{trace}: of {' '.join(recorded.words)}, with {sorted(recorded.cold)} workers; give another --trace")
    result = analyse(recorded, programs, counts, message_us)
    if real:
        result["real"] = time_commands(overrides)
    if as_json:
        print(json.dumps(result))
    else:
        report(result, str(programs))


if __name__ == "__main__":
    typer.run(main)
