"""One reading per task in a run: if a second measurement may differ, the reading of the log counts.

Jobs run in parallel, and two of them may measure a task before they receive each other's results.  The log has one row per task and
level: that of the job that was committed first.  A job gets the log's readings at its start.  A job that used a reading different from the
log's is repeated with the log's readings (optimistic concurrency control: Kung and Robinson 1981).  Its other measurements have rows by
then, and count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from tuner.log.columns import Columns, from_bytes
from tuner.log.record import EPOCH, KNOWN, RESULTS
from tuner.log.writer import OpenedBatch
from tuner.measure.replay import pack_measurements, unpack_measurements
from tuner.measure.request import Measurement, Request, measurement_of


class FirstReadings:
    """`Listener` of a job.  by_task: task -> its first reading, measured by the job or received."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self.by_task: dict[str, Measurement] = {}

    def learn(self, findings: bytes) -> None:
        epoch = from_bytes(findings, EPOCH)
        names = epoch.texts("task")
        for reading in _readings(epoch, [index for index, name in enumerate(names) if name and name not in self.by_task], self._levels):
            self.by_task[reading.task] = reading

    def heard(self, request: Request, measurement: Measurement) -> None:
        if measurement.task and request.measure:
            fields = {name: getattr(measurement, name) for name in KNOWN.names}
            self.by_task.setdefault(measurement.task, Measurement(**fields))


class LoggedReadings:
    """Readings of all tasks with rows.  levels: number of levels.  packed: readings of earlier sessions
    (`tuner.measure.replay.read_published`)."""

    def __init__(self, levels: int, packed: bytes | None = None) -> None:
        self._levels = levels
        self._measurements: dict[str, Measurement] = {} if packed is None else unpack_measurements(packed, levels)
        self._epochs: dict[int, list[str]] = {}  # tasks placed in each of the last epochs

    def note(self, batch: OpenedBatch, tasks: Collection[int]) -> None:
        """Note that these tasks of a batch have rows; a task with a reading keeps it."""
        for reading in _readings(batch.epoch, batch.places[list(tasks)], self._levels):
            self._measurements.setdefault(reading.task, reading)

    def note_placed(self, epoch: int, names: Iterable[str]) -> None:
        """Note that these tasks have their place in the order, in a job of this epoch."""
        self._epochs.setdefault(epoch, []).extend(names)

    def differ(self, batch: OpenedBatch) -> bool:
        """Whether a batch has a reading that differs from the log's."""
        indices = [index for index, name in enumerate(batch.names) if name in self._measurements]
        readings = _readings(batch.epoch, batch.places[indices], self._levels)
        return any(not _equal_readings(reading, self._measurements[reading.task]) for reading in readings)

    def since(self, epoch: int, uncommitted: Iterable[str]) -> tuple[bytes, bytes]:
        """Readings for a job that depends on all epochs before `epoch`: of tasks placed later, and of tasks that are ahead."""
        for old in [placed_epoch for placed_epoch in self._epochs if placed_epoch < epoch - 2]:  # a repeated job depends on fewer epochs
            del self._epochs[old]
        recent = [name for placed_epoch, names in self._epochs.items() if placed_epoch >= epoch for name in names]
        return self._pack(recent), self._pack(uncommitted)

    def _pack(self, names: Iterable[str]) -> bytes:
        readings = [self._measurements[name] for name in dict.fromkeys(names) if name in self._measurements]
        return pack_measurements(readings, self._levels) if readings else b""


def _readings(epoch: Columns, places: Collection[int] | NDArray[np.intp], levels: int) -> list[Measurement]:
    """Measurements at these indices."""
    values, status, names = epoch["values"].reshape(-1, levels, len(RESULTS)), epoch["status"].tolist(), epoch.texts("task")
    return [measurement_of(status[index], values[index].copy(), task=names[index]) for index in places]  # copied, to free the message


def _equal_readings(first: Measurement, second: Measurement) -> bool:
    return first.status == second.status and (first.values is None or second.values is None or np.array_equal(first.values, second.values))
