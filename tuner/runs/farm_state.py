"""State of a farm while its run is active: `RUN/farm.json`, which the driver writes every few seconds.

| part | meaning |
|---|---|
| counts | nodes, workers, jobs and tasks when it was written |
| shares | measured since the state before, over `window_s` seconds |

It is for people and dashboards: nothing that a run does depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from simulator.npu.errors import BadInputError
from simulator.npu.files import write_atomically
from tuner.platform.files import AnyPath
from tuner.runs.folder import read_json

FILE = "farm.json"


class StaffCounts(NamedTuple):
    """Workers with a job, without one, and those that start; jobs that wait for a worker."""

    busy: int
    idle: int
    joining: int
    queued: int


@dataclass(frozen=True)
class FarmState:
    """State.  time_us: when it was written, microseconds since 1970.  window_s: seconds of the shares.

    nodes: host -> its workers.  busy, idle, joining: workers with a job, without one, and those that start.
    queued: jobs that wait for a worker.  most_jobs: jobs that may run at a time.  training: whether the next job waits for a model.
    serial: whether the driver's process runs the jobs.  busy_share: of the workers' time, with a job.
    driver_share, disk_share: of the time, CPU time of the driver's process, and in writing checkpoints and log.
    tasks, hits: committed tasks of this session, and those among them whose results were there.  tasks_per_s: in the window.
    core_s: CPU seconds of jobs of this search.
    """

    time_us: int = 0
    window_s: float = 0.0
    nodes: Mapping[str, int] = field(default_factory=dict)
    busy: int = 0
    idle: int = 0
    joining: int = 0
    queued: int = 0
    most_jobs: int = 1
    training: bool = False
    serial: bool = False
    busy_share: float = 0.0
    driver_share: float = 0.0
    disk_share: float = 0.0
    tasks: int = 0
    hits: int = 0
    tasks_per_s: float = 0.0
    core_s: float = 0.0

    @property
    def workers(self) -> int:
        """Workers that can have a job."""
        return self.busy + self.idle


def write_farm_state(folder: AnyPath, state: FarmState) -> None:
    """Write the state of a run.  Raises `BadInputError` where it cannot be written."""
    write_atomically(folder / FILE, [json.dumps(vars(state) | {"nodes": dict(state.nodes)}).encode(), b"\n"])


def read_farm_state(folder: AnyPath) -> FarmState | None:
    """State of a run; None if the driver wrote none.  Raises `BadInputError` for another content."""
    if not (folder / FILE).is_file():
        return None
    raw, expected = read_json(folder / FILE), [entry.name for entry in fields(FarmState)]
    if not isinstance(raw, dict) or raw.keys() != set(expected) or not isinstance(raw["nodes"], dict):
        raise BadInputError(f"{folder / FILE}: not the state of a farm; expected the keys {', '.join(expected)}")
    numbers = [value for name, value in raw.items() if name != "nodes"] + [*raw["nodes"].values()]
    if not all(isinstance(number, int | float) and number >= 0 for number in numbers):
        raise BadInputError(f"{folder / FILE}: not the state of a farm; expected numbers, 0 or more")
    return FarmState(**raw)
