"""Append-only Parquet datasets: the farm's memory.

A dataset is a folder of parts `00000000.parquet` (no rows, only the schema), `00000001.parquet`, ... of one identical
schema.  A part is written in `RUN/.tmp`, fsynced, renamed into the folder, and the folder is fsynced; it is never
touched again.  So `pandas.read_parquet("RUN/log")` is right at any moment, also after SIGKILL.  A row is *acknowledged*
when its part is published.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from tuner.candidate import (
    FEATURE_PREFIX,
    MEASUREMENT_FIELDS,
    SCHEMA_VERSION,
    FeatureSet,
    Measurement,
    TaskKind,
    TaskRecord,
    log_schema,
    row_id,
    task_schema,
)
from tuner.place import Folder, arrow_path, place

PUBLISH_AFTER_S = 5.0
PUBLISH_ROWS = 65_536


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def part_numbers(folder: Folder) -> list[int]:
    """Numbers of the published parts, ascending; none where there is no folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.stem) for path in found if path.suffix == ".parquet" and path.stem.isdecimal())


def dataset_schema(folder: Folder) -> pa.Schema:
    """The schema of a dataset, from its first part; `BadInputError` where there is none, or one of another version."""
    first = folder / f"{0:08d}.parquet"
    path, filesystem = arrow_path(first)
    try:
        schema = pq.read_schema(path, filesystem=filesystem)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInputError(f"{first}: not the first part of a dataset: {error}") from None
    check_version(schema, folder)
    return schema


def schema_version(schema: pa.Schema, folder: Folder) -> int:
    """The version that a dataset's schema names; `BadInputError` where it names none."""
    try:
        return int((schema.metadata or {})[b"schema_version"])
    except (KeyError, ValueError):
        raise BadInputError(f"{folder}: schema of no version; this program reads {SCHEMA_VERSION}") from None


def check_version(schema: pa.Schema, folder: Folder) -> None:
    """Refuse any version but today's."""
    version = schema_version(schema, folder)
    if version > SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version}; this program reads up to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version}; this program reads {SCHEMA_VERSION}: `tilefarm log migrate RUN --out DIR`")


class DatasetWriter:
    """Rows in, parts out.  One writer per folder (the run's lock sees to it); `folder` and `tmp` on one file system."""

    def __init__(self, folder: Path, schema: pa.Schema, tmp: Path) -> None:
        self.folder, self.schema, self.tmp = folder, schema, tmp
        self._columns: list[list[Any]] = [[] for _ in schema.names]
        self._tables: list[pa.Table] = []  # what came before the rows in `_columns`
        self._in_tables = 0
        self._oldest_s = 0.0
        tmp.mkdir(parents=True, exist_ok=True)
        for left in tmp.glob(f"{folder.name}-*"):  # what a killed writer left: never acknowledged
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if folder.exists():
            found = dataset_schema(folder)
            if not found.equals(schema, check_metadata=True):
                differ = sorted(set(map(str, found)) ^ set(map(str, schema))) or ["metadata"]
                raise BadInputError(f"{folder}: another schema ({'; '.join(differ[:4])}); a new schema needs a new folder")
            self._next = part_numbers(folder)[-1] + 1
            self.acknowledged = 0
            return
        # the folder appears with its first part inside: an empty folder is not a dataset yet
        staged = tmp / f"{folder.name}-new"
        staged.mkdir()
        self.write(staged / f"{0:08d}.parquet", schema.empty_table())
        fsync_folder(staged)
        staged.rename(folder)
        fsync_folder(folder.parent)
        self._next = 1
        self.acknowledged = 0

    @staticmethod
    def write(path: Path, table: pa.Table) -> None:
        """A durable Parquet file."""
        with path.open("wb") as sink:
            pq.write_table(table, sink, compression="zstd")
            sink.flush()
            os.fsync(sink.fileno())

    @property
    def pending(self) -> int:
        """Rows appended and not yet published."""
        return self._in_tables + len(self._columns[0])

    @property
    def due(self) -> bool:
        """Time to publish: 5 s since the oldest pending row, or 65,536 rows."""
        return self.pending >= PUBLISH_ROWS or (self.pending > 0 and time.monotonic() - self._oldest_s >= PUBLISH_AFTER_S)

    def append(self, row: Sequence[Any]) -> None:
        """One value per column of the schema, in its order."""
        if len(row) != len(self._columns):
            raise ValueError(f"{self.folder.name}: a row of {len(row)} values for {len(self._columns)} columns")
        if not self.pending:
            self._oldest_s = time.monotonic()
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def append_table(self, table: pa.Table) -> None:
        """Many rows, as columns of the schema."""
        if not table.num_rows:
            return
        if not self.pending:
            self._oldest_s = time.monotonic()
        self._gather()
        self._tables.append(table)
        self._in_tables += table.num_rows

    def _gather(self) -> None:
        """Rows appended one by one become a table, behind the others."""
        if not self._columns[0]:
            return
        arrays = [pa.array(values, field.type) for values, field in zip(self._columns, self.schema, strict=True)]
        self._tables.append(pa.Table.from_arrays(arrays, schema=self.schema))
        self._in_tables += len(self._columns[0])
        self._columns = [[] for _ in self.schema.names]

    def publish(self) -> int:
        """Make every pending row durable and visible; returns how many."""
        count = self.pending
        if not count:
            return 0
        self._gather()
        self.publish_table(pa.concat_tables(self._tables).unify_dictionaries())
        self._tables, self._in_tables = [], 0
        return count

    def publish_table(self, table: pa.Table) -> None:
        """One new part of these rows."""
        table.validate()
        for field in self.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"{self.folder.name}: {field.name} must not be null")
        name = f"{self._next:08d}.parquet"
        staged = self.tmp / f"{self.folder.name}-{name}"
        try:
            self.write(staged, table)
            staged.rename(self.folder / name)
            fsync_folder(self.folder)
        except OSError as error:  # the rows stay pending: a later flush may succeed
            raise BadInputError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from None
        self._next += 1
        self.acknowledged += table.num_rows


