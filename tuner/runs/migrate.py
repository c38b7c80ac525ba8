"""Migration of rows to today's schema version, in a new folder.

Changes of a version are data: `STEPS` has, for a dataset, the step from each version to the next.  A release that raises `SCHEMA_VERSION`
for columns that may be null adds nothing here, any other change is one entry; intermediate versions are passed one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulator.npu.errors import BadInputError
from tuner.log.dataset import DATASETS, completed, part_numbers, read_dataset, schema_version
from tuner.log.part import part_name
from tuner.log.part_counts import read_counts
from tuner.log.record import SCHEMA_VERSION, FeatureSet, log_schema, task_schema
from tuner.platform.files import AnyPath
from tuner.platform.remote_files import place
from tuner.runs.repair import verify_run, write_datasets

Value = Callable[[pa.Table], pa.Array] | str | int | float | None


class MigrationStep(NamedTuple):
    """Step from one version of a dataset to the next: columns are renamed, then added, then dropped.

    renamed: old name -> new one.  new_columns: name -> one value for all rows, or a function of the table so far.
    Order, types, units and the version number follow from today's schema.
    """

    renamed: Mapping[str, str] = {}
    new_columns: Mapping[str, Value] = {}
    dropped_columns: tuple[str, ...] = ()

    def migrate(self, table: pa.Table) -> pa.Table:
        """Rows of `table`, one version later."""
        table = table.rename_columns([self.renamed.get(name, name) for name in table.column_names])
        for name, value in self.new_columns.items():
            column = value(table) if callable(value) else pa.array([value] * table.num_rows)
            table = table.append_column(name, column)
        return table.drop_columns(list(self.dropped_columns))


Steps = Mapping[str, Mapping[int, MigrationStep]]


def _nothing_shared(table: pa.Table) -> pa.Array:
    """Bytes of shared memory, unknown then: 0, and null without a measurement."""
    return pc.if_else(pc.is_valid(table["cycles"]), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))


_MEDIAN = re.compile(r"\(median of (\d+)\)$")


def _repeats(table: pa.Table) -> pa.Array:
    """Readings by the name of the runner; 0 for infeasible tasks."""
    names, status = table["runner"].cast(pa.string()).to_pylist(), table["status"].cast(pa.string()).to_pylist()
    repeats = {name: int(median[1]) if (median := _MEDIAN.search(name)) else 1 for name in set(names)}
    return pa.array([0 if state == "infeasible" else repeats[name] for name, state in zip(names, status, strict=True)], pa.int64())


def _no_drift(table: pa.Table) -> pa.Array:
    """Flags of drift: false, since no canary was read."""
    return pa.repeat(False, table.num_rows)


STEPS: Steps = {
    "tasks": dict.fromkeys(range(1, SCHEMA_VERSION), MigrationStep()),
    "log": dict.fromkeys(range(1, SCHEMA_VERSION), MigrationStep())
    | {
        2: MigrationStep(
            new_columns={"level_latency_cycles": 0, **dict.fromkeys(f"level_{key}" for key in ("l1_bytes", "shared_bytes", "cores"))}
        ),
        3: MigrationStep(new_columns=dict.fromkeys(("shared_read_bytes", "shared_write_bytes", "peak_shared_bytes"), _nothing_shared)),
        4: MigrationStep(
            new_columns={"readings": _repeats, **dict.fromkeys(("board", "firmware", "canary_cycles", "drift")), "drifted": _no_drift},
        ),
    },
}
"""Dataset -> version that a step starts from -> step.  Version 1 is the first."""


class MigratedDataset(NamedTuple):
    """Migration of a dataset: its earlier version, and its rows."""

    version: int
    rows: int


def migrate_run(run: AnyPath | Path | str, out: AnyPath | Path | str, steps: Steps = STEPS) -> dict[str, MigratedDataset]:
    """Write both datasets of `run` to the new folder `out` with today's schemas; `run` stays unchanged.

    Raises `BadInputError` if `out` exists, a part cannot be read, a dataset is newer than this program, or a step is missing; then nothing
    is left behind.
    """
    run, out = place(run), place(out)
    if out.exists():
        raise BadInputError(f"--out {out}: exists; give a new folder")
    plans = {name: _plan(run / name, name, steps) for name in DATASETS}
    tables = {name: (schema, _walked(run / name, name, path, schema)) for name, (_, path, schema) in plans.items()}
    try:
        rows = write_datasets(out, tables, read_counts(run) or {})
        if faults := verify_run(out):
            raise BadInputError(f"{run}: {faults[0].file}: {faults[0].problem} ({len(faults)} faults) after the last step; nothing is kept")
    except BaseException:
        out.remove()
        raise
    return {name: MigratedDataset(version, rows[name]) for name, (version, *_) in plans.items()}


def _plan(folder: AnyPath, name: str, steps: Steps) -> tuple[int, list[MigrationStep], pa.Schema]:
    """Plan of a migration: (version, steps to today's, today's schema)."""
    numbers = part_numbers(folder)
    if not numbers:
        read_dataset(folder, name, ())  # raises with the reason
    if gaps := sorted({*range(len(numbers))} - {*numbers}):
        raise BadInputError(f"{folder / part_name(gaps[0])}: missing; `log repair` first")
    stored_schema = _read(folder, 0).schema
    version = schema_version(stored_schema, folder)
    if version > SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version} is newer than this program, which writes {SCHEMA_VERSION}")
    if version == SCHEMA_VERSION:
        read_dataset(folder, name, ())
    missing = [number for number in range(version, SCHEMA_VERSION) if number not in steps[name]]
    if missing:
        raise BadInputError(f"{folder}: schema {version}: this program has no step from {missing[0]} to {missing[0] + 1}")
    return version, [steps[name][number] for number in range(version, SCHEMA_VERSION)], _today(stored_schema, folder, name)


def _today(stored_schema: pa.Schema, folder: AnyPath, name: str) -> pa.Schema:
    if name == "log":
        return log_schema()
    try:
        sets = json.loads((stored_schema.metadata or {})[b"feature_sets"])
    except (KeyError, ValueError):
        raise BadInputError(f"{folder}: its schema does not say which features its columns are (feature_sets)") from None
    return task_schema([FeatureSet(key, tuple(features)) for key, features in sets.items()])


def _walked(folder: AnyPath, name: str, path: list[MigrationStep], schema: pa.Schema) -> Iterator[pa.Table]:
    for number in part_numbers(folder):
        table = _read(folder, number)
        for step in path:
            table = step.migrate(table)
        table = completed(table, name, None)
        index = table.column_names.index("schema_version") if "schema_version" in table.column_names else -1
        if index >= 0:
            table = table.set_column(index, "schema_version", pa.array([SCHEMA_VERSION] * table.num_rows, pa.int16()))
        if set(table.column_names) != set(schema.names):
            odd_columns = sorted(set(table.column_names) ^ set(schema.names))
            raise BadInputError(f"{folder / part_name(number)}: columns {', '.join(odd_columns[:4])} are not those of today's schema")
        try:
            yield pa.Table.from_arrays([table[field.name].cast(field.type) for field in schema], schema=schema)
        except pa.ArrowException as error:
            raise BadInputError(f"{folder / part_name(number)}: {' '.join(str(error).split())}") from None


def _read(folder: AnyPath, number: int) -> pa.Table:
    path = folder / part_name(number)
    try:
        if path.is_file():  # opening a pipe would block
            return pq.ParquetFile(pa.BufferReader(path.mapped())).read()
        fault = "no file there"
    except (OSError, pa.ArrowException) as error:
        fault = f"cannot be read: {' '.join(str(error).split())}"
    raise BadInputError(f"{path}: {fault}; `log repair` first")
