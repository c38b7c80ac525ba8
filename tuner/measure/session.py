"""Measuring within limits, where others listen: the log, what an epoch learns, whoever else wants to know."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tuner.measure.measurement import Measurement, Measurer, Request


class Enough(Exception):
    """Raised by a `Session` that may measure no more: no error, the job returns what it has."""


class Limit(NamedTuple):
    """programs: that may be measured, None for any number.  deadline: on `time.monotonic` of this process."""

    programs: int | None = None
    deadline: float | None = None


class Listener(Protocol):
    """Hears of every measurement, in the order of the requests."""

    def heard(self, request: Request, measurement: Measurement) -> None: ...


class Session:
    """Puts requests to a measurer, as far as the limit allows, and tells the listeners of each measurement.

    programs: tasks of programs so far.  Other genes may be the same plan: that takes nothing off the limit.
    """

    def __init__(self, measurer: Measurer, listeners: Sequence[Listener] = (), limit: Limit = Limit()) -> None:  # noqa: B008
        self.measurer, self.listeners, self.limit = measurer, listeners, limit
        self.programs: set[str] = set()

    def __call__(self, requests: Sequence[Request]) -> list[Measurement]:
        """One measurement of each, in their order.  Raises `Enough`."""
        found: list[Measurement] = []
        while True:
            if self._spent():
                raise Enough
            part = requests[len(found) :]
            if not part:
                return found
            if part[0].kind == "program" and self.limit.programs is not None:
                part = part[: self.limit.programs - len(self.programs)]
            for request, measurement in zip(part, self.measurer(part), strict=True):
                found.append(measurement)
                if request.kind == "program" and measurement.task:
                    self.programs.add(measurement.task)
                for listener in self.listeners:
                    listener.heard(request, measurement)
                if self.limit.deadline is not None and self._spent():
                    raise Enough

    def _spent(self) -> bool:
        limit = self.limit
        if limit.programs is not None and len(self.programs) >= limit.programs:
            return True
        return limit.deadline is not None and time.monotonic() >= limit.deadline
