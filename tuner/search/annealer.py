"""Annealing of placed genomes: the table's segments of every run of operators are the choices of a walk (`compiler.placement.annealing`).

An estimate takes tens of microseconds, a measurement tens of milliseconds or more, so each measured program can be the best of thousands.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.placement.annealing import DRAWS, Choices, anneal
from compiler.placement.port_model import Ints, core_masks, replay_cycles
from compiler.placement.segment_graph import Cores, kernel_edges, segment_wiring
from compiler.space.gene import EVERY_LENGTH, Gene, Genome, Tail, widths
from tuner.measure.grants import NEVER
from tuner.search.table import SegmentTable


class Annealer:
    """Annealer over a table's present content, at one level.  border: cycles that a segment saves by overlapping another.  port: bytes per
    cycle.

    delay: cycles of a flag.  cores: number of cores granted by the level; None: all.
    """

    def __init__(self, table: SegmentTable, level: int, border: float, port: float, delay: int, cores: int | None = None) -> None:
        self.table, self.target_graph, self.level, self.border = table, table.structures.target_graph, level, border
        self.port, self.delay, self.cores = port, delay, cores or self.target_graph.machine.cores
        # an option is a gene without its position (tail); options of one kind differ only in their cores, and share cycles and moved bytes
        self._tails: list[Tail] = []
        self._kind: list[int] = []
        self._prices: list[float] = []
        self._moved: list[int] = []
        self._first_option, self._option = self._runs()
        self._cores = core_masks([tail[_CORES] for tail in self._tails])

    def expected(self, genome: Genome) -> float:
        """Expected cycles; infinite for an unmeasured segment."""
        pairs = [(self._price(gene), self.table.moved(gene)) for gene in genome]
        prices = np.array([price for price, _ in pairs])
        if not np.isfinite(prices).all():
            return np.inf
        wiring, cores = segment_wiring(self.target_graph, [gene.start for gene in genome]), core_masks([gene.cores for gene in genome])
        return replay_cycles(prices, np.array([moved for _, moved in pairs], np.float64), wiring, cores, self.port, self.delay)

    def annealed(self, genome: Genome, steps: int, rng: np.random.Generator, noise: float = 0.0) -> Genome:
        """Fastest genome on a walk of `steps`, including its start; every segment of the start must be measured.

        noise: every segment's cycles times exp(N(0, noise)), equal on all cores, so that the same start leads elsewhere.
        """
        tail_count = len(self._tails)
        prices = np.array([*self._prices, *map(self._price, genome)])
        moved = np.array([*self._moved, *map(self.table.moved, genome)], np.float64)
        kind = np.array([*self._kind, *(len(self._prices) + i for i in range(len(genome)))])
        if noise:
            prices *= np.exp(rng.normal(0.0, noise, len(prices)))
        cores = np.concatenate((self._cores, core_masks([gene.cores for gene in genome])))
        edges = kernel_edges(self.target_graph)
        choices = Choices(EVERY_LENGTH, self._first_option, self._option, prices[kind], moved[kind], cores, *edges)
        starts = np.array([gene.start for gene in genome], np.int64)
        tails = np.arange(tail_count, tail_count + len(genome))
        _, starts, tails = anneal(choices, starts, tails, rng.random((steps, DRAWS)), self.port, self.delay)
        stops = [*starts[1:].tolist(), self.table.operators]
        return tuple(
            Gene(start, stop, *self._tails[option]) if option < tail_count else genome[option - tail_count]
            for start, stop, option in zip(starts.tolist(), stops, tails.tolist(), strict=True)
        )

    def _runs(self) -> tuple[Ints, Ints]:
        """Options of every run: for every number of cores the fastest and the leanest measured gene, on every set of cores."""
        options: dict[str, list[int]] = {}
        first, option = [0], list[int]()
        for start in range(self.table.operators):
            for stop in range(start + 1, start + EVERY_LENGTH + 1):
                if stop <= self.table.operators:
                    structure = self.table.structures.structure(start, stop)
                    if structure not in options:
                        options[structure] = self._options(start, stop)
                    option += options[structure]
                first.append(len(option))
        return np.array(first), np.array(option, np.int64)

    def _options(self, start: int, stop: int) -> list[int]:
        answers = [ask(start, stop, self.level, width) for width in widths(self.target_graph) for ask in (self.table.best, self.table.lean)]
        begin = len(self._tails)
        for gene in dict.fromkeys(answer[1] for answer in answers if answer is not None):
            places = sets_of_cores(self.cores, len(gene.cores))
            self._tails += [gene._replace(cores=cores)[2:] for cores in places]
            self._kind += [len(self._prices)] * len(places)
            self._prices.append(self._price(gene))
            self._moved.append(self.table.moved(gene))
        return list(range(begin, len(self._tails)))

    def _price(self, gene: Gene) -> float:
        cycles = self.table.find_cycles(gene)
        return (
            np.inf
            if cycles is None or cycles[self.level] >= NEVER
            else max(float(cycles[self.level]) - self.border, 0.5 * float(cycles[self.level]))
        )


_CORES = Gene._fields.index("cores") - 2  # index of the cores in a tail: a gene without start and stop


@lru_cache
def sets_of_cores(cores: int, width: int) -> tuple[Cores, ...]:
    """Groups of `width` adjacent cores."""
    return tuple(tuple(range(first, first + width)) for first in range(0, cores - width + 1, width))
