"""Warm start from measurements of earlier runs: segments that need not be measured again, and programs to begin with.

A task of an earlier log is used if its digest would be the same here: equal computation (of any network), equal plan, equal machine, and
measured by this version of the simulator.  All others are left out and counted.  Segments enter the table of segments.  The best programs
of each level, if they have the same target graph, are measured again before all proposals.  No model is trained on them: `tilefarm train`
makes a model of earlier runs.

The identity of the new run (`run.json`) has the earlier runs and digests of their logs.  Its checkpoint has the measurements taken from
them, so it can be resumed even if they have changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

import simulator
from compiler.plan.plan import Plan, SegmentPlan
from compiler.space.encode import encode, genome_of
from compiler.space.gene import Gene, Genome
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from tuner.log.digests import task_digest, text_digest
from tuner.log.read import read_log, read_rows
from tuner.platform.files import AnyPath
from tuner.runs.folder import IDENTITY, initial_lines
from tuner.runs.list_runs import RunEntry, open_run
from tuner.search.epoch_report import pack_segments
from tuner.search.population import ELITES

_SEGMENTS = ("operator", "segment")
_REASONS = {
    "machine": "of another machine",
    "simulator": f"of another simulator than {simulator.VERSION}",
    "runner": "of another runner",
    "result": "without a result at every level",
    "poisoned": "poisoned",
    "elsewhere": "of segments that this network does not have",
    "unnamed": "of plans that do not run here",
}


@dataclass(frozen=True)
class WarmStartSource:
    """Earlier run.  usable: number of usable tasks.  left_out: reason -> number of others.  lost: lost rows of log and tasks."""

    run: str
    tasks: int
    usable: int
    left_out: Mapping[str, int]
    lost: int = 0

    def lines(self) -> Iterator[str]:
        """Lines: usable tasks, and every reason for leaving some out."""
        yield f"{self.run}: {self.usable} of {self.tasks} tasks usable"
        yield from (f"{self.run}: left out {count} {_REASONS[name]}" for name, count in self.left_out.items() if count)
        if self.lost:
            yield f"{self.run}: {self.lost} rows of its log and tasks were lost"


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Warm start.  tasks, genes, moved_bytes: task, gene and DDR bytes of each known segment.  programs: initial genomes.

    cycles: int64 [segments, levels].  boards: boards of the measurements.
    """

    sources: tuple[WarmStartSource, ...]
    tasks: tuple[str, ...]
    genes: tuple[Gene, ...]
    moved_bytes: NDArray[np.int64]
    cycles: NDArray[np.int64]
    programs: tuple[Genome, ...]
    boards: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether nothing is usable."""
        return not (self.genes or self.programs)

    def findings(self, programs: Mapping[Genome, str]) -> bytes:
        """Findings of a search that begins with the segments, and the programs to measure -> their origin."""
        return pack_segments(self.genes, self.cycles, self.moved_bytes, programs)


def sources(paths: Sequence[Path], out: AnyPath | Path, resume: bool) -> tuple[str, ...]:
    """Entries of `run.json` about the earlier runs that a run in `out` begins with: for each a line, its id and a digest of its log.

    For a resumed run the paths may be omitted.  Raises `BadInputError` if they name other runs than at the start, or a folder is no run.
    """
    runs = [open_run(path) for path in paths]
    if not (resume and (out / IDENTITY).is_file()):
        return tuple(map(_run_line, runs))
    recorded = initial_lines(out, "warm_start")
    began, requested = [line.split(" ")[0] for line in recorded], [str(run.identity["run"]) for run in runs]
    if requested and requested != began:
        differing = next((run for run in (*requested, *began) if (run in requested) != (run in began)), "their order")
        raise BadInputError(
            f"--warm-start: {out} began with {', '.join(began) or 'nothing'}, not {', '.join(requested)}; {differing} differs"
        )
    return recorded


def _run_line(run: RunEntry) -> str:
    return f"{run.identity['run']} {_log_digest(run)}"


def _log_digest(run: RunEntry) -> str:
    rows = read_log(run.path, ("task", "level", "status", "simulator", "cycles")).astype(str).sort_values(["task", "level"])
    return text_digest(rows.to_csv(index=False))


def open_warm_start(
    paths: Sequence[Path], recorded_lines: Sequence[str], target_graph: TargetGraph, levels: tuple[str, ...], runner: str = "simulator"
) -> WarmStart | None:
    """Warm start of a search; None without one.  recorded_lines: text from `sources`.

    Raises `BadInputError` if the earlier runs have changed since the new run began.
    """
    if not recorded_lines:
        return None
    if not paths:
        raise BadInputError("--warm-start: the run was stopped before its first checkpoint; name the runs again that it began with")
    for line, path in zip(recorded_lines, paths, strict=True):
        run = open_run(path)
        if line != _run_line(run):
            raise BadInputError(f"--warm-start {path}: its log has changed since the run began with it; give another --out")
    return read_warm_start(paths, target_graph, levels, runner)


def read_warm_start(paths: Sequence[Path], target_graph: TargetGraph, levels: tuple[str, ...], runner: str = "simulator") -> WarmStart:
    """The usable tasks of earlier runs, in their order; of equal tasks the first.  Raises `BadInputError`."""
    readers = [_Reader(open_run(path), target_graph, levels, runner) for path in paths]
    segments: dict[str, _Segment] = {}
    for reader in readers:
        for task, segment in reader.segments.items():
            segments.setdefault(task, segment)
    programs = dict.fromkeys(genome for reader in readers for genome in reader.programs)
    rows = list(segments.values())
    return WarmStart(
        tuple(reader.source for reader in readers),
        tuple(segments),
        tuple(row.gene for row in rows),
        np.array([row.moved_bytes for row in rows], np.int64),
        np.array([row.cycles for row in rows], np.int64).reshape(len(rows), len(levels)),
        tuple(programs),
        frozenset(board for reader in readers for board in reader.boards),
    )


@dataclass(frozen=True, eq=False)
class _Segment:
    gene: Gene
    moved_bytes: int
    cycles: NDArray[np.int64]


class _Reader:
    """One earlier run."""

    def __init__(self, run: RunEntry, target_graph: TargetGraph, levels: tuple[str, ...], runner: str) -> None:
        self.target_graph, self.levels, self.runner = target_graph, levels, runner
        self.segments: dict[str, _Segment] = {}
        self.programs: list[Genome] = []
        self.boards: set[str] = set()
        (log, lost_rows), (tasks, lost_tasks) = read_rows(run.path, "log"), read_rows(run.path, "tasks")
        log = log[log["task"].isin(tasks["task"])]
        left_out: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        count = log["task"].nunique()
        if run.identity.get("machine_digest") != target_graph.machine.digest:
            left_out["machine"] = count
        else:
            self._read(log, tasks.drop_duplicates("task").set_index("task"), left_out)
        self.source = WarmStartSource(run.identity["run"], count, count - left_out.total(), left_out, lost_rows + lost_tasks)

    def _read(self, log: pd.DataFrame, tasks: pd.DataFrame, left_out: Counter[str]) -> None:
        """Read usable tasks: cycles per level, DDR bytes, and the gene or plan of each.  Others are counted in `left_out`."""
        reasons = _reasons(log, self.levels, self.runner)
        left_out.update(reasons.values())
        log = log[~log["task"].isin(list(reasons))]
        self.boards = set(log["board"].dropna())
        cycles = log.drop_duplicates(["task", "level"], keep="last").pivot(index="task", columns="level", values="cycles")
        cycles = cycles.reindex(index=list(dict.fromkeys(log["task"])), columns=list(self.levels)).astype(np.int64)
        first = log[log["level"] == self.levels[0]].drop_duplicates("task", keep="last").set_index("task")
        moved = (first["ddr_read_bytes"] + first["ddr_write_bytes"]).astype(np.int64)
        programs: list[tuple[NDArray[np.int64], str, Plan]] = []
        for task, values in zip(cycles.index, cycles.to_numpy(), strict=True):
            kind, payload = str(tasks.at[task, "kind"]), str(tasks.at[task, "payload"])
            if task_digest(kind, payload) != task:
                left_out["poisoned"] += 1
                continue
            content = self._content(kind, json.loads(payload))
            if isinstance(content, str):
                left_out[content] += 1
            elif isinstance(content, Plan):
                programs.append((values, task, content))
            else:
                self.segments[task] = _Segment(content, int(moved[task]), values)
        self._set_programs(programs)

    def _content(self, kind: str, content: Mapping[str, Any]) -> Gene | Plan | str:
        """Gene or plan of a task, or the reason why it is not usable."""
        try:
            if kind == "program":
                return Plan.model_validate(content["plan"]) if content["unit"] == self._unit_digest else "elsewhere"
            place = self._places.get(content["structure"]) if kind in _SEGMENTS else None
            if place is None:
                return "elsewhere"
            names = tuple(spec.name for spec in self.target_graph.operators[slice(*place)])
            return encode(self.target_graph, SegmentPlan.model_validate({**content["plan"], "operators": names}), place[0]) or "unnamed"
        except (KeyError, TypeError, ValidationError):  # a task of a program with other plans
            return "unnamed"

    def _set_programs(self, programs: Sequence[tuple[NDArray[np.int64], str, Plan]]) -> None:
        """Take the fastest programs of each level as initial genomes.  programs: cycles per level, task and plan."""
        plans: dict[str, Plan] = {}
        for level in range(len(self.levels)):
            order = sorted(programs, key=lambda item: (int(item[0][level]), item[1]))
            plans.update((task, plan) for _, task, plan in order[:ELITES])
        genomes = (genome_of(self.target_graph, plan) for plan in plans.values())
        self.programs = list(dict.fromkeys(genome for genome in genomes if genome is not None))

    @cached_property
    def _unit_digest(self) -> str:
        return self.target_graph.digest

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        return Structures(self.target_graph).places()


def _reasons(log: pd.DataFrame, levels: tuple[str, ...], runner: str) -> dict[str, str]:
    """Tasks left out because of their rows -> reason."""
    reasons: dict[str, str] = {}

    def mark(tasks: pd.Series, reason: str) -> None:
        for task in tasks:
            reasons.setdefault(task, reason)

    mark(log.loc[log["simulator"] != simulator.VERSION, "task"], "simulator")
    mark(log.loc[log["runner"] != runner, "task"], "runner")
    measured = log[log["status"] == "ok"]
    mark(measured.loc[~_valid_rows(measured), "task"], "poisoned")
    level_counts = measured[measured["level"].isin(levels)].drop_duplicates(["task", "level"]).groupby("task", sort=False).size()
    complete = set(level_counts.index[level_counts == len(levels)])
    mark(log.loc[~log["task"].isin(complete), "task"], "result")
    return reasons


def _valid_rows(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows whose cycles and bytes are integers, with cycles above zero."""
    columns = ["cycles", "ddr_read_bytes", "ddr_write_bytes"]
    values = rows[columns].to_numpy(np.float64, na_value=np.nan)
    valid: NDArray[np.bool_] = (np.isfinite(values) & (values == np.floor(values)) & (values >= [1, 0, 0])).all(1)
    return valid


def lines(warm: WarmStart) -> Iterator[str]:
    """Lines about a warm start."""
    for source in warm.sources:
        yield from (f"warm start: {line}" for line in source.lines())
    if warm.empty:
        yield "warm start: nothing is usable, the search begins without it"
    else:
        yield f"warm start: {len(warm.genes)} segments are known, {len(warm.programs)} programs are measured first"
