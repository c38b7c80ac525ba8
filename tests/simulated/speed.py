"""Of what actors of unequal speed could do, how much they do: work done over elapsed time and summed speed, in virtual time.

    python -m tests.simulated.speed [WORKERS ...]

The driver's loop, schedule, pool and supervision are the real ones; jobs are empty, and take as long as recorded ones did.
"""

from __future__ import annotations

import sys
from random import Random

from scripts.virtual_search import play
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.search.epoch import EVOLVING

SPEEDS = (1.0, 2.0, 4.0)  # of the workers, in turn
JOB_S = 4.0  # on one of speed 1
COSTS = (
    0.69, 0.77, 0.8, 0.84, 0.84, 0.87, 0.9, 0.91, 0.92, 0.94, 0.94, 0.97, 1.0, 1.01, 1.03, 1.04, 1.05, 1.07, 1.07, 1.09, 1.14, 1.18, 1.2,
    1.32,
)  # fmt: skip
LONGEST, ONE_IN = 3.31, 118
"""CPU time of jobs over their mean: every fifth of 118 of `made:mobilenet_v2-small` on `edge` with eight islands, and the longest."""


def job_s(epoch: int, shard: int) -> float:
    """That a job takes on a worker of speed 1."""
    rng = Random(f"{epoch} {shard}")
    return JOB_S * (LONGEST if not rng.randrange(ONE_IN) else rng.choice(COSTS))


def used(workers: int, shards: int, epochs: int) -> float:
    """From the first evolving epoch to the end of the last one, the tail among it."""
    speeds = [SPEEDS[slot % len(SPEEDS)] for slot in range(workers)]
    before, after = 1 + shards, 1 + shards * (epochs + 1)
    commits_s = play(EpochSchedule(shards), after, workers, lambda key, slot: job_s(*key) / speeds[slot]).commits_s
    done_s = sum(job_s(epoch, shard) for epoch in range(EVOLVING, EVOLVING + epochs) for shard in range(shards))
    return done_s / ((commits_s[-1] - commits_s[before - 1]) * sum(speeds))


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("4", "8", "16", "32", "64")):
        shares = ", ".join(f"{used(count, times * count, 48):.3f} with {times * count} shards" for times in (1, 2, 4))
        print(f"{count} workers: {shares}", flush=True)
