"""Descent on the estimate: small changes of a placed genome, kept where the program is expected to be faster.

An estimate takes some tens of microseconds where a measurement takes tens of milliseconds, so a program that is measured may be the best of
thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, widths
from compiler.place.replay import Floats, Masks, Wiring, core_masks, replayed
from compiler.place.segments import Cores, segment_wiring
from tuner.search.table import SegmentTable


class _Option(NamedTuple):
    """A gene on its cores, its cycles and the bytes that it moves."""

    gene: Gene
    cycles: float
    moved: float
    cores: np.uint64


class _Program(NamedTuple):
    """A genome and what its estimate is made of."""

    genes: list[Gene]
    cycles: Floats
    moved: Floats
    cores: Masks
    wiring: Wiring


class Descent:
    """At one level.  border: cycles that a segment saves by overlapping another.  port: bytes per cycle.  delay: cycles of a flag.

    noise: every segment's cycles times exp(N(0, noise)), so that the same start leads elsewhere.
    """

    def __init__(
        self, table: SegmentTable, level: int, border: float, port: float, delay: int, rng: np.random.Generator, noise: float = 0.0
    ) -> None:
        self.table, self.unit, self.level, self.border = table, table.structures.unit, level, border
        self.port, self.delay, self.rng, self.noise = port, delay, rng, noise
        self._options: dict[tuple[int, int], list[_Option]] = {}
        self._price: dict[Gene, float] = {}

    def improved(self, genome: Genome, steps: int) -> tuple[float, Genome]:
        """A genome that is expected to take no longer, after so many estimates, and what it is expected to take."""
        now = self._program(list(genome))
        best, left = self._time(now), steps
        while left > 0:
            i, kind = int(self.rng.integers(len(now.genes))), int(self.rng.integers(3))
            if kind == 0:
                tries, best = self._elsewhere(now, i, best)
            else:
                changed = self._merged(now.genes, i) if kind == 1 else self._cut(now.genes, i)
                tries = len(changed)
                if changed:
                    now, best = self._better(now, best, i, changed, 2 if kind == 1 else 1)
            left -= max(1, tries)
        return best, tuple(now.genes)

    def expected(self, genome: Genome) -> float:
        """Cycles; infinite where a segment was never measured."""
        return self._time(self._program(list(genome)))

    def _program(self, genes: list[Gene]) -> _Program:
        options = [self._option(gene) for gene in genes]
        return _Program(
            genes,
            np.array([o.cycles for o in options]),
            np.array([o.moved for o in options]),
            np.array([o.cores for o in options], np.uint64),
            segment_wiring(self.unit, [gene.start for gene in genes]),
        )

    def _time(self, p: _Program) -> float:
        return replayed(p.cycles, p.moved, p.wiring, p.cores, self.port, self.delay) if np.isfinite(p.cycles).all() else np.inf

    def _elsewhere(self, now: _Program, i: int, best: float) -> tuple[int, float]:
        """One segment on other cores, or on more or fewer: the best of all, in place."""
        options = self.options(now.genes[i].start, now.genes[i].stop)
        kept = _Option(now.genes[i], float(now.cycles[i]), float(now.moved[i]), now.cores[i])
        for option in options:
            now.cycles[i], now.moved[i], now.cores[i] = option[1:]
            found = self._time(now)
            if found < best:
                best, kept = found, option
        now.genes[i], now.cycles[i], now.moved[i], now.cores[i] = kept
        return len(options), best

    def _merged(self, genes: Sequence[Gene], i: int) -> list[tuple[_Option, ...]]:
        """A segment and the next as one."""
        if i + 1 == len(genes) or genes[i + 1].stop - genes[i].start > MAX_SEGMENT:
            return []
        return [(option,) for option in self.options(genes[i].start, genes[i + 1].stop)]

    def _cut(self, genes: Sequence[Gene], i: int) -> list[tuple[_Option, ...]]:
        """A segment as two."""
        start, stop = genes[i].start, genes[i].stop
        if stop - start == 1:
            return []
        at = int(self.rng.integers(start + 1, stop))
        return list(product(self.options(start, at), self.options(at, stop)))

    def _better(self, now: _Program, best: float, i: int, changed: Sequence[tuple[_Option, ...]], width: int) -> tuple[_Program, float]:
        """The best of `changed` in place of `width` segments from i on, if any is better."""
        genes = [*now.genes[:i], *(option.gene for option in changed[0]), *now.genes[i + width :]]
        new = self._program(genes)
        at, chosen = slice(i, i + len(changed[0])), None
        for options in changed:
            new.cycles[at], new.moved[at], new.cores[at] = ([o[field] for o in options] for field in (1, 2, 3))
            found = self._time(new)
            if found < best:
                best, chosen = found, options
        if chosen is None:
            return now, best
        new.cycles[at], new.moved[at], new.cores[at] = ([o[field] for o in chosen] for field in (1, 2, 3))
        new.genes[at] = [option.gene for option in chosen]
        return new, best

    def options(self, start: int, stop: int) -> list[_Option]:
        """The best known genes over operators [start, stop) for every number of cores, on every set of cores that is tried."""
        found = self._options.get((start, stop))
        if found is None:
            every = [ask(start, stop, self.level, width) for width in widths(self.unit) for ask in (self.table.best, self.table.lean)]
            genes = dict.fromkeys(known[1] for known in every if known)
            found = [self._option(gene._replace(cores=cores)) for gene in genes for cores in _sets(self.unit.machine.cores, gene.cores)]
            self._options[start, stop] = found
        return found

    def _option(self, gene: Gene) -> _Option:
        """What is known of a gene.  A segment takes the same wherever it runs, with the same noise."""
        place = gene._replace(cores=tuple(range(len(gene.cores))))
        price = self._price.get(place)
        if price is None:
            price, known = np.inf, self.table.of(gene)
            if known is not None:
                alone = float(known[self.level]) * float(np.exp(self.rng.normal(0.0, self.noise)) if self.noise else 1.0)
                price = max(alone - self.border, 0.5 * alone)
            self._price[place] = price
        return _Option(gene, price, float(self.table.moved(gene)), core_masks([gene.cores])[0])


def _sets(cores: int, chosen: Cores) -> list[Cores]:
    """Runs of as many cores, side by side."""
    width = len(chosen)
    return [tuple(range(first, first + width)) for first in range(0, cores - width + 1, width)]
