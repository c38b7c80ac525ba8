"""Pack: measurements of one run, as an immutable file named by a digest of its bytes.

Parquet with a row for each task and level, the levels of a task one after the other:

| column              | type           | meaning                                                                          |
|---------------------|----------------|----------------------------------------------------------------------------------|
| `scope`             | 8 bytes        | scope in which the task can be met: `Scopes`                                     |
| `task`              | 16 bytes       | digest of the task, as in the log                                                |
| `level`             | text           | contention level                                                                 |
| `board`, `firmware` | text, or null  | identity of the board; null for the simulator                                    |
| `RESULTS`           | int64          | results as in the log, zeros at a level that does not grant what the task needs  |

The footer has the conditions of the measurements and the owner.  The reader decides which packs it uses (`tuner.store.pack_store`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tuner.log.digests import canonical_json, digest
from tuner.log.record import BOARD, RESULTS, TaskRows
from tuner.runs.folder import plain_name

VERSION = 1
SUFFIX = ".parquet"
MOST_BYTES = 1 << 28  # limit of a pack; this version writes a few MiB
MOST_ROWS = 1 << 22  # rows of a pack
_KEY = b"tilefarm_pack"
_LEAST = np.array([int(name == "cycles") for name in RESULTS])
_SCHEMA = pa.schema(
    [
        pa.field("scope", pa.binary(8), nullable=False),
        pa.field("task", pa.binary(16), nullable=False),
        pa.field("level", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        *(pa.field(name, pa.dictionary(pa.int32(), pa.string())) for name in BOARD),
        *(pa.field(name, pa.int64(), nullable=False) for name in RESULTS),
    ]
)


@dataclass(frozen=True)
class Conditions:
    """Conditions under which a measurement of a task may replace another.

    runner: name of the runner.  repeats: readings of a task at a level.  machine_digest: digest of the machine with its levels.
    """

    machine: str
    machine_digest: str
    levels: tuple[str, ...]
    simulator: str
    runner: str
    repeats: int = 1

    @property
    def folder(self) -> str:
        """Name of the folder of their packs."""
        return f"{plain_name(self.machine)}-{digest([VERSION, asdict(self), RESULTS])[:12]}"


class Measured(NamedTuple):
    """scopes: uint64 [n].  tasks: uint64 [n, 2].  values: int64 [n, levels, len(RESULTS)].  boards: texts or None [n, len(BOARD)]."""

    scopes: NDArray[np.uint64]
    tasks: NDArray[np.uint64]
    values: NDArray[np.int64]
    boards: NDArray[np.object_]

    def select(self, selected: NDArray[Any]) -> Measured:
        """Some of them, by a mask or by places."""
        return Measured(*(column[selected] for column in self))

    @classmethod
    def joined(cls, parts: Sequence[Measured]) -> Measured:
        """Join at least one pack."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


class Pack(NamedTuple):
    """Pack.  whose: facts about the run that measured, for messages."""

    conditions: Conditions
    whose: Mapping[str, str]
    measured: Measured


class PackError(Exception):
    """Fault of a file."""


def pack_name(data: bytes) -> str:
    """32 hex digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def words(digests: Sequence[str]) -> NDArray[np.uint64]:
    """uint64 [n, 2]: digests of tasks."""
    return np.frombuffer(bytes.fromhex("".join(digests)), ">u8").astype(np.uint64).reshape(-1, 2)


def keys(measured: Measured) -> list[bytes]:
    """Keys within a scope: a task, and the board that measured it."""
    tasks = measured.tasks.astype(">u8").tobytes()
    boards = ["" if board[0] is None else "\0".join(map(str, board)) for board in zip(*measured.boards.T, strict=True)]
    return [tasks[16 * index : 16 * index + 16] + board.encode() for index, board in enumerate(boards)]


def encoded_pack(conditions: Conditions, owner: Mapping[str, str], measured: Measured) -> bytes:
    """The same content is the same bytes, with one version of Arrow."""
    levels, count = len(conditions.levels), len(measured.tasks)

    def fixed_binary(values: NDArray[Any], width: int) -> pa.Array:
        data = np.repeat(values.astype(">u8").reshape(count, width // 8), levels, axis=0).tobytes()
        return pa.Array.from_buffers(pa.binary(width), count * levels, [None, pa.py_buffer(data)])

    def names_array(values: NDArray[np.object_]) -> pa.Array:
        return pa.array(np.repeat(values, levels), pa.string()).dictionary_encode()

    columns = {
        "scope": fixed_binary(measured.scopes, 8),
        "task": fixed_binary(measured.tasks, 16),
        "level": pa.array(list(conditions.levels) * count, pa.string()).dictionary_encode(),
        **{name: names_array(measured.boards[:, column]) for column, name in enumerate(BOARD)},
        **{name: pa.array(measured.values[:, :, column].ravel()) for column, name in enumerate(RESULTS)},
    }
    header = {"version": VERSION, "conditions": asdict(conditions), "whose": dict(owner)}
    table = pa.table(columns, schema=_SCHEMA.with_metadata({_KEY: canonical_json(header).encode()}))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["level", *BOARD, *RESULTS], write_statistics=False)
    return bytes(sink.getvalue())


def decoded_pack(data: memoryview | bytes, name: str) -> Pack:
    """Decode a pack; impossible rows are left out.  name: file name without suffix.  Raises `PackError`."""
    if len(data) > MOST_BYTES:
        raise PackError(f"{len(data):,} bytes, expected {MOST_BYTES:,} at most")
    if hashlib.sha256(data).hexdigest()[:32] != name:
        raise PackError("half written, or changed since (its digest differs)" if len(data) else "empty")
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)))
        header = json.loads((file.schema_arrow.metadata or {})[_KEY])
        raw = header["conditions"]
        conditions = Conditions(**{**raw, "levels": tuple(raw["levels"])})
        if header["version"] != VERSION or not file.schema_arrow.equals(_SCHEMA):
            raise PackError(f"version {header['version']!r}, or other columns; this program reads {VERSION}")
        if file.metadata.num_rows > MOST_ROWS:
            raise PackError(f"{file.metadata.num_rows:,} rows, expected {MOST_ROWS:,} at most")
        table = file.read()
        table.validate(full=True)
        owner = {str(key): str(value) for key, value in header["whose"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OSError, pa.ArrowException) as error:
        raise PackError(f"not a pack: {' '.join(str(error).split())[:200]}") from None
    return Pack(conditions, owner, _measured(table, conditions))


def _measured(table: pa.Table, conditions: Conditions) -> Measured:
    levels = len(conditions.levels)
    count = len(table) // levels if levels else 0
    if count * levels != len(table) or table["level"].to_pylist() != list(conditions.levels) * count:
        raise PackError("not the levels of its tasks in their order")
    rows = TaskRows(table, levels)

    def fixed(name: str) -> NDArray[np.uint64]:
        column = rows.column(name).combine_chunks()
        width = column.type.byte_width // 8
        data = np.frombuffer(column.buffers()[1], ">u8", len(column) * width, column.offset * width * 8)
        return data.astype(np.uint64).reshape(-1, width)

    values = rows.values()
    measured = Measured(fixed("scope")[:, 0], fixed("task"), values, rows.boards())
    fits = np.any(values, axis=2)  # not at a level with too small a grant
    return measured.select(np.all(np.all(values >= _LEAST, axis=2) | ~fits, axis=1) & np.any(fits, axis=1))
