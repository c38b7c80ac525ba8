"""Looking after a run's datasets: check them, get them readable again, rewrite them elsewhere in few parts.

Nothing here rewrites a part in place.  `repair` moves aside what readers trip over; `compact` writes a new folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simulator.npu.errors import BadInputError
from tuner.candidate import RESULTS, log_schema
from tuner.log.dataset import DatasetWriter, check_version, dataset_schema, fsync_folder, part_numbers, write_empty_part

DATASETS = ("tasks", "log")
ASIDE = "aside"
COMPACT_ROWS = 1 << 20


class Fault(NamedTuple):
    """What was found: which file or dataset, and what is wrong with it.  `movable`: `repair` can move it aside."""

    file: str
    what: str
    movable: bool = False


def verify(run: Path | str) -> list[Fault]:
    """Read every part of `tasks/` and `log/` and check what the format promises; an empty list when all of it holds."""
    run = Path(run)
    faults, tables = list[Fault](), dict[str, pa.Table]()
    for name in DATASETS:
        schema = _schema(run, name)
        parts = [schema.empty_table()]
        for path, what, part in _parts(run / name, schema):
            if part is None:
                faults.append(Fault(f"{name}/{path.name}", what, movable=True))
            else:
                parts.append(part)
        numbers = part_numbers(run / name)
        if gaps := sorted(set(range(len(numbers))) - set(numbers)):
            faults.append(Fault(name, f"part {gaps[0]:08d} is missing"))
        tables[name] = pa.concat_tables(parts)
    return faults + _rows(tables["log"], tables["tasks"])


def repair(run: Path | str) -> list[Fault]:
    """Move files that are not readable parts to `RUN/aside/`, put an empty part where one is missing; returns what was done.

    The run must not be open.  Rows that were in a damaged part are lost to readers; nothing is deleted.
    """
    run = Path(run)
    schemas = {name: _schema(run, name) for name in DATASETS}
    done = [fault for fault in verify(run) if fault.movable]
    for fault in done:
        dataset, _, name = fault.file.partition("/")
        target = run / ASIDE / dataset
        target.mkdir(parents=True, exist_ok=True)
        (run / dataset / name).rename(target / name)
        fsync_folder(run / dataset)
    for dataset, schema in schemas.items():
        folder = run / dataset
        numbers = {int(Path(fault.file).stem) for fault in done if fault.file.startswith(dataset) and Path(fault.file).stem.isdecimal()}
        # up to the last part there is or was, so that no gap is left before it
        for number in range(max([*part_numbers(folder), *numbers], default=0) + 1):
            path = folder / f"{number:08d}.parquet"
            if not path.exists():
                write_empty_part(path, schema, run / ".tmp")
                if number not in numbers:
                    done.append(Fault(f"{dataset}/{path.name}", "missing"))
    return done


def compact(run: Path | str, out: Path | str) -> dict[str, int]:
    """Write both datasets to the new folder `out` in parts of up to 2^20 rows; returns rows by dataset.

    Raises `BadInputError` where `out` exists or the run does not verify.
    """
    run, out = Path(run), Path(out)
    if out.exists():
        raise BadInputError(f"--out {out}: exists; give a new folder")
    if faults := verify(run):
        raise BadInputError(f"{run}: {faults[0].file}: {faults[0].what} ({len(faults)} faults); `log repair` first")
    out.mkdir(parents=True)
    counts = {}
    for name in DATASETS:
        schema = _schema(run, name)
        parts = (part for _, _, part in _parts(run / name, schema) if part is not None)
        counts[name] = write_dataset(out / name, schema, parts, out / ".tmp")
    (out / ".tmp").rmdir()
    return counts


def write_dataset(folder: Path, schema: pa.Schema, parts: Iterable[pa.Table], tmp: Path) -> int:
    """A new dataset of these rows in parts of up to 2^20 and a bit; returns how many there were."""
    writer = DatasetWriter(folder, schema, tmp)
    waiting: list[pa.Table] = []
    for part in parts:
        if part.num_rows:
            waiting.append(part)
        if sum(table.num_rows for table in waiting) >= COMPACT_ROWS:
            writer.publish_table(pa.concat_tables(waiting))
            waiting = []
    if waiting:
        writer.publish_table(pa.concat_tables(waiting))
    return writer.acknowledged


def _schema(run: Path, name: str) -> pa.Schema:
    """The schema of a dataset: its first part's, or, where that one is damaged, of the first part that can be read."""
    folder = run / name
    if not folder.is_dir():
        raise BadInputError(f"{folder}: no {name} here; expected a run folder")
    for number in part_numbers(folder):
        try:
            schema = pq.read_schema(folder / f"{number:08d}.parquet")
        except (OSError, pa.ArrowException):
            continue
        check_version(schema, folder)
        return schema
    if name == "log":
        return log_schema()
    return dataset_schema(folder)


def _parts(folder: Path, schema: pa.Schema) -> Iterator[tuple[Path, str, pa.Table | None]]:
    """Every file of a dataset in order: path, what is wrong, the table (None where something is)."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue  # readers of a dataset pass over these
        if path.suffix != ".parquet" or not path.stem.isdecimal():
            yield path, "not a part; readers of the folder trip over it", None
            continue
        try:
            part = pq.ParquetFile(path).read()
        except (OSError, pa.ArrowException) as error:
            yield path, f"cannot be read: {' '.join(str(error).split())}", None
            continue
        if not part.schema.equals(schema, check_metadata=True):
            yield path, "its schema is not that of the dataset", None
        else:
            yield path, "", part


def _rows(log: pa.Table, tasks: pa.Table) -> list[Fault]:
    """What holds between rows."""
    faults = []
    for dataset, table, key in (("log", log, "row_id"), ("tasks", tasks, "task")):
        if again := table.num_rows - pc.count_distinct(table[key]).as_py():
            faults.append(Fault(dataset, f"{again} rows have a {key} that is taken"))
    missing = pc.invert(pc.is_in(log["task"], value_set=tasks["task"].combine_chunks()))
    if count := pc.sum(missing).as_py():
        faults.append(Fault("log", f"{count} rows name a task that is not in tasks/"))
    ok = pc.equal(log["status"].cast(pa.string()), "ok")
    for name in RESULTS:
        if not pc.all(pc.equal(pc.is_valid(log[name]), ok)).as_py() and log.num_rows:
            faults.append(Fault("log", f"{name} must be null exactly when status is not ok"))
    for payload in tasks["payload"].to_pylist():
        try:
            json.loads(payload)
        except ValueError:
            faults.append(Fault("tasks", f"a payload is not JSON: {payload[:40]!r}"))
            break
    return faults
