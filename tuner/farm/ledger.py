"""What counts: results of jobs, in their order, become numbered rows of the log and champions, up to the budget.

Rows stay the bytes that they came as: only the few columns that decide about them are opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.farm.jobs import PROGRAMS, EpochResult
from tuner.measure.measurement import CYCLES, told
from tuner.search.champions import Champions
from tuner.search.collector import PROGRAM, STATUSES
from tuner.search.packing import unpack_genome
from tuner.search.population import Individual
from tuner.store.columns import from_bytes
from tuner.store.run_log import OpenedBatch, RunLog
from tuner.store.schema import RESULTS
from tuner.world.world import Clock


@dataclass(frozen=True)
class Deadline:
    """at_s: on the clock's `monotonic_s`."""

    clock: Clock
    at_s: float

    @property
    def left_s(self) -> float:
        """0 when it is past."""
        return max(0.0, self.at_s - self.clock.monotonic_s())


@dataclass
class RunBudget:
    """Exactly one of them is set."""

    candidates: int | None = None
    deadline: Deadline | None = None

    def programs(self, used: int) -> int | None:
        """That may still be measured; None: as many as there is time for."""
        return None if self.candidates is None else max(0, self.candidates - used)

    def seconds(self) -> float | None:
        """That are left; None: as many as it takes."""
        return None if self.deadline is None else self.deadline.left_s

    def spent(self, used: int) -> bool:
        """A run always has one program, whatever the time."""
        return used > 0 and (self.programs(used) == 0 or self.seconds() == 0.0)


@dataclass
class Ledger:
    """seq: number of the next measured task.  failures: status -> tasks that ended so, earlier sessions included.

    tasks: those measured so far; a repeat writes no row and takes nothing off the budget.  Other genes may be the same plan, and islands do
    not wait to hear of each other.
    """

    levels: tuple[str, ...]
    log: RunLog
    champions: Champions
    budget: RunBudget
    seq: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)

    @property
    def spent(self) -> bool:
        return self.budget.spent(self.champions.programs)

    def commit(self, result: EpochResult) -> None:
        """All of a result that is new, or as much of it as the budget allows."""
        opened = result.batch.opened()
        names, program = opened.names, opened.epoch["kind"][opened.places] == PROGRAM
        new = np.fromiter((name not in self.tasks for name in names), np.bool_, len(names))
        left = self.budget.programs(self.champions.programs)
        if left is not None:
            # up to the last program of the budget: what was measured behind it is not in the run
            behind = np.concatenate(([0], np.cumsum(program & new)[:-1])) if len(new) else np.zeros(0)
            new &= behind < left
        kept = np.flatnonzero(new)
        if not len(kept):
            return
        self.log.append(opened, kept, np.arange(self.seq, self.seq + len(kept)))
        self.tasks.update(names[at] for at in kept.tolist())
        self.seq += len(kept)
        status = opened.epoch["status"][opened.places[kept]]
        self.failures.update(STATUSES[code] for code in status[status != 0])
        programs = program[kept]
        self.champions.programs += int(programs.sum())
        self._note(result, opened, kept[programs & (status == 0)].tolist())

    def _note(self, result: EpochResult, opened: OpenedBatch, fits: Sequence[int]) -> None:
        """Champions among these programs; genomes are only unpacked to be kept.

        One by one: a job has a handful of programs.
        """
        epoch = opened.epoch
        values = epoch["values"].reshape(-1, len(self.levels), len(RESULTS))
        singles, programs = epoch["singles"], np.cumsum(epoch["kind"] == PROGRAM) - 1
        for at in fits:
            place, task = int(opened.places[at]), opened.names[at]
            cycles, program = told(values[place, :, CYCLES]), int(programs[place])
            if self.champions.gains(cycles, task, bool(singles[program])):
                genomes = from_bytes(result.programs, PROGRAMS).arrow("genome")
                self.champions.note(Individual(unpack_genome(genomes, program), cycles, task))
