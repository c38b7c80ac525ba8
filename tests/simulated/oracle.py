"""What must hold, whatever the world does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from simulator.npu.errors import BadInputError, TilefarmError
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.kernel import Crash, Process, SimulationError
from tests.simulated.scenarios import KEY, TASK_KEY, VOLATILE, Computed, Rows, keys, plain_table
from tests.simulated.session import MIRROR, OUT, STORE, Disks, Ended
from tuner.log import dataset, part
from tuner.log.dataset import DATASETS, Dataset, DatasetWriter, read_dataset
from tuner.log.part import PartFile, PartMark
from tuner.log.read import read_log
from tuner.log.task_numbers import count
from tuner.platform.actors import FarmError
from tuner.runs.checkpoint import FILE as CHECKPOINT
from tuner.runs.checkpoint import FINDINGS
from tuner.runs.folder import IDENTITY, read_json
from tuner.runs.mirror import RUN_DATASETS, RUN_FILES
from tuner.runs.repair import verify_run
from tuner.store.pack_store import entries
from tuner.store.packs import keys as pack_keys

PARSED = 16


@dataclass
class Acknowledged:
    """Rows by dataset whose parts were said to be published.

    waiting: tasks of which no row was yet: alone they are no result, and a session that ends before its first one takes them away again.
    """

    rows: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)


@contextmanager
def acknowledged() -> Iterator[Acknowledged]:
    """What is acknowledged while this lasts."""
    found = Acknowledged()
    publish = DatasetWriter.publish_table

    def counted(self: DatasetWriter, table: pa.Table) -> None:
        publish(self, table)
        found.waiting[self.folder.name] += table.num_rows
        if self.folder.name == "log":
            found.rows.update(found.waiting)
            found.waiting.clear()

    DatasetWriter.publish_table = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        DatasetWriter.publish_table = publish  # type: ignore[method-assign]


def allowed(error: BaseException, process: Process) -> None:
    """That a session ends so; raises `SimulationError` where nothing that happened to it is a reason."""
    faults = process.faults
    if isinstance(error, Crash):
        fine = not process.alive
    elif isinstance(error, KeyboardInterrupt):
        fine = bool(faults.interrupts_at)
    elif isinstance(error, FarmError):
        fine = process.actor_faults > 0
    else:
        fine = isinstance(error, TilefarmError) and process.disk_errors > 0
    if not fine:
        raise SimulationError(f"a session ended with {type(error).__name__}: {error}") from error


@dataclass
class Parts:
    """Of a seed.  read: by their bytes.  right: first row of those whose rows are as expected, by identity."""

    read: dict[bytes, PartFile] = field(default_factory=dict)
    right: dict[int, int] = field(default_factory=dict)


@contextmanager
def read_once(parts: Parts) -> Iterator[None]:
    """While a seed runs, the same bytes are parsed once, whoever reads them, and of those that were written here one in `PARSED` at all.

    Only that one is Parquet; the others have the mark of a part behind a stream of the same columns.  Half of a seed's time would be that.
    """

    def encoded(table: pa.Table, mark: PartMark) -> bytes:
        if not mark.number % PARSED:
            return part.encoded(table, mark)
        with mock.patch.object(part, "_parquet", _streamed):
            data = part.encoded(table, mark)
        parts.read[data] = PartFile(mark, table.num_rows, table.schema, table)
        return data

    def decoded(data: memoryview, columns: Sequence[str] | None = None) -> PartFile:
        if not isinstance(data.obj, bytes):  # of an earlier run, on the computer's own disk
            return real(data, columns)
        if (found := parts.read.get(data.obj)) is None:
            found = parts.read[data.obj] = real(data)
        return found if columns is None else found._replace(table=found.table.select(list(columns)))

    real, part.decoded, dataset.encoded = part.decoded, decoded, encoded
    try:
        yield
    finally:
        part.decoded, dataset.encoded = real, part.encoded


def _streamed(table: pa.Table, mark: bytes) -> bytearray:
    """In a tenth of the time that Parquet takes, with a footer that names it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytearray(sink.getvalue().to_pybytes() + mark + len(mark).to_bytes(4, "little") + b"PAR1")


def check_standing(computed: Computed, disk: SimDisk, published: Acknowledged, parts: Parts, verified: bool) -> None:
    """The run as readers find it when a session has ended, however that was: the beginning of what the undisturbed run has.

    verified: by `log verify`, too.
    """
    run = SimPlace(disk, OUT)
    for name, rows in _beginning(computed, run, parts, verified).items():
        if rows < published.rows[name]:
            raise SimulationError(f"{published.rows[name]} rows of {name} were acknowledged, {rows} are there")


