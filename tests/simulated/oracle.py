"""What must hold, whatever the world does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from simulator.npu.errors import BadInputError, TilefarmError
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.kernel import Crash, Process, SimulationError
from tests.simulated.scenarios import VOLATILE, Computed, plain_table
from tests.simulated.session import OUT, Ended
from tuner.store import care, dataset
from tuner.store.care import verify
from tuner.store.dataset import DATASETS, DatasetWriter, whole
from tuner.store.part import PartFile, read_part
from tuner.world.actors import FarmError
from tuner.world.place import Place


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
    """Of a seed.  read: by name and bytes.  right: first row of those whose rows are as expected, by identity."""

    read: dict[tuple[str, bytes], PartFile] = field(default_factory=dict)
    right: dict[int, int] = field(default_factory=dict)


@contextmanager
def _read_once(parts: Parts) -> Iterator[None]:
    """A part of the same bytes is not read again while a seed runs: most of a seed's time would be that."""

    def read(path: Place, columns: Sequence[str] | None = None) -> PartFile:
        key = path.name, path.read_bytes()
        if (part := parts.read.get(key)) is None:
            part = parts.read[key] = read_part(path)
        return part if columns is None else part._replace(table=part.table.select(list(columns)))

    dataset.read_part = care.read_part = read
    try:
        yield
    finally:
        dataset.read_part = care.read_part = read_part


def check_standing(computed: Computed, disk: SimDisk, published: Acknowledged, parts: Parts, verified: bool) -> None:
    """The run as readers find it when a session has ended, however that was: the beginning of what the undisturbed run has.

    verified: by `log verify`, too.
    """
    run = SimPlace(disk, OUT)
    with _read_once(parts):
        for name, expected in (("tasks", computed.tasks), ("log", computed.log)):
            rows = 0
            if (run / name).is_dir():
                try:
                    found = whole(run / name, name)
                except BadInputError as error:
                    raise SimulationError(f"what readers say: {error}") from None
                for part in found.parts:
                    compare(part, rows, expected, parts)
                    rows += part.rows
            if rows < published.rows[name]:
                raise SimulationError(f"{published.rows[name]} rows of {name} were acknowledged, {rows} are there")
        if verified and all((run / name).is_dir() for name in DATASETS):
            for fault in verify(run):
                raise SimulationError(f"log verify: {fault.file}: {fault.what}")


def check_end(computed: Computed, disk: SimDisk, ended: Ended, parts: Parts) -> None:
    """All of it."""
    if ended != computed.ended:
        raise SimulationError(f"another end: {_difference(vars(ended), vars(computed.ended))}")
    run = SimPlace(disk, OUT)
    with _read_once(parts):
        for name, expected in (("tasks", computed.tasks), ("log", computed.log)):
            rows = whole(run / name, name, ()).rows
            if rows != expected.num_rows:
                raise SimulationError(f"{rows} rows of {name}, not {expected.num_rows}")


def compare(part: PartFile, first: int, expected: pa.Table, parts: Parts) -> None:
    """Its rows are those that are expected from row `first` on."""
    name = part.mark.dataset
    if parts.right.get(id(part)) == first:
        return
    found, wanted = plain_table(part.table, VOLATILE), expected.slice(first, part.rows)
    if not found.equals(wanted):
        if first + part.rows > expected.num_rows:
            raise SimulationError(f"{first + part.rows} rows of {name}, not {expected.num_rows}")
        for column in expected.column_names:
            for at, (one, other) in enumerate(zip(found[column].to_pylist(), wanted[column].to_pylist(), strict=True)):
                if one != other and not (one != one and other != other):
                    raise SimulationError(f"{name}: row {first + at}: {column} is {str(one)[:80]!r}, not {str(other)[:80]!r}")
    parts.right[id(part)] = first


def _difference(found: dict[str, object], expected: dict[str, object]) -> str:
    return "; ".join(f"{key} {str(found[key])[:200]}, not {str(expected[key])[:200]}" for key in expected if found[key] != expected[key])
