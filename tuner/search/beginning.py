"""What a search begins with: for every level the segmentation that is cheapest by prediction, before anything is measured."""

from __future__ import annotations

from compiler.cost.features import scaled
from compiler.space.gene import Genome
from compiler.space.predicted import Floats, by_estimate, segmentations
from tuner.search.context import SearchContext


def predicted_programs(context: SearchContext) -> list[Genome]:
    """Of every level, by the model that the run begins with, or by the estimate."""
    levels, estimate = context.rules.levels, by_estimate(context.unit)

    def predict(raw: Floats, level: str) -> Floats:
        model = context.models[levels.index(level)]
        return estimate(raw, level) if model is None else model.predict(scaled(raw))

    found: list[Genome] = []
    for group in context.table.groups:  # that grant the same
        genomes = segmentations(context.unit, [levels[at] for at in group], predict)
        found += [context.permitted(genome, at) for at, genome in zip(group, genomes, strict=True)]
    return found
