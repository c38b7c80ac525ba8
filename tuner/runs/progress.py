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
from tuner.log.drift import board_names
from tuner.log.part_counts import Count, read_counts
from tuner.log.read import Table, read_table
from tuner.runs.list_runs import RunEntry, budget_of
from tuner.runs.subgraph_runs import subgraph_copies

_PACE = 24  # number of last programs for the pace: the first ones wait for kernels and segments
_COLUMNS = ("run", "seq", "kind", "level", "status", "cycles", "time")
_SAME = (("machine_digest", "machine"), ("simulator", "simulator"), ("model_digest", "model"))  # key of the identity, its name in messages
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run by its published rows.  programs, tasks: number of measured ones.  failures: tasks by status other than ok.

    best: level -> cycles of the best program so far.  first: level -> cycles of the first program.
    last_row: time of the newest row, or None.
    budget: budget, a number of programs.  readings_budget: budget, a number of readings.  None for another kind of budget.
    left_s: remaining seconds at the pace of the last programs; None if unknown.
    lost: number of published rows that are missing now.
    readings: number of readings, without canary and finals.
    boards: boards with measurements.  drifted: number of rows that are flagged as drifted.
    """

    programs: int
    tasks: int
    failures: dict[str, int]
    best: dict[str, int]
    first: dict[str, int]
    last_row: datetime | None
    budget: int | None
    left_s: float | None
    lost: int = 0
    readings: int = 0
    readings_budget: int | None = None
    boards: tuple[str, ...] = ()
    drifted: int = 0

    @property
    def share(self) -> float:
        """Used share of the budget; 0 for a budget of time."""
        if self.budget:
            return self.programs / self.budget
        return self.readings / self.readings_budget if self.readings_budget else 0.0


class _Programs(NamedTuple):
    """Rows of measured programs in the order of their numbers.  run, level: names; seq, cycles: int64; time_us: int64, since 1970."""

    run: NDArray[np.str_]
    level: NDArray[np.str_]
    seq: NDArray[np.int64]
    cycles: NDArray[np.int64]
    time_us: NDArray[np.int64]

    def select(self, mask: NDArray[np.bool_]) -> _Programs:
        """Rows where the mask is true."""
        return _Programs(self.run[mask], self.level[mask], self.seq[mask], self.cycles[mask], self.time_us[mask])

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
    program_budget, reading_budget, _ = budget_of(run.path)
    if log is None:
        return RunProgress(
            programs=0,
            tasks=0,
            failures={},
            best={},
            first={},
            last_row=None,
            budget=program_budget,
            left_s=None,
            readings_budget=reading_budget,
        )
    table, lost_rows = log
    copies = subgraph_copies(run.path)
    readings = int(_numbers(table["readings"]).sum())
    programs = _programs(table)
    # one row per task
    names, status = _names(table["run"]), _names(table["status"])
    tasks = _pairs(names, _numbers(table["seq"]))
    task_status = status[tasks]
    failed, counts = np.unique(task_status[task_status != "ok"], return_counts=True)
    # cycles per level
    first_and_best = {level: _first_and_best(programs.select(programs.level == level), copies) for level in run.levels}
    complete = {level: pair for level, pair in first_and_best.items() if pair is not None}  # levels with a program of every subgraph
    last_row = _EPOCH + timedelta(microseconds=int(_numbers(table["time"]).max())) if len(names) else None
    programs_left = _programs_left(program_budget, reading_budget, programs.measured, readings)
    return RunProgress(
        programs=programs.measured,
        tasks=len(tasks),
        failures=dict(zip(failed.tolist(), counts.tolist(), strict=True)),
        best={level: best for level, (_, best) in complete.items()},
        first={level: first for level, (first, _) in complete.items()},
        last_row=last_row,
        budget=program_budget,
        left_s=_left_s(programs.time_us, programs_left),
        lost=lost_rows,
        readings=readings,
        readings_budget=reading_budget,
        boards=board_names(table),
        drifted=sum(chunk.true_count for chunk in table["drifted"].chunks),
    )


def _programs_left(program_budget: int | None, reading_budget: int | None, programs: int, readings: int) -> float:
    """Remaining programs of the budget; for a budget of readings, at the present readings per program.  programs, readings: so far."""
    if program_budget is not None:
        return program_budget - programs
    if reading_budget is None or not readings:
        return 0.0
    return (reading_budget - readings) * programs / readings


def _programs(table: pa.Table) -> _Programs:
    """Rows of successful programs."""
    successful = (_names(table["kind"]) == "program") & (_names(table["status"]) == "ok")
    seq = _numbers(table["seq"])
    order = np.flatnonzero(successful)[np.argsort(seq[successful], kind="stable")]
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


def _first_and_best(programs: _Programs, copies: dict[str, int]) -> tuple[int, int] | None:
    """Cycles of the first and of the best model at a level: sums over its subgraphs.  copies: see `subgraph_copies`.

    None if a subgraph has no program.
    """
    searches = [(programs.cycles[programs.run == name], count) for name, count in copies.items()] or [(programs.cycles, 1)]
    if any(not len(cycles) for cycles, _ in searches):
        return None
    first = sum(int(cycles[0]) * count for cycles, count in searches)
    best = sum(int(cycles.min()) * count for cycles, count in searches)
    return first, best


def _left_s(time_us: NDArray[np.int64], programs_left: float) -> float | None:
    """Seconds for the remaining programs, at the pace of the last ones; None if unknown.  time_us: times of all programs."""
    if programs_left <= 0:
        return None
    last_us = np.unique(time_us)[-_PACE:]
    return programs_left * float(last_us[-1] - last_us[0]) * 1e-6 / (len(last_us) - 1) if len(last_us) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """Comparison of two runs, first the base, then the newer one, after the same number of measured programs.

    candidates: this number.  cycles: level -> best cycles of either run.
    lost: number of missing rows of either log; the real best may be among them.
    """

    candidates: int
    cycles: dict[str, tuple[int, int]]
    lost: tuple[int, int] = (0, 0)

    def ratio(self, level: str) -> float:
        """Cycles of the newer run / cycles of the base."""
        base, newer = self.cycles[level]
        return newer / base


def compare_runs(base: RunEntry, newer: RunEntry, force: bool = False) -> Comparison:
    """Compare the best so far at equal candidates: the smaller number of the two runs' measured programs.

    Raises `BadInputError` for different models, machines, simulators or boards (unless `force`), or without a common level.
    """
    # identities and levels
    for key, label in _SAME:
        base_value, newer_value = base.identity.get(key), newer.identity.get(key)
        if base_value != newer_value and not force:
            raise BadInputError(
                f"{newer.path}: {label} {newer_value!r}, {base.path} has {base_value!r}; cycles do not compare (--force to see them)"
            )
    levels = [level for level in base.levels if level in newer.levels]
    if not levels:
        raise BadInputError(f"{newer.path}: levels {', '.join(newer.levels)}; {base.path} has {', '.join(base.levels)}")
    # logs, boards and subgraphs
    runs = (base, newer)
    logs = [read_table(run.path, "log", (*_COLUMNS, "board", "firmware")) for run in runs]
    base_boards, newer_boards = (", ".join(board_names(log.table)) or "none that has a name" for log in logs)
    if base_boards != newer_boards and not force:
        raise BadInputError(
            f"{newer.path}: measured by board {newer_boards}, {base.path} by {base_boards}; cycles do not compare (--force to see them)"
        )
    programs, lost_rows = [_programs(log.table) for log in logs], (logs[0].lost, logs[1].lost)
    copies = [subgraph_copies(run.path) or {run.identity["run"]: 1} for run in runs]
    if list(copies[0].values()) != list(copies[1].values()):
        raise BadInputError(f"{newer.path}: its model runs in other pieces than that of {base.path}; cycles do not compare")
    # the best of each search among as many programs; a model's best is their sum
    total, cycles = 0, {level: [0, 0] for level in levels}
    for base_search, newer_search, count in zip(*copies, copies[0].values(), strict=True):
        searches = [rows.select(rows.run == name) for rows, name in zip(programs, (base_search, newer_search), strict=True)]
        equal_programs = min(rows.measured for rows in searches)
        if not equal_programs:
            reason = (
                f"has none in its log any more, of which {sum(lost_rows)} rows were lost"
                if sum(lost_rows)
                else "has measured no program yet"
            )
            raise BadInputError(f"{base.path}, {newer.path}: one of them {reason}")
        total += equal_programs
        for i, rows in enumerate(searches):
            last_seq = np.unique(rows.seq)[equal_programs - 1]
            for level in levels:
                cycles[level][i] += count * int(rows.cycles[(rows.seq <= last_seq) & (rows.level == level)].min())
    return Comparison(total, {level: (base_best, newer_best) for level, (base_best, newer_best) in cycles.items()}, lost_rows)
