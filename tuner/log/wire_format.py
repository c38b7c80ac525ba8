"""Rows of a job in a message from the worker: a projection of `log/` and `tasks/` on the columns that the worker knows.

| in the dataset                                     | in the message                                                            |
|----------------------------------------------------|---------------------------------------------------------------------------|
| columns that the driver knows                      | left out: `row_id`, `seq`, and values that are the same in a whole run     |
| results and features                               | in `EPOCH`, flat, which later jobs read                                  |
| dictionary-coded names                             | texts: a dictionary is made for a whole part                              |
| all other columns                                  | the same                                                                  |

Opening a column takes as long as copying a hundred numbers; a job has few rows, and most of a row is results and features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.log.columns import compressed, decompressed
from tuner.log.record import LOG_COLUMNS, TASK_COLUMNS, Column

Dataset = dict[str, pa.Array]
Scope = Literal["job", "level", "task", "reading"]

_PATHS: dict[str, tuple[Scope, str]] = {
    "job": ("job", ""), "level": ("level", ""), "contention": ("level", "contention."), "task": ("task", ""), "reading": ("reading", ""),
    "request": ("task", "request."), "measurement": ("task", "measurement."), "board": ("task", "measurement.board."),
}  # fmt: skip
"""Source of a column -> objects, and the path to the attribute in each."""


class WireRows:
    """Rows in a message.  schema: schema of the columns, without metadata."""

    def __init__(self, columns: Sequence[Column]) -> None:
        columns = [column for column in columns if column.source.partition(".")[0] in _PATHS]
        self._names = {column.name for column in columns if pa.types.is_dictionary(column.type)}
        value_types = [column.type.value_type if column.name in self._names else column.type for column in columns]
        self.schema = pa.schema([pa.field(column.name, kind) for column, kind in zip(columns, value_types, strict=True)])
        self._sources = [(*_source(column), kind) for column, kind in zip(columns, value_types, strict=True)]

    def to_batch(self, job: Any, tasks: Sequence[Any], levels: Sequence[Any] = (None,), readings: Sequence[Any] = ()) -> pa.RecordBatch:
        """A row for each task and level.  readings: an object for each row."""
        count, objects = len(tasks) * len(levels), {"job": (job,), "level": levels, "task": tasks, "reading": readings}
        each_level = np.tile(np.arange(len(levels)), len(tasks))
        places = {"job": np.zeros(count, np.int64), "level": each_level, "task": np.repeat(np.arange(len(tasks)), len(levels))}
        rows = {scope: pa.array(place) for scope, place in places.items()}
        arrays = []
        for scope, attribute, kind in self._sources:
            values = pa.array([attribute(source) for source in objects[scope]], kind)
            arrays.append(values if len(values) == count else values.take(rows[scope]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def pack(self, columns: pa.RecordBatch | Mapping[str, Any]) -> bytes:
        """Columns as bytes, without their schema, which would take longer to parse than the data."""
        batch = columns if isinstance(columns, pa.RecordBatch) else pa.record_batch(columns, schema=self.schema)
        return compressed(batch.serialize())

    def from_bytes(self, data: bytes) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(decompressed(data), self.schema)

    def gather(self, batches: Sequence[bytes], selected: NDArray[np.bool_]) -> Dataset:
        """Selected rows of packed batches, in columns of the dataset."""
        table = pa.Table.from_batches([self.from_bytes(data) for data in batches]).combine_chunks()
        if not selected.all():
            table = table.filter(pa.array(selected))
        columns = {name: chunks.combine_chunks() for name, chunks in zip(table.column_names, table.columns, strict=True)}
        return {name: column.dictionary_encode() if name in self._names else column for name, column in columns.items()}


def _source(column: Column) -> tuple[Scope, attrgetter[Any]]:
    root, _, name = column.source.partition(".")
    scope, path = _PATHS[root]
    return scope, attrgetter(path + (name or column.name))


LOG_ROWS, TASK_ROWS = WireRows(LOG_COLUMNS), WireRows(TASK_COLUMNS)


def split_columns(
    flat: Sequence[pa.Array], names: Sequence[str], selected: NDArray[np.bool_], missing: NDArray[np.bool_] | None = None
) -> Dataset:
    """Columns of the kept rows, from flat arrays with the values of a row side by side.  missing: bool [kept rows], True: null.

    All columns are slices of one array, which costs less than an array for each.
    """
    joined, width = pa.concat_arrays(flat), len(names)
    rows = int(selected.sum())
    all_selected = rows == len(selected)

    def turned(values: pa.Array) -> NDArray[Any]:
        square = np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(selected), width)
        return (square if all_selected else square[selected]).T.ravel()

    null = turned(joined.is_null()) if joined.null_count else None if missing is None else np.tile(missing, width)
    column = pa.array(turned(joined.fill_null(0) if joined.null_count else joined), mask=null)
    return {name: column.slice(index * rows, rows) for index, name in enumerate(names)}
