"""Measurements within a budget; listeners (log, findings of an epoch) receive each one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tuner.measure.request import Measurement, Measurer, Request
from tuner.platform.interfaces import Clock


class BudgetExhausted(Exception):
    """Raised by a `MeasureBudget` when its limit is reached; not an error: the job returns its results so far."""


@dataclass(frozen=True)
class Deadline:
    """Deadline.  at_s: time by the clock's `monotonic_s`."""

    clock: Clock
    at_s: float

    @property
    def left_s(self) -> float:
        """0 when it is past."""
        return max(0.0, self.at_s - self.clock.monotonic_s())


class Limit(NamedTuple):
    """Limit of measurements.  programs, readings: largest numbers; None: no limit.  Requests begun below the limit are finished.

    cost: measurement -> its number of readings.
    """

    programs: int | None = None
    deadline: Deadline | None = None
    readings: int | None = None
    cost: Callable[[Measurement], int] | None = None


class Listener(Protocol):
    """Receiver of every measurement, in the order of the requests."""

    def heard(self, request: Request, measurement: Measurement) -> None: ...


class MeasureBudget:
    """Sends requests to a measurer within the limit, and passes each measurement to the listeners.

    programs: measured tasks of programs.  readings: readings of all tasks.  A task counts once, even if different genes have the same plan.
    """

    def __init__(self, measurer: Measurer, listeners: Sequence[Listener] = (), limit: Limit = Limit()) -> None:  # noqa: B008
        self.measurer, self.listeners, self.limit = measurer, listeners, limit
        self.programs: set[str] = set()
        self.readings = 0
        self._counted_tasks: set[str] = set()

    def __call__(self, requests: Sequence[Request]) -> list[Measurement]:
        """One measurement per request, in the same order.  Raises `BudgetExhausted`."""
        measurements: list[Measurement] = []
        while True:
            if self._is_spent():
                raise BudgetExhausted
            part = requests[len(measurements) :]
            if not part:
                return measurements
            if part[0].kind == "program" and self.limit.programs is not None:
                part = part[: self.limit.programs - len(self.programs)]
            for request, measurement in zip(part, self.measurer(part), strict=True):
                measurements.append(measurement)
                if request.kind == "program" and measurement.task:
                    self.programs.add(measurement.task)
                self._count(measurement)
                for listener in self.listeners:
                    listener.heard(request, measurement)
                if (self.limit.deadline is not None or self.limit.readings is not None) and self._is_spent():
                    raise BudgetExhausted

    def _count(self, measurement: Measurement) -> None:
        if self.limit.cost is not None and measurement.task and measurement.task not in self._counted_tasks:
            self._counted_tasks.add(measurement.task)
            self.readings += self.limit.cost(measurement)

    def _is_spent(self) -> bool:
        limit = self.limit
        if limit.programs is not None and len(self.programs) >= limit.programs:
            return True
        if limit.readings is not None and self.readings >= limit.readings:
            return True
        return limit.deadline is not None and not limit.deadline.left_s
