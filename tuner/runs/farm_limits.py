"""Limit of a run: one sentence on what makes it no faster now, by rules over measured shares.

`LIMITS` are tried in order, and the first one that holds gives the sentence; the last one always holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tuner.runs.farm_state import FarmState

BUSY = 0.85  # share of the workers' time from which on more workers help
DRIVER = 0.8  # share of one core
DISK = 0.25
JOINING = 0.25  # share of all workers


class LimitRule(NamedTuple):
    """Rule.  applies: whether it applies to a state.  text: for a person, a format of the state's fields."""

    name: str
    applies: Callable[[FarmState], bool]
    text: str

    def sentence(self, state: FarmState) -> str:
        return self.text.format(state=state)


LIMITS = (
    LimitRule("start", lambda state: not state.workers, "{state.joining} workers are starting, and none has begun"),
    LimitRule(
        "process",
        lambda state: state.serial,
        "one process measures, a job at a time; a farm runs up to {state.most_jobs} (--backend ray)",
    ),
    LimitRule(
        "disk",
        lambda state: state.disk_share >= DISK,
        "the driver spends {state.disk_share:.0%} of the time in writing log and checkpoints",
    ),
    LimitRule(
        "driver",
        lambda state: state.driver_share >= DRIVER and state.busy_share < BUSY,
        "the driver computes {state.driver_share:.0%} of the time, and workers wait for it: {state.busy_share:.0%} busy",
    ),
    LimitRule(
        "lag",
        lambda state: state.workers >= state.most_jobs,
        "at most {state.most_jobs} jobs run at a time (search.lag), for {state.workers} workers: {state.busy_share:.0%} busy",
    ),
    LimitRule(
        "workers",
        lambda state: state.busy_share >= BUSY,
        "{state.workers} workers are busy {state.busy_share:.0%} of the time; up to {state.most_jobs} jobs could run",
    ),
    LimitRule(
        "joining",
        lambda state: state.joining >= JOINING * (state.workers + state.joining),
        "{state.joining} workers are still starting, beside {state.workers}",
    ),
    LimitRule(
        "training",
        lambda state: state.training,
        "the next jobs wait for the training of the cost model; workers are {state.busy_share:.0%} busy",
    ),
    LimitRule(
        "slowest job",
        lambda state: True,
        "workers are {state.busy_share:.0%} busy; the others wait for the slowest job of an epoch (search.lag)",
    ),
)


def farm_limit(state: FarmState) -> LimitRule:
    """First rule that holds."""
    return next(limit for limit in LIMITS if limit.applies(state))
