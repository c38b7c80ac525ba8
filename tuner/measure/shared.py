"""Searches of one computation beside each other measure a task once: results, by task, in a folder that all of them see.

A result follows from the task, the computation, the machine and the simulator, so it is the same whoever measures: a search that finds one
here goes on as if it had measured it.  Nobody waits for anybody: what is not here yet is measured.

`FOLDER/<computation>/<digest>.bin` holds tasks that one search measured, as columns; it appears whole and is never touched again:

| column   | type                                 | meaning                                                       |
|----------|--------------------------------------|---------------------------------------------------------------|
| `task`   | text [n]                             | digest, as in the log                                         |
| `values` | int64 [n, levels, len(RESULTS)]      | what the log has of it, at every level                        |

Named by a digest of its bytes: what was cut off or changed is not read.  Tasks of other computations are not looked for, though a segment
of two networks may be one task: that is rare (docs/decisions.md), and every cell of a large sweep would have to read and keep them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import simulator
from compiler.unit.unit import Unit
from simulator.npu.errors import BadInputError
from simulator.npu.files import write_whole
from tuner.store.columns import from_bytes, schema_of, to_bytes
from tuner.store.digests import digest
from tuner.store.schema import RESULTS
from tuner.world.place import Place
from tuner.world.world import Clock

FOLDER = ".shared"  # of a sweep or a study
WORKER = "shared"  # who measured, in the log of a search that found it here
VERSION = 2
LOOK_EVERY_S = 2.0
PUBLISH_FIRST_S = 2.0
PUBLISH_MOST_S = 60.0
_SUFFIX = ".bin"
_SCHEMA = schema_of(task=pa.string(), values=pa.int64())
_LEAST = np.array([int(name == "cycles") for name in RESULTS])


class SharedResults:
    """What others measured of a unit's tasks, and what they may have from here.  unit: with or without its weights' values.

    A context manager: leaving it publishes what is left.  Raises `BadInputError` where the folder cannot be written.
    """

    def __init__(self, folder: Place, clock: Clock, unit: Unit, levels: Sequence[str]) -> None:
        # the graph's digest and the names for what `Unit.digest` leaves out: how operators are wired, and their order
        names = [spec.name for spec in unit.operators]
        computation = digest([VERSION, simulator.VERSION, unit.graph.digest, unit.digest, names, list(levels), RESULTS])
        self.folder, self.levels, self._clock = folder / computation, len(levels), clock
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise BadInputError(f"{self.folder}: cannot be made: {error.strerror or error}") from None
        self._found: dict[str, NDArray[np.int64]] = {}
        self._new: dict[str, NDArray[np.int64]] = {}
        self._seen: set[str] = set()
        self._look_s = self._publish_s = 0.0
        self._every_s = PUBLISH_FIRST_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.publish()

    def find(self, task: str) -> NDArray[np.int64] | None:
        """int64 [levels, len(RESULTS)], or None where nobody has measured the task."""
        now = self._clock.monotonic_s()
        if now >= self._look_s:
            self.look()
            self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        return self._found.get(task)

    def add(self, task: str, values: NDArray[np.int64]) -> None:
        """A result for the others.  Soon at first, when all search the same; later in larger parts, so that files stay few."""
        now = self._clock.monotonic_s()
        if not self._new:
            self._publish_s = now + self._every_s
        self._new[task] = values
        if now >= self._publish_s:
            self.publish()
            self._every_s = min(2 * self._every_s, PUBLISH_MOST_S)

    def look(self) -> None:
        """Read what is new."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            if path.name not in self._seen:
                self._seen.add(path.name)
                self._read(path)

    def publish(self) -> None:
        """Let the others see all of it."""
        if not self._new:
            return
        data = to_bytes({"task": list(self._new), "values": np.array(list(self._new.values()), np.int64)}, _SCHEMA)
        name = _digest(data) + _SUFFIX
        self._seen.add(name)
        write_whole(self.folder / name, [data])
        self._new = {}

    def _read(self, path: Place) -> None:
        """What is in a file; nothing where it is damaged, or has the wrong form."""
        try:
            data = path.read_bytes()
            if _digest(data) != path.name.removesuffix(_SUFFIX):
                return
            columns = from_bytes(data, _SCHEMA)
        except (OSError, BadInputError):
            return
        tasks, values = columns.texts("task"), columns["values"]
        if values.dtype != np.int64 or len(values) != len(tasks) * self.levels * len(RESULTS):  # no integers: some are null
            return
        values = values.reshape(len(tasks), self.levels, len(RESULTS))
        fits = np.any(values, axis=2)  # not where a level does not grant what it needs
        good = np.all(np.all(values >= _LEAST, axis=2) | ~fits, axis=1) & np.any(fits, axis=1)
        self._found.update((tasks[at], values[at].copy()) for at in np.flatnonzero(good))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
