"""What is known: segments, what borders save, programs that were measured, the best of other islands, models.

It grows by findings: what one island found in one epoch.  Everything in it follows from the findings it was given, in their order, so two
processes that were given the same know the same.  What a job finds, and what only its island may know yet, is taken back after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, scaled
from compiler.space.gene import Gene, Genome, Key
from compiler.space.structures import Structures
from tuner.measure.measurement import Measurement, Request
from tuner.search.names import genome_name
from tuner.search.packing import pack_genes, pack_individuals, unpack_genes, unpack_individuals
from tuner.search.population import Individual
from tuner.search.table import SegmentTable
from tuner.store.arrays import Arrays, below, from_bytes, prefixed, to_bytes


@dataclass
class Findings:
    """What an island found in an epoch: a `Listener`.

    segments: genes measured alone.  cycles: int64 [levels] of each, None where it does not fit.  moved: bytes to and from DDR.
    features: float32 [F] as the cost model takes them.  programs: names of the genomes that were measured (`genome_name`).
    border: float64 [levels], cycles that a border saved, or None where no program says.  elites: the island's best, where others ask.
    proposed: genomes from elsewhere that are worth measuring.
    """

    segments: list[Gene] = field(default_factory=list)
    cycles: list[NDArray[np.int64] | None] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    features: list[NDArray[np.float32] | None] = field(default_factory=list)
    programs: list[int] = field(default_factory=list)
    border: NDArray[np.float64] | None = None
    elites: list[Individual] = field(default_factory=list)
    proposed: list[Genome] = field(default_factory=list)

    def heard(self, request: Request, measurement: Measurement) -> None:
        """Segments and programs that were measured."""
        if request.measure and request.kind == "segment":
            cycles, features = measurement.cycles, measurement.features
            self.segments.append(request.genome[0])
            self.cycles.append(cycles)
            self.moved.append(measurement.moved_bytes)
            self.features.append(None if cycles is None or features is None else scaled(features))
        elif request.measure and request.kind == "program":
            self.programs.append(genome_name(request.genome))

    def pack(self, island: int, levels: int) -> bytes:
        count = len(self.segments)
        nothing, blank = np.zeros(levels, np.int64), np.full(len(FEATURES), np.nan, np.float32)
        arrays: Arrays = {
            "island": np.array([island]),
            "cycles": np.array([nothing if c is None else c for c in self.cycles], np.int64).reshape(count, levels),
            "fits": np.array([c is not None for c in self.cycles], np.bool_),
            "moved": np.array(self.moved, np.int64),
            "features": np.array([blank if f is None else f for f in self.features], np.float32).reshape(count, len(FEATURES)),
            "programs": np.array(self.programs, np.int64),
            "border": np.zeros((0, levels)) if self.border is None else self.border[None],
        }
        unmeasured = [Individual(genome, nothing, "") for genome in self.proposed]
        arrays |= prefixed("elites", pack_individuals(self.elites, levels)) | prefixed("proposed", pack_individuals(unmeasured, levels))
        return to_bytes(arrays | prefixed("segments", pack_genes(self.segments)))


@dataclass(frozen=True, eq=False)
class Learnable:
    """Segments of one set of findings, as the cost model takes them.  features: float32 [n, F].  cycles: int64 [n, levels].

    spans: int64 [n, 2], first operator and the one behind the last.
    """

    features: NDArray[np.float32]
    cycles: NDArray[np.int64]
    spans: NDArray[np.int64]


class Knowledge:
    """Of one unit.  version: sets of epochs that were learnt for good."""

    def __init__(self, structures: Structures, levels: int) -> None:
        self.levels = levels
        self.structures = structures
        self.forget()

    def forget(self) -> None:
        """All of it."""
        self.table = SegmentTable(self.structures, self.levels)
        self.border = np.zeros(self.levels)
        self.programs: set[int] = set()
        self.elites: dict[int, list[Individual]] = {}
        self.proposed: list[Genome] = []
        self.learnable: list[Learnable] = []
        self.version = 0

    def learn_epoch(self, findings: Sequence[bytes]) -> None:
        """What every island found in an epoch, for good."""
        for data in findings:
            self.learn(data)
        self.version += 1

    def learn(self, data: bytes) -> None:
        arrays = from_bytes(data)
        genes, fits, cycles = unpack_genes(below("segments", arrays)), arrays["fits"], arrays["cycles"]
        fresh = fits.copy()  # what another island measured too teaches nothing more
        for at, (gene, good, each, moved) in enumerate(zip(genes, fits.tolist(), cycles, arrays["moved"].tolist(), strict=True)):
            fresh[at] &= self.table.add(gene, each if good else None, moved)
        self.add_programs(arrays["programs"].tolist())
        for sample in arrays["border"]:
            self.add_border(sample)
        spans = np.array([(gene.start, gene.stop) for gene in genes], np.int64).reshape(len(genes), 2)
        self.learnable.append(Learnable(arrays["features"][fresh], cycles[fresh], spans[fresh]))
        if elites := unpack_individuals(below("elites", arrays)):
            self.elites[arrays["island"].item()] = elites
        self.proposed = [*self.proposed, *(m.genome for m in unpack_individuals(below("proposed", arrays)))]

    def heard(self, request: Request, measurement: Measurement) -> None:
        """A `Listener`: of the island that measures now."""
        if request.measure and request.kind == "segment":
            self.table.add(request.genome[0], measurement.cycles, measurement.moved_bytes)
        elif request.measure and request.kind == "program":
            self.add_programs([genome_name(request.genome)])

    def add_programs(self, names: Sequence[int]) -> None:
        self.programs.update(names)

    def add_border(self, sample: NDArray[np.float64]) -> None:
        """Newer samples count for more; a border never costs."""
        self.border = np.maximum(0.0, 0.5 * self.border + 0.5 * sample)

    def measured(self, genome: Genome) -> bool:
        """Whether the genome was measured whole."""
        return genome_name(genome) in self.programs

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is learnt inside is forgotten at the end."""
        border, programs, elites, rows = self.border, self.programs, dict(self.elites), len(self.learnable)
        proposed = self.proposed
        self.programs = set(programs)
        try:
            with self.table.aside():
                yield
        finally:
            self.border, self.programs, self.elites, self.proposed = border, programs, elites, proposed
            del self.learnable[rows:]

    def key(self, gene: Gene) -> Key:
        return self.structures.key(gene)
