"""Rows of a log that nobody measured, handed in as a search hands in its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tuner.candidate import FEATURE_PREFIX, RESULTS, SCHEMA_VERSION, FeatureSet, canonical_json, log_schema, task_schema, text_digest
from tuner.log.run_log import Batch, Origin, RunLog, packed, travelling


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


def batch(origin: Origin, rows: Sequence[Row], sets: Sequence[FeatureSet] = ()) -> Batch:
    """One level, `none`; a row that is not ok died."""
    names = {each.name: each.features for each in sets}
    log = [
        {name: getattr(origin, name) for name in Origin.__slots__}
        | {"level": "none", "level_index": 0, "ddr_share": 1.0, "clock_hz": 10**9, "island": -1, "generation": -1}
        | {"worker": "driver", "time": 1_700_000_000_000_000, "schema_version": SCHEMA_VERSION}
        | {**row._asdict(), "task": row.task, "error": None if row.status == "ok" else "it died"}
        | dict.fromkeys(RESULTS, row.cycles if row.status == "ok" else None)
        for row in rows
    ]
    tasks = [
        {**row._asdict(), "task": row.task, "payload": row.payload, "parents": "", "schema_version": SCHEMA_VERSION}
        | {FEATURE_PREFIX + name: value for name, value in zip(names.get(row.feature_set, ()), row.features, strict=True)}
        for row in rows
    ]
    return Batch([row.task for row in rows], packed(_columns(task_schema(sets), tasks)), packed(_columns(log_schema(), log)), 1)


def put(log: RunLog, *rows: Row, sets: Sequence[FeatureSet] = ()) -> int:
    """Append rows; returns how many were new."""
    return log.append(batch(log.origin, rows, sets), np.arange(len(rows)), np.array([row.seq for row in rows], np.int64))


def _columns(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    left_open, schema = ("row_id", "seq"), travelling(schema)
    columns = [pa.array([None if field.name in left_open else row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
