"""Published measurements of a run: a resumed session uses them and repeats none.

A second reading of a board differs, and the search depends on its measurements: with new readings, the log would not explain its further
course.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tuner.log.columns import from_bytes, to_bytes
from tuner.log.read import read_task_rows
from tuner.log.record import KNOWN, RESULTS, STATUSES
from tuner.measure.request import Measurement, measurement_of
from tuner.platform.files import AnyPath


def read_published(folder: AnyPath, run: str, names: Collection[str], levels: int) -> bytes:
    """Columns of `KNOWN` for these tasks, from the log of a folder.  run: id of the search.  Raises `BadInputError` if the log is
    damaged."""
    single = [name for name in KNOWN.names if name not in ("status", "values")]
    rows = read_task_rows(folder, run, names, (*single, "status", *RESULTS), levels)
    columns = {name: rows.column(name).combine_chunks() for name in single}
    return to_bytes({**columns, "status": rows.status(), "values": rows.values()}, KNOWN)


def pack_measurements(measurements: Collection[Measurement], levels: int) -> bytes:
    """Measurements as columns of `KNOWN`."""
    columns = {name: [getattr(measurement, name) for measurement in measurements] for name in KNOWN.names}
    columns["status"] = [STATUSES.index(status) for status in columns["status"]]
    blank = np.zeros((levels, len(RESULTS)), np.int64)
    return to_bytes({**columns, "values": np.array([blank if v is None else v for v in columns["values"]], np.int64)}, KNOWN)


def unpack_measurements(packed: bytes, levels: int) -> dict[str, Measurement]:
    """Task -> measurement, from columns of `KNOWN`."""
    message = from_bytes(packed, KNOWN)
    columns = {name: message.arrow(name).to_pylist() for name in KNOWN.names if name != "values"}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    values = message["values"].reshape(-1, levels, len(RESULTS))
    return {row["task"]: measurement_of(row.pop("status"), results, **row) for row, results in zip(rows, values, strict=True)}
