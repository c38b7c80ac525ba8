"""Metrics of a farm, for Prometheus and Grafana: a name, its meaning, and its value in a state of the farm."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tuner.runs.farm_state import FarmState


class Metric(NamedTuple):
    """Gauge.  Ray puts `ray_` in front of its name."""

    name: str
    meaning: str
    value: Callable[[FarmState], float]


METRICS = (
    Metric("tilefarm_tasks_per_second", "committed tasks per second", lambda state: state.tasks_per_s),
    Metric("tilefarm_tasks", "committed tasks of the session", lambda state: state.tasks),
    Metric("tilefarm_cache_hits", "committed tasks whose results the log or the store had", lambda state: state.hits),
    Metric("tilefarm_queue", "jobs that wait for a worker", lambda state: state.queued),
    Metric("tilefarm_workers", "workers that can have a job", lambda state: state.workers),
    Metric("tilefarm_workers_busy", "workers with a job", lambda state: state.busy),
    Metric("tilefarm_workers_joining", "workers that start", lambda state: state.joining),
    Metric("tilefarm_busy_share", "share of the workers' time with a job", lambda state: state.busy_share),
    Metric("tilefarm_driver_cpu_share", "CPU time of the driver's process over time; 1 is one core", lambda state: state.driver_share),
    Metric("tilefarm_disk_share", "share of the time in which the driver writes log and checkpoints", lambda state: state.disk_share),
    Metric("tilefarm_core_hours", "CPU hours of jobs of the search, over all sessions", lambda state: state.core_s / 3600),
)
