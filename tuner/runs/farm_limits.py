"""LimitRule of a run: one sentence on what makes it no faster now, by rules over measured shares.

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
    """Rule.  holds: whether it applies to a state.  sentence: text for a person, with the measured figures."""

    name: str
    holds: Callable[[FarmState], bool]
    sentence: Callable[[FarmState], str]


def _start(state: FarmState) -> str:
    return f"{state.joining} workers are starting, and none has begun"


def _serial(state: FarmState) -> str:
    return f"one process measures, a job at a time; a farm runs up to {state.most_jobs} (--backend ray)"


def _disk(state: FarmState) -> str:
    return f"the driver spends {state.disk_share:.0%} of the time in writing log and checkpoints"


def _driver(state: FarmState) -> str:
    return f"the driver computes {state.driver_share:.0%} of the time, and workers wait for it: {state.busy_share:.0%} busy"


def _workers(state: FarmState) -> str:
    return f"{state.workers} workers are busy {state.busy_share:.0%} of the time; up to {state.most_jobs} jobs could run"


def _lag(state: FarmState) -> str:
    return f"at most {state.most_jobs} jobs run at a time (search.lag), for {state.workers} workers: {state.busy_share:.0%} busy"


def _joining(state: FarmState) -> str:
    return f"{state.joining} of {state.workers + state.joining} workers are still starting"


def _training(state: FarmState) -> str:
    return f"the next jobs wait for the training of the cost model; workers are {state.busy_share:.0%} busy"


def _slowest(state: FarmState) -> str:
    return f"workers are {state.busy_share:.0%} busy; the others wait for the slowest job of an epoch (search.lag)"


LIMITS = (
    LimitRule("start", lambda state: not state.workers, _start),
    LimitRule("process", lambda state: state.serial, _serial),
    LimitRule("disk", lambda state: state.disk_share >= DISK, _disk),
    LimitRule("driver", lambda state: state.driver_share >= DRIVER and state.busy_share < BUSY, _driver),
    LimitRule("lag", lambda state: state.workers >= state.most_jobs, _lag),
    LimitRule("workers", lambda state: state.busy_share >= BUSY, _workers),
    LimitRule("joining", lambda state: state.joining >= JOINING * (state.workers + state.joining), _joining),
    LimitRule("training", lambda state: state.training, _training),
    LimitRule("slowest job", lambda state: True, _slowest),
)


def limit_of(state: FarmState) -> LimitRule:
    """First rule that holds."""
    return next(limit for limit in LIMITS if limit.holds(state))
