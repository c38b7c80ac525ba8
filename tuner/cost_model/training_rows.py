"""What runs have logged, as a model learns from it: rows of `log/` joined with their tasks, by column.

The order is that of the tasks' digests, then of the levels.  It knows nothing of parts, of when a row was published, of the numbers that
tasks have, or of the order in which runs are named: the same rows are the same arrays, byte by byte.  Of a task that several runs measured,
the run whose id is least counts, so no task is both learnt from and asked about where a network is held out.

Columns are read part by part, and at most `MAX_ROWS` rows are kept, those whose digests are least: a sample that no run decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import simulator
from compiler.cost.context import condition_of
from compiler.cost.features import FEATURE_SET, FEATURES
from simulator.npu.errors import BadInputError
from tuner.cost_model.interface import TrainingRows
from tuner.cost_model.log_columns import INPUTS, LOG, TASKS, WIDTH
from tuner.cost_model.metrics import usable
from tuner.log.columns import from_bytes, schema_of, to_bytes
from tuner.log.drift import boards_of
from tuner.log.read import each_part
from tuner.platform.files import AnyPath
from tuner.runs.list_runs import open_run
from tuner.runs.model_source import read_source

MAX_ROWS = 300_000  # of a hundred float32 columns: some hundred MB
KINDS = ("operator", "segment")  # what models are asked about; a program's features are sums


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


class _Source(NamedTuple):
    """One run's log.  run: its id.  name: of the machine, where there are several; ''.  conditions: float32 [levels, C].

    seqs: ascending numbers of the tasks that count; None: all.  boards: that measured.
    """

    where: AnyPath
    run: str
    name: str
    conditions: NDArray[np.float32]
    seqs: NDArray[np.int64] | None = None
    boards: tuple[str, ...] = ()


def read_logged(paths: Sequence[AnyPath | Path | str], limit: int = MAX_ROWS) -> LoggedRows:
    """Segments of these runs that ran, at every level.

    Raises `BadInputError`: a folder that is no run, a damaged log, another version of simulator, features or schema, or no rows.
    """
    found = sorted((_opened(path) for path in paths), key=lambda each: each.run)
    _of_one_board(found)
    machines = tuple(dict.fromkeys(each.name for each in found))
    sources = [each if len(machines) > 1 else each._replace(name="") for each in found]
    return _read(sources, limit)._replace(machines=machines)


def rows_of_search(where: AnyPath, run: str, seqs: NDArray[np.int64], conditions: NDArray[np.float32]) -> TrainingRows:
    """Of one search of a run that goes on, those of the tasks with these numbers, ascending.  run: its id in the log.

    conditions: float32 [levels, C].  Raises `BadInputError` as `read_logged`.
    """
    return _read([_Source(where, run, "", conditions, seqs)], MAX_ROWS).rows


def _read(sources: Sequence[_Source], limit: int) -> LoggedRows:
    table = pa.concat_tables([_rows(at, source) for at, source in enumerate(sources)])
    table = table.sort_by([("task", "ascending"), ("level_index", "ascending"), ("run", "ascending")])
    tasks = np.asarray(table["task"].to_numpy(zero_copy_only=False), "S32")
    index = table["level_index"].to_numpy()
    first = np.ones(len(tasks), np.bool_)
    first[1:] = (tasks[1:] != tasks[:-1]) | (index[1:] != index[:-1])
    at = np.flatnonzero(first)
    if not len(at):
        raise BadInputError(f"{', '.join(str(source.where) for source in sources)}: no measured segments to learn from")
    names, of = np.unique(tasks[at], return_inverse=True)  # ascending, as the rows are
    kept = int(of[limit]) if limit < len(at) else len(names)  # whole tasks
    beyond = int((of >= kept).sum())
    at, of, names = at[of < kept], of[of < kept], names[:kept]
    table = table.take(pa.array(at))
    conditions = np.concatenate([source.conditions for source in sources])
    starts = np.cumsum([0, *(len(source.conditions) for source in sources)])[table["run"].to_numpy()]
    x = np.empty((len(of), WIDTH), np.float32)
    x[:, : len(FEATURES)] = _features(sources, names)[of]
    x[:, len(FEATURES) :] = conditions[starts + table["level_index"].to_numpy()]
    texts = {name: np.array(table[name].to_pylist(), np.str_) for name in ("workload", "level", "model", "kind")}
    rows = usable(TrainingRows(x, table["cycles"].to_numpy().astype(np.float64), texts["workload"], texts["level"]))
    good = np.isfinite(x).all(1)  # cycles are above 0
    runs = tuple(source.run for source in sources)
    return LoggedRows(rows, texts["model"][good], texts["kind"][good], runs, (), len(names), beyond)


def _of_one_board(sources: Sequence[_Source]) -> None:
    """Raise `BadInputError` where two boards measured: a model of both would be judged by which of them was the faster one."""
    boards = {board: source.where for source in reversed(sources) for board in source.boards}
    if len(boards) > 1:
        (first, where), (other, there), *_ = sorted(boards.items())
        raise BadInputError(f"{there}: measured by board {other}, {where} by {first}; a model learns from one board: train them apart")


def _opened(path: AnyPath | Path | str) -> _Source:
    entry = open_run(path)
    source = read_source(entry.path).source
    conditions = [condition_of(source.machine, source.dtype, level) for level in entry.levels]
    boards = {board for part in each_part(entry.path, "log", ("board", "firmware")) for board in boards_of(part)}
    return _Source(entry.path, str(entry.identity["run"]), source.machine.name, np.stack(conditions), boards=tuple(sorted(boards)))


def _rows(at: int, source: _Source) -> pa.Table:
    """Of one run, what can be learnt from."""
    return pa.concat_tables([_chosen(part, at, source) for part in each_part(source.where, "log", LOG)])


def _chosen(part: pa.Table, at: int, source: _Source) -> pa.Table:
    text = {name: part[name].cast(pa.string()) for name in ("kind", "status", "simulator", "level", "model", "workload")}
    for version in pc.unique(text["simulator"]).to_pylist():
        if version != simulator.VERSION and source.seqs is None:  # a run that goes on is of one, by its identity
            raise BadInputError(
                f"{source.where}: measured by simulator {version}; expected runs of {simulator.VERSION}, as this program has"
            )
    kept = pc.and_(pc.is_in(text["kind"], pa.array(KINDS)), pc.equal(text["status"], "ok"))
    kept = pc.and_(kept, pc.greater(pc.fill_null(part["cycles"], 0), 0))
    if source.seqs is not None:
        mine = pc.and_(pc.equal(part["run"].cast(pa.string()), source.run), pc.is_in(part["seq"], pa.array(source.seqs)))
        kept = pc.and_(kept, mine)
    columns = {"task": part["task"], "run": pa.repeat(at, part.num_rows), "level_index": part["level_index"], "cycles": part["cycles"]}
    columns |= {name: text[name] for name in ("kind", "model", "workload")}
    columns["level"] = pc.binary_join_element_wise(source.name, text["level"], "/") if source.name else text["level"]
    return pa.table(columns).filter(kept)


def _features(sources: Sequence[_Source], names: NDArray[np.bytes_]) -> NDArray[np.float32]:
    """float32 [tasks, F]; NaN where no task tells.  names: ascending."""
    found = np.full((len(names), len(FEATURES)), np.nan, np.float32)
    for source in reversed(sources):  # the first run's, last
        for part in each_part(source.where, "tasks", (*TASKS, *INPUTS)):
            part = part.filter(pc.is_in(part["kind"].cast(pa.string()), pa.array(KINDS)))
            for name in pc.unique(part["feature_set"].cast(pa.string())).to_pylist():
                if name != FEATURE_SET:
                    raise BadInputError(f"{source.where}: has features {name}; expected runs with {FEATURE_SET}, as this program has")
            tasks = np.asarray(part["task"].to_numpy(zero_copy_only=False), "S32")
            place = np.searchsorted(names, tasks)
            there = np.flatnonzero((place < len(names)) & (names[np.minimum(place, len(names) - 1)] == tasks))
            for at, name in enumerate(INPUTS):
                found[place[there], at] = part[name].to_numpy(zero_copy_only=False)[there]
    return found


_PACKED = schema_of(features=pa.float32(), cycles=pa.float64(), groups=pa.string(), levels=pa.string())


def packed_rows(rows: TrainingRows) -> bytes:
    """On their way to whoever trains."""
    return to_bytes({"features": rows.features, "cycles": rows.cycles, "groups": rows.groups, "levels": rows.levels}, _PACKED)


def unpacked_rows(data: bytes) -> TrainingRows:
    """What `packed_rows` was given; `left_out` is not among it."""
    columns = from_bytes(data, _PACKED)
    cycles = columns["cycles"]
    groups, levels = (np.array(columns.texts(name), np.str_) for name in ("groups", "levels"))
    return TrainingRows(columns["features"].reshape(len(cycles), WIDTH), cycles, groups, levels)
