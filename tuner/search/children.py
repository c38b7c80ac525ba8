"""Children of an island's members: drawn, repaired and chosen among by prediction."""

from __future__ import annotations

from compiler.space.gene import Genome
from tuner.search.asking import Asking
from tuner.search.context import SearchContext
from tuner.search.population import Island


def children(context: SearchContext, island: Island, count: int, taken: set[Genome]) -> Asking[list[Genome]]:
    """At most `count`, none measured or in `taken`, each for a level drawn by its weight."""
    if count <= 0 or not island.members:
        return []
    config, rules, rng = context.config, context.rules, island.rng
    taken = set(taken)
    share = rules.level_weights / rules.level_weights.sum()
    moves = list(rules.moves.values())
    groups: list[tuple[int, list[Genome]]] = []
    for _ in range(count):
        level = int(rng.choice(len(rules.levels), p=share))
        group: list[Genome] = []
        for _ in range(config.model.proposals if context.by_model else 1):
            child = island.child(context.unit, level, config.search, moves)
            if child is None:
                continue
            child = context.permitted(child, level)
            if not context.known.measured(child) and child not in taken:
                group.append(child)
        groups.append((level, group))
    flat = iter((yield from context.repaired([genome for _, group in groups for genome in group])))
    picks: list[Genome] = []
    for level, group in groups:
        whole = [next(flat) for _ in group]
        fitting = [g for g in whole if g is not None and not context.known.measured(g) and g not in taken]
        if not fitting:
            continue
        lucky = rng.random() < config.search.epsilon
        pick = fitting[int(rng.integers(len(fitting)))] if lucky else fitting[context.fastest(fitting, level)]
        taken.add(pick)
        picks.append(pick)
    return picks
