"""Log and tasks of a run as data frames, from a local folder or a URL."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from tuner.log.dataset import completed, part_tables, read_dataset
from tuner.log.record import TaskRows, log_schema
from tuner.platform.files import AnyPath
from tuner.platform.remote_files import place

if TYPE_CHECKING:  # Arrow is imported when a frame is read
    import pandas as pd


class LogRows(NamedTuple):
    """Rows of a log.  lost: number of rows lost in a damaged part that was repaired."""

    frame: pd.DataFrame
    lost: int


class Table(NamedTuple):
    """The same as Arrow's columns."""

    table: pa.Table
    lost: int


def read_log(folder: AnyPath | Path | str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """All rows of `RUN/log`, in the order of publication.  folder: run folder, dataset, or URL.

    columns: None: all.  Raises `BadInputError` if a part is missing or changed.
    """
    return read_rows(folder, "log", columns).frame


def read_tasks(folder: AnyPath | Path | str, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """All rows of `RUN/tasks`; see `read_log`."""
    return read_rows(folder, "tasks", columns).frame


def read_rows(folder: AnyPath | Path | str, name: str, columns: Sequence[str] | None = None) -> LogRows:
    """Rows of the dataset `name`; see `read_log`."""
    rows = read_table(folder, name, columns)
    return LogRows(rows.table.to_pandas(), rows.lost)


def read_table(folder: AnyPath | Path | str, name: str, columns: Sequence[str] | None = None) -> Table:
    """Table of the dataset `name`; see `read_log`."""
    dataset = read_dataset(_dataset(folder, name), name, columns)
    return Table(completed(dataset.table, name, columns), dataset.lost_rows)


def each_part(folder: AnyPath | Path | str, name: str, columns: Sequence[str], first_part: int = 0) -> Iterator[pa.Table]:
    """Parts of a dataset, one at a time in memory.  first_part: number of first parts to skip.  Raises as `read_log` does, before the first
    part."""
    dataset = read_dataset(_dataset(folder, name), name, ())
    for table in part_tables(replace(dataset, parts=dataset.parts[first_part:]), columns):
        yield completed(table, name, columns)


def read_task_rows(folder: AnyPath, run: str, tasks: Collection[str], columns: Sequence[str], levels: int) -> TaskRows:
    """Rows of these tasks of a run, by task numbers.  Raises as `read_log` does."""
    import pyarrow.compute as pc  # slow import; status and compare read a log without it

    task_array, columns = pa.array(tasks, pa.string()), list(dict.fromkeys(("run", "task", "seq", "level_index", *columns)))
    parts = [log_schema().empty_table().select(columns)]
    for part in each_part(folder, "log", columns) if tasks else ():
        parts.append(part.filter(pc.and_(pc.equal(part["run"].cast(pa.string()), run), pc.is_in(part["task"], task_array))))
    return TaskRows(pa.concat_tables(parts), levels, selector_column="seq")


def _dataset(folder: AnyPath | Path | str, name: str) -> AnyPath:
    path = place(folder)
    dataset_folder = path / name
    return dataset_folder if dataset_folder.is_dir() or (path / "run.json").is_file() else path
