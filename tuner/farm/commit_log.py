"""Commit log: results of jobs, in their order, become numbered rows of the log and champions, up to the budget.

Rows stay the bytes that they came as: only the few columns that decide about them are opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.farm.board_drift import BoardWatch
from tuner.farm.jobs import JobResult
from tuner.farm.reading_conflicts import LoggedReadings
from tuner.farm.uncommitted import Ahead, AheadTask
from tuner.log.record import STATUSES
from tuner.log.task_numbers import Ranges, add, count
from tuner.log.writer import OpenedBatch, RunLog
from tuner.measure.budgeted import Deadline
from tuner.measure.reading_cost import readings_of_each
from tuner.measure.request import CYCLES, with_never
from tuner.search.champions import Champions
from tuner.search.epoch_report import PROGRAM
from tuner.search.packing import unpack_genome
from tuner.search.population import Individual


@dataclass
class RunBudget:
    """Exactly one of the first three is set.  readings: while fewer are spent, another task is measured (`tuner.farm.measurement_budget`).

    core_s: CPU seconds of all jobs, beside the other limit; None: any.
    """

    candidates: int | None = None
    deadline: Deadline | None = None
    readings: int | None = None
    core_s: float | None = None

    def programs(self, used: int) -> int | None:
        """Programs that may still be measured; None: limited only by time or readings."""
        return None if self.candidates is None else max(0, self.candidates - used)

    def seconds(self) -> float | None:
        """Remaining seconds; None: no time limit."""
        return None if self.deadline is None else self.deadline.left_s

    def is_spent(self, used: int, readings: int = 0) -> bool:
        """Whether the budget is spent; False before the first program, in every case."""
        return used > 0 and (self.programs(used) == 0 or self.seconds() == 0.0 or (self.readings is not None and readings >= self.readings))


Order = Literal["here", "later", "otherwise"]
"""Placement of a job's result.  here: its tasks get their place.  later: it was stopped early, or the budget ends within it.  otherwise:
one of its readings differs from the log's."""


class Tally(NamedTuple):
    """Totals over all tasks with rows.  failures: status -> number of tasks, over all sessions.  readings: see
    `tuner.measure.reading_cost`."""

    champions: Champions
    failures: Counter[str]
    tasks: int
    readings: int


