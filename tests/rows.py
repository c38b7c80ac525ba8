"""Rows of a log that nobody measured, handed in as a search hands in its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tuner.log.columns import to_bytes
from tuner.log.digests import canonical_json, text_digest
from tuner.log.part import PartMark, encoded
from tuner.log.record import EPOCH, FEATURE_PREFIX, RESULTS, SCHEMA_VERSION, FeatureSet, task_schema
from tuner.log.wire_format import LOG_ROWS, TASK_ROWS, WireRows
from tuner.log.writer import Batch, RunLog
from tuner.runs.list_runs import INDEX
from tuner.runs.sweep_progress import INDEX_MARK


class Row(NamedTuple):
    """A task and what was measured of it at one level.  content: of the task.  features: of the set with that name."""

    seq: int
    content: Any
    cycles: int = 1
    status: str = "ok"
    kind: str = "segment"
    workload: str = "net"
    feature_set: str = ""
    features: Sequence[float] = ()
    attempt: int = 0
    wall_s: float = 0.0
    predicted_cycles: float | None = None
    model_version: str | None = None

    @property
    def payload(self) -> str:
        return canonical_json(self.content)

    @property
    def task(self) -> str:
        return text_digest(f"{self.kind}:{self.payload}")


def batch(rows: Sequence[Row], sets: Sequence[FeatureSet] = ()) -> Batch:
    """One level, `none`; a row that is not ok died."""
    names = {each.name: each.features for each in sets}
    log = [
        {
            "level": "none",
            "level_index": 0,
            "ddr_share": 1.0,
            "level_latency_cycles": 0,
            "clock_hz": 10**9,
            "island": -1,
            "generation": -1,
            "proposed_by": "baseline",
        }
        | {"worker": "driver", "time": 1_700_000_000_000_000, "schema_version": SCHEMA_VERSION, "readings": 1}
        | {**row._asdict(), "task": row.task, "error": None if row.status == "ok" else "it died"}
        for row in rows
    ]
    tasks = [{**row._asdict(), "task": row.task, "payload": row.payload, "parents": "", "schema_version": SCHEMA_VERSION} for row in rows]
    described = [dict(zip(names.get(row.feature_set, ()), row.features, strict=True)) for row in rows]
    every = [name.removeprefix(FEATURE_PREFIX) for name in task_schema(sets).names if name.startswith(FEATURE_PREFIX)]
    columns = {
        "task": [row.task for row in rows],
        "status": [int(row.status != "ok") for row in rows],
        "values": np.repeat([row.cycles for row in rows], len(RESULTS)),
        "features": [found.get(name) for found in described for name in every],
    }
    return Batch(to_bytes(columns, EPOCH), _packed(TASK_ROWS, tasks), _packed(LOG_ROWS, log), 1)


def put(log: RunLog, *rows: Row, sets: Sequence[FeatureSet] = ()) -> int:
    """Append rows; returns how many were new."""
    return log.append(batch(rows, sets).opened(), np.arange(len(rows)), np.array([row.seq for row in rows], np.int64))


def write_part(path: Path, table: pa.Table) -> None:
    """A part of these rows, at its place in a dataset."""
    path.write_bytes(encoded(table, PartMark(path.parent.name, int(path.stem))))


def write_index(folder: Path, frame: pd.DataFrame) -> None:
    """The table of a sweep."""
    (folder / INDEX).write_bytes(encoded(pa.Table.from_pandas(frame), INDEX_MARK))


def _packed(wire: WireRows, rows: Sequence[dict[str, Any]]) -> bytes:
    return wire.pack({name: [row.get(name) for row in rows] for name in wire.schema.names})
