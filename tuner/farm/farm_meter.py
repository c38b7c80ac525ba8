"""Meter of a farm: counts at every turn of the driver's loop become shares of time, published every few seconds.

A turn costs the driver two readings of a clock and a few additions, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from tuner.farm.commit_log import Ledger
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.platform.interfaces import Clock
from tuner.runs.farm_state import FarmState, StaffCounts

EVERY_S = 3.0  # seconds of a window


class Staff(Protocol):
    """Workers of a farm."""

    def counts(self) -> StaffCounts:
        """Counts of now; as cheap for a thousand workers as for one."""
        ...

    def nodes(self) -> Mapping[str, int]:
        """Host -> its workers."""
        ...


class FarmMeter:
    """Meter.  publish: gets every state.  serial: whether this process runs the jobs."""

    def __init__(self, staff: Staff, clock: Clock, publish: Callable[[FarmState], None], serial: bool = False) -> None:
        self._staff, self._clock, self._publish, self._serial = staff, clock, publish, serial
        self._counts, self._sampled_s = staff.counts(), clock.monotonic_s()
        self._begin(0)

    def _begin(self, tasks: int) -> None:
        """Begin a window.  tasks: committed in this session until now."""
        self._begun_s, self._begun_cpu_s, self._begun_tasks = self._sampled_s, self._clock.cpu_s(), tasks
        self._busy_s = self._able_s = self._disk_s = 0.0

    def look(self, ledger: Ledger, schedule: EpochSchedule) -> None:
        """Look at the workers, and publish the state where the window ends."""
        now_s, new_counts = self._clock.monotonic_s(), self._staff.counts()
        passed_s, self._sampled_s = now_s - self._sampled_s, now_s
        self._busy_s += passed_s * self._counts.busy
        self._able_s += passed_s * (self._counts.busy + self._counts.idle)
        self._counts = new_counts
        if now_s - self._begun_s >= EVERY_S:
            self._publish(self._state(ledger, schedule, now_s - self._begun_s))
            self._begin(ledger.answered)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context of a write to the disk."""
        begun_s = self._clock.monotonic_s()
        yield
        self._disk_s += self._clock.monotonic_s() - begun_s

    def _state(self, ledger: Ledger, schedule: EpochSchedule, window_s: float) -> FarmState:
        busy_workers, idle_workers, joining_workers, queued = self._counts
        return FarmState(
            time_us=self._clock.epoch_us(),
            window_s=round(window_s, 3),
            nodes=self._staff.nodes(),
            busy=busy_workers,
            idle=idle_workers,
            joining=joining_workers,
            queued=queued,
            most_jobs=schedule.most_jobs,
            training=schedule.awaits_model,
            serial=self._serial,
            busy_share=round(self._busy_s / self._able_s, 4) if self._able_s else 0.0,
            driver_share=round((self._clock.cpu_s() - self._begun_cpu_s) / window_s, 4),
            disk_share=round(self._disk_s / window_s, 4),
            tasks=ledger.answered,
            hits=ledger.hits,
            tasks_per_s=round((ledger.answered - self._begun_tasks) / window_s, 2),
            core_s=round(ledger.core_s, 3),
        )
