"""Maintenance of a run's datasets: verify, repair, compact into fewer parts.

No part is rewritten in place.  `repair_run` moves unreadable files aside; `compact_run` writes a new folder.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from simulator.npu.errors import BadInputError
from simulator.npu.files import make_folder
from tuner.log.dataset import DATASETS, Dataset, DatasetWriter, Fault, examine, part_tables, read_dataset, write_empty_part
from tuner.log.part import PartFile
from tuner.log.part_counts import FILE as COUNTS
from tuner.log.part_counts import Count, read_counts, write_counts
from tuner.log.record import RESULTS
from tuner.platform.files import AnyPath
from tuner.platform.remote_files import place
from tuner.runs.list_runs import state_of

ASIDE = "aside"
COMPACT_ROWS = 1 << 20


def verify_run(run: AnyPath | Path | str) -> list[Fault]:
    """Read every part of `tasks/` and `log/` and check the promises of the format; an empty list for a sound run.

    Raises `BadInputError` if `run` is no run folder, or its datasets are of another version.
    """
    run = place(run)
    counts, faults = _counts(run)
    datasets = {name: _examined(run, name, counts) for name in DATASETS}
    faults += [fault for dataset in datasets.values() for fault in dataset.faults]
    return faults + _rows(datasets["log"], datasets["tasks"])


def lost_rows(run: AnyPath | Path | str) -> dict[str, int]:
    """Number of lost rows by dataset, for datasets with any."""
    run = place(run)
    counts, _ = _counts(run)
    losses = {name: examine(run / name, name, (), counts).lost_rows for name in DATASETS}
    return {name: count for name, count in losses.items() if count}


def repair_run(run: AnyPath | Path | str) -> list[Fault]:
    """Move invalid files to `RUN/aside/`, misplaced parts to their right names, and write an empty part for each missing one; returns the
    repaired faults.

    Rows of damaged parts are lost to readers; nothing is deleted.  Raises `BadInputError` while a driver writes, and if moving fails.
    """
    run = place(run)
    if state_of(run, ended=False) == "running":
        raise BadInputError(f"{run}: a driver is writing there; wait for it")
    counts, repairs = _counts(run)
    datasets = {name: _examined(run, name, counts) for name in DATASETS}
    faults = [fault for dataset in datasets.values() for fault in dataset.faults]
    try:
        moved = [(fault, _move_aside(run, fault)) for fault in faults if fault.is_part]
        restored = [fault for fault, path in moved if fault.part is not None and _put_back(run, fault.part, path, datasets)]
        for dataset in datasets.values():
            _fill(run, examine(dataset.folder, dataset.name, (), counts))
    except OSError as error:
        raise BadInputError(f"{error.filename or run}: cannot be repaired: {error.strerror or error}") from None
    repairs += [fault._replace(problem=f"{fault.problem}; put there") if fault in restored else fault for fault in faults]
    repaired = {name: examine(run / name, name, (), counts) for name in DATASETS}
    end_counts = {name: Count(len(dataset.parts), max(dataset.rows, dataset.count.rows)) for name, dataset in repaired.items()}
    if end_counts != counts:
        write_counts(run, end_counts)
    return repairs


def compact_run(run: AnyPath | Path | str, out: AnyPath | Path | str) -> dict[str, int]:
    """Write both datasets to the new folder `out` in parts of up to 2^20 rows; returns rows by dataset.

    Raises `BadInputError` if `out` exists or the run does not verify.
    """
    run, out = place(run), place(out)
    if out.exists():
        raise BadInputError(f"--out {out}: exists; give a new folder")
    if faults := verify_run(run):
        raise BadInputError(f"{run}: {faults[0].file}: {faults[0].problem} ({len(faults)} faults); `log repair` first")
    return write_datasets(out, {name: _parts(run / name) for name in DATASETS}, read_counts(run) or {})


def write_datasets(
    out: AnyPath, tables: Mapping[str, tuple[pa.Schema, Iterable[pa.Table]]], first_counts: Mapping[str, Count]
) -> dict[str, int]:
    """Write datasets to the new folder `out`, in parts of slightly more than 2^20 rows; returns rows by dataset.

    first_counts: counts of the source datasets; their lost rows count as lost here.
    """
    make_folder(out)
    counts = {name: _write(out / name, schema, parts, out / ".tmp") for name, (schema, parts) in tables.items()}
    (out / ".tmp").remove()
    write_counts(out, {name: count._replace(rows=max(count.rows, first_counts.get(name, count).rows)) for name, count in counts.items()})
    return {name: count.rows for name, count in counts.items()}


def _write(folder: AnyPath, schema: pa.Schema, parts: Iterable[pa.Table], tmp: AnyPath) -> Count:
    writer = DatasetWriter(folder, schema, tmp)
    buffer: list[pa.Table] = []
    for part in parts:
        if part.num_rows:
            buffer.append(part)
        if sum(table.num_rows for table in buffer) >= COMPACT_ROWS:
            writer.publish_table(pa.concat_tables(buffer))
            buffer = []
    if buffer:
        writer.publish_table(pa.concat_tables(buffer))
    return writer.count


def _parts(folder: AnyPath) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Schema of a verified dataset, and its parts in order."""
    dataset = read_dataset(folder, folder.name, ())
    return dataset.schema, part_tables(dataset)


