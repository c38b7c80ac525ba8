"""Progress of a run, and comparison of two runs, from the rows of their logs.

Numbers come directly from Arrow's columns: importing pandas takes longer than reading the entire log.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError
from tuner.log.drift import boards_of
from tuner.log.part_counts import Count, read_counts
from tuner.log.read import Table, read_table
from tuner.runs.list_runs import RunEntry, budget_of
from tuner.runs.subgraph_runs import subgraph_copies

_PACE = 24  # number of last programs for the pace: the first ones wait for kernels and segments
_COLUMNS = ("run", "seq", "kind", "level", "status", "cycles", "time")
_SAME = (("machine_digest", "machine"), ("simulator", "simulator"), ("model_digest", "model"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run by its published rows.  programs, tasks: number of measured ones.  failures: tasks by status other than ok.

    best: level -> cycles of the best program so far.  first: level -> cycles of the first program.  last_row: time of the newest row, or
    None.
    lost: published rows that are missing now.
    readings: number, without canary and finals.  of: budget in programs, of_readings: budget in readings; None for another kind of budget.
    left_s: remaining time at the pace of the last programs; None if unknown.
    boards: boards with measurements.  drifted: number of flagged rows.
    """

    programs: int
    tasks: int
    failures: dict[str, int]
    best: dict[str, int]
    first: dict[str, int]
    last_row: datetime | None
    of: int | None
    left_s: float | None
    lost: int = 0
    readings: int = 0
    of_readings: int | None = None
    boards: tuple[str, ...] = ()
    drifted: int = 0

    @property
    def share(self) -> float:
        """Used share of the budget; 0 for a budget of time."""
        return self.programs / self.of if self.of else self.readings / self.of_readings if self.of_readings else 0.0


class _Programs(NamedTuple):
    """Rows of measured programs in the order of their numbers.  run, level: names; seq, cycles: int64; time_us: int64, since 1970."""

    run: NDArray[np.str_]
    level: NDArray[np.str_]
    seq: NDArray[np.int64]
    cycles: NDArray[np.int64]
    time_us: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_]) -> _Programs:
        return _Programs(self.run[chosen], self.level[chosen], self.seq[chosen], self.cycles[chosen], self.time_us[chosen])

    @property
    def measured(self) -> int:
        """Number of programs; each has a row for every level."""
        return len(_pairs(self.run, self.seq))


def read_progress_log(run: RunEntry) -> Table | None:
    """Log columns for `read_progress`; None before the first row.  Raises `BadInputError` for an unreadable log."""
    if not (run.path / "log").is_dir() and not (read_counts(run.path) or {}).get("log", Count()).rows:
        return None
    return read_table(run.path, "log", (*_COLUMNS, "readings", "board", "firmware", "drifted"))


def read_progress(run: RunEntry) -> RunProgress:
    """Progress of a run.  Raises `BadInputError` for an unreadable log."""
    return progress_of_log(run, read_progress_log(run))


def progress_of_log(run: RunEntry, log: Table | None) -> RunProgress:
    """Progress from a log.  log: result of `read_progress_log`."""
    of, of_readings, _ = budget_of(run.path)
    if log is None:
        return RunProgress(0, 0, {}, {}, {}, None, of, None, of_readings=of_readings)
    (table, lost), served = log, subgraph_copies(run.path)
    readings = int(_numbers(table["readings"]).sum())
    programs, names, status = _programs(table), _names(table["run"]), _names(table["status"])
    tasks = _pairs(names, _numbers(table["seq"]))
    failed, counts = np.unique(status[tasks][status[tasks] != "ok"], return_counts=True)
    ends = {level: _first_and_best(programs.of(programs.level == level), served) for level in run.levels}
    return RunProgress(
        programs.measured,
        len(tasks),
        dict(zip(failed.tolist(), counts.tolist(), strict=True)),
        {level: first_and_best[1] for level, first_and_best in ends.items() if first_and_best is not None},
        {level: first_and_best[0] for level, first_and_best in ends.items() if first_and_best is not None},
        _EPOCH + timedelta(microseconds=int(_numbers(table["time"]).max())) if len(names) else None,
        of,
        _left_s(programs.time_us, _programs_left(of, of_readings, programs.measured, readings)),
        lost,
        readings,
        of_readings,
        boards_of(table),
        sum(chunk.true_count for chunk in table["drifted"].chunks),
    )


def _programs_left(of: int | None, of_readings: int | None, programs: int, readings: int) -> float:
    """Remaining programs of the budget; for a budget of readings, at the present readings per program."""
    if of is not None:
        return of - programs
    return 0.0 if of_readings is None or not readings else (of_readings - readings) * programs / readings


def _programs(table: pa.Table) -> _Programs:
    """Rows of successful programs."""
    chosen = (_names(table["kind"]) == "program") & (_names(table["status"]) == "ok")
    seq = _numbers(table["seq"])
    order = np.flatnonzero(chosen)[np.argsort(seq[chosen], kind="stable")]
    columns = (seq, _numbers(table["cycles"]), _numbers(table["time"]))
    return _Programs(_names(table["run"])[order], _names(table["level"])[order], *(column[order] for column in columns))


