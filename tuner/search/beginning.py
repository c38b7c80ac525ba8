"""What a search begins with: for every level the segmentation that is cheapest by prediction, and what of each segment is faster otherwise.

Nothing is measured to find it but its own segments and, of each, the changes that no prediction tells (`compiler.space.changes`): so the
first programs are within some percent of the last ones, after as many readings as there are segments and changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.cost.features import scaled
from compiler.space.changes import CHANGES
from compiler.space.gene import Gene, Genome
from compiler.space.predicted import Predict, by_estimate, segmentations
from tuner.learn.cost_model import Predictor
from tuner.search.asking import Asking
from tuner.search.context import SearchContext
from tuner.search.explore import first_genes, unknown

SINGLES = 2  # ways of every operator alone that are measured first, the best by prediction: what programs are compared with


def predicted_programs(context: SearchContext) -> Asking[list[Genome]]:
    """Of every level, as predicted and with changed segments; their segments are measured.

    All of them by one island: levels have most of their segments in common.
    """
    found: list[Genome] = []
    for at, level in enumerate(context.rules.levels):
        predict = _by_model(context.models[at]) or by_estimate(context.unit)
        genome = context.permitted(segmentations(context.unit, [level], predict)[0], at)
        found += [genome, (yield from _changed(context, genome, at))]
    return found


def likely_singles(context: SearchContext) -> Asking[list[Gene]]:
    """Of every operator alone the ways that are best by prediction, over all levels: this island's share.

    The first island has none where there are others: the programs are its own.
    """
    islands = context.rules.islands
    first, step = (context.island - 1, islands - 1) if islands > 1 else (0, 1)
    if first < 0:
        return []
    mine = [gene for genome in context.single_operators() for gene in genome]
    alone = first_genes(context.unit, context.table, False, longest=1)
    ways: dict[str, list[Gene]] = {}
    for gene in context.wanted([*mine, *context.at_every_grant(alone)]):
        ways.setdefault(context.known.structures.structure(gene.start, gene.stop), []).append(gene)
    shared = [gene for genes in list(ways.values())[first::step] for gene in genes]
    raws = yield from context.features(shared)
    fitting = [(gene, raw) for gene, raw in zip(shared, raws, strict=True) if raw is not None]
    if not fitting:
        return []
    expected = np.log(context.predicted([gene for gene, _ in fitting], np.stack([raw for _, raw in fitting]))).mean(1)
    best: dict[str, list[tuple[float, int]]] = {}
    for i, (gene, _) in enumerate(fitting):
        best.setdefault(context.known.structures.structure(gene.start, gene.stop), []).append((float(expected[i]), i))
    chosen = {i for each in best.values() for _, i in sorted(each)[:SINGLES]}
    return [gene for i, (gene, _) in enumerate(fitting) if i in chosen or gene in mine]


def _by_model(model: Predictor | None) -> Predict | None:
    return None if model is None else lambda raw, _: model.predict(scaled(raw))


def _changed(context: SearchContext, genome: Genome, level: int) -> Asking[Genome]:
    """Every segment with the changes that make it faster at a level."""
    yield from context.measure_segments(unknown(context.table, list(genome)))
    genes = list(genome)
    for change in CHANGES:
        if change.move not in context.rules.moves:
            continue
        tried = context.permitted(tuple(change.of(context.unit, gene) for gene in genes), level)
        yield from _measured(context, tried)
        genes = [new if _cycles(context, new, level) < _cycles(context, old, level) else old for new, old in zip(tried, genes, strict=True)]
    return tuple(genes)


def _measured(context: SearchContext, genes: Sequence[Gene]) -> Asking[None]:
    """As far as they fit."""
    fresh = unknown(context.table, list(genes))
    raws = yield from context.features(fresh)
    yield from context.measure_segments([gene for gene, raw in zip(fresh, raws, strict=True) if raw is not None])


def _cycles(context: SearchContext, gene: Gene, level: int) -> float:
    """Infinite of what does not fit."""
    known = context.table.of(gene)
    return np.inf if known is None else float(known[level])
