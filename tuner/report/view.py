"""Data of a run's report: read once from its folder, computed only for the figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from simulator.breakdown import SegmentTime, breakdown
from simulator.compiled import Compiled, compiled_of
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.onnx_container import read_file
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.timeline import Timeline
from tuner.log.read import read_rows
from tuner.platform.files import AnyPath
from tuner.platform.local_files import LocalPath
from tuner.platform.remote_files import place
from tuner.runs.dataframes import asked_programs, champions, over_time
from tuner.runs.folder import read_json
from tuner.runs.list_runs import open_run
from tuner.runs.subgraph_runs import search_folders, subgraph_copies

_LOG_COLUMNS = [
    "run", "seq", "kind", "task", "level", "status", "error", "cycles", "predicted_cycles", "model_version", "worker", "wall_s", "time",
    "board", "firmware", "drift", "drifted", "proposed_by",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class RunView:
    """Finished run.  levels: in the order of the summary, the least contended first.  lost: lost rows of its log."""

    path: AnyPath
    summary: dict[str, Any]
    config: str
    history: list[dict[str, Any]]
    log: pd.DataFrame
    lost: int
    compiled: Compiled

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.summary["levels"])

    @property
    def machine(self) -> Machine:
        return self.compiled.machine

    @cached_property
    def programs(self) -> pd.DataFrame:
        """Rows of measured programs of the model, in the order of their requests."""
        return asked_programs(self.log, self.copies)

    @property
    def champions(self) -> pd.DataFrame:
        """Table with a row per level: level, cycles, baseline_cycles, plan, speedup.  Fastest programs, shipped or not."""
        robust, rows = self.summary["robust"], self.summary["levels"].items()
        cycles, plans = ({level: row[key] for level, row in rows} for key in ("cycles", "plan"))
        if robust is not None:
            cycles, plans = robust["own_cycles"], robust["own_plan"]
        return champions((level, cycles[level], row["baseline_layerwise_cycles"], plans[level]) for level, row in rows)

    def over_time(self, by_time: bool = False) -> pd.DataFrame:
        """Best program over time: see `tuner.runs.dataframes.over_time`."""
        baseline = {level: row["baseline_layerwise_cycles"] for level, row in self.summary["levels"].items()}
        return over_time(self.programs, self.copies, baseline, by_time)

    @cached_property
    def copies(self) -> dict[str, int]:
        """Copies of each search's subgraph: see `tuner.runs.subgraph_runs.subgraph_copies`."""
        return subgraph_copies(self.path)

    @cached_property
    def response(self) -> Response:
        """Cycles of every distinct variant over shares of the DDR bandwidth."""
        return measure_response(prepared_variants(self.compiled), share_grid(self.machine))

    def timeline(self, level: str) -> Timeline:
        return self.compiled.timeline(level)

    def segments(self, level: str, timeline: Timeline) -> tuple[SegmentTime, ...]:
        return breakdown(timeline, self.compiled.segments(level), self.compiled.operators)

    def operator(self, number: int) -> str:
        operators = self.compiled.operators
        return operators[number].name if number < len(operators) else f"operator {number}"

    def operators(self, first: int, last: int) -> str:
        """Text of a range of operators."""
        return self.operator(first) if first == last else f"{self.operator(first)} .. {self.operator(last)}"


def open_view(folder: AnyPath | str) -> RunView:
    """Read a run folder, or the URL of one.  Raises `BadInputError` for other folders and unfinished runs."""
    path = place(folder) if isinstance(folder, str) else folder
    run = open_run(path)
    if run.summary is None:
        raise BadInputError(f"{path}: no summary.json yet, the run is {run.state}; `tilefarm status {path}` says how far it is")
    models = path / "models"
    histories = [(models / name if name else models) / "history.json" for name in search_folders(path)]
    best = path / "best.onnx"
    view = read_file(best) if isinstance(best, LocalPath) else memoryview(best.read_bytes())
    return RunView(
        path,
        run.summary,
        (path / "config.yaml").read_bytes().decode(),
        [row for history in histories if history.is_file() for row in read_json(history)],
        *read_rows(path, "log", _LOG_COLUMNS),
        compiled_of(view, str(path / "best.onnx"), path if isinstance(path, LocalPath) else None),
    )
