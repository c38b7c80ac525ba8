"""How far a run is, and how two of them compare, by the rows of their logs.

Numbers are taken from Arrow's columns as they are: pandas takes longer to import than all of a log to read.
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
from tuner.runs.subgraph_runs import copies

_PACE = 24  # programs that tell how fast it goes: the first ones wait for kernels and segments
_COLUMNS = ("run", "seq", "kind", "level", "status", "cycles", "time")
_SAME = (("machine_digest", "machine"), ("simulator", "simulator"), ("model_digest", "model"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Progress:
    """How far a run is, by its published rows.  programs, tasks: measured; failures: tasks by status other than ok.

    best: level -> cycles of the best program so far; first: of the first one.  last_row: time of the newest row, None before any.
    lost: rows that were published and are not there any more.
    readings: of all tasks, without canary and finals.  of: programs of the budget, of_readings: readings, None where it is another one.
    left_s: until then, at the pace of the last programs; None while nobody can tell.
    boards: that measured.  drifted: rows that are flagged.
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
        """Of the budget; 0 where it is one of time."""
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
        """Programs; each has a row for every level."""
        return len(_pairs(self.run, self.seq))


def read_standing(run: RunEntry) -> Table | None:
    """What `standing` takes of the log; None before there is one.  Raises `BadInputError` where it cannot be read."""
    if not (run.path / "log").is_dir() and not (read_counts(run.path) or {}).get("log", Count()).rows:
        return None
    return read_table(run.path, "log", (*_COLUMNS, "readings", "board", "firmware", "drifted"))


def standing(run: RunEntry) -> Progress:
    """Raises `BadInputError` where the log cannot be read."""
    return standing_of(run, read_standing(run))