def _counts(run: AnyPath) -> tuple[dict[str, Count], list[Fault]]:
    """Content of `parts.json`, or its fault."""
    try:
        return read_counts(run) or {}, []
    except BadInputError:
        return {}, [Fault(COUNTS, "damaged")]


def _examined(run: AnyPath, name: str, counts: dict[str, Count]) -> Dataset:
    dataset = examine(run / name, name, None, counts)
    if not dataset.parts and not dataset.faults and not dataset.count.rows:
        raise BadInputError(f"{run / name}: no {name} here; expected a run folder")
    return dataset


def _move_aside(run: AnyPath, fault: Fault) -> AnyPath:
    """Move a file aside; returns its new path.  Files moved by an earlier repair stay."""
    target = run / ASIDE / fault.file
    if not target.parent.is_dir():
        make_folder(target.parent)
    names = chain([target], (target.parent / f"{target.name}.{number}" for number in itertools.count(1)))
    free_name = next(name for name in names if not _exists(name))
    (run / fault.file).replace(free_name)
    free_name.parent.fsync()
    (run / fault.file).parent.fsync()
    return free_name


def _exists(path: AnyPath) -> bool:
    """Whether a name exists, also as a dangling link."""
    return any(entry.name == path.name for entry in path.parent.iterdir())


def _put_back(run: AnyPath, part: PartFile, path: AnyPath, datasets: Mapping[str, Dataset]) -> bool:
    """Move a misplaced part to its place if free; returns whether it did."""
    dataset = datasets.get(part.mark.dataset)
    target = run / part.mark.file
    if (
        dataset is None
        or not target.parent.is_dir()
        or _exists(target)
        or not (dataset.schema is None or part.schema.equals(dataset.schema, True))
    ):
        return False
    path.replace(target)
    target.parent.fsync()
    return True


def _fill(run: AnyPath, dataset: Dataset) -> None:
    """Write an empty part for each missing one; remove the folder if its schema is unknown."""
    folder = run / dataset.name
    if dataset.schema is None:
        if folder.is_dir():
            if any(folder.iterdir()):  # hidden files are not faults
                raise BadInputError(f"{folder}: cannot be repaired: Directory not empty")
            folder.remove()
        return
    if not folder.is_dir():
        make_folder(folder)
    for number in sorted({*range(dataset.end)} - {part.mark.number for part in dataset.parts}):
        write_empty_part(folder, number, dataset.schema, run / ".tmp")


def _rows(log: Dataset, tasks: Dataset) -> list[Fault]:
    """Faults between rows."""
    faults = []
    for name, dataset, key in (("log", log, "row_id"), ("tasks", tasks, "task")):
        if dataset.parts and (duplicates := dataset.rows - pc.count_distinct(dataset.table[key]).as_py()):
            faults.append(Fault(name, f"{duplicates} rows have a {key} that is taken"))
    if not log.parts or not tasks.parts:
        return faults
    rows = log.table
    missing = rows.filter(pc.invert(pc.is_in(rows["task"], value_set=tasks.table["task"].combine_chunks())))
    if missing.num_rows and pc.count_distinct(missing["task"]).as_py() > tasks.lost_rows:
        faults.append(Fault("log", f"{missing.num_rows} rows name a task that is not in tasks/"))
    ok = pc.equal(rows["status"].cast(pa.string()), "ok")
    for name in RESULTS:
        if not pc.all(pc.equal(pc.is_valid(rows[name]), ok)).as_py() and rows.num_rows:
            faults.append(Fault("log", f"{name} must be null exactly when status is not ok"))
    for payload in tasks.table["payload"].to_pylist():
        try:
            json.loads(payload)
        except ValueError:
            faults.append(Fault("tasks", f"a payload is not JSON: {payload[:40]!r}"))
            break
    return faults
