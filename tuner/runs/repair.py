"""Looking after a run's datasets: check them, get them readable again, rewrite them elsewhere in few parts.

Nothing here rewrites a part in place.  `repair` moves aside what readers refuse; `compact` writes a new folder.
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


def verify(run: AnyPath | Path | str) -> list[Fault]:
    """Read every part of `tasks/` and `log/` and check what the format promises; an empty list when all of it holds.

    Raises `BadInputError` where `run` is no run folder, or its datasets are of another version.
    """
    run = place(run)
    counts, faults = _counts(run)
    found = {name: _examined(run, name, counts) for name in DATASETS}
    faults += [fault for each in found.values() for fault in each.faults]
    return faults + _rows(found["log"], found["tasks"])


def lost_rows(run: AnyPath | Path | str) -> dict[str, int]:
    """By dataset, where rows were there and are not any more."""
    run = place(run)
    counts, _ = _counts(run)
    found = {name: examine(run / name, name, (), counts).lost for name in DATASETS}
    return {name: lost for name, lost in found.items() if lost}


def repair(run: AnyPath | Path | str) -> list[Fault]:
    """Move files that are not right parts to `RUN/aside/`, those that are parts under a wrong name from there to the right one, and put
    an empty part where one is missing; returns what was done.

    Rows that were in a damaged part are lost to readers; nothing is deleted.  Raises `BadInputError` while a driver writes, and where
    nothing can be moved.
    """
    run = place(run)
    if state_of(run, ended=False) == "running":
        raise BadInputError(f"{run}: a driver is writing there; wait for it")
    counts, done = _counts(run)
    found = {name: _examined(run, name, counts) for name in DATASETS}
    faults = [fault for each in found.values() for fault in each.faults]
    try:
        moved = [(fault, _aside(run, fault)) for fault in faults if fault.there]
        back = [fault for fault, path in moved if fault.part is not None and _put_back(run, fault.part, path, found)]
        for each in found.values():
            _fill(run, examine(each.folder, each.name, (), counts))
    except OSError as error:
        raise BadInputError(f"{error.filename or run}: cannot be repaired: {error.strerror or error}") from None
    done += [fault._replace(what=f"{fault.what}; put there") if fault in back else fault for fault in faults]
    after = {name: examine(run / name, name, (), counts) for name in DATASETS}
    ends = {name: Count(len(each.parts), max(each.rows, each.count.rows)) for name, each in after.items()}
    if ends != counts:
        write_counts(run, ends)
    return done


def compact(run: AnyPath | Path | str, out: AnyPath | Path | str) -> dict[str, int]:
    """Write both datasets to the new folder `out` in parts of up to 2^20 rows; returns rows by dataset.

    Raises `BadInputError` where `out` exists or the run does not verify.
    """
    run, out = place(run), place(out)
    if out.exists():
        raise BadInputError(f"--out {out}: exists; give a new folder")
    if faults := verify(run):
        raise BadInputError(f"{run}: {faults[0].file}: {faults[0].what} ({len(faults)} faults); `log repair` first")
    return write_datasets(out, {name: _parts(run / name) for name in DATASETS}, read_counts(run) or {})


def write_datasets(out: AnyPath, tables: Mapping[str, tuple[pa.Schema, Iterable[pa.Table]]], before: Mapping[str, Count]) -> dict[str, int]:
    """New datasets in the new folder `out`, in parts of up to 2^20 rows and a bit; returns rows by dataset.

    before: of the datasets that they are made from; what those had lost is lost here.
    """
    make_folder(out)
    counts = {name: _write(out / name, schema, parts, out / ".tmp") for name, (schema, parts) in tables.items()}
    (out / ".tmp").remove()
    write_counts(out, {name: count._replace(rows=max(count.rows, before.get(name, count).rows)) for name, count in counts.items()})
    return {name: count.rows for name, count in counts.items()}


def _write(folder: AnyPath, schema: pa.Schema, parts: Iterable[pa.Table], tmp: AnyPath) -> Count:
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
    return writer.count


def _parts(folder: AnyPath) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Of a dataset that was verified: its schema, and its parts one after the other."""
    found = read_dataset(folder, folder.name, ())
    return found.schema, part_tables(found)


def _counts(run: AnyPath) -> tuple[dict[str, Count], list[Fault]]:
    """What `parts.json` says, or what is wrong with it."""
    try:
        return read_counts(run) or {}, []
    except BadInputError:
        return {}, [Fault(COUNTS, "damaged")]


def _examined(run: AnyPath, name: str, counts: dict[str, Count]) -> Dataset:
    found = examine(run / name, name, None, counts)
    if not found.parts and not found.faults and not found.count.rows:
        raise BadInputError(f"{run / name}: no {name} here; expected a run folder")
    return found


def _aside(run: AnyPath, fault: Fault) -> AnyPath:
    """Where a file was moved to: what an earlier repair moved stays."""
    wanted = run / ASIDE / fault.file
    if not wanted.parent.is_dir():
        make_folder(wanted.parent)
    names = chain([wanted], (wanted.parent / f"{wanted.name}.{number}" for number in itertools.count(1)))
    to = next(name for name in names if not _taken(name))
    (run / fault.file).replace(to)
    to.parent.fsync()
    (run / fault.file).parent.fsync()
    return to


def _taken(path: AnyPath) -> bool:
    """Also by a link that leads nowhere."""
    return any(other.name == path.name for other in path.parent.iterdir())


def _put_back(run: AnyPath, part: PartFile, path: AnyPath, found: Mapping[str, Dataset]) -> bool:
    """A part that lay elsewhere, to its place if that is free; returns whether it is there now."""
    of = found.get(part.mark.dataset)
    to = run / part.mark.file
    if of is None or not to.parent.is_dir() or _taken(to) or not (of.schema is None or part.schema.equals(of.schema, True)):
        return False
    path.replace(to)
    to.parent.fsync()
    return True


def _fill(run: AnyPath, found: Dataset) -> None:
    """An empty part for each that is missing; no folder where nobody can say what its parts were like."""
    folder = run / found.name
    if found.schema is None:
        if folder.is_dir():
            if any(folder.iterdir()):  # hidden files are nobody's fault
                raise BadInputError(f"{folder}: cannot be repaired: Directory not empty")
            folder.remove()
        return
    if not folder.is_dir():
        make_folder(folder)
    for number in sorted({*range(found.end)} - {part.mark.number for part in found.parts}):
        write_empty_part(folder, number, found.schema, run / ".tmp")


def _rows(log: Dataset, tasks: Dataset) -> list[Fault]:
    """What holds between rows."""
    faults = []
    for name, found, key in (("log", log, "row_id"), ("tasks", tasks, "task")):
        if found.parts and (again := found.rows - pc.count_distinct(found.table[key]).as_py()):
            faults.append(Fault(name, f"{again} rows have a {key} that is taken"))
    if not log.parts or not tasks.parts:
        return faults
    rows = log.table
    missing = rows.filter(pc.invert(pc.is_in(rows["task"], value_set=tasks.table["task"].combine_chunks())))
    if missing.num_rows and pc.count_distinct(missing["task"]).as_py() > tasks.lost:
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
