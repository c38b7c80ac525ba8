"""Children of an island's members: drawn, repaired, chosen among by prediction, and changed further while that is expected to help."""

from __future__ import annotations

from collections.abc import Sequence

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
    picks: list[tuple[int, Genome]] = []
    lucky = []
    for level, group in groups:
        whole = [next(flat) for _ in group]
        fitting = [g for g in whole if g is not None and not context.known.measured(g) and g not in taken]
        if not fitting:
            continue
        lucky.append(rng.random() < config.search.epsilon)
        pick = fitting[int(rng.integers(len(fitting)))] if lucky[-1] else fitting[context.fastest(fitting, level)]
        taken.add(pick)
        picks.append((level, pick))
    return (yield from _climbed(context, island, picks, lucky, taken))


def _climbed(
    context: SearchContext, island: Island, picks: Sequence[tuple[int, Genome]], lucky: Sequence[bool], taken: set[Genome]
) -> Asking[list[Genome]]:
    """Children changed move by move, as long as a change is expected to make them faster; the lucky ones stay as they were drawn."""
    config, rng = context.config, island.rng
    moves = list(context.rules.moves.values())
    now = [genome for _, genome in picks]
    for _ in range(config.search.climb if context.by_model else 0):
        tries: list[tuple[int, Genome]] = []
        for i, genome in enumerate(now):
            for _ in range(0 if lucky[i] else config.model.proposals):
                changed = moves[int(rng.integers(len(moves)))](context.unit, genome, rng)
                if changed is not None:
                    tries.append((i, context.permitted(changed, picks[i][0])))
        whole = yield from context.repaired([genome for _, genome in tries])
        for i, (level, _) in enumerate(picks):
            found = (g for (at, _), g in zip(tries, whole, strict=True) if at == i and g is not None)
            options = [now[i], *(g for g in found if not context.known.measured(g) and g not in taken)]
            best = options[context.fastest(options, level)]
            taken.remove(now[i])
            taken.add(best)
            now[i] = best
    return now
