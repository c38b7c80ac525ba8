"""What the farm measures and what it writes down about it: tasks, measurements, and the two Parquet schemas.

`tasks/` has one row per distinct task, `log/` one row per measured task, contention level and attempt.  Both schemas
are data: a `Column` gives name, Arrow type, unit and meaning, and unit and meaning travel in the files as field metadata.

| type                      | used for                                       |
|---------------------------|------------------------------------------------|
| int64, int16, int8        | counts, cycles, bytes; small counts             |
| string                    | digests (32 hex digits), JSON, error texts      |
| dictionary<int32, string> | names: few distinct values, repeated in every row |
| timestamp[us, UTC]        | wall-clock time                                 |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from tuner.log.digests import canonical_json

SCHEMA_VERSION = 6
READABLE = 5  # from this version on: what is newer are columns that may be null
"""2: a part says which it is, with a digest (tuner/log/part.py), columns as in 1; 3: latency and grants of levels; 4: shared memory;
5: readings, boards and how they drift; 6: proposers and parents."""
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
    Column("cycles", _INT, "run time", "cycles", True),
    Column("roofline_cycles", _INT, "lower bound from MACs and unpadded bytes", "cycles", True),
    Column("ddr_read_bytes", _INT, "read from DDR", "bytes", True),
    Column("ddr_write_bytes", _INT, "written to DDR", "bytes", True),
    Column("shared_read_bytes", _INT, "read from the memory that all cores share", "bytes", True),
    Column("shared_write_bytes", _INT, "written to the memory that all cores share", "bytes", True),
    *(Column(f"busy_{name}_cycles", _INT, f"cycles in which the engine works ({what}), summed over cores", "cycles", True)
      for name, what in _ENGINES.items()),
    Column("load_store_cycles", _INT, "cycles in which a DDR transfer is under way, summed over cores", "cycles", True),
    *(Column(f"peak_{name}_bytes", _INT, f"most of {name.upper()} in use at once on one core", "bytes", True)
      for name in ("l1", "l0a", "l0b", "l0c", "ub")),
    Column("peak_shared_bytes", _INT, "of the memory that all cores share, up to the last byte in use", "bytes", True),
)  # fmt: skip
RESULTS = tuple(column.name for column in _RESULTS)
"""What is measured: null exactly where the status is not ok."""

ORIGIN = ("run", "tag", "model", "machine", "simulator", "runner", "seed")
"""Columns of `log/` that are the same in every row of a run."""

LOG_COLUMNS: tuple[Column, ...] = (
    Column("row_id", _TEXT, "hash of run, seq, level, attempt"),
    Column("schema_version", _SHORT, "version of these columns"),
    Column("run", _NAME, "id of the run"),
    Column("tag", _NAME, "the user's k=v tags, joined by commas"),
    Column("workload", _NAME, "what is tuned; models are held out by it"),
    Column("model", _NAME, "name of the ONNX model"),
    Column("machine", _NAME, "name of the machine"),
    Column("simulator", _NAME, "version of the simulator"),
    Column("kind", _NAME, "operator, segment, stage or program"),
    Column("task", _TEXT, "digest of the task, a row of tasks/"),
    Column("seq", _INT, "number of the measured task in its run, from 0"),
    Column("attempt", _SHORT, "number of the attempt, from 0"),
    Column("island", _SHORT, "island of the population; -1: none"),
    Column("generation", _INT, "epoch of the search; -1: none"),
    Column("proposed_by", _NAME, "what proposed the task: baseline, prediction, start, warm start, store, shortest path, placement, "
           "random, moves joined by commas, or the strategy; null: an older log", nullable=True),
    Column("level", _NAME, "contention level"),
    Column("level_index", _BYTE, "its place in the run's list of levels"),
    Column("ddr_share", pa.float64(), "share of the deliverable DDR bandwidth left to the NPU", "1"),
    Column("level_latency_cycles", _INT, "latency that the level adds to that of the DDR", "cycles"),
    Column("level_l1_bytes", _INT, "L1 of a core that the level grants; null: all of it", "bytes", True),
    Column("level_shared_bytes", _INT, "shared memory that the level grants; null: all of it", "bytes", True),
    Column("level_cores", _SHORT, "cores that the level grants; null: all of them", nullable=True),
    Column("status", _NAME, "ok, infeasible, crash, timeout or invalid"),
    Column("error", _TEXT, "why the status is not ok", nullable=True),
    *_RESULTS,
    Column("clock_hz", _INT, "clock of the machine", "Hz"),
    Column("predicted_cycles", pa.float64(), "run time that was expected, by a cost model or a formula", "cycles", True),
    Column("model_version", _NAME, "cost model that made the prediction", nullable=True),
    Column("runner", _NAME, "what measured: the simulator, a board or another target"),
    Column("readings", _INT, "that the budget counts: repeats at this level; 0 where it does not fit"),
    Column("board", _NAME, "which board measured, as the runner says; null: it does not say", nullable=True),
    Column("firmware", _NAME, "of that board", nullable=True),
    Column("canary_cycles", _INT, "run time of the canary, the untuned program, when the board ran it last", "cycles", True),
    Column("drift", pa.float64(), "canary_cycles over those of this board's first row in the run, minus 1", "1", True),
    Column("drifted", pa.bool_(), "whether that is more than 3% to either side"),
    Column("seed", _INT, "seed of the run"),
    Column("worker", _NAME, "worker that measured"),
    Column("wall_s", pa.float64(), "wall time of the measurement", "s"),
    Column("time", pa.timestamp("us", tz="UTC"), "when it was measured, by the worker's clock"),
)  # fmt: skip

TASK_COLUMNS: tuple[Column, ...] = (
    Column("task", _TEXT, "digest of kind and payload"),
    Column("schema_version", _SHORT, "version of these columns"),
    Column("kind", _NAME, "operator, segment, stage or program"),
    Column("payload", _TEXT, "canonical JSON of what is computed and how (a program's plan included)"),
    Column("parents", _TEXT, "digests of the programs that moves made it of, separated by spaces"),
    Column("feature_set", _NAME, "name of the feature set; columns outside it are null"),
)


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
