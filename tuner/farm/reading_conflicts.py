"""One reading of a task in a run: where what measures says another thing each time, the log's.

Islands measure beside each other, and two of them may measure a task before either hears of the other.  The log has one row of it: that of
the job that was committed first.  So a job is told what the log has when it is handed out, and one that went on from another reading than
the log's is done again, answered by the log (optimistic concurrency control: Kung and Robinson 1981).  What it measured besides has rows by
then, and counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tuner.log.columns import Columns, from_bytes
from tuner.log.schema import RESULTS, STATUSES
from tuner.log.wire_format import EPOCH
from tuner.log.writer import OpenedBatch
from tuner.measure.replay import KnownResult, answers, packed_answers
from tuner.measure.request import Measurement, Request
from tuner.search.epoch import LAG


class FirstReadings:
    """A `Listener`.  of: task -> its first reading, of what was learnt and heard."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self.of: dict[str, KnownResult] = {}

    def learn(self, findings: bytes) -> None:
        epoch = from_bytes(findings, EPOCH)
        names = epoch.texts("task")
        places = [at for at, name in enumerate(names) if name and name not in self.of]
        self.of.update(zip((names[at] for at in places), _answers(epoch, places, self._levels), strict=True))

    def heard(self, request: Request, measurement: Measurement) -> None:
        task = measurement.task
        if task and request.measure and task not in self.of:
            values = measurement.values
            self.of[task] = KnownResult(
                STATUSES.index(measurement.status),
                measurement.error,
                measurement.attempt,
                np.zeros((self._levels, len(RESULTS)), np.int64) if values is None else values,
            )


class LoggedReadings:
    """Of all tasks that have rows.  levels: how many.  packed: of earlier sessions (`tuner.measure.replay.read_published`)."""

    def __init__(self, levels: int, packed: bytes | None = None) -> None:
        self._levels = levels
        self._of: dict[str, KnownResult] = {} if packed is None else answers(packed, levels)
        self._epochs: dict[int, list[str]] = {}  # of the last ones: tasks that were placed in them

    def note(self, opened: OpenedBatch, tasks: Collection[int]) -> None:
        """These tasks of a batch have rows now; one that had keeps its reading."""
        for at, answer in zip(tasks, self._told(opened, tasks), strict=True):
            self._of.setdefault(opened.names[at], answer)

    def placed(self, epoch: int, names: Iterable[str]) -> None:
        """These tasks have their place in the order, in a job of this epoch."""
        self._epochs.setdefault(epoch, []).extend(names)

    def differ(self, opened: OpenedBatch) -> bool:
        """Whether a batch has another reading of a task than the log."""
        there = [at for at, name in enumerate(opened.names) if name in self._of]
        pairs = zip(there, self._told(opened, there), strict=True)
        return any(not _same(answer, self._of[opened.names[at]]) for at, answer in pairs)

    def since(self, epoch: int, ahead: Iterable[str]) -> tuple[bytes, bytes]:
        """For a job that builds on all epochs before this one: readings of tasks that were placed later, and of those that are ahead."""
        for old in [each for each in self._epochs if each < epoch - LAG - 1]:  # one that is done again builds on fewer
            del self._epochs[old]
        since = [name for each, some in self._epochs.items() if each >= epoch for name in some]
        return self._packed(since), self._packed(ahead)

    def _packed(self, names: Iterable[str]) -> bytes:
        found = {name: self._of[name] for name in names if name in self._of}
        return packed_answers(found) if found else b""

    def _told(self, opened: OpenedBatch, tasks: Collection[int]) -> Iterator[KnownResult]:
        return _answers(opened.epoch, opened.places[list(tasks)], self._levels)


def _answers(epoch: Columns, places: Collection[int] | NDArray[np.intp], levels: int) -> Iterator[KnownResult]:
    """Measurements at these places."""
    values, status = epoch["values"].reshape(-1, levels, len(RESULTS)), epoch["status"]
    for at in places:
        yield KnownResult(int(status[at]), None, 0, values[at].copy())  # not the whole message


def _same(one: KnownResult, other: KnownResult) -> bool:
    return one.status == other.status and (one.status != 0 or np.array_equal(one.values, other.values))
