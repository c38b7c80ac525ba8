"""The record of a measurement: every column is described here once, and log, wire, store and replays are projections of it.

`tasks/` has one row per distinct task, `log/` one row per measured task, contention level and attempt.  A `Column` gives name, Arrow type,
unit and meaning, which travel in the files as field metadata, and the source of its values:

| source                                    | values                                                                               |
|-------------------------------------------|--------------------------------------------------------------------------------------|
| `job`                                     | attribute of the recorder of a job (`tuner.farm.recorder`): one for all of its rows  |
| `task`, `request`, `measurement`, `board` | attributes of a measured task: one for all levels                                    |
| `level`, `contention`                     | attributes of a contention level                                                     |
| `reading`                                 | attribute of a task at a level                                                       |
| `origin`                                  | attribute of the run, added by the driver (`tuner.log.writer.Origin`)                |
| `values`                                  | results, in the flat message of an epoch (`EPOCH`), as models and searches read them |
| nothing                                   | computed by the driver: numbers of rows, drift                                       |

The attribute has the name of the column, or the name behind the dot.  `also` names one more projection: `known`, results that replace a
measurement in a resumed search (`KNOWN`), or `board`, the identity of a board in the shared store (`BOARD`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.log.columns import INTS, required_schema
from tuner.log.digests import canonical_json

SCHEMA_VERSION = 6
READABLE = 5  # oldest readable version: later ones added only nullable columns
"""Versions.  2: parts have a mark with a digest (tuner/log/part.py), columns as in 1; 3: latency and grants of levels; 4: shared memory;
5: readings, boards and their drift; 6: proposers and parents."""
FEATURE_PREFIX = "f_"

TaskKind = Literal["operator", "segment", "stage", "program"]
Status = Literal["ok", "infeasible", "crash", "timeout", "invalid"]
STATUSES: tuple[Status, ...] = get_args(Status)


class FeatureSet(NamedTuple):
    """A named, ordered list of features; a change of meaning is a new name."""

    name: str
    features: tuple[str, ...]


class Column(NamedTuple):
    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = False
    source: str = ""
    also: str = ""

    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable, {"unit": self.unit, "meaning": self.meaning})


_NAME = pa.dictionary(pa.int32(), pa.string())
_TEXT = pa.string()
_INT, _SHORT, _BYTE = pa.int64(), pa.int16(), pa.int8()

_ENGINES = {
    "mte1": "L1 to L0A, L0B, UB",
    "mte2": "DDR to L1, UB",
    "mte3": "UB, L1 to DDR and UB to L1",
    "cube": "the matrix unit",
    "vector": "the vector unit",
    "fixpipe": "L0C to UB, L1",
    "scalar": "issue and flags",
}

_RESULTS: tuple[Column, ...] = (
    Column("cycles", _INT, "run time", "cycles", True, "values"),
    Column("roofline_cycles", _INT, "lower bound from MACs and unpadded bytes", "cycles", True, "values"),
    Column("ddr_read_bytes", _INT, "read from DDR", "bytes", True, "values"),
    Column("ddr_write_bytes", _INT, "written to DDR", "bytes", True, "values"),
    Column("shared_read_bytes", _INT, "read from the memory that all cores share", "bytes", True, "values"),
    Column("shared_write_bytes", _INT, "written to the memory that all cores share", "bytes", True, "values"),
    *(Column(f"busy_{name}_cycles", _INT, f"cycles in which the engine works ({works}), summed over cores", "cycles", True, "values")
      for name, works in _ENGINES.items()),
    Column("load_store_cycles", _INT, "cycles in which a DDR transfer is under way, summed over cores", "cycles", True, "values"),
    *(Column(f"peak_{name}_bytes", _INT, f"most of {name.upper()} in use at once on one core", "bytes", True, "values")
      for name in ("l1", "l0a", "l0b", "l0c", "ub")),
    Column("peak_shared_bytes", _INT, "of the memory that all cores share, up to the last byte in use", "bytes", True, "values"),
)  # fmt: skip
RESULTS = tuple(column.name for column in _RESULTS)
"""Columns of results: null exactly if the status is not ok."""

LOG_COLUMNS: tuple[Column, ...] = (
    Column("row_id", _TEXT, "hash of run, seq, level, attempt"),
    Column("schema_version", _SHORT, "version of these columns", source="job"),
    Column("run", _NAME, "id of the run", source="origin"),
    Column("tag", _NAME, "the user's k=v tags, joined by commas", source="origin"),
    Column("workload", _NAME, "what is tuned; models are held out by it", source="task"),
    Column("model", _NAME, "name of the ONNX model", source="origin"),
    Column("machine", _NAME, "name of the machine", source="origin"),
    Column("simulator", _NAME, "version of the simulator", source="origin"),
    Column("kind", _NAME, "operator, segment, stage or program", source="request.task_kind"),
    Column("task", _TEXT, "digest of the task, a row of tasks/", source="measurement", also="known"),
    Column("seq", _INT, "number of the measured task in its run, from 0"),
    Column("attempt", _SHORT, "number of the attempt, from 0", source="measurement", also="known"),
    Column("island", _SHORT, "shard of the epoch, in older logs an island; -1: none", source="job.shard"),
    Column("generation", _INT, "epoch of the search; -1: none", source="job"),
    Column("proposed_by", _NAME, "what proposed the task: baseline, prediction, start, warm start, store, shortest path, placement, "
           "random, moves joined by commas, or the strategy; null: an older log", nullable=True, source="task"),
    Column("level", _NAME, "contention level", source="level"),
    Column("level_index", _BYTE, "its place in the run's list of levels", source="level"),
    Column("ddr_share", pa.float64(), "share of the deliverable DDR bandwidth left to the NPU", "1", source="contention.share"),
    Column("level_latency_cycles", _INT, "latency that the level adds to that of the DDR", "cycles", source="contention.latency_cycles"),
    Column("level_l1_bytes", _INT, "L1 of a core that the level grants; null: all of it", "bytes", True, "contention.l1_bytes"),
    Column("level_shared_bytes", _INT, "shared memory that the level grants; null: all of it", "bytes", True, "contention.shared_bytes"),
    Column("level_cores", _SHORT, "cores that the level grants; null: all of them", nullable=True, source="contention.cores"),
    Column("status", _NAME, "ok, infeasible, crash, timeout or invalid", source="reading", also="known"),
    Column("error", _TEXT, "why the status is not ok", nullable=True, source="reading", also="known"),
    *_RESULTS,
    Column("clock_hz", _INT, "clock of the machine", "Hz", source="job"),
    Column("predicted_cycles", pa.float64(), "run time that was expected, by a cost model or a formula", "cycles", True, "reading"),
    Column("model_version", _NAME, "cost model that made the prediction", nullable=True, source="reading"),
    Column("runner", _NAME, "what measured: the simulator, a board or another target", source="origin"),
    Column("readings", _INT, "that the budget counts: repeats at this level; 0 where it does not fit", source="reading"),
    Column("board", _NAME, "which board measured, as the runner says; null: it does not say", nullable=True, source="board", also="board"),
    Column("firmware", _NAME, "of that board", nullable=True, source="board", also="board"),
    Column("canary_cycles", _INT, "run time of the canary, the untuned program, when the board ran it last", "cycles", True, "board"),
    Column("drift", pa.float64(), "canary_cycles over those of this board's first row in the run, minus 1", "1", True),
    Column("drifted", pa.bool_(), "whether that is more than 3% to either side"),
    Column("seed", _INT, "seed of the run", source="origin"),
    Column("worker", _NAME, "worker that measured", source="measurement"),
    Column("wall_s", pa.float64(), "wall time of the measurement", "s", source="task"),
    Column("time", pa.timestamp("us", tz="UTC"), "when it was measured, by the worker's clock", source="task"),
)  # fmt: skip

ORIGIN = tuple(column.name for column in LOG_COLUMNS if column.source == "origin")
"""Columns of `log/` that are the same in every row of a run."""

TASK_COLUMNS: tuple[Column, ...] = (
    Column("task", _TEXT, "digest of kind and payload", source="measurement"),
    Column("schema_version", _SHORT, "version of these columns", source="job"),
    Column("kind", _NAME, "operator, segment, stage or program", source="request.task_kind"),
    Column("payload", _TEXT, "canonical JSON of what is computed and how (a program's plan included)", source="task"),
    Column("parents", _TEXT, "digests of the programs that moves made it of, separated by spaces", source="task"),
    Column("feature_set", _NAME, "name of the feature set; columns outside it are null", source="job"),
)


_CODED = ("kind", "status")


def flat(*names: str) -> dict[str, pa.DataType]:
    """Columns of the log in a message of `tuner.log.columns`: names as texts, `kind` and `status` as indices of their values."""
    types = {column.name: column.type for column in LOG_COLUMNS}
    value_types = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in types.items()}
    return {name: _BYTE if name in _CODED else value_types[name] for name in names}


KNOWN = required_schema(**flat(*(column.name for column in LOG_COLUMNS if column.also == "known")), values=_INT)
"""Results that replace a measurement: per task, levels x RESULTS; 0 at a level with too small a grant."""
BOARD = tuple(column.name for column in LOG_COLUMNS if column.also == "board")
"""Identity of a board: readings of two boards are two measurements."""
EPOCH = required_schema(
    **flat("task", "kind", "status"), asked=pa.bool_(), genome=INTS, values=_INT, features=pa.float32(),
    programs=_INT, singles=pa.bool_(), border=pa.float64(),
    fit_genome=INTS, fit_cycles=_INT, fit_task=_TEXT, proposed=INTS, proposed_by=_TEXT,
)  # fmt: skip
"""Measurements of a job, and other findings for later jobs.  Checkpoints contain it, so the order of columns is fixed.

