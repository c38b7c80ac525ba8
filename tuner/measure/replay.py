"""What a run has published of its tasks: a session that goes on is answered by it, and measures none of them again.

A reading of a board is another one the next time.  What a search does next follows from its measurements: if it asked again, the log
would not hold what it followed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.log.columns import from_bytes, schema_of, to_bytes
from tuner.log.read import each_part
from tuner.log.schema import RESULTS, STATUSES
from tuner.platform.files import AnyPath

_SCHEMA = schema_of(task=pa.string(), status=pa.int8(), error=pa.string(), attempt=pa.int64(), values=pa.int64())
_LOG = ("run", "task", "level_index", "status", "error", "attempt", *RESULTS)


class KnownResult(NamedTuple):
    """Of a task.  status: place in `STATUSES`.  values: int64 [levels, len(RESULTS)], zeros at a level that it does not fit."""

    status: int
    error: str | None
    attempt: int
    values: NDArray[np.int64]


def read_published(folder: AnyPath, run: str, names: Collection[str], levels: int) -> bytes:
    """Rows of these tasks in the log of a folder, packed.  run: whose they are.  Raises `BadInputError` where the log is damaged."""
    wanted, parts = pa.array(names, pa.string()), []
    for part in each_part(folder, "log", _LOG) if names else ():
        part = part.set_column(0, "run", part["run"].cast(pa.string()))
        parts.append(part.filter(pc.and_(pc.equal(part["run"], run), pc.is_in(part["task"], wanted))))
    if not parts:
        return to_bytes({}, _SCHEMA)
    table = pa.concat_tables(parts).sort_by([("task", "ascending"), ("level_index", "ascending")])  # a part has all levels of its tasks
    values = np.stack([table[name].fill_null(0).to_numpy() for name in RESULTS], 1).reshape(-1, levels, len(RESULTS))
    codes = np.array([STATUSES.index(text) for text in table["status"].cast(pa.string()).to_pylist()], np.int8).reshape(-1, levels)
    first = pa.array(np.arange(0, len(table), levels))
    columns = {
        "task": table["task"].take(first).combine_chunks(),
        "status": codes.min(1),  # what does not fit a level is ok at others, and 0 is ok
        "error": table["error"].take(first).combine_chunks(),
        "attempt": table["attempt"].take(first).to_numpy().astype(np.int64),
        "values": values,
    }
    return to_bytes(columns, _SCHEMA)


def packed_answers(known: Mapping[str, KnownResult]) -> bytes:
    """What `answers` gives again."""
    each = known.values()
    columns = {
        "task": list(known),
        "status": [answer.status for answer in each],
        "error": pa.array([answer.error for answer in each], pa.string()),
        "attempt": [answer.attempt for answer in each],
        "values": np.array([answer.values for answer in each], np.int64),
    }
    return to_bytes(columns, _SCHEMA)


def answers(packed: bytes, levels: int) -> dict[str, KnownResult]:
    """Task -> what `read_published` found of it."""
    columns = from_bytes(packed, _SCHEMA)
    values = columns["values"].reshape(-1, levels, len(RESULTS))
    rows = zip(columns.texts("task"), columns["status"].tolist(), columns.texts("error"), columns["attempt"].tolist(), values, strict=True)
    return {task: KnownResult(*row) for task, *row in rows}
