"""What counts: results of jobs, in their order, become numbered rows of the log and champions, up to the budget.

Rows stay the bytes that they came as: what decides about them is in a few arrays beside them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.farm.recorder import Measured
from tuner.search.champions import Champions
from tuner.search.packing import unpack_individual
from tuner.store.arrays import Arrays, from_bytes
from tuner.store.run_log import RunLog
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

    def commit(self, measured: Measured) -> None:
        """All of a result that is new, or as much of it as the budget allows."""
        names = measured.batch.names
        new = np.fromiter((name not in self.tasks for name in names), np.bool_, len(names))
        left = self.budget.programs(self.champions.programs)
        if left is not None:
            # up to the last program of the budget: what was measured behind it is not in the run
            behind = np.concatenate(([0], np.cumsum(measured.program & new)[:-1])) if len(new) else np.zeros(0)
            new &= behind < left
        kept = np.flatnonzero(new)
        if not len(kept):
            return
        self.log.append(measured.batch, kept, np.arange(self.seq, self.seq + len(kept)))
        self.tasks.update(names[at] for at in kept)
        self.seq += len(kept)
        self.failures.update(status for at in kept if (status := measured.status[at]) != "ok")
        self.champions.programs += int((measured.program & new).sum())
        self._note(measured, new)

    def _note(self, measured: Measured, new: NDArray[np.bool_]) -> None:
        """Champions among these programs; genomes are only unpacked to be kept.

        One by one: a job has a handful of programs.
        """
        arrays: Arrays = {}
        for place, at in enumerate(measured.fits.tolist()):
            cycles, task = measured.cycles[place], measured.batch.names[at]
            if new[at] and self.champions.gains(cycles, task, bool(measured.singles[place])):
                arrays = arrays or from_bytes(measured.programs)
                self.champions.note(unpack_individual(arrays, place))