def write_empty_part(path: Path, schema: pa.Schema, tmp: Path) -> None:
    """A part without rows, where there is none."""
    tmp.mkdir(parents=True, exist_ok=True)
    staged = tmp / f"{path.parent.name}-{path.name}"
    DatasetWriter.write(staged, schema.empty_table())
    staged.rename(path)
    fsync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is the same in every row of a run."""

    run: str
    model: str
    machine: str
    simulator: str
    runner: str = "simulator"
    seed: int = 0
    tag: str = ""


class LogRow(NamedTuple):
    """One measured task at one level; together with `Origin` a row of `log/`."""

    seq: int
    task: str
    kind: TaskKind
    workload: str
    measurement: Measurement
    attempt: int = 0
    island: int = -1
    generation: int = -1
    predicted_cycles: float | None = None
    model_version: str | None = None
    worker: str = "driver"
    wall_s: float = 0.0


_LOG_ORDER = tuple(log_schema().names)


class RunLog:
    """`tasks/` and `log/` of one run: a task is durable before a row that names it.

    Thread-safe; a daemon thread publishes rows that are due while the driver waits for workers, and what goes wrong
    there (a full disk) is raised by the driver's next call.  Rows that an earlier session of the run has published are
    dropped when a resumed search measures them again.  beside: ids of other searches, one after the other, that write to the same folder.
    """

    def __init__(self, run_folder: Path, origin: Origin, feature_sets: Sequence[FeatureSet] = (), beside: Collection[str] = ()) -> None:
        self.origin = origin
        self._lock = threading.RLock()
        tmp = run_folder / ".tmp"
        self._tasks = DatasetWriter(run_folder / "tasks", task_schema(feature_sets), tmp)
        self._rows = DatasetWriter(run_folder / "log", log_schema(), tmp)
        self._features = {s.name: {FEATURE_PREFIX + name: i for i, name in enumerate(s.features)} for s in feature_sets}
        self._known_tasks: set[str] = set(pd.read_parquet(self._tasks.folder, columns=["task"])["task"])
        earlier = pd.read_parquet(self._rows.folder, columns=["run", "seq", "level_index"])
        if others := sorted(set(earlier["run"]) - {origin.run, *beside}):
            raise BadInputError(f"{self._rows.folder}: holds rows of run {others[0]}, not of {origin.run}")
        earlier = earlier[earlier["run"].astype("str") == origin.run]
        self._earlier = len(earlier)
        self._measured = np.sort(_places(earlier["seq"].to_numpy(np.int64), earlier["level_index"].to_numpy(np.int64)))
        self._row_ids: set[str] = set()  # of rows that were added one by one
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._publisher = threading.Thread(target=self._publish_due, name="log-publisher", daemon=True)
        self._publisher.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows_published(self) -> int:
        """Acknowledged rows, those of earlier sessions included."""
        with self._lock:
            return self._earlier + self._rows.acknowledged

    def add_task(self, record: TaskRecord) -> bool:
        """Remember a task; False when it is known already."""
        with self._lock:
            self._raise_failure()
            if record.task in self._known_tasks:
                return False
            index = self._features.get(record.feature_set, {})
            if len(index) != len(record.features):
                raise ValueError(f"task {record.task}: {len(record.features)} features, {record.feature_set!r} has {len(index)}")
            fixed = [record.task, SCHEMA_VERSION, record.kind, record.payload, " ".join(record.parents), record.feature_set]
            values = record.features.tolist()
            names = self._tasks.schema.names[len(fixed) :]
            self._tasks.append(fixed + [values[index[name]] if name in index else None for name in names])
            self._known_tasks.add(record.task)
            return True

    def add_row(self, row: LogRow) -> bool:
        """Append a row; False when the run holds it already.  Its task must have been added (`ValueError`)."""
        with self._lock:
            self._raise_failure()
            if row.task not in self._known_tasks:
                raise ValueError(f"row {row.seq}: task {row.task} has not been added")
            measurement = row.measurement
            identity = row_id(self.origin.run, row.seq, measurement.level, row.attempt)
            place = _places(np.array([row.seq]), np.array([measurement.level_index]))
            if identity in self._row_ids or np.isin(place, self._measured).any():
                return False
            values: dict[str, Any] = row._asdict()
            values.update((name, getattr(measurement, name)) for name in MEASUREMENT_FIELDS)
            values.update((name, getattr(self.origin, name)) for name in Origin.__slots__)
            values.update(row_id=identity, schema_version=SCHEMA_VERSION, time=time.time_ns() // 1000)
            self._rows.append([values[name] for name in _LOG_ORDER])
            self._row_ids.add(identity)
            if self._rows.due:
                self._publish()
            return True

    def add_rows(self, rows: Iterable[LogRow]) -> int:
        """Append several; returns how many were new."""
        return sum(self.add_row(row) for row in rows)

    def tasks(self, before: int) -> set[str]:
        """Of published rows of this run with a lower number."""
        rows = pd.read_parquet(self._rows.folder, columns=["run", "seq", "task"])
        return set(rows["task"][(rows["run"].astype("str") == self.origin.run) & (rows["seq"] < before)])

    def append(self, tasks: pa.Table, rows: pa.Table) -> int:
        """Rows of both datasets as columns of their schemas, no row twice and each with a task that is known or beside it; returns how
        many rows of the log were new."""
        with self._lock:
            self._raise_failure()
            names = tasks["task"].to_pylist()
            new = [name not in self._known_tasks for name in names]
            self._tasks.append_table(tasks if all(new) else tasks.filter(pa.array(new, pa.bool_())))
            self._known_tasks.update(names)
            if len(self._measured):
                again = np.isin(_places(rows["seq"].to_numpy(), rows["level_index"].to_numpy()), self._measured)
                rows = rows.filter(pa.array(~again))
            self._rows.append_table(rows)
            if self._rows.due:
                self._publish()
            return rows.num_rows

    def flush(self) -> None:
        """On return every row handed in is acknowledged."""
        with self._lock:
            self._raise_failure()
            self._publish()

    def close(self) -> None:
        """Flush and stop the publisher."""
        self._stop.set()
        self._publisher.join()
        self.flush()

    def _publish(self) -> None:
        self._tasks.publish()
        self._rows.publish()

    def _publish_due(self) -> None:
        while not self._stop.wait(PUBLISH_AFTER_S / 10):
            with self._lock:
                if self._rows.due or self._tasks.due:
                    try:
                        self._publish()
                    except Exception as error:  # noqa: BLE001  handed to the driver's thread, whatever it is
                        self._failure = error
                        return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _places(seqs: NDArray[np.int64], level_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each task and level."""
    return np.asarray(seqs, np.int64) * 128 + level_indices


def read_log(folder: Folder | str) -> pd.DataFrame:
    """All rows of `RUN/log` (give the run folder or the dataset, or its URL), in the order in which they were published."""
    return _read(folder, "log")


def read_tasks(folder: Folder | str) -> pd.DataFrame:
    """All rows of `RUN/tasks` (give the run folder or the dataset, or its URL)."""
    return _read(folder, "tasks")


def _read(where: Folder | str, name: str) -> pd.DataFrame:
    path = place(where) if isinstance(where, str) else where
    folder = path / name if (path / name).is_dir() else path
    if not part_numbers(folder):
        raise BadInputError(f"{folder}: no {name} here; expected a run folder or a folder of numbered .parquet parts")
    dataset_schema(folder)
    at, filesystem = arrow_path(folder)
    return pd.read_parquet(at, filesystem=filesystem)
