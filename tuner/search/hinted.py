"""Segments that were fast in another network (`Knowledge.hints`) come before those that a search begins with elsewhere.

The shortest path over measured segments and hints is measured, segment by segment and as a whole, until no hint is on it: a lazy
shortest path (LazySP; Dellin and Srinivasa, ICAPS 2016).  What a search begins with elsewhere is left to runs without a hint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.space.gene import Gene, Genome
from tuner.search.asking import Asking
from tuner.search.context import SearchContext
from tuner.search.explore import unknown
from tuner.search.population import Individual

_ROUNDS = 16  # each measures a program of every level, and the segments of it that are hints yet


def hinted_programs(context: SearchContext) -> Asking[list[Individual]]:
    """The programs of all rounds."""
    found = list[Individual]()
    expected = {context.known.key(gene): each for gene, each in context.known.hints}
    for _ in range(_ROUNDS if expected else 0):
        genomes = [genome for genome in dict.fromkeys(_cheapest(context)) if not context.known.measured(genome)]
        if not genomes:
            break
        hints = unknown(context.table, [gene for genome in genomes for gene in genome])
        foreseen = [expected.get(context.known.key(gene), np.full(len(context.rules.levels), np.nan)) for gene in hints]
        if hints:
            yield from context.measure_segments(hints, np.stack(foreseen))
        whole = yield from context.repaired(genomes)
        fitting = [genome for genome in dict.fromkeys(whole) if genome is not None and not context.known.measured(genome)]
        found += yield from context.measure_programs(fitting)
    return found


def _cheapest(context: SearchContext) -> list[Genome]:
    """Of every level, the hints among what is measured."""
    table, rules = context.table.beside(context.known.hints), context.rules
    genomes = []
    for level, granted in enumerate(rules.granted):
        path = table.segmentation(level, context.known.border[level], width=granted.cores if rules.several > 1 else None)
        if path is not None:
            genomes.append(context.permitted(path[0], level))
    return genomes


def without_hints(context: SearchContext, first: Sequence[Gene]) -> list[Gene]:
    """Those of the first segments of whose run there is no hint, and every operator alone as the hints have it best: the baseline."""
    hints = context.known.hints
    structure = context.known.structures.structure
    hinted = {structure(gene.start, gene.stop) for gene, _ in hints}
    table = context.table.beside(hints)
    alone = [table.single(gene.start) for gene, _ in hints if gene.stop - gene.start == 1]
    return [*(gene for gene in first if structure(gene.start, gene.stop) not in hinted), *(gene for gene in alone if gene is not None)]
