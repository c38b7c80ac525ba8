"""Training rows from the logs of runs: rows of `log/` joined with their tasks, by column.

The order is that of the tasks' digests, then of the levels.  It is independent of parts, publication times, task numbers and the order of
the runs: the same rows are the same arrays, byte by byte.  For a task measured by several runs the run with the least id counts, so no task
is both trained on and predicted when a network is held out.

Columns are read part by part, and at most `MAX_ROWS` rows are kept, those with the least digests: a sample independent of runs.

Rows are ordered by the digest of the task, then by level, so that parts, numbers and killed sessions do not change a byte of the model.
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
from compiler.cost.features import FEATURE_SET, FEATURES
from compiler.cost.level_conditions import condition_of
from simulator.npu.errors import BadInputError
from tuner.cost_model.interface import TrainingRows
from tuner.cost_model.log_columns import INPUTS, LOG, TASKS, WIDTH
from tuner.cost_model.metrics import usable_rows
from tuner.log.columns import from_bytes, required_schema, to_bytes
from tuner.log.drift import board_names
from tuner.log.read import each_part
from tuner.platform.files import AnyPath
from tuner.runs.list_runs import open_run
from tuner.runs.model_source import read_source

MAX_ROWS = 300_000  # rows of a hundred float32 columns: some hundred MB
KINDS = ("operator", "segment")  # predicted by models; a program's features are sums


class LoggedRows(NamedTuple):
    """Rows of runs.  rows: for training.  networks, kinds: per row.  runs: ids, sorted.  machines: names.  tasks: number of tasks.

    skipped: number of rows beyond the limit.
    """

    rows: TrainingRows
    networks: NDArray[np.str_]
    kinds: NDArray[np.str_]
    runs: tuple[str, ...]
    machines: tuple[str, ...]
    tasks: int
    skipped: int


class _Source(NamedTuple):
    """Log of one run.  run: its id.  name: name of the machine if there are several, else ''.  conditions: float32 [levels, C].

    seqs: ascending numbers of the counted tasks; None: all.  boards: boards of the measurements.
    """

    log_folder: AnyPath
    run: str
    name: str
    conditions: NDArray[np.float32]
    seqs: NDArray[np.int64] | None = None
    boards: tuple[str, ...] = ()


def read_logged(paths: Sequence[AnyPath | Path | str], limit: int = MAX_ROWS) -> LoggedRows:
    """Read the measured segments of runs, at every level.

    Raises `BadInputError`: not a run, a damaged log, another version of simulator, features or schema, or no rows.
    """
    opened = sorted((_open_source(path) for path in paths), key=lambda source: source.run)
    _check_single_board(opened)
    machines = tuple(dict.fromkeys(source.name for source in opened))
    sources = [source if len(machines) > 1 else source._replace(name="") for source in opened]
    return _read(sources, limit)._replace(machines=machines)


def rows_of_search(where: AnyPath, run: str, seqs: NDArray[np.int64], conditions: NDArray[np.float32]) -> TrainingRows:
    """Rows of one search of a running run: tasks with these numbers, ascending.  run: its id in the log.

    conditions: float32 [levels, C].  Raises `BadInputError` as `read_logged`.
    """
    return _read([_Source(where, run, "", conditions, seqs)], MAX_ROWS).rows


def _read(sources: Sequence[_Source], limit: int) -> LoggedRows:
    table = pa.concat_tables([_rows(number, source) for number, source in enumerate(sources)])
    table = table.sort_by([("task", "ascending"), ("level_index", "ascending"), ("run", "ascending")])
    tasks = np.asarray(table["task"].to_numpy(zero_copy_only=False), "S32")
    index = table["level_index"].to_numpy()
    # a task of several runs counts for the run that sorts first
    first = np.ones(len(tasks), np.bool_)
    first[1:] = (tasks[1:] != tasks[:-1]) | (index[1:] != index[:-1])
    kept_rows = np.flatnonzero(first)
    if not len(kept_rows):
        raise BadInputError(f"{', '.join(str(source.log_folder) for source in sources)}: no measured segments to learn from")
    names, task_indices = np.unique(tasks[kept_rows], return_inverse=True)  # ascending, as the rows are
    task_count = int(task_indices[limit]) if limit < len(kept_rows) else len(names)  # whole tasks
    skipped = int((task_indices >= task_count).sum())
    kept_rows, task_indices, names = kept_rows[task_indices < task_count], task_indices[task_indices < task_count], names[:task_count]
    table = table.take(pa.array(kept_rows))
    conditions = np.concatenate([source.conditions for source in sources])
    starts = np.cumsum([0, *(len(source.conditions) for source in sources)])[table["run"].to_numpy()]
    features = np.empty((len(task_indices), WIDTH), np.float32)
    features[:, : len(FEATURES)] = _features(sources, names)[task_indices]
    features[:, len(FEATURES) :] = conditions[starts + table["level_index"].to_numpy()]
    texts = {name: np.array(table[name].to_pylist(), np.str_) for name in ("workload", "level", "model", "kind")}
    rows = usable_rows(TrainingRows(features, table["cycles"].to_numpy().astype(np.float64), texts["workload"], texts["level"]))
    finite = np.isfinite(features).all(1)  # cycles are above 0
    runs = tuple(source.run for source in sources)
    return LoggedRows(rows, texts["model"][finite], texts["kind"][finite], runs, (), len(names), skipped)


def _check_single_board(sources: Sequence[_Source]) -> None:
    """Raise `BadInputError` for two boards: a model of both would be judged by their difference in speed."""
    boards = {board: source.log_folder for source in reversed(sources) for board in source.boards}
    if len(boards) > 1:
        (first, place), (second, other_place), *_ = sorted(boards.items())
        raise BadInputError(
            f"{other_place}: measured by board {second}, {place} by {first}; a model learns from one board: train them apart"
        )


def _open_source(path: AnyPath | Path | str) -> _Source:
    entry = open_run(path)
    source = read_source(entry.path).source
    conditions = [condition_of(source.machine, source.dtype, level) for level in entry.levels]
    boards = {board for part in each_part(entry.path, "log", ("board", "firmware")) for board in board_names(part)}
    return _Source(entry.path, str(entry.identity["run"]), source.machine.name, np.stack(conditions), boards=tuple(sorted(boards)))


def _rows(number: int, source: _Source) -> pa.Table:
    """Usable rows of one run."""
    return pa.concat_tables([_usable_part(part, number, source) for part in each_part(source.log_folder, "log", LOG)])


def _usable_part(part: pa.Table, number: int, source: _Source) -> pa.Table:
    text = {name: part[name].cast(pa.string()) for name in ("kind", "status", "simulator", "level", "model", "workload")}
    for version in pc.unique(text["simulator"]).to_pylist():
        if version != simulator.VERSION and source.seqs is None:  # a running run has one version, by its identity
            raise BadInputError(
                f"{source.log_folder}: measured by simulator {version}; expected runs of {simulator.VERSION}, as this program has"
            )
    mask = pc.and_(pc.is_in(text["kind"], pa.array(KINDS)), pc.equal(text["status"], "ok"))
    mask = pc.and_(mask, pc.greater(pc.fill_null(part["cycles"], 0), 0))
    if source.seqs is not None:
        in_search = pc.and_(pc.equal(part["run"].cast(pa.string()), source.run), pc.is_in(part["seq"], pa.array(source.seqs)))
        mask = pc.and_(mask, in_search)
    columns = {"task": part["task"], "run": pa.repeat(number, part.num_rows), "level_index": part["level_index"], "cycles": part["cycles"]}
    columns |= {name: text[name] for name in ("kind", "model", "workload")}
    columns["level"] = pc.binary_join_element_wise(source.name, text["level"], "/") if source.name else text["level"]
    return pa.table(columns).filter(mask)


def _features(sources: Sequence[_Source], names: NDArray[np.bytes_]) -> NDArray[np.float32]:
    """Features, float32 [tasks, F]; NaN without a task.  names: ascending."""
    features = np.full((len(names), len(FEATURES)), np.nan, np.float32)
    for source in reversed(sources):  # the first run overwrites the others
        for part in each_part(source.log_folder, "tasks", (*TASKS, *INPUTS)):
            part = part.filter(pc.is_in(part["kind"].cast(pa.string()), pa.array(KINDS)))
            for name in pc.unique(part["feature_set"].cast(pa.string())).to_pylist():
                if name != FEATURE_SET:
                    raise BadInputError(f"{source.log_folder}: has features {name}; expected runs with {FEATURE_SET}, as this program has")
            tasks = np.asarray(part["task"].to_numpy(zero_copy_only=False), "S32")
            place = np.searchsorted(names, tasks)
            present = np.flatnonzero((place < len(names)) & (names[np.minimum(place, len(names) - 1)] == tasks))
            for column, name in enumerate(INPUTS):
                features[place[present], column] = part[name].to_numpy(zero_copy_only=False)[present]
    return features


_PACKED = required_schema(features=pa.float32(), cycles=pa.float64(), groups=pa.string(), levels=pa.string())


def pack_rows(rows: TrainingRows) -> bytes:
    """Pack rows for a training process."""
    return to_bytes({"features": rows.features, "cycles": rows.cycles, "groups": rows.groups, "levels": rows.levels}, _PACKED)


def unpack_rows(data: bytes) -> TrainingRows:
    """Unpack the rows of `pack_rows`, without `left_out`."""
    columns = from_bytes(data, _PACKED)
    cycles = columns["cycles"]
    groups, levels = (np.array(columns.texts(name), np.str_) for name in ("groups", "levels"))
    return TrainingRows(columns["features"].reshape(len(cycles), WIDTH), cycles, groups, levels)
