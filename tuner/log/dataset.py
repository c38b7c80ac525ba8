"""Append-only Parquet datasets: the farm's memory.

A dataset is a folder of parts `00000000.parquet` (no rows, only the schema), `00000001.parquet`, ... of one identical schema.  A part is
written in `RUN/.tmp`, fsynced, renamed into the folder, and the folder is fsynced; it is never touched again.  So
`pandas.read_parquet("RUN/log")` is right at any moment, also after SIGKILL.  A row is *acknowledged* when its part is published.

All readers here use `read_dataset`, which refuses a dataset that was changed after it was written.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from simulator.npu.errors import BadInputError
from tuner.log.part import PartError, PartFile, PartMark, encoded, part_name, part_number, read_part
from tuner.log.part_counts import Count, read_counts
from tuner.log.record import READABLE, SCHEMA_VERSION, log_schema
from tuner.platform.files import AnyPath
from tuner.platform.remote_files import is_url

DATASETS = ("tasks", "log")


class Fault(NamedTuple):
    """Fault of a file or a dataset.  part: number if the content is that of another part.  is_part: whether the file is named like a
    part."""

    file: str
    problem: str
    is_part: bool = False
    part: PartFile | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Contents of a folder.  schema: None if no part is readable.  parts: valid parts, ascending.  rows: rows of the valid parts.

    count: entry of `parts.json`.  faults: invalid files by name, then missing parts.
    """

    folder: AnyPath
    name: str
    schema: pa.Schema | None
    parts: tuple[PartFile, ...]
    faults: tuple[Fault, ...]
    count: Count

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def lost_rows(self) -> int:
        """Number of lost rows: rows of parts that `repair` replaced by empty ones."""
        return max(0, self.count.rows - self.rows)

    @property
    def end(self) -> int:
        """One past the last part that exists or existed."""
        return max([self.count.parts, *(part.mark.number + 1 for part in self.parts)])

    @property
    def table(self) -> pa.Table:
        return pa.concat_tables([part.table for part in self.parts])


def part_numbers(folder: AnyPath) -> list[int]:
    """Numbers of the published parts, ascending; () without a folder."""
    return sorted(number for path in _files(folder) if (number := part_number(path.name)) is not None)


