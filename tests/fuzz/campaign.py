"""Many seeds over processes, and what came of them in numbers; numbers depend on seeds alone, not on how many processes there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, NamedTuple

from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.fuzz.graphs import draw_graph
from tests.fuzz.operators import OPERATORS
from tests.fuzz.outcome import CLASSES, Outcome, judge
from tests.fuzz.plans import plan_names
from tests.fuzz.trial import Target

_TOLD_EVERY_S = 10.0
SLOW_HOST = "host.launch_us=0,host.macs_per_s=1,host.bytes_per_s=1000"
DIED = "the process died"
MOST_S = 300  # of the processor, for a seed


class Job(NamedTuple):
    """dtype: float16, float32 or int8, whose graphs are quantised and whose floats are float16.

    predicted: every so many-th seed has the plan that is predicted, too; 0: none.
    """

    machine: str
    dtype: str
    genomes: int = 8
    predicted: int = 1

    @property
    def quantised(self) -> bool:
        return self.dtype == "int8"

    def machine_of(self, seed: int) -> str:
        """Every second seed has a host that is so slow that the NPU is given whatever it can compute."""
        return f"{self.machine}:{SLOW_HOST}" if seed % 2 else self.machine

    def target(self, seed: int) -> Target:
        dtype = DataType.float16 if self.quantised else DataType[self.dtype]
        return Target(_machine(self.machine_of(seed)), dtype, plan_names(self.genomes, self.predicted > 0 and seed % self.predicted == 0))


@cache
def _machine(name: str) -> Machine:
    return load_machine(name)


def judge_seed(job: Job, seed: int) -> Outcome:
    return judge(draw_graph(seed, job.quantised), job.target(seed), seed)


def judge_in_time(judged: Callable[[], Outcome]) -> Outcome:
    """What does not end is a crash."""
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        return judged()
    except KeyboardInterrupt:
        return Outcome("crash", "not done in time", f"not done after {MOST_S} s")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge_seed_in_time(job: Job, seed: int) -> Outcome:
    return judge_in_time(lambda: judge_seed(job, seed))


Judge = Callable[[Job, int], Outcome]


def outcomes(
    job: Job, seeds: Sequence[int], workers: int, seconds: float = float("inf"), judged: Judge = judge_seed_in_time
) -> Iterator[tuple[int, Outcome]]:
    """Seeds and their outcomes as they are done; no more seeds are begun after so many seconds."""
    begin = told = time.monotonic()
    left, done, faults = deque(seeds), 0, 0

    def go_on() -> bool:
        return bool(left) and time.monotonic() - begin < seconds

    while go_on():
        running: dict[Future[Outcome], int] = {}
        broken = False
        with _processes(workers) as pool:
            while not broken and (running or go_on()):
                while go_on() and len(running) < 2 * workers:
                    seed = left.popleft()
                    running[pool.submit(judged, job, seed)] = seed
                for future in wait(running, _TOLD_EVERY_S, FIRST_COMPLETED).done:
                    if isinstance(future.exception(), BrokenProcessPool):
                        broken = True
                        continue
                    found = future.result()
                    done, faults = done + 1, faults + found.fault
                    yield running.pop(future), found
                if time.monotonic() - told >= _TOLD_EVERY_S:
                    told = time.monotonic()
                    sys.stderr.write(f"{told - begin:.0f} s: {done:,} of {len(seeds):,} seeds, {faults} faults\n")
        for seed in running.values():  # one of these killed its process
            yield seed, _judge_alone(judged, job, seed)


def _judge_alone(judged: Judge, job: Job, seed: int) -> Outcome:
    with _processes(1) as pool:
        try:
            return pool.submit(judged, job, seed).result()
        except BrokenProcessPool:
            return Outcome("crash", DIED, f"seed {seed}")


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


class Tally:
    """Counts of outcomes.  coverage: (operator, operator that reads it) -> models in which both were compiled for the NPU."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {kind: Counter() for kind in CLASSES}
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.plans = [0, 0]
        self.faults: dict[int, Outcome] = {}

    def add(self, seed: int, found: Outcome) -> None:
        self.kinds[found.kind] += 1
        self.places[found.place or "not compiled"] += 1
        if found.what:
            self.reasons[found.kind][found.what] += 1
        self.coverage.update(found.pairs)
        self.plans = [mine + more for mine, more in zip(self.plans, found.plans, strict=True)]
        if found.fault:
            self.faults[seed] = found

    def values(self) -> dict[str, Any]:
        """As JSON."""
        coverage: dict[str, dict[str, int]] = {}
        for (one, other), count in sorted(self.coverage.items()):
            coverage.setdefault(one, {})[other] = count
        return {
            "models": self.kinds.total(),
            "outcomes": {kind: self.kinds[kind] for kind in CLASSES},
            "places": dict(sorted(self.places.items())),
            "plans": {"executed": self.plans[0], "infeasible": self.plans[1]},
            "reasons": {kind: dict(reasons.most_common()) for kind, reasons in self.reasons.items() if reasons},
            "faults": {str(seed): [one.kind, one.what, one.plan, one.message] for seed, one in sorted(self.faults.items())},
            "coverage": coverage,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        total = self.kinds.total() or 1
        yield f"{self.kinds.total():,} models: " + ", ".join(f"{self.kinds[kind]:,} {kind}" for kind in CLASSES)
        yield "where they run: " + ", ".join(f"{place} {count / total:.1%}" for place, count in sorted(self.places.items()))
        yield f"plans: {self.plans[0]:,} executed, {self.plans[1]:,} infeasible"
        for kind, reasons in self.reasons.items():
            for reason, count in reasons.most_common(8):
                yield f"  {kind} {count:,}: {reason}"
        names = {name for pair in self.coverage for name in pair} & OPERATORS.keys()
        met = sum(one in names and other in names for one, other in self.coverage)
        yield f"neighbours compiled for the NPU: {met:,} of {len(names) ** 2:,} pairs of {len(names)} operators"
        rare = sorted((self.coverage_of(name), name) for name in OPERATORS)[:12]
        yield "fewest neighbours: " + ", ".join(f"{name} {count}" for count, name in rare)

    def coverage_of(self, name: str) -> int:
        """Operators that were neighbours of one, in front of it or behind."""
        return len({other for pair in self.coverage if name in pair for other in pair})
