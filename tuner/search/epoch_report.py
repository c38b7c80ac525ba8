"""Report of a job for later jobs: a listener collects it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, scale_features
from compiler.space.gene import Gene, Genome
from tuner.log.columns import to_bytes
from tuner.log.record import EPOCH, RESULTS, STATUSES, TaskKind
from tuner.measure.request import CYCLES, MOVED, Measurement, Request
from tuner.search.champions import is_single_operator_sequence
from tuner.search.hashing import genome_name
from tuner.search.packing import pack_genomes, pack_individuals
from tuner.search.population import Individual

KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
SEGMENTS = [KINDS.index("operator"), KINDS.index("segment")]
PROGRAM = KINDS.index("program")


class Collector:
    """Collector of an epoch's findings.  segments: genes measured alone, with results.  programs: genomes of measured programs.

    border: float64 [levels], cycles saved by a border; None if unknown.  individuals: task -> program that fits some level.
    """

    def __init__(self) -> None:
        self.segments: list[Gene] = []
        self.programs: list[Genome] = []
        self.border: NDArray[np.float64] | None = None
        self.individuals: dict[str, Individual] = {}
        self._rows: list[tuple[Request, Measurement]] = []
        self._tasks: dict[str, int] = {}  # task -> its first row

    def heard(self, request: Request, measurement: Measurement) -> None:
        """`Listener`: collects all measurements with a task."""
        if not measurement.task:
            return
        self._tasks.setdefault(measurement.task, len(self._rows))
        self._rows.append((request, measurement))
        if request.measure and request.kind == "segment":
            if measurement.status == "ok":
                self.segments.append(request.genome[0])
        elif request.kind == "program":
            self.programs.append(request.genome)
            if (cycles := measurement.cycles) is not None:
                self.individuals.setdefault(measurement.task, Individual(request.genome, cycles, measurement.task))

    def pack(self, levels: int, proposed: Mapping[Genome, str] = MappingProxyType({})) -> bytes:
        """Columns of `EPOCH`.  proposed: programs from elsewhere that are worth measuring -> where they are from."""
        rows = self._rows
        no_values, no_features = np.zeros((levels, len(RESULTS)), np.int64), np.full(len(FEATURES), np.nan, np.float32)
        columns = {
            "task": [m.task if self._tasks[m.task] == index else "" for index, (_, m) in enumerate(rows)],
            "kind": [KINDS.index(request.task_kind) for request, _ in rows],
            "status": [STATUSES.index(measurement.status) for _, measurement in rows],
            "asked": [request.measure for request, _ in rows],
            "genome": pack_genomes([request.genome if request.kind == "segment" else () for request, _ in rows]),
            "values": np.array([no_values if m.values is None else m.values for _, m in rows], np.int64),
            "features": np.array([no_features if m.features is None else scale_features(m.features) for _, m in rows], np.float32),
            "programs": [genome_name(genome) for genome in self.programs],
            "singles": [is_single_operator_sequence(genome) for genome in self.programs],
            "border": () if self.border is None else self.border,
            "proposed": pack_genomes([*proposed]),
            "proposed_by": [*proposed.values()],
        }
        return to_bytes(columns | pack_individuals([*self.individuals.values()], "fit_"), EPOCH)


def pack_segments(
    genes: Sequence[Gene], cycles: NDArray[np.int64], moved_bytes: NDArray[np.int64], proposed: Mapping[Genome, str]
) -> bytes:
    """Columns of `EPOCH` for measurements from elsewhere.  cycles: int64 [segments, levels].  proposed: see `Collector.pack`."""
    count = len(genes)
    values = np.zeros((*cycles.shape, len(RESULTS)), np.int64)
    values[:, :, CYCLES] = cycles
    values[:, 0, MOVED[0]] = moved_bytes
    columns = {
        "task": [""] * count,
        "kind": np.full(count, SEGMENTS[-1], np.int8),
        "status": np.zeros(count, np.int8),
        "asked": np.ones(count, np.bool_),
        "genome": pack_genomes([(gene,) for gene in genes]),
        "values": values,
        "proposed": pack_genomes([*proposed]),
        "proposed_by": [*proposed.values()],
    }
    return to_bytes(columns, EPOCH)
