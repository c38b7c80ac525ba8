"""What counts: results of jobs, in their order, become numbered rows of the log and champions, up to the budget.

Everything is done by columns; a job brings some hundred rows at once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.log import RunLog
from tuner.recorder import Measured
from tuner.search.champions import Champions
from tuner.search.packing import from_bytes, unpack_individual


@dataclass
class Budget:
    """Exactly one of them is set.  deadline: on `time.monotonic`."""

    candidates: int | None = None
    deadline: float | None = None

    def programs(self, used: int) -> int | None:
        """That may still be measured; None: as many as there is time for."""
        return None if self.candidates is None else max(0, self.candidates - used)

    def seconds(self) -> float | None:
        """That are left; None: as many as it takes."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

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
    budget: Budget
    seq: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)

    @property
    def spent(self) -> bool:
        return self.budget.spent(self.champions.programs)

    def commit(self, measured: Measured) -> None:
        """All of a result that is new, or as much of it as the budget allows."""
        tasks = _table(measured.tasks)
        names: list[str] = tasks["task"].to_pylist()
        new = np.array([name not in self.tasks for name in names], np.bool_)
        left = self.budget.programs(self.champions.programs)
        if left is not None:
            # up to the last program of the budget: what was measured behind it is not in the run
            behind = np.concatenate(([0], np.cumsum(measured.program & new)[:-1])) if len(new) else np.zeros(0)
            new &= behind < left
        kept = np.flatnonzero(new)
        if not len(kept):
            return
        rows = _table(measured.rows)
        if len(kept) < len(new):
            rows = rows.filter(pa.array(np.repeat(new, len(self.levels))))
            tasks = tasks.filter(pa.array(new))
        self._append(tasks, rows, len(kept))
        self.tasks.update(names[at] for at in kept)
        self.seq += len(kept)
        self.failures.update(status for at in kept if (status := measured.status[at]) != "ok")
        self.champions.programs += int((measured.program & new).sum())
        self._note(measured, names, new)

    def _append(self, tasks: pa.Table, rows: pa.Table, count: int) -> None:
        seq = np.repeat(np.arange(self.seq, self.seq + count), len(self.levels))
        attempts = rows["attempt"].to_numpy()
        ids = row_ids(self.log.origin.run, seq, self.levels * count, attempts)
        rows = _with(rows, row_id=pa.array(ids, pa.string()), seq=pa.array(seq))
        self.log.append(tasks, rows)

    def _note(self, measured: Measured, names: list[str], new: NDArray[np.bool_]) -> None:
        """Champions: the best of these programs at every level, and of those of single operators."""
        arrays = from_bytes(measured.programs)
        fresh = {name for name, keep in zip(names, new.tolist(), strict=True) if keep}
        known = np.array([task.decode() in fresh for task in arrays["task"].tolist()], np.bool_)
        cycles, tasks = arrays["cycles"], arrays["task"]
        at = np.flatnonzero(known)
        winners = {int(at[np.lexsort((tasks[at], cycles[at, level]))[0]]) for level in range(len(self.levels)) if len(at)}
        alone = np.flatnonzero(known & measured.singles)
        if len(alone):
            winners.add(int(alone[np.lexsort((tasks[alone], np.log(cycles[alone]).mean(1)))[0]]))
        for winner in sorted(winners):
            self.champions.note(unpack_individual(arrays, winner))


def row_ids(run: str, seqs: Iterable[int], levels: Iterable[str], attempts: Iterable[int]) -> list[str]:
    """`tuner.candidate.row_id` of many rows."""
    head = json.dumps(run, ensure_ascii=False)
    quoted = {level: json.dumps(level, ensure_ascii=False) for level in set(levels)}
    texts = (f"[{head},{seq},{quoted[level]},{attempt}]" for seq, level, attempt in zip(seqs, levels, attempts, strict=True))
    return [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]


def _table(stream: bytes) -> pa.Table:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), values)
    return table
