"""Tasks with rows but without a place in the order: from a job that the end of a session interrupted, and from jobs behind it.

They count: they are part of the budget, one of them may be a champion, and they get no second row when they are placed.  But the next
requests of the search must not depend on them, because that would depend on the speed of workers before the end.  A resumed search requests
them at their place, is answered from their rows (`tuner.measure.replay`), and ends like an uninterrupted one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compiler.plan.plan import validate_plan
from compiler.space.encode import genome_of
from compiler.target.target_graph import TargetGraph
from tuner.log.read import read_table, read_task_rows
from tuner.log.record import STATUSES
from tuner.measure.request import with_never
from tuner.platform.files import AnyPath
from tuner.search.champions import Champions
from tuner.search.population import Individual


class AheadTask(NamedTuple):
    """Task that is ahead.  number: number of its rows.  readings: readings that it took."""

    number: int
    program: bool
    status: str
    readings: int = 0


@dataclass
class Ahead:
    """Tasks that are ahead.  champions: among their programs, also of tasks placed since.  tasks: name -> task."""

    champions: Champions
    tasks: dict[str, AheadTask] = field(default_factory=dict)

    @property
    def programs(self) -> int:
        return sum(task.program for task in self.tasks.values())

    @property
    def readings(self) -> int:
        return sum(task.readings for task in self.tasks.values())

    @property
    def failures(self) -> Counter[str]:
        return Counter(task.status for task in self.tasks.values() if task.status != "ok")


def read_ahead(folder: AnyPath, run: str, numbers: Mapping[str, int], target_graph: TargetGraph, champions: Champions) -> Ahead:
    """Tasks of earlier sessions that are ahead, from their rows.  run: id in the log.  numbers: numbers of the tasks, by name.  champions:
    empty.  Raises `BadInputError` for a plan of another version."""
    uncommitted, levels = Ahead(champions), len(champions.best)
    if not numbers:
        return uncommitted
    rows = read_task_rows(folder, run, numbers, ("kind", "status", "cycles", "readings"), levels)
    tasks = read_table(folder, "tasks", ("task", "payload")).table
    tasks = tasks.filter(pc.is_in(tasks["task"], pa.array(numbers, pa.string())))
    payloads = dict(zip(tasks["task"].to_pylist(), tasks["payload"].to_pylist(), strict=True))
    single = [rows.column(name).to_pylist() for name in ("task", "seq", "kind")]
    entries = zip(*single, rows.status().tolist(), rows.numbers("cycles"), rows.numbers("readings").sum(1).tolist(), strict=True)
    for task, seq, kind, status, cycles, readings in entries:
        uncommitted.tasks[task] = AheadTask(seq, kind == "program", STATUSES[status], readings)
        if kind == "program" and status == 0:
            _note(uncommitted.champions, target_graph, task, with_never(cycles), payloads[task])
    return uncommitted


def _note(champions: Champions, target_graph: TargetGraph, task: str, cycles: np.ndarray, payload: str) -> None:
    plan = validate_plan(json.loads(payload)["plan"], f"task {task}")
    if champions.gains(cycles, task, all(len(segment.operators) == 1 for segment in plan.segments)):
        genome = genome_of(target_graph, plan)
        assert genome is not None, "what was measured has a gene"
        champions.note(Individual(genome, cycles, task))
