"""Writer of a run's log and tasks: batches in, whole parts out, in a thread of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from tuner.log.columns import Columns, from_bytes
from tuner.log.dataset import DatasetWriter
from tuner.log.drift import Drift, drifted
from tuner.log.part_counts import write_counts
from tuner.log.record import EPOCH, FEATURE_PREFIX, ORIGIN, RESULTS, FeatureSet, log_schema, task_schema
from tuner.log.task_numbers import TaskNumbers
from tuner.log.wire_format import LOG_ROWS, TASK_ROWS, split_columns
from tuner.platform.files import AnyPath
from tuner.platform.interfaces import Platform

PUBLISH_AFTER_S = 10.0  # a part of a hundred columns costs the driver as much as its first thousand rows
PUBLISH_ROWS = 65_536  # rows of a part


@dataclass(frozen=True, slots=True)
class Origin:
    """Constants of every row of a run."""

    run: str
    model: str
    machine: str
    simulator: str
    runner: str = "simulator"
    seed: int = 0
    tag: str = ""


class Batch(NamedTuple):
    """Measurements as packed by the worker: columns of `EPOCH`, and the columns of their tasks that only the log has, each task once.

    tasks, rows: columns of `tasks/` and `log/` (`tuner.log.wire_format`); `rows` has `levels` rows per task.
    """

    epoch: bytes
    tasks: bytes
    rows: bytes
    levels: int

    def opened(self) -> OpenedBatch:
        """Opened columns.  Raises `BadInputError` for other columns."""
        epoch = from_bytes(self.epoch, EPOCH)
        names = epoch.texts("task")
        places = [index for index, name in enumerate(names) if name]
        return OpenedBatch(self, epoch, [names[index] for index in places], np.array(places, np.intp), len(names))


class OpenedBatch(NamedTuple):
    """Opened batch.  names: names of the tasks.  places: index of each task among the `measured` measurements."""

    batch: Batch
    epoch: Columns
    names: list[str]
    places: NDArray[np.intp]
    measured: int

    def column(self, name: str) -> NDArray[Any]:
        """A number of each task."""
        numbers: NDArray[Any] = self.epoch[name][self.places]
        return numbers

    def values(self) -> NDArray[np.int64]:
        """int64 [tasks, levels, len(RESULTS)]."""
        results: NDArray[np.int64] = self.epoch["values"].reshape(self.measured, self.batch.levels, len(RESULTS))[self.places]
        return results


class _Chosen(NamedTuple):
    """Some tasks of a batch.  seqs: their numbers in the log."""

    opened: OpenedBatch
    tasks: NDArray[np.bool_]
    seqs: NDArray[np.int64]

    @property
    def places(self) -> NDArray[np.bool_]:
        """bool [measurements]."""
        batch = self.opened
        return self.tasks if len(batch.places) == batch.measured else _mask(batch.places[self.tasks], batch.measured)


class RunLog:
    """`tasks/` and `log/` of one run: a task is durable before a row that names it.

    Thread-safe.  A background step publishes due rows; its errors (a full disk) are raised by the driver's next call.  Batches are opened
    when they are published, many at once: a table of a hundred columns costs the same for one row as for a thousand.  When a resumed search
    repeats published rows, they are dropped.
    beside: ids of other searches, one after the other, that write to the same folder.  numbers: numbers of the run's tasks.  boards: boards
    and canaries of earlier rows, in order.
    """

    def __init__(
        self, run_folder: AnyPath, world: Platform, origin: Origin, feature_sets: Sequence[FeatureSet] = (), beside: Collection[str] = ()
    ) -> None:
        self.origin, self._clock, self._threads = origin, world.clock, world.threads
        self._lock = self._threads.lock()  # for waiting rows
        self._publishing = self._threads.lock()  # for the writers; taken first if both are needed
        self._run_folder, tmp = run_folder, run_folder / ".tmp"
        self._tasks = DatasetWriter(run_folder / "tasks", task_schema(feature_sets), tmp, ("task",))
        self._rows = DatasetWriter(run_folder / "log", log_schema(), tmp, ("run", "seq", "task", "board", "canary_cycles"))
        self._note_counts()
        self._known_tasks: set[str] = set(self._tasks.earlier["task"].to_pylist())
        earlier = self._rows.earlier
        if foreign := sorted(set(pc.unique(earlier["run"].cast(pa.string())).to_pylist()) - {origin.run, *beside}):
            raise BadInputError(f"{self._rows.folder}: holds rows of run {foreign[0]}, not of {origin.run}")
        own_rows = earlier.filter(pc.equal(earlier["run"].cast(pa.string()), origin.run))
        self.numbers = TaskNumbers(own_rows["seq"], own_rows["task"])
        boards = own_rows.filter(pc.is_valid(own_rows["canary_cycles"])).sort_by("seq")
        self.boards = list(zip(boards["board"].cast(pa.string()).to_pylist(), boards["canary_cycles"].to_pylist(), strict=True))
        self._drift = Drift(self.boards)
        self._new_tasks: list[_Chosen] = []
        self._new_rows: list[_Chosen] = []
        self._pending_rows = 0  # rows
        self._oldest_s = 0.0
        self._failure: Exception | None = None
        self._publisher = self._threads.repeat("log-publisher", self._publish_due, PUBLISH_AFTER_S / 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def lost(self) -> dict[str, int]:
        """Lost rows by dataset, from damaged parts that were repaired."""
        with self._publishing:
            return {writer.folder.name: writer.lost_rows for writer in (self._tasks, self._rows) if writer.lost_rows}

    def append(self, batch: OpenedBatch, tasks: NDArray[np.intp], seqs: NDArray[np.int64]) -> int:
        """Append the tasks of a batch with indices `tasks` and these numbers; returns how many were new."""
        self._raise_failure()
        earlier = self.numbers.published
        new = tasks if not len(earlier) else tasks[is_new := ~np.isin(seqs, earlier)]
        with self._lock:
            names, unknown = batch.names, list[int]()
            for task in tasks.tolist():
                if names[task] not in self._known_tasks:
                    self._known_tasks.add(names[task])
                    unknown.append(task)
            if not self._pending_rows:
                self._oldest_s = self._clock.monotonic_s()
            if unknown:
                self._new_tasks.append(_Chosen(batch, _mask(unknown, len(names)), seqs[:0]))
            if len(new):
                self._new_rows.append(_Chosen(batch, _mask(new, len(names)), seqs if new is tasks else seqs[is_new]))
                self._pending_rows += len(new) * batch.batch.levels
        if self._pending_rows >= PUBLISH_ROWS:
            self._publish_aside()
        return len(new)

    def flush(self) -> None:
        """On return every row handed in is acknowledged."""
        self._raise_failure()
        self._publish_aside()

    def close(self) -> None:
        """Flush and stop the publisher."""
        self._publisher.close()
        self.flush()

    def _publish_aside(self) -> None:
        """Publish in a separate thread.  Ctrl-C interrupts the main thread anywhere: between writing a part and marking its rows as
        written, it would cause the part to be written twice."""
        self._threads.apart(self._publish)

    def _publish(self) -> None:
        """Publish all waiting rows; rows that cannot be written stay waiting."""
        with self._publishing:
            with self._lock:
                tasks, rows, asked_s = list(self._new_tasks), list(self._new_rows), self._clock.monotonic_s()
            if tasks:
                self._tasks.publish_table(_described(tasks, self._tasks.schema))
                with self._lock:
                    del self._new_tasks[: len(tasks)]
            if rows:
                self._rows.publish_table(self._numbered(rows))
                with self._lock:
                    del self._new_rows[: len(rows)]
                    self._pending_rows -= sum(len(part.seqs) * part.opened.batch.levels for part in rows)
                    self._oldest_s = asked_s
            if tasks or rows:
                self._note_counts()

    def _note_counts(self) -> None:
        write_counts(self._run_folder, {writer.folder.name: writer.count for writer in (self._tasks, self._rows)})

    def _numbered(self, rows: Sequence[_Chosen]) -> pa.Table:
        """Rows with the driver's columns."""
        schema, run = self._rows.schema, self.origin.run
        levels = rows[0].opened.batch.levels  # the same in all batches of a run
        selected = np.repeat(np.concatenate([part.tasks for part in rows]), levels)
        columns = LOG_ROWS.gather([part.opened.batch.rows for part in rows], selected)
        status = columns["status"]
        failed = np.array([text != "ok" for text in status.dictionary.to_pylist()], np.bool_)[status.indices.to_numpy()]
        places = np.repeat(np.concatenate([part.places for part in rows]), levels)
        columns |= split_columns([part.opened.epoch.arrow("values") for part in rows], RESULTS, places, failed)
        seqs = np.repeat(np.concatenate([part.seqs for part in rows]), levels)
        names, indices = columns["level"].dictionary.to_pylist(), columns["level"].indices.to_numpy()
        ids = row_ids(run, seqs.tolist(), [names[i] for i in indices.tolist()], columns["attempt"].to_numpy().tolist())
        columns |= {"row_id": pa.array(ids, pa.string()), "seq": pa.array(seqs), **_drift_columns(self._drift, columns)}
        columns |= {name: pa.repeat(pa.scalar(getattr(self.origin, name), schema.field(name).type), len(seqs)) for name in ORIGIN}
        return pa.table(columns, schema=schema)

    @property
    def _is_due(self) -> bool:
        """Time of the next publication: a fixed delay after the oldest waiting row."""
        return self._pending_rows > 0 and self._clock.monotonic_s() - self._oldest_s >= PUBLISH_AFTER_S

    def _publish_due(self) -> float | None:
        if self._is_due:
            try:
                self._publish()
            except Exception as error:  # noqa: BLE001  handed to the driver's thread, whatever it is
                self._failure = error
                return None
        return PUBLISH_AFTER_S / 10

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _drift_columns(drift: Drift, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Drift columns; nothing drifts without a canary, as with the simulator."""
    canaries = columns["canary_cycles"]
    if canaries.null_count == len(canaries):
        return {"drift": pa.nulls(len(canaries), pa.float64()), "drifted": pa.repeat(False, len(canaries))}
    drifts = [drift.drift(*row) for row in zip(columns["board"].to_pylist(), canaries.to_pylist(), strict=True)]
    return {"drift": pa.array(drifts, pa.float64()), "drifted": pa.array([drifted(board_drift) for board_drift in drifts])}


def row_ids(run: str, seqs: Iterable[int], levels: Sequence[str], attempts: Iterable[int]) -> list[str]:
    """Ids of rows (32 hex digits): a measurement repeated after a resume has the same id."""
    head = json.dumps(run, ensure_ascii=False)
    quoted = {level: json.dumps(level, ensure_ascii=False) for level in set(levels)}
    texts = (f"[{head},{seq},{quoted[level]},{attempt}]" for seq, level, attempt in zip(seqs, levels, attempts, strict=True))
    return [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]


def _mask(places: Sequence[int] | NDArray[np.intp], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[places] = True
    return mask


def _described(parts: Sequence[_Chosen], schema: pa.Schema) -> pa.Table:
    """Rows of `tasks/`."""
    selected = np.concatenate([part.tasks for part in parts])
    columns = TASK_ROWS.gather([part.opened.batch.tasks for part in parts], selected)
    features = [name for name in schema.names if name.startswith(FEATURE_PREFIX)]
    if features:
        values = [part.opened.epoch.arrow("features") for part in parts]
        columns |= split_columns(values, features, np.concatenate([part.places for part in parts]))
    return pa.table(columns, schema=schema)