def standing_of(run: RunEntry, log: Table | None) -> Progress:
    """log: `read_standing`."""
    of, of_readings = budget_of(run.path)
    if log is None:
        return Progress(0, 0, {}, {}, {}, None, of, None, of_readings=of_readings)
    (table, lost), served = log, copies(run.path)
    readings = int(_numbers(table["readings"]).sum())
    programs, names, status = _programs(table), _names(table["run"]), _names(table["status"])
    tasks = _pairs(names, _numbers(table["seq"]))
    failed, counts = np.unique(status[tasks][status[tasks] != "ok"], return_counts=True)
    ends = {level: _first_and_best(programs.of(programs.level == level), served) for level in run.levels}
    return Progress(
        programs.measured,
        len(tasks),
        dict(zip(failed.tolist(), counts.tolist(), strict=True)),
        {level: found[1] for level, found in ends.items() if found is not None},
        {level: found[0] for level, found in ends.items() if found is not None},
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
    """By the budget; of one of readings, as many to a program as until now."""
    if of is not None:
        return of - programs
    return 0.0 if of_readings is None or not readings else (of_readings - readings) * programs / readings


def _programs(table: pa.Table) -> _Programs:
    """Those that were measured."""
    chosen = (_names(table["kind"]) == "program") & (_names(table["status"]) == "ok")
    seq = _numbers(table["seq"])
    order = np.flatnonzero(chosen)[np.argsort(seq[chosen], kind="stable")]
    columns = (seq, _numbers(table["cycles"]), _numbers(table["time"]))
    return _Programs(_names(table["run"])[order], _names(table["level"])[order], *(column[order] for column in columns))


def _names(column: pa.ChunkedArray) -> NDArray[np.str_]:
    """Of a column of few names, or of any strings."""
    parts = [
        np.array(chunk.dictionary.to_pylist(), np.str_)[_values(chunk.indices, np.int32)]
        if pa.types.is_dictionary(chunk.type)
        else np.array(chunk.to_pylist(), np.str_)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.str_)


def _numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Of 64 bits; anything where one is null."""
    parts = [_values(chunk, np.int64) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _values(array: pa.Array, kind: type[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """As they lie there: `to_numpy` imports pandas."""
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _pairs(run: NDArray[np.str_], seq: NDArray[np.int64]) -> NDArray[np.intp]:
    """The first row of every pair."""
    _, codes = np.unique(run, return_inverse=True)
    _, first = np.unique(np.stack([codes, seq]), axis=1, return_index=True)
    return np.asarray(first, np.intp)


def _first_and_best(programs: _Programs, served: dict[str, int]) -> tuple[int, int] | None:
    """Cycles of the first and of the best model at a level.  A model in several pieces takes the sum over them, `served` times each.

    None where a piece has none at all.
    """
    mine = [(programs.cycles[programs.run == name], times) for name, times in served.items()] or [(programs.cycles, 1)]
    if any(not len(cycles) for cycles, _ in mine):
        return None
    return sum(int(cycles[0]) * times for cycles, times in mine), sum(int(cycles.min()) * times for cycles, times in mine)


def _left_s(time_us: NDArray[np.int64], left: float) -> float | None:
    if left <= 0:
        return None
    last = np.unique(time_us)[-_PACE:]
    return left * float(last[-1] - last[0]) * 1e-6 / (len(last) - 1) if len(last) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Two runs after the same number of measured programs.  cycles: level -> best of either; ratio: second / first.

    lost: rows that either log had and has not any more, so that its best may be among them.
    """

    candidates: int
    cycles: dict[str, tuple[int, int]]
    lost: tuple[int, int] = (0, 0)

    def ratio(self, level: str) -> float:
        first, second = self.cycles[level]
        return second / first


def compare(a: RunEntry, b: RunEntry, force: bool = False) -> Comparison:
    """Best so far at equal candidates: the smaller number of the two runs' measured programs.

    Raises `BadInputError` where the runs were made for different models, machines or simulators, or measured by different boards (unless
    `force`), or share no level.
    """
    for key, what in _SAME:
        if a.identity.get(key) != b.identity.get(key) and not force:
            theirs, ours = b.identity.get(key), a.identity.get(key)
            raise BadInputError(f"{b.path}: {what} {theirs!r}, {a.path} has {ours!r}; cycles do not compare (--force to see them)")
    levels = [level for level in a.levels if level in b.levels]
    if not levels:
        raise BadInputError(f"{b.path}: levels {', '.join(b.levels)}; {a.path} has {', '.join(a.levels)}")
    read = [read_table(run.path, "log", (*_COLUMNS, "board", "firmware")) for run in (a, b)]
    ours, theirs = (", ".join(boards_of(rows.table)) or "none that has a name" for rows in read)
    if ours != theirs and not force:
        raise BadInputError(f"{b.path}: measured by board {theirs}, {a.path} by {ours}; cycles do not compare (--force to see them)")
    logs, lost = [_programs(rows.table) for rows in read], (read[0].lost, read[1].lost)
    served = [list((copies(run.path) or {run.identity["run"]: 1}).items()) for run in (a, b)]
    if [count for _, count in served[0]] != [count for _, count in served[1]]:
        raise BadInputError(f"{b.path}: its model runs in other pieces than that of {a.path}; cycles do not compare")
    total, cycles = 0, {level: [0, 0] for level in levels}
    for pair in zip(*served, strict=True):  # a model's best is the sum of its pieces' bests
        mine = [log.of(log.run == name) for log, (name, _) in zip(logs, pair, strict=True)]
        count = min(log.measured for log in mine)
        if not count:
            why = f"has none in its log any more, of which {sum(lost)} rows were lost" if sum(lost) else "has measured no program yet"
            raise BadInputError(f"{a.path}, {b.path}: one of them {why}")
        total += count
        for i, (log, (_, times)) in enumerate(zip(mine, pair, strict=True)):
            until = np.unique(log.seq)[count - 1]
            for level in levels:
                cycles[level][i] += times * int(log.cycles[(log.seq <= until) & (log.level == level)].min())
    return Comparison(total, {level: (first, second) for level, (first, second) in cycles.items()}, lost)
