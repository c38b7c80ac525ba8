"""The one wire between search, farm, runner and log: a request, and its measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome
from tuner.log.digests import canonical_json, task_digest
from tuner.log.drift import NO_BOARD, BoardReading
from tuner.log.record import RESULTS, STATUSES, Status, TaskKind
from tuner.measure.grants import NEVER

CYCLES = RESULTS.index("cycles")
_USUAL = Gene(0, 0)
_GRANT, _PASSES, _HELD = map(Gene._fields.index, ("grant", "passes", "held"))
MOVED = [RESULTS.index("ddr_read_bytes"), RESULTS.index("ddr_write_bytes")]


def with_never(cycles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles with `NEVER` in place of 0 (does not fit the level), so that the minimum is a program that fits."""
    return np.where(cycles > 0, cycles, NEVER)


class Proposal(NamedTuple):
    """Origin of a request.  by: text for the log, names of moves joined by commas; '' for the strategy's name.

    parents: tasks of the programs that it was derived from.
    """

    by: str = ""
    parents: tuple[str, ...] = ()


BASELINE, SHORTEST_PATH, PLACEMENT, RANDOM = map(Proposal, ("baseline", "shortest path", "placement", "random"))


@dataclass(frozen=True, slots=True)
class Request:
    """A genome to measure: one gene as a segment, a few as a stage, a genome that covers the model as a program.

    stage: genes in the operators' order, on their cores; genes of one group may read each other's results.

    measure: False: features only.  predicted: float64 [levels], predicted cycles for the log, or None.  proposal: origin, for the log.
    Prediction and proposal do not belong to the identity of a request.
    """

    kind: Literal["segment", "stage", "program"]
    genome: Genome
    measure: bool = True
    predicted: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    proposal: Proposal = field(default=Proposal(), compare=False, repr=False)

    @property
    def task_kind(self) -> TaskKind:
        """Kind of the task in the log: a segment with one operator is called operator."""
        return "operator" if self.kind == "segment" and self.genome[0].stop - self.genome[0].start == 1 else self.kind

    @property
    def identity(self) -> Request:
        """Request without prediction and proposal: equal for all jobs."""
        return Request(self.kind, self.genome, self.measure)

    def task(self, payload: str) -> str:
        """Digest of a task.  payload: its canonical JSON."""
        return task_digest(self.task_kind, payload)

    def without_plan(self, target_graph: str) -> str:
        """Payload of a genome without a plan."""
        return canonical_json({"unit": target_graph, "genome": [_gene_fields(gene) for gene in self.genome]})


def _gene_fields(gene: Gene) -> list[Any]:
    """Gene as a list of its fields, without a grant of 0, and without the last fields if all have their defaults."""
    stop = max([place + 1 for place in range(_PASSES, len(gene)) if gene[place] != _USUAL[place]], default=0)
    stop = max(stop, _HELD + 1) if stop else _PASSES
    return [setting for place, setting in enumerate(gene[:stop]) if setting or place != _GRANT]


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Result of a request.  features: float64 raw (see `compiler.cost.features`).  values: int64 [levels, len(RESULTS)], or None.

    A row of values is zeros at a level with too small a grant.  error: reason for missing values.
    task: digest of the task; '' if only features were requested.
    payload: canonical JSON of the task; '' if the genome has no plan (`Request.without_plan`), or if no payload was needed.
    pack: pack of the store that has the result; '' if it was measured.
    worker: name of the worker.  wall_s: seconds of the measurement.  attempt: number of workers that crashed before.
    board: empty without a runner.
    """

    status: Status
    error: str | None = None
    task: str = ""
    payload: str = ""
    features: NDArray[np.float64] | None = None
    values: NDArray[np.int64] | None = None
    pack: str = ""
    worker: str = ""
    wall_s: float = 0.0
    attempt: int = 0
    board: BoardReading = NO_BOARD

    @property
    def cycles(self) -> NDArray[np.int64] | None:
        """Cycles per level, `NEVER` if the grant is too small; None without measurement."""
        return None if self.values is None else with_never(self.values[:, CYCLES])

    @property
    def moved_bytes(self) -> int:
        """Bytes to and from DDR; 0 without measurement."""
        return 0 if self.values is None else int(self.values[:, MOVED].sum(1).max())


def measurement_of(status: int, values: NDArray[np.int64], error: str | None = None, **fields: Any) -> Measurement:
    """Measurement from columns.  status: index in `STATUSES`.  error: also set if the task fits only some levels."""
    return Measurement(STATUSES[status], error if status else None, values=None if status else values, **fields)


Measurer = Callable[[Sequence[Request]], Iterator[Measurement]]
"""Measurer: requests -> one measurement each, in order, as they are finished."""
