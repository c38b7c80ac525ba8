"""Descent on the estimate: small changes of a placed genome, kept where the program is expected to be faster.

An estimate takes a fraction of a millisecond where a measurement takes tens, so a program that is measured may be the best of hundreds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, widths
from compiler.place.replay import replayed
from compiler.place.segments import Cores, segment_edges
from tuner.search.table import SegmentTable


class Descent:
    """At one level.  border: cycles that a segment saves by overlapping another.  port: bytes per cycle.  delay: cycles of a flag.

    noise: every segment's cycles times exp(N(0, noise)), so that the same start leads elsewhere.
    """

    def __init__(
        self, table: SegmentTable, level: int, border: float, port: float, delay: int, rng: np.random.Generator, noise: float = 0.0
    ) -> None:
        self.table, self.unit, self.level, self.border = table, table.structures.unit, level, border
        self.port, self.delay, self.rng, self.noise = port, delay, rng, noise
        self._options: dict[tuple[int, int], list[Gene]] = {}
        self._price: dict[Gene, tuple[float, float]] = {}

    def improved(self, genome: Genome, steps: int) -> tuple[float, Genome]:
        """A genome that is expected to take no longer, after so many estimates, and what it is expected to take."""
        best = self.expected(genome)
        left = steps
        while left > 0:
            i = int(self.rng.integers(len(genome)))
            kind = int(self.rng.integers(3))
            tries = [*(self._elsewhere, self._merged, self._cut)[kind](genome, i)]
            left -= max(1, len(tries))
            for changed in tries:
                found = self.expected(changed)
                if found < best:
                    best, genome = found, changed
        return best, genome

    def expected(self, genome: Genome) -> float:
        """Cycles; infinite where a segment was never measured."""
        prices = [self._priced(gene) for gene in genome]
        times, moved = [t for t, _ in prices], [m for _, m in prices]
        if not np.isfinite(times).all():
            return np.inf
        return replayed(times, moved, segment_edges(self.unit, genome), [gene.cores for gene in genome], self.port, self.delay)

    def _priced(self, gene: Gene) -> tuple[float, float]:
        found = self._price.get(gene)
        if found is None:
            cycles: NDArray[np.int64] | None = self.table.of(gene)
            price = np.inf
            if cycles is not None:
                alone = float(cycles[self.level]) * float(np.exp(self.rng.normal(0.0, self.noise)) if self.noise else 1.0)
                price = max(alone - self.border, 0.5 * alone)
            found = self._price[gene] = (price, float(self.table.moved(gene)))
        return found

    def options(self, start: int, stop: int) -> list[Gene]:
        """The best known genes over operators [start, stop) for every number of cores, on every set of cores that is tried."""
        found = self._options.get((start, stop))
        if found is None:
            every = [ask(start, stop, self.level, width) for width in widths(self.unit) for ask in (self.table.best, self.table.lean)]
            genes = dict.fromkeys(known[1] for known in every if known)
            found = [gene._replace(cores=cores) for gene in genes for cores in _sets(self.unit.machine.cores, gene.cores)]
            self._options[start, stop] = found
        return found

    def _elsewhere(self, genome: Genome, i: int) -> Iterator[Genome]:
        """One segment on other cores, or on more or fewer."""
        for gene in self.options(genome[i].start, genome[i].stop):
            if gene != genome[i]:
                yield (*genome[:i], gene, *genome[i + 1 :])

    def _merged(self, genome: Genome, i: int) -> Iterator[Genome]:
        """A segment and the next as one."""
        if i + 1 < len(genome) and genome[i + 1].stop - genome[i].start <= MAX_SEGMENT:
            for gene in self.options(genome[i].start, genome[i + 1].stop):
                yield (*genome[:i], gene, *genome[i + 2 :])

    def _cut(self, genome: Genome, i: int) -> Iterator[Genome]:
        """A segment as two."""
        gene = genome[i]
        if gene.stop - gene.start > 1:
            at = int(self.rng.integers(gene.start + 1, gene.stop))
            for pair in product(self.options(gene.start, at), self.options(at, gene.stop)):
                yield (*genome[:i], *pair, *genome[i + 1 :])


def _sets(cores: int, chosen: Cores) -> list[Cores]:
    """Runs of as many cores, side by side."""
    width = len(chosen)
    return [tuple(range(first, first + width)) for first in range(0, cores - width + 1, width)]
