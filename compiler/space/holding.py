"""Tensors that a genome had better hold over cuts, by what its segments are expected to take with them and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome, block_counts, recut, working_cores
from compiler.space.held import FREE, Layout, Space, cut_tensors, holding
from compiler.unit.unit import Unit

Cycles = Callable[[Sequence[NDArray[np.float64]]], Sequence[float]]  # of segments by their raw features


def held_by_prediction(unit: Unit, genome: Genome, cycles: Cycles) -> Genome:
    """The genome that holds those of its cut tensors with which the segments of their lives are expected to be faster.

    Those that save most bytes of DDR for the blocks that they hold come first.  Where less of L1 is left, a segment may have more blocks,
    or fewer slots.
    """
    tensors = sorted(cut_tensors(unit, genome), key=lambda each: each.rank)
    genome, spaces, taken = holding(genome, ()), [FREE] * len(genome), [False] * len(tensors)
    layout = Layout(unit, genome, tensors)
    known: dict[tuple[Gene, Space], float | None] = {}

    def ask(pairs: Sequence[tuple[Gene, Space]]) -> None:
        raws = {}
        for gene, space in pairs:
            if (gene, space) not in known and (plan := decode(unit, gene, *space)) is not None:
                raws[gene, space] = raw_features(unit, plan, gene.start)
            known.setdefault((gene, space))
        if raws:
            known.update(zip(raws, cycles(list(raws.values())), strict=True))

    for number in range(len(tensors)):
        taken[number] = True
        more = layout.of(taken)
        changed = [at for at, (new, old) in enumerate(zip(more, spaces, strict=True)) if new != old]
        ways = {at: list(_ways(unit, genome[at])) for at in changed}
        ask([(way, more[at]) for at in changed for way in ways[at]] + [(genome[at], spaces[at]) for at in changed])
        best = {
            at: min(((took, n) for n, way in enumerate(ways[at]) if (took := known[way, more[at]]) is not None), default=None)
            for at in changed
        }
        now = [known[genome[at], spaces[at]] for at in changed]
        then = [None if found is None else found[0] for found in best.values()]
        if all(took is not None for took in then) and sum(filter(None, then)) < sum(filter(None, now)):
            genes = list(genome)
            for at, found in best.items():
                assert found is not None
                genes[at] = ways[at][found[1]]
            genome, spaces = tuple(genes), more
        else:
            taken[number] = False
    return holding(genome, list(compress(tensors, taken)))


def _ways(unit: Unit, gene: Gene) -> Iterator[Gene]:
    """The gene, and what needs less of L1."""
    yield gene
    if gene.prefetch > 1 and gene.blocks > 1:
        yield gene._replace(prefetch=1)
    for blocks in [count for count in block_counts(unit, gene.start, gene.stop) if count > gene.blocks][:2]:
        changed = recut(gene, blocks=blocks)
        yield recut(changed, cores=working_cores(unit, changed))
