"""What a report shows of a run: read from its folder, once, and nothing computed that a figure does not need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from simulator.breakdown import SegmentTime, breakdown
from simulator.npu.container import Container, decode, program
from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.onnx_container import find_container, read_container
from simulator.response import Response, measure_response, prepared_variants, share_grid
from simulator.timeline import Timeline, timeline
from tuner.log import read_log
from tuner.place import Folder, Place
from tuner.runfolder import read_json
from tuner.runs import open_run

_LOG_COLUMNS = [
    "seq", "kind", "task", "level", "status", "error", "cycles", "predicted_cycles", "model_version", "worker", "wall_s", "time",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class RunView:
    """A finished run.  levels: in the order of the summary, the least contended first."""

    path: Folder
    summary: dict[str, Any]
    config: str
    history: list[dict[str, Any]]
    log: pd.DataFrame
    container: Container

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.summary["levels"])

    @property
    def machine(self) -> Machine:
        return self.container.machine

    @cached_property
    def programs(self) -> pd.DataFrame:
        """Rows of whole programs that ran, in the order in which they were asked for."""
        rows = self.log[(self.log["kind"] == "program") & (self.log["status"] == "ok")]
        return rows.sort_values(["seq", "level"], kind="stable")

    @cached_property
    def response(self) -> Response:
        """Cycles of every distinct variant over shares of the DDR bandwidth."""
        return measure_response(prepared_variants(self.container), share_grid(self.machine))

    def timeline(self, level: str) -> Timeline:
        variant = self.container.variant(level)
        return timeline(program(self.container, level), self.machine, variant.share_units)

    def segments(self, level: str, t: Timeline) -> tuple[SegmentTime, ...]:
        return breakdown(t, self.container.variant(level).segments, self.container.operators)

    def operator(self, number: int) -> str:
        operators = self.container.operators
        return operators[number].name if number < len(operators) else f"operator {number}"

    def operators(self, first: int, last: int) -> str:
        """A run of operators by its ends."""
        return self.operator(first) if first == last else f"{self.operator(first)} .. {self.operator(last)}"


def open_view(path: Folder) -> RunView:
    """Read a run folder.  Raises `BadInputError` where it is none, or its run has not ended."""
    run = open_run(path)
    if run.summary is None:
        raise BadInputError(f"{path}: no summary.json yet, the run is {run.state}; `tilefarm status {path}` says how far it is")
    history = path / "models" / "history.json"
    return RunView(
        path,
        run.summary,
        (path / "config.yaml").read_text(encoding="utf-8"),
        read_json(history) if history.is_file() else [],
        read_log(path)[_LOG_COLUMNS],
        decode(_container(path / "best.onnx")),
    )


def _container(path: Folder) -> bytes:
    if isinstance(path, Place):
        return find_container(memoryview(path.read_bytes()), str(path))
    return read_container(path)
