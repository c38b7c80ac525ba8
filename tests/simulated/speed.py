"""Of what actors of unequal speed could do, how much they do: work done over elapsed time and summed speed, in virtual time.

    python -m tests.simulated.speed [WORKERS ...]

The driver's loop, schedule, pool and supervision are the real ones; jobs are empty, and take as long as recorded ones did.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulated.actors import SimActors
from tests.simulated.faults import Faults
from tests.simulated.kernel import US, Kernel, Process
from tests.simulated.world import simulated_world
from tuner.farm.actor_pool import ActorPool
from tuner.farm.commit_log import Order, RunBudget
from tuner.farm.coordinator import Coordinator
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.jobs import JobResult
from tuner.log.writer import Batch
from tuner.platform.actors import Message
from tuner.search.epoch import EVOLVING

SPEEDS = (1.0, 2.0, 4.0)  # of the workers, in turn
JOB_S = 4.0  # on one of speed 1
COSTS = (
    0.69, 0.77, 0.8, 0.84, 0.84, 0.87, 0.9, 0.91, 0.92, 0.94, 0.94, 0.97, 1.0, 1.01, 1.03, 1.04, 1.05, 1.07, 1.07, 1.09, 1.14, 1.18, 1.2,
    1.32,
)  # fmt: skip
LONGEST, ONE_IN = 3.31, 118
"""CPU time of jobs over their mean: every fifth of 118 of `made:mobilenet_v2-small` on `edge` with eight islands, and the longest."""


class _Empty:
    """A worker whose jobs find nothing."""

    done = 0

    def work(self, packed: bytes, shared: object, announce: object) -> bytes:
        del packed, shared, announce
        self.done += 1
        return pickle.dumps(JobResult(Batch(b"", b"", b"", 1), True, 0, 0.0))


@dataclass
class _Counting:
    """A ledger of jobs."""

    jobs: int
    budget: RunBudget = field(default_factory=RunBudget)
    levels: tuple[str, ...] = ()
    champions: Any = None
    tasks: list[object] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.champions = self
        self.best, self.programs, self.readings, self.logged = (), 0, 0, None

    @property
    def spent(self) -> bool:
        return len(self.tasks) >= self.jobs

    def commit(self, measured: object, epoch: int) -> Order:
        self.tasks.append(measured)
        return "here"


def job_s(epoch: int, shard: int) -> float:
    """That a job takes on a worker of speed 1."""
    rng = Random(f"{epoch} {shard}")
    return JOB_S * (LONGEST if not rng.randrange(ONE_IN) else rng.choice(COSTS))


def used(workers: int, shards: int, epochs: int) -> float:
    """From the first evolving epoch to the end of the last one, the tail among it."""
    kernel, speeds, begun_us = Kernel(0), [SPEEDS[slot % len(SPEEDS)] for slot in range(workers)], list[int]()
    process = Process(kernel, Faults(switch=0.0))
    clock = simulated_world(kernel, process).clock

    def seconds(message: Message) -> float:
        job = pickle.loads(message.packed).job
        return job_s(job.epoch, job.shard)

    def driver() -> None:
        actors = SimActors(kernel, process, workers, _Empty, seconds, lambda message: None, set(), speeds=speeds)
        pool, schedule = ActorPool(actors, clock, kernel.say), EpochSchedule(shards)

        def committed(findings: bytes) -> None:
            del findings
            if schedule.frontier == (EVOLVING, 0):
                begun_us.append(kernel.now_us)

        counting = _Counting(1 + shards * (epochs + 1))
        conductor = Coordinator(pool, schedule, counting, None, committed)  # type: ignore[arg-type]
        conductor.begin(())
        conductor.run()
        actors.close()

    kernel.run(process, driver)
    done_s = sum(job_s(epoch, shard) for epoch in range(EVOLVING, EVOLVING + epochs) for shard in range(shards))
    return done_s / ((kernel.now_us - begun_us[0]) / US * sum(speeds))


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("4", "8", "16", "32", "64")):
        shares = ", ".join(f"{used(count, times * count, 48):.3f} with {times * count} shards" for times in (1, 2, 4))
        print(f"{count} workers: {shares}", flush=True)