def _files(folder: AnyPath) -> list[AnyPath]:
    """Files that readers of a folder look at: they pass over hidden names."""
    try:
        paths = [*folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise BadInputError(f"{folder}: cannot be read: {error.strerror or error}") from None
    return sorted((path for path in paths if not path.name.startswith((".", "_"))), key=lambda path: path.name)


def examine(folder: AnyPath, name: str, columns: Sequence[str] | None = None, counts: dict[str, Count] | None = None) -> Dataset:
    """Check every file of a dataset, and find missing ones.  counts: replaces `parts.json`.

    Raises `BadInputError` if the folder is not readable, or the dataset has another version.
    """
    # before the folder is listed: counted parts were published by then, though a driver may publish more
    part_counts = read_counts(folder.parent) if counts is None and folder.name == name else counts
    count = (part_counts or {}).get(name, Count())
    parts, faults, foreign = list[PartFile](), list[Fault](), list[pa.Schema]()
    unread = _files(folder)
    while unread:
        for path in unread:
            file = f"{name}/{path.name}"
            try:
                part = read_part(path, columns)
            except PartError as error:
                faults.append(Fault(file, str(error) if part_number(path.name) is not None else f"not a part; {error}", is_part=True))
                foreign += [] if error.schema is None else [error.schema]
                continue
            if part.mark == PartMark(name, part_number(path.name) or 0) and part.mark.file == file:
                parts.append(part)
            else:
                faults.append(Fault(file, f"is part {part.mark.file}", is_part=True, part=part))
        # listing is not atomic: it may show a part that was published meanwhile and miss an earlier one
        unread = [path for number in _gaps(count, parts, faults) if (path := folder / part_name(number)).is_file()]
    parts.sort(key=lambda part: part.mark.number)
    faults += [Fault(f"{name}/{part_name(number)}", "missing") for number in _gaps(count, parts, faults)]
    parts_by_schema = _group_by_schema(parts)
    right = max(parts_by_schema, key=len, default=[])
    odd_files = sorted(part.mark.file for group in parts_by_schema if group is not right for part in group)
    faults += [Fault(file, "its schema is not that of the dataset", is_part=True) for file in odd_files]
    return Dataset(folder, name, _schema(folder, name, right, foreign), tuple(right), tuple(faults), count)


def _gaps(count: Count, parts: Iterable[PartFile], faults: Iterable[Fault]) -> list[int]:
    """Numbers without a file, up to the last part that exists or existed."""
    present = {part.mark.number for part in parts}
    numbers = present | {number for fault in faults if (number := part_number(fault.file.rpartition("/")[2])) is not None}
    return [number for number in range(max(count.parts, max(present, default=-1) + 1)) if number not in numbers]


def _group_by_schema(parts: Sequence[PartFile]) -> list[list[PartFile]]:
    """Parts by their schemas."""
    groups = list[list[PartFile]]()
    for part in parts:
        group = next((group for group in groups if group[0].schema.equals(part.schema, check_metadata=True)), None)
        if group is None:
            groups.append(group := [])
        group.append(part)
    return groups


def _schema(folder: AnyPath, name: str, parts: Sequence[PartFile], foreign: Sequence[pa.Schema]) -> pa.Schema | None:
    """Schema of the parts.  foreign: schemas of files without a mark, such as parts of earlier versions."""
    if not parts:
        for schema in foreign:
            check_version(schema, folder)
        return log_schema() if name == "log" else None
    check_version(parts[0].schema, folder)
    return parts[0].schema


def read_dataset(folder: AnyPath, name: str, columns: Sequence[str] | None = None) -> Dataset:
    """Dataset without a fault.  columns: columns of the parts' tables; None: all.

    Raises `BadInputError` that names the first missing or changed part, and the remedy.
    """
    dataset = examine(folder, name, columns)
    for fault in dataset.faults:
        count_note = f" ({len(dataset.faults)} such files)" if len(dataset.faults) > 1 else ""
        local = not is_url(str(folder))
        run = shlex.quote(str(folder.parent)) if local else "RUN"
        place_note = "" if local else " where it was written"
        raise BadInputError(
            f"{folder.parent}/{fault.file}: {fault.problem}{count_note}; `tilefarm log repair {run}`{place_note} keeps the rest"
        )
    if not dataset.parts and dataset.count.rows:
        raise BadInputError(f"{folder}: all {dataset.count.rows} rows of {name} were lost")
    if not dataset.parts:
        raise BadInputError(f"{folder}: no {name} here; expected a run folder or a folder of numbered .parquet parts")
    return dataset


def part_tables(dataset: Dataset, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of the parts, one at a time in memory.  Raises `BadInputError` if a part became unreadable after the check."""
    for part in dataset.parts:
        path = dataset.folder / part_name(part.mark.number)
        try:
            table = read_part(path, columns).table
        except PartError as error:
            raise BadInputError(f"{path}: {error}") from None
        yield table


def schema_version(schema: pa.Schema, folder: AnyPath) -> int:
    """The version that a dataset's schema names; `BadInputError` where it names none."""
    try:
        return int((schema.metadata or {})[b"schema_version"])
    except (KeyError, ValueError):
        raise BadInputError(f"{folder}: schema of no version; this program reads {SCHEMA_VERSION}") from None


def completed(table: pa.Table, name: str, columns: Sequence[str] | None) -> pa.Table:
    """Table with nulls for nullable columns that older parts of the log do not have."""
    for field in log_schema() if name == "log" else ():
        if field.nullable and field.name not in table.column_names and (columns is None or field.name in columns):
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def check_version(schema: pa.Schema, folder: AnyPath) -> None:
    """Refuse schemas newer than today's version, and those that lack more than `completed` can fill in."""
    version = schema_version(schema, folder)
    if version > SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version}; this program reads up to {SCHEMA_VERSION}")
    if version < READABLE:
        raise BadInputError(f"{folder}: schema {version}; this program reads {SCHEMA_VERSION}: `tilefarm log migrate RUN --out DIR`")


class DatasetWriter:
    """Writer of parts.  One writer per folder (ensured by the run's lock); `folder` and `tmp` on one file system.

    columns: columns of existing rows to read, for `earlier`.  lost_rows: number of missing rows.
    """

    def __init__(self, folder: AnyPath, schema: pa.Schema, tmp: AnyPath, columns: Sequence[str] = ()) -> None:
        self.folder, self.schema, self.tmp = folder, schema, tmp
        try:
            tmp.mkdir(parents=True, exist_ok=True)
            for leftover in tmp.glob(f"{folder.name}-*"):  # from a killed writer: never acknowledged
                leftover.remove()
        except OSError as error:
            raise BadInputError(f"{tmp}: cannot be written: {error.strerror or error}") from None
        self._most_rows = 0
        if folder.exists() or (read_counts(folder.parent) or {}).get(folder.name, Count()).parts:
            existing = read_dataset(folder, folder.name, columns)
            assert existing.schema is not None
            if not existing.schema.equals(schema, check_metadata=True):
                differ = sorted(set(map(str, existing.schema)) ^ set(map(str, schema))) or ["metadata"]
                raise BadInputError(f"{folder}: another schema ({'; '.join(differ[:4])}); a new schema needs a new folder")
            self.earlier, self._next, self._rows, self._most_rows = existing.table, existing.end, existing.rows, existing.count.rows
            begin = folder.fsync  # a part renamed by a killed writer is counted from now on, and may not be on disk yet
        else:
            self.earlier, self._next, self._rows = schema.empty_table().select(list(columns)), 1, 0
            begin = self._begin
        try:
            begin()
        except OSError as error:
            raise BadInputError(f"{folder}: cannot be written: {error.strerror or error}") from None

    def _begin(self) -> None:
        """Create the folder together with its first part: an empty folder is not a dataset."""
        staged = self.tmp / f"{self.folder.name}-new"
        staged.mkdir()
        first = staged / part_name(0)
        first.put([encoded(self.schema.empty_table(), PartMark(self.folder.name, 0))])
        first.fsync()
        staged.fsync()
        staged.replace(self.folder)
        self.folder.parent.fsync()

    @property
    def lost_rows(self) -> int:
        """Number of lost rows; a resumed search measures them again first."""
        return max(0, self._most_rows - self._rows)

    @property
    def count(self) -> Count:
        """Entry of `parts.json`."""
        return Count(self._next, max(self._most_rows, self._rows))

    def publish_table(self, table: pa.Table) -> None:
        """Publish the rows as one new part."""
        table.validate()
        for field in self.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"{self.folder.name}: {field.name} must not be null")
        try:
            _publish(self.folder, self._next, table, self.tmp)
        except OSError as error:  # the rows stay pending: a later flush may succeed
            raise BadInputError(f"{self.folder / part_name(self._next)}: cannot be written: {error.strerror or error}") from None
        self._next += 1
        self._rows += table.num_rows


def write_empty_part(folder: AnyPath, number: int, schema: pa.Schema, tmp: AnyPath) -> None:
    """Write a part without rows, in place of a missing one."""
    tmp.mkdir(parents=True, exist_ok=True)
    _publish(folder, number, schema.empty_table(), tmp)


def _publish(folder: AnyPath, number: int, table: pa.Table, tmp: AnyPath) -> None:
    """Publish a part.  The temporary file is not in the dataset's folder, where readers expect only parts."""
    staged = tmp / f"{folder.name}-{part_name(number)}"
    staged.put([encoded(table, PartMark(folder.name, number))])
    staged.fsync()
    staged.replace(folder / part_name(number))
    folder.fsync()