@dataclass
class Ledger:
    """Measurements that have their place in the order; `ahead` has those that were measured early.

    failures: status -> number of tasks, over all sessions.  numbers: numbers of the tasks, in order.

    tasks: names of the measured tasks.  A repeated task writes no row and costs no budget.  Repeats occur because different genes may have
    the same plan, and because jobs do not wait for each other's findings.

    logged: readings of all tasks with rows, if a second measurement may differ; else None.  boards: boards that measure; else None.
    readings: readings of the placed tasks.  repeats: readings of a task at a level.
    core_s: CPU seconds of all jobs and trainings with a result, over all sessions.
    answered: tasks of the committed results of this session.  hits: those among them whose results the log or the store had.
    """

    levels: tuple[str, ...]
    log: RunLog
    champions: Champions
    budget: RunBudget
    failures: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)
    numbers: Ranges = field(default_factory=list)
    ahead: Ahead = field(init=False)
    logged: LoggedReadings | None = None
    boards: BoardWatch | None = None
    repeats: int = 1
    readings: int = 0
    core_s: float = 0.0
    answered: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        self.ahead = Ahead(self.champions.empty())

    @property
    def programs(self) -> int:
        """Measured, of the budget."""
        return self.champions.programs + self.ahead.programs

    @property
    def spent(self) -> bool:
        return self.budget.is_spent(self.programs, self.readings + self.ahead.readings)

    @property
    def core_hours_spent(self) -> bool:
        """Whether jobs took the CPU time of the budget; False before the first program."""
        return self.budget.core_s is not None and self.core_s >= self.budget.core_s and self.programs > 0

    @property
    def counted(self) -> Tally:
        """Totals, with the tasks that are ahead."""
        champions = self.champions.joined(self.ahead.champions)
        champions.programs = self.programs
        tasks = count(self.numbers) + len(self.ahead.tasks)
        return Tally(champions, self.failures + self.ahead.failures, tasks, self.readings + self.ahead.readings)

    def commit(self, result: JobResult, epoch: int) -> Order:
        """Commit the next result in order, of epoch `epoch`.  A result without a place has to be delivered again."""
        batch = result.batch.opened()
        new = np.fromiter((name not in self.tasks for name in batch.names), np.bool_, len(batch.names))
        conflicting = self.logged is not None and self.logged.differ(batch)
        numbers, complete = self._logged(batch, new)
        if conflicting or not (complete and result.complete):
            self._put_ahead(batch, numbers)
            return "otherwise" if conflicting else "later"
        self.answered += len(new)
        self.hits += min(len(new), len(new) - int(new.sum()) + result.stored_tasks)
        new_rows, program, status = np.flatnonzero(new), (batch.column("kind") == PROGRAM), batch.column("status")
        for index in new_rows.tolist():
            name = batch.names[index]
            self.tasks.add(name)
            if numbers[index] < 0:
                numbers[index] = self.ahead.tasks.pop(name).number
        add(self.numbers, numbers[new_rows])
        self.failures.update(STATUSES[code] for code in status[new_rows] if code)
        self.champions.programs += int(program[new_rows].sum())
        self.readings += int(self._costs(batch)[new_rows].sum())
        self._note(self.champions, batch, np.flatnonzero(new & program & (status == 0)).tolist())
        if self.logged is not None:
            self.logged.note_placed(epoch, (batch.names[index] for index in new_rows.tolist()))
        return "here"

    def keep(self, result: JobResult) -> None:
        """Log a result that comes behind the next one and has to wait; a later session will place it."""
        batch = result.batch.opened()
        new = np.fromiter((name not in self.tasks for name in batch.names), np.bool_, len(batch.names))
        self._put_ahead(batch, self._logged(batch, new)[0])

    def _logged(self, batch: OpenedBatch, new: NDArray[np.bool_]) -> tuple[NDArray[np.int64], bool]:
        """Log all new tasks without rows, up to the end of the budget; later ones are not part of the run.

        Returns the tasks' numbers, -1 if not logged, and whether all were logged.
        """
        names = batch.names
        rows = new & np.fromiter((name not in self.ahead.tasks for name in names), np.bool_, len(names))
        accepted_rows, programs_left = rows, self.budget.programs(self.programs)
        if programs_left is not None and len(rows):
            accepted_rows = rows & (_exclusive_sums((batch.column("kind") == PROGRAM) & rows) < programs_left)
        if (limit := self.budget.readings) is not None and len(rows):
            accepted_rows = rows & (_exclusive_sums(self._costs(batch) * rows) < limit - self.readings - self.ahead.readings)
        numbers = np.full(len(names), -1, np.int64)
        if len(indices := np.flatnonzero(accepted_rows)):
            if self.boards is not None:
                self.boards.check_rows(batch, indices)
            numbers[indices] = self.log.numbers.assign([names[k] for k in indices.tolist()])
            self.log.append(batch, indices, numbers[indices])
            if self.logged is not None:
                self.logged.note(batch, indices.tolist())
        return numbers, bool((accepted_rows == rows).all())

    def _put_ahead(self, batch: OpenedBatch, numbers: NDArray[np.int64]) -> None:
        program, status, costs, logged = (batch.column("kind") == PROGRAM), batch.column("status"), self._costs(batch), numbers >= 0
        for index in np.flatnonzero(logged).tolist():
            self.ahead.tasks[batch.names[index]] = AheadTask(
                int(numbers[index]), bool(program[index]), STATUSES[status[index]], int(costs[index])
            )
        self._note(self.ahead.champions, batch, np.flatnonzero(logged & program & (status == 0)).tolist())

    def _costs(self, batch: OpenedBatch) -> NDArray[np.int64]:
        """int64 [tasks]: readings."""
        return readings_of_each(batch.column("status"), batch.values(), self.repeats)

    def _note(self, champions: Champions, batch: OpenedBatch, fits: Sequence[int]) -> None:
        """Note champions among these programs; only genomes of new champions are unpacked.  One by one: a job has a handful of programs."""
        cycles = with_never(batch.values()[:, :, CYCLES])
        singles, programs = batch.epoch["singles"], np.cumsum(batch.epoch["kind"] == PROGRAM) - 1
        for index in fits:
            task, program = batch.names[index], int(programs[batch.places[index]])
            if champions.gains(cycles[index], task, bool(singles[program])):
                genome = unpack_genome(batch.epoch.arrow("fit_genome"), batch.epoch.texts("fit_task").index(task))
                champions.note(Individual(genome, cycles[index], task))


def _exclusive_sums(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Sum of all earlier elements, for each element."""
    sums: NDArray[np.int64] = np.cumsum(counts) - counts
    return sums