def _beginning(computed: Computed, run: SimPlace, parts: Parts, verified: bool) -> Counter[str]:
    """Rows by dataset, which are the first of those that are expected."""
    rows = Counter[str]()
    for name, expected in (("tasks", computed.tasks), ("log", computed.log)):
        if [*run.glob(f"{name}/*")]:  # a copy's folder is made before its first part is sent
            try:
                found = read_dataset(run / name, name)
            except BadInputError as error:
                raise SimulationError(f"what readers say: {error}") from None
            if computed.every is not None:
                rows[name] = _some_of(found, computed, computed.every, parts)
                continue
            for each in found.parts:
                compare(each, rows[name], expected, parts)
                rows[name] += each.rows
    if verified and all([*run.glob(f"{name}/*")] for name in DATASETS):
        for fault in verify_run(run):
            raise SimulationError(f"log verify_run: {fault.file}: {fault.problem}")
    return rows


def check_mirror(computed: Computed, disks: Disks, parts: Parts, verified: bool, ended: bool) -> None:
    """The copy as readers find it: nothing is there before what it refers to.  ended: all of it is."""
    here, there = SimPlace(disks.here, OUT), SimPlace(disks.away, MIRROR)
    rows = _beginning(computed, there, parts, verified)
    state = there / "checkpoint" / CHECKPOINT
    if state.is_file():
        saved = read_json(state)
        findings, tasks = saved["head"]["findings"], count(saved["state"]["numbers"])
        data = (there / "checkpoint" / FINDINGS).read_bytes()[: findings["bytes"]]
        if sha256(data).hexdigest() != findings["digest"]:
            raise SimulationError("the copy of a checkpoint counts findings that are not there")
        if tasks * len(computed.levels) > rows["log"]:
            raise SimulationError(f"the copy of a checkpoint counts {tasks} tasks, {rows['log']} rows of log are there")
    if ended:
        for pattern in (IDENTITY, *RUN_FILES, *(f"{name}/*.parquet" for name in RUN_DATASETS)):
            for path in here.glob(pattern):
                name = path.relative_to(here)
                if not (there / name).is_file() or (there / name).read_bytes() != path.read_bytes():
                    raise SimulationError(f"the copy has another {name}, or none")


def check_store(disks: Disks, ended: bool) -> None:
    """Whole packs, of rows that the log has, each task in one of them.  ended: all that have results."""
    there = list(entries(store)) if (store := SimPlace(disks.away, STORE)).is_dir() else []
    if not there and not ended:
        return
    log = read_log(SimPlace(disks.here, OUT), ("task", "level_index", "cycles"))
    cycles = log.pivot(index="task", columns="level_index", values="cycles").fillna(0).astype("int64")
    known = {task: row for task, row in zip(cycles.index, cycles.to_numpy().tolist(), strict=True) if any(row)}
    found = dict[str, list[int]]()
    for entry in there:
        if entry.pack is None:
            raise SimulationError(f"the store has {entry.name}: {entry.why or entry.state}")
        names = [key.hex() for key in pack_keys(entry.pack.measured)]
        if again := found.keys() & set(names):
            raise SimulationError(f"the store has {min(again)} twice")
        found |= dict(zip(names, entry.pack.measured.values[:, :, 0].tolist(), strict=True))
    if other := [task for task, row in found.items() if known.get(task) != row]:
        raise SimulationError(f"the store has {other[0]} as the log does not")
    if ended and len(found) != len(known):
        raise SimulationError(f"the store has {len(found)} tasks, the log {len(known)}")


def check_end(computed: Computed, disk: SimDisk, ended: Ended) -> None:
    """All of it."""
    run = SimPlace(disk, OUT)
    if computed.every is not None:
        _check_timed(computed, read_dataset(run / "log", "log").table, ended)
        return
    mine, expected = (vars(replace(each, placed={}, champions=_measured(each.champions))) for each in (ended, computed.ended))
    if mine != expected:
        raise SimulationError(f"another end: {_difference(mine, expected)}")
    for name, expected in (("tasks", computed.tasks), ("log", computed.log)):
        rows = read_dataset(run / name, name, ()).rows
        if rows != expected.num_rows:
            raise SimulationError(f"{rows} rows of {name}, not {expected.num_rows}")