def _names(column: pa.ChunkedArray) -> NDArray[np.str_]:
    """Strings of a dictionary-encoded or plain column."""
    parts = [
        np.array(chunk.dictionary.to_pylist(), np.str_)[_values(chunk.indices, np.int32)]
        if pa.types.is_dictionary(chunk.type)
        else np.array(chunk.to_pylist(), np.str_)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.str_)


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Values of a 64-bit column; arbitrary for nulls."""
    parts = [_values(chunk, np.int64) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _values(array: pa.Array, kind: type[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Values of the buffer itself: `to_numpy` imports pandas."""
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _pairs(run: NDArray[np.str_], seq: NDArray[np.int64]) -> NDArray[np.intp]:
    """Index of the first row of every pair (run, seq)."""
    _, codes = np.unique(run, return_inverse=True)
    _, first = np.unique(np.stack([codes, seq]), axis=1, return_index=True)
    return np.asarray(first, np.intp)


def _first_and_best(programs: _Programs, served: dict[str, int]) -> tuple[int, int] | None:
    """Cycles of the first and of the best model at a level: sums over its subgraphs, each `served` times.

    None if a subgraph has no program.
    """
    by_subgraph = [(programs.cycles[programs.run == name], times) for name, times in served.items()] or [(programs.cycles, 1)]
    if any(not len(cycles) for cycles, _ in by_subgraph):
        return None
    return sum(int(cycles[0]) * times for cycles, times in by_subgraph), sum(int(cycles.min()) * times for cycles, times in by_subgraph)


def _left_s(time_us: NDArray[np.int64], remaining: float) -> float | None:
    if remaining <= 0:
        return None
    last = np.unique(time_us)[-_PACE:]
    return remaining * float(last[-1] - last[0]) * 1e-6 / (len(last) - 1) if len(last) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Comparison of two runs after the same number of measured programs.  cycles: level -> best of either; ratio: second / first.

    lost: missing rows of either log; the real best may be among them.
    """

    candidates: int
    cycles: dict[str, tuple[int, int]]
    lost: tuple[int, int] = (0, 0)

    def ratio(self, level: str) -> float:
        first, second = self.cycles[level]
        return second / first


def compare_runs(base: RunEntry, newer: RunEntry, force: bool = False) -> Comparison:
    """Compare the best so far at equal candidates: the smaller number of the two runs' measured programs.

    Raises `BadInputError` for different models, machines, simulators or boards (unless `force`), or without a common level.
    """
    for key, label in _SAME:
        if base.identity.get(key) != newer.identity.get(key) and not force:
            theirs, ours = newer.identity.get(key), base.identity.get(key)
            raise BadInputError(f"{newer.path}: {label} {theirs!r}, {base.path} has {ours!r}; cycles do not compare (--force to see them)")
    levels = [level for level in base.levels if level in newer.levels]
    if not levels:
        raise BadInputError(f"{newer.path}: levels {', '.join(newer.levels)}; {base.path} has {', '.join(base.levels)}")
    read = [read_table(run.path, "log", (*_COLUMNS, "board", "firmware")) for run in (base, newer)]
    ours, theirs = (", ".join(boards_of(rows.table)) or "none that has a name" for rows in read)
    if ours != theirs and not force:
        raise BadInputError(f"{newer.path}: measured by board {theirs}, {base.path} by {ours}; cycles do not compare (--force to see them)")
    logs, lost = [_programs(rows.table) for rows in read], (read[0].lost, read[1].lost)
    served = [list((subgraph_copies(run.path) or {run.identity["run"]: 1}).items()) for run in (base, newer)]
    if [count for _, count in served[0]] != [count for _, count in served[1]]:
        raise BadInputError(f"{newer.path}: its model runs in other pieces than that of {base.path}; cycles do not compare")
    total, cycles = 0, {level: [0, 0] for level in levels}
    for pair in zip(*served, strict=True):  # a model's best is the sum of its subgraphs' bests
        subgraph_logs = [log.of(log.run == name) for log, (name, _) in zip(logs, pair, strict=True)]
        count = min(log.measured for log in subgraph_logs)
        if not count:
            why = f"has none in its log any more, of which {sum(lost)} rows were lost" if sum(lost) else "has measured no program yet"
            raise BadInputError(f"{base.path}, {newer.path}: one of them {why}")
        total += count
        for i, (log, (_, times)) in enumerate(zip(subgraph_logs, pair, strict=True)):
            until = np.unique(log.seq)[count - 1]
            for level in levels:
                cycles[level][i] += times * int(log.cycles[(log.seq <= until) & (log.level == level)].min())
    return Comparison(total, {level: (first, second) for level, (first, second) in cycles.items()}, lost)