| columns                 | for each of                         | meaning                                                           |
|-------------------------|-------------------------------------|-------------------------------------------------------------------|
| `task`                  | measurements, in order              | digest; empty if an earlier one is the same plan of other genes    |
| `kind`, `status`        |                                     | places in `KINDS` and `STATUSES`; status 0 is ok                   |
| `asked`                 |                                     | whether cycles were requested, not only features                  |
| `genome`                |                                     | genome of a segment (`tuner.search.packing`); else empty          |
| `values`, `features`    |                                     | levels x RESULTS, 0 if not ok; features in the scale of models    |
| `programs`, `singles`   | programs among them                 | name of the genome; whether it is single operators in sequence    |
| `border`                | levels                              | cycles saved by a border, or empty                                |
| `fit_*`                 | programs that fit some level        | genome, cycles, and digest of the task, each task once            |
| `proposed*`             | genomes from elsewhere              | genomes worth measuring, and their origin                         |
"""


class TaskRows:
    """Measured tasks from rows of `log/`, which has all levels of a task; in order of the rows, or sorted by `by`."""

    def __init__(self, rows: pa.Table, levels: int, selector_column: str | None = None) -> None:
        self.rows = rows if selector_column is None else rows.sort_by([(selector_column, "ascending"), ("level_index", "ascending")])
        self.levels = levels
        self._first_rows = pa.array(np.arange(0, len(rows), levels or 1))

    def __len__(self) -> int:
        return len(self._first_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """Values of a column, one per task; names as texts."""
        values = self.rows[name].take(self._first_rows)
        return values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values

    def boards(self) -> NDArray[np.object_]:
        """Texts or None [tasks, len(BOARD)]."""
        return np.stack([np.array(self.column(name).to_pylist(), object) for name in BOARD], 1)

    def numbers(self, name: str) -> NDArray[np.int64]:
        """int64 [tasks, levels], 0 where null."""
        return np.asarray(self.rows[name].fill_null(0).to_numpy()).reshape(len(self), self.levels)

    def values(self) -> NDArray[np.int64]:
        """int64 [tasks, levels, len(RESULTS)]."""
        return np.stack([self.numbers(name) for name in RESULTS], 2)

    def status(self) -> NDArray[np.int8]:
        """Index in `STATUSES` per task; 0 (ok) if it is ok at any level: a task may not fit some levels."""
        codes = [STATUSES.index(text) for text in self.rows["status"].cast(pa.string()).to_pylist()]
        statuses: NDArray[np.int8] = np.array(codes, np.int8).reshape(len(self), self.levels).min(1)
        return statuses


@lru_cache(maxsize=1)
def log_schema() -> pa.Schema:
    """The one schema of every part of `log/`."""
    return pa.schema([column.field() for column in LOG_COLUMNS], {"schema_version": str(SCHEMA_VERSION)})


def task_schema(feature_sets: Sequence[FeatureSet] = ()) -> pa.Schema:
    """The schema of `tasks/`: the fixed columns, then one float32 `f_<feature>` for every feature of any set."""
    columns = [column.field() for column in TASK_COLUMNS]
    owners: dict[str, list[str]] = {}
    for name, features in feature_sets:
        for feature in features:
            owners.setdefault(feature, []).append(name)
    columns += [
        Column(FEATURE_PREFIX + feature, pa.float32(), f"feature of {', '.join(names)}", nullable=True).field()
        for feature, names in owners.items()
    ]
    sets = canonical_json({name: list(features) for name, features in feature_sets})
    return pa.schema(columns, {"schema_version": str(SCHEMA_VERSION), "feature_sets": sets})