def _measured(champions: dict[str, Any]) -> dict[str, Any]:
    """Cycles and tasks: of what a task's plan says, other genes may be read."""
    return champions | {name: [each and each[1:] for each in champions[name]] for name in ("best", "baselines")}


def _check_timed(computed: Computed, log: pa.Table, ended: Ended) -> None:
    """What a session says that ends when its time is up is what the log has; the run's end is that of the undisturbed one."""
    levels = len(computed.levels)
    rows = plain_table(log.select(["task", "kind", "status", "level", "cycles"]))
    tasks = rows.take(pa.array(range(0, rows.num_rows, levels), pa.int64()))
    failures = Counter(status for status in tasks["status"].to_pylist() if status != "ok")
    if (ended.tasks, Counter(ended.failures)) != (tasks.num_rows, failures):
        raise SimulationError(f"{ended.tasks} tasks, {ended.failures}; the log has {tasks.num_rows}, {dict(failures)}")
    programs = rows.filter(pc.equal(rows["kind"], "program"))
    if ended.champions["programs"] != programs.num_rows // levels:
        raise SimulationError(f"{ended.champions['programs']} programs, the log has {programs.num_rows // levels}")
    for at, level in enumerate(computed.levels):
        best = pc.min(programs.filter(pc.equal(programs["level"], level))["cycles"]).as_py()
        if (mine := ended.champions["best"][at][1][at]) != best:
            raise SimulationError(f"{level}: the champion has {mine} cycles, the best row of the log {best}")
    if ended.stopped == computed.ended.stopped:
        if ended.placed != computed.ended.placed:
            raise SimulationError(f"another end: {_difference(ended.placed, computed.ended.placed)}")
        if lost := set(computed.log["task"].to_pylist()) - set(tasks["task"].to_pylist()):
            raise SimulationError(f"{len(lost)} tasks of the undisturbed run have no row")


def _some_of(found: Dataset, computed: Computed, every: Rows, parts: Parts) -> int:
    """Its rows are among those of all jobs, and each task is there once, under a number of its own.  Returns how many rows there are."""
    log = found.name == "log"
    for each in found.parts:
        if parts.right.get(id(each)) is None:
            rows, columns = plain_table(each.table, (*VOLATILE, "seq") if log else VOLATILE), KEY if log else TASK_KEY
            places = [every.places.get(key, -1) for key in keys(rows, columns)]
            if -1 in places:
                raise SimulationError(f"{found.name}: a row of {each.mark.file} is of no job")
            compare_tables(found.name, 0, rows, (every.log if log else every.tasks).take(pa.array(places, pa.int64())))
            parts.right[id(each)] = 0
    if not found.parts or not found.rows:
        return found.rows
    table = found.table
    names = table["task"].to_pylist()
    if not log:
        if len(set(names)) < len(names):
            raise SimulationError("tasks: the same task twice")
        return found.rows
    tasks = Counter(zip(table["seq"].to_pylist(), names, strict=True))
    if sorted(seq for seq, _ in tasks) != list(range(len(tasks))):
        raise SimulationError(f"log: {len(tasks)} tasks have numbers {sorted(seq for seq, _ in tasks)}")
    if len(set(names)) < len(tasks) or set(tasks.values()) != {len(computed.levels)}:
        raise SimulationError("log: the same task under two numbers, or not with all levels")
    return found.rows


def compare(found: PartFile, first: int, expected: pa.Table, parts: Parts) -> None:
    """Its rows are those that are expected from row `first` on."""
    if parts.right.get(id(found)) != first:
        compare_tables(found.mark.dataset, first, plain_table(found.table, VOLATILE), expected.slice(first, found.rows))
        parts.right[id(found)] = first


def compare_tables(name: str, first: int, rows: pa.Table, wanted: pa.Table) -> None:
    """first: number of the first one."""
    if rows.equals(wanted):
        return
    if wanted.num_rows < rows.num_rows:
        raise SimulationError(f"{first + rows.num_rows} rows of {name}, not {first + wanted.num_rows}")
    for column in wanted.column_names:
        for at, (one, other) in enumerate(zip(rows[column].to_pylist(), wanted[column].to_pylist(), strict=True)):
            if one != other and not (one != one and other != other):
                raise SimulationError(f"{name}: row {first + at}: {column} is {str(one)[:80]!r}, not {str(other)[:80]!r}")


def _difference(found: dict[str, object], expected: dict[str, object]) -> str:
    return "; ".join(f"{key} {str(found[key])[:200]}, not {str(expected[key])[:200]}" for key in expected if found[key] != expected[key])
