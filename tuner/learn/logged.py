"""What runs have logged, as a model learns from it: rows of `log/` joined with their tasks, by column.

The order is that of the tasks' digests, then of the levels.  It knows nothing of parts, of when a row was published, of the numbers that
tasks have, or of the order in which runs are named: the same rows are the same arrays, byte by byte.  Of a task that several runs measured,
the run whose id is least counts, so no task is both learnt from and asked about where a network is held out.

Columns are read part by part, and at most `MAX_ROWS` rows are kept, those whose digests are least: a sample that no run decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import simulator
from compiler.cost.conditions import CONDITIONS, condition_of
from compiler.cost.features import FEATURE_SET, FEATURES
from simulator.npu.errors import BadInputError
from tuner.learn.cost_model import TrainingRows
from tuner.learn.metrics import usable
from tuner.store.read import each_part
from tuner.store.runs import RunEntry, open_run
from tuner.store.schema import FEATURE_PREFIX
from tuner.store.source import read_source
from tuner.world.place import Place

MAX_ROWS = 300_000  # of a hundred float32 columns: some hundred MB
KINDS = ("operator", "segment")  # what models are asked about; a program's features are sums
_LOG = ("task", "kind", "level_index", "level", "status", "cycles", "simulator", "model", "workload")
_FEATURES = tuple(FEATURE_PREFIX + name for name in FEATURES)


class LoggedRows(NamedTuple):
    """rows: to learn from.  networks, kinds: of each row.  runs: ids, sorted.  machines: names.  tasks: how many.

    beyond: rows that were too many.
    """

    rows: TrainingRows
    networks: NDArray[np.str_]
    kinds: NDArray[np.str_]
    runs: tuple[str, ...]
    machines: tuple[str, ...]
    tasks: int
    beyond: int


class _Run(NamedTuple):
    entry: RunEntry
    machine: str
    conditions: NDArray[np.float32]  # [levels, C]


def read_logged(paths: Sequence[Place | Path | str], limit: int = MAX_ROWS) -> LoggedRows:
    """Segments of these runs that ran, at every level.

    Raises `BadInputError`: a folder that is no run, a damaged log, another version of simulator, features or schema, or no rows.
    """
    runs = sorted((_opened(path) for path in paths), key=lambda run: str(run.entry.identity["run"]))
    machines = tuple(dict.fromkeys(run.machine for run in runs))
    table = pa.concat_tables([_rows(at, run, len(machines) > 1) for at, run in enumerate(runs)])
    table = table.sort_by([("task", "ascending"), ("level_index", "ascending"), ("run", "ascending")])
    tasks = np.asarray(table["task"].to_numpy(zero_copy_only=False), "S32")
    index = table["level_index"].to_numpy()
    first = np.ones(len(tasks), np.bool_)
    first[1:] = (tasks[1:] != tasks[:-1]) | (index[1:] != index[:-1])
    at = np.flatnonzero(first)
    if not len(at):
        raise BadInputError(f"{', '.join(str(run.entry.path) for run in runs)}: no measured segments to learn from")
    names, of = np.unique(tasks[at], return_inverse=True)  # ascending, as the rows are
    kept = min(len(names), int(of[limit - 1]) if limit < len(at) else len(names))  # whole tasks
    beyond = int((of >= kept).sum())
    at, of, names = at[of < kept], of[of < kept], names[:kept]
    table = table.take(pa.array(at))
    features = _features(runs, names)
    conditions = np.concatenate([run.conditions for run in runs])
    starts = np.cumsum([0, *(len(run.conditions) for run in runs)])[table["run"].to_numpy()]
    x = np.empty((len(of), len(FEATURES) + len(CONDITIONS)), np.float32)
    x[:, : len(FEATURES)] = features[of]
    x[:, len(FEATURES) :] = conditions[starts + table["level_index"].to_numpy()]
    texts = {name: np.array(table[name].to_pylist(), np.str_) for name in ("workload", "level", "model", "kind")}
    rows = TrainingRows(x, table["cycles"].to_numpy().astype(np.float64), texts["workload"], texts["level"])
    good = np.isfinite(x).all(1)  # as `usable` has it
    ids = tuple(str(run.entry.identity["run"]) for run in runs)
    return LoggedRows(usable(rows), texts["model"][good], texts["kind"][good], ids, machines, len(names), beyond)


def _opened(path: Place | Path | str) -> _Run:
    entry = open_run(path)
    source = read_source(entry.path).source
    conditions = [condition_of(source.machine, source.dtype, level) for level in entry.levels]
    return _Run(entry, source.machine.name, np.stack(conditions))


def _rows(at: int, run: _Run, several: bool) -> pa.Table:
    """Of one run, what can be learnt from.  several: machines there are, so a level's name says of which."""
    where = run.entry.path
    return pa.concat_tables([_chosen(part, at, run.machine if several else "", str(where)) for part in each_part(where, "log", _LOG)])


def _chosen(part: pa.Table, at: int, machine: str, where: str) -> pa.Table:
    text = {name: part[name].cast(pa.string()) for name in ("kind", "status", "simulator", "level", "model", "workload")}
    for version in pc.unique(text["simulator"]).to_pylist():
        if version != simulator.VERSION:
            raise BadInputError(f"{where}: measured by simulator {version}; expected runs of {simulator.VERSION}, as this program has")
    kept = pc.and_(pc.is_in(text["kind"], pa.array(KINDS)), pc.equal(text["status"], "ok"))
    kept = pc.and_(kept, pc.greater(pc.fill_null(part["cycles"], 0), 0))
    columns = {"task": part["task"], "run": pa.repeat(at, part.num_rows), "level_index": part["level_index"], "cycles": part["cycles"]}
    columns |= {name: text[name] for name in ("kind", "model", "workload")}
    columns["level"] = pc.binary_join_element_wise(machine, text["level"], "/") if machine else text["level"]
    return pa.table(columns).filter(kept)


def _features(runs: Iterable[_Run], names: NDArray[np.bytes_]) -> NDArray[np.float32]:
    """float32 [tasks, F]; NaN where no task tells.  names: ascending."""
    found = np.full((len(names), len(FEATURES)), np.nan, np.float32)
    for run in reversed(list(runs)):  # the first run's, last
        for part in each_part(run.entry.path, "tasks", ("task", "kind", "feature_set", *_FEATURES)):
            part = part.filter(pc.is_in(part["kind"].cast(pa.string()), pa.array(KINDS)))
            for name in pc.unique(part["feature_set"].cast(pa.string())).to_pylist():
                if name != FEATURE_SET:
                    raise BadInputError(f"{run.entry.path}: has features {name}; expected runs with {FEATURE_SET}, as this program has")
            tasks = np.asarray(part["task"].to_numpy(zero_copy_only=False), "S32")
            place = np.searchsorted(names, tasks)
            there = np.flatnonzero((place < len(names)) & (names[np.minimum(place, len(names) - 1)] == tasks))
            for at, name in enumerate(_FEATURES):
                found[place[there], at] = part[name].to_numpy(zero_copy_only=False)[there]
    return found
