"""Knowledge of a search: segments, savings at borders, measured programs, the population.

It grows by findings: the results of one job.  It depends only on the findings in their order, so two processes with the
same findings have equal knowledge.  Findings of a job in progress, for it alone, are removed after it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import scale_features
from compiler.space.gene import Gene, Genome, Key
from compiler.space.structural_hash import Structures
from tuner.log.columns import from_bytes
from tuner.log.record import EPOCH, RESULTS
from tuner.measure.request import CYCLES, MOVED, Measurement, Request, with_never
from tuner.search.epoch_report import PROGRAM, SEGMENTS
from tuner.search.hashing import genome_name
from tuner.search.packing import unpack_genomes, unpack_individuals
from tuner.search.population import Individual, Population
from tuner.search.table import SegmentTable


class Knowledge:
    """Knowledge about one target graph.  version: number of epochs learned for good.  groups: see `SegmentTable`.

    proposed: initial programs of the run -> origin.
    """

    def __init__(self, structures: Structures, levels: int, groups: Sequence[Sequence[int]] | None = None) -> None:
        self.levels, self.groups = levels, groups
        self.structures = structures
        self.forget()

    def forget(self) -> None:
        """Remove everything."""
        self.table = SegmentTable(self.structures, self.levels, self.groups)
        self.border = np.zeros(self.levels)
        self.programs: MutableMapping[int, NDArray[np.int64] | None] = {}  # name -> cycles; None: does not fit
        self.population = Population()
        self.proposed: dict[Genome, str] = {}
        self.version = 0

    def learn_epoch(self, findings: Sequence[bytes]) -> None:
        """Learn the findings of all jobs of an epoch, for good."""
        for data in findings:
            self._learn(data)
        self.version += 1

    def _learn(self, data: bytes) -> None:
        epoch = from_bytes(data, EPOCH)
        segments = np.flatnonzero(epoch["asked"] & np.isin(epoch["kind"], SEGMENTS))
        count = len(epoch["kind"])
        values = epoch["values"].reshape(count, self.levels, len(RESULTS))
        cycles, moved = values[segments, :, CYCLES], values[segments][:, :, MOVED].sum(2).max(1)
        genomes = unpack_genomes(epoch.arrow("genome"))
        genes = [genomes[index][0] for index in segments.tolist()]
        measured_ok = epoch["status"][segments] == 0
        features = epoch["features"].reshape(count, -1)[segments] if len(epoch["features"]) else np.zeros((len(genes), 0), np.float32)
        for gene, fits, gene_cycles, bytes_, look in zip(genes, measured_ok.tolist(), cycles, moved.tolist(), features, strict=True):
            self.table.add(gene, with_never(gene_cycles) if fits else None, bytes_, look.tobytes() if fits else b"")
        programs = np.flatnonzero(epoch["kind"] == PROGRAM)
        fits = (epoch["status"][programs] == 0).tolist()
        for name, fit, program_cycles in zip(epoch["programs"].tolist(), fits, values[programs, :, CYCLES], strict=True):
            self.programs[name] = with_never(program_cycles) if fit else None
        if len(border := epoch["border"]):
            self.add_border(border)
        self.population = self.population.admit(unpack_individuals(epoch, "fit_"))
        self.proposed = {**self.proposed, **dict(zip(unpack_genomes(epoch.arrow("proposed")), epoch.texts("proposed_by"), strict=True))}

    def heard(self, request: Request, measurement: Measurement) -> None:
        """Learn one measurement: a `Listener`, for the job that measures now."""
        if request.measure and request.kind == "segment":
            look = b"" if measurement.cycles is None or measurement.features is None else scale_features(measurement.features).tobytes()
            self.table.add(request.genome[0], measurement.cycles, measurement.moved_bytes, look)
        elif request.measure and request.kind == "program":
            self.programs[genome_name(request.genome)] = measurement.cycles
            if measurement.cycles is not None:
                self.population = self.population.admit([Individual(request.genome, measurement.cycles, measurement.task)])

    def add_border(self, sample: NDArray[np.float64]) -> None:
        """Add a sample of savings; newer samples have more weight, and a saving is never negative."""
        self.border = np.maximum(0.0, 0.5 * self.border + 0.5 * sample)

    def measured(self, genome: Genome) -> bool:
        """Whether the genome was measured as a program."""
        return genome_name(genome) in self.programs

    def program_cycles(self, genome: Genome) -> NDArray[np.int64] | None:
        """Cycles of a measured program, int64 [levels]; None if it fits no level.  Raises `KeyError` for another program."""
        return self.programs[genome_name(genome)]

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Remove at the end everything that is learned inside."""
        border, programs, population = self.border, self.programs, self.population
        self.programs = ChainMap({}, programs)  # not a copy: a search has thousands of programs, and as many jobs
        try:
            with self.table.temporary():
                yield
        finally:
            self.border, self.programs, self.population = border, programs, population

    def key(self, gene: Gene) -> Key:
        return self.structures.key(gene)
