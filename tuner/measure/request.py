"""The one wire between search, farm, runner and log: a request, and the measurement that came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome
from tuner.log.digests import canonical_json, task_digest
from tuner.log.drift import NOTHING_SAID, BoardSaid
from tuner.log.record import RESULTS, STATUSES, Status, TaskKind
from tuner.measure.grants import NEVER

CYCLES = RESULTS.index("cycles")
_USUAL = Gene(0, 0)
_GRANT, _PASSES, _HELD = map(Gene._fields.index, ("grant", "passes", "held"))
MOVED = [RESULTS.index("ddr_read_bytes"), RESULTS.index("ddr_write_bytes")]


def with_never(cycles: NDArray[np.int64]) -> NDArray[np.int64]:
    """As the search has them: `NEVER` in the place of 0, which stands for what does not fit a level, so that the least is what runs."""
    return np.where(cycles > 0, cycles, NEVER)


class Proposal(NamedTuple):
    """Origin of a request.  by: as the log has it, names of moves joined by commas; '' for the strategy's name.

    parents: tasks of the programs that it was made of.
    """

    by: str = ""
    parents: tuple[str, ...] = ()


BASELINE, SHORTEST_PATH, PLACEMENT, RANDOM = map(Proposal, ("baseline", "shortest path", "placement", "random"))


@dataclass(frozen=True, slots=True)
class Request:
    """A genome to measure: one gene as a segment, a few as a stage, a genome that covers the model as a program.

    stage: genes in the operators' order, on their cores; those that belong to one group of it may read each other's results.

    measure: False asks for features only.  predicted: float64 [levels], what the log should know was expected, or None; it identifies
    nothing, so a request without it is the same request.  proposal: the same holds of it.
    """

    kind: Literal["segment", "stage", "program"]
    genome: Genome
    measure: bool = True
    predicted: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    proposal: Proposal = field(default=Proposal(), compare=False, repr=False)

    @property
    def task_kind(self) -> TaskKind:
        """As the log calls it: a segment of one is an operator."""
        return "operator" if self.kind == "segment" and self.genome[0].stop - self.genome[0].start == 1 else self.kind

    @property
    def identity(self) -> Request:
        """The request without its prediction and proposal: what is named to others, who may have predicted otherwise."""
        return Request(self.kind, self.genome, self.measure)

    def task(self, payload: str) -> str:
        """Digest of the task that a payload says."""
        return task_digest(self.task_kind, payload)

    def without_plan(self, target_graph: str) -> str:
        """The payload where no plan was made of the genome.  unit: its digest."""
        return canonical_json({"unit": target_graph, "genome": [_written(gene) for gene in self.genome]})


def _written(gene: Gene) -> list[Any]:
    """As a list of its fields, without a grant of all, and without the last ones where all of them are as usual."""
    stop = max([place + 1 for place in range(_PASSES, len(gene)) if gene[place] != _USUAL[place]], default=0)
    stop = max(stop, _HELD + 1) if stop else _PASSES
    return [setting for place, setting in enumerate(gene[:stop]) if setting or place != _GRANT]


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Result of a request.  features: float64 raw (see `compiler.cost.features`).  values: int64 [levels, len(RESULTS)], or None.

    A row of values is zeros at a level that does not grant what is needed.  error: why there are no values.
    task: digest of what was measured; '' where features were asked for and told.
    payload: canonical JSON of the task; '' where no plan was made of the genome (`Request.without_plan`), or none was needed.
    pack: of the store that it was taken from, '' where it was measured.
    worker: who measured.  wall_s: how long that took.  attempt: workers that died of it before.
    board: nothing where no runner measured.
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
    board: BoardSaid = NOTHING_SAID

    @property
    def cycles(self) -> NDArray[np.int64] | None:
        """Per level, `NEVER` where it does not fit what the level grants; None where nothing was measured."""
        return None if self.values is None else with_never(self.values[:, CYCLES])

    @property
    def moved_bytes(self) -> int:
        """To and from DDR; 0 where nothing was measured."""
        return 0 if self.values is None else int(self.values[:, MOVED].sum(1).max())


def measurement_of(status: int, values: NDArray[np.int64], error: str | None = None, **fields: Any) -> Measurement:
    """A measurement out of columns.  status: place in `STATUSES`.  error: also there where the task fits some levels only."""
    return Measurement(STATUSES[status], error if status else None, values=None if status else values, **fields)


Measurer = Callable[[Sequence[Request]], Iterator[Measurement]]
"""Whoever measures: one measurement of each request, in their order, as they come."""
