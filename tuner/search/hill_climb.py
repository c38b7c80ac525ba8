"""Children: changes of the best program of a level, each tried in the whole program, and kept where that is faster.

What is held over borders, what is loaded ahead of them, and where neighbours lie on chip show in whole programs alone: no cover of
segments that were measured alone knows of it.  The simulator does, and takes a few milliseconds for a program that differs from the last
one in a segment.  That is no measurement: nothing is read from a board, logged or counted.  What it led to is measured as any program.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from compiler.cost.features import expected_cycles
from compiler.space.gene import Genome
from compiler.space.mutators import crossover, random_genome
from tuner.measure.request import RANDOM, Proposal
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.population import Grown, Island

# How often a move is drawn, 1 for those not named: by what they won for the time that they took.
_OFTEN = {"toggle_held": 4, "change_end": 3, "change_tiling": 3, "change_passes": 2, "change_ahead": 2, "change_prefetch": 2}
_CROSSED = 0.2  # share of changes that take a stretch from another program
_NOISE = 0.04  # of the segmentation that stretches come from
_GOLDEN = (5**0.5 - 1) / 2
_FASTER = 1e-4  # share of a program's cycles: with less it counts as what it was
_IDLE = 2  # children in a row that may win nothing before those behind are given less
_LEAST = 8  # changes in a row that a child is given at least
_NEAR = 1.03  # how much slower by estimate new segments may be than those they replace, and still be tried: hardly any beyond wins


def children(context: SearchContext, island: Island, count: int, turn: int, taken: Collection[Genome]) -> Asking[list[Genome]]:
    """At most `count`, none measured or in `taken`; random programs where the island has none to change, and nothing else is measured.

    Without segmentations an island would wait for what its neighbours send.
    """
    rules, found = context.rules, list[Genome]()
    if not island.members:
        levels = [] if taken else [rules.order[at % len(rules.order)] for at in range(count)]
        drawn = [context.permitted(random_genome(context.target_graph, island.rng), level) for level in levels]
        for genome in drawn:
            context.propose(genome, RANDOM)
        return drawn
    for at in range(count if context.config.search.changes else 0):
        level = _level(context, turn * count + at)
        child = yield from _grown(context, island, level, {*taken, *found})
        if child is not None:
            found.append(child)
    return found


def _level(context: SearchContext, number: int) -> int:
    """Of a child: an island goes on with the same one, where there are islands for all; levels have their shares (multiples of the golden
    ratio)."""
    rules = context.rules
    at = context.island if rules.islands >= len(rules.levels) else number * rules.islands + context.island
    shares = np.cumsum(rules.level_weights)
    return int(np.searchsorted(shares, at * _GOLDEN % 1 * shares[-1], "right"))


def _grown(context: SearchContext, island: Island, level: int, taken: Collection[Genome]) -> Asking[Genome | None]:
    """The fastest that was tried, from the best program of a level on, until `_patience` changes in a row won nothing; new, but not always
    faster."""
    best, idle, patience = island.best(level), 0, _patience(context, island, level)
    now, lineage = best.genome, Proposal(parents=(best.task,))
    cycles = yield from context.foreseen(now, level)
    seen, found = {now}, list[tuple[float, Genome]]()
    while idle < patience:
        idle += 1
        changed, step = _changed(context, island, now, level)
        child = None if changed is None else context.permitted(changed, level)
        if child is None or child in seen:
            continue
        seen.add(child)
        step = Proposal(",".join(filter(None, (lineage.by, step.by))), tuple(dict.fromkeys((*lineage.parents, *step.parents))))
        context.propose(child, step)
        if not (yield from _promises(context, child, now, level)):
            continue
        took = yield from context.foreseen(child, level)
        if child not in taken and not context.known.measured(child):
            found.append((took, child))
        if took < cycles:
            now, lineage, cycles, idle = child, step, took, 0
    return min(found, key=lambda each: each[0])[1] if found else None


def _patience(context: SearchContext, island: Island, level: int) -> int:
    """`search.changes`, and half as many for every child but two that was grown since the level's best program last became faster.

    So a long search spends its time on what it measures, where changes win nothing any more.
    """
    best, most = int(island.best(level).cycles[level]), context.config.search.changes
    then = island.grown.get(level)
    if then is None or best < (1 - _FASTER) * then.cycles:
        then = Grown(best, 0)
    island.grown[level] = then._replace(since=then.since + 1)
    return max(min(most, _LEAST), most >> max(0, then.since - _IDLE))


def _other(context: SearchContext, island: Island, level: int) -> tuple[Genome, tuple[str, ...]]:
    """What stretches are taken from, and its task: a segmentation that is nearly the cheapest, or another program of the island."""
    noisy = context.config.use.segmentations and island.rng.random() < 0.5
    found = context.table.segmentation(level, context.known.border[level], _NOISE, island.rng) if noisy else None
    if found is not None:
        return found[0], ()
    member = island.members[int(island.rng.integers(len(island.members)))]
    return member.genome, (member.task,)


def _changed(context: SearchContext, island: Island, genome: Genome, level: int) -> tuple[Genome | None, Proposal]:
    """By one move, or with a stretch of another program."""
    moves, rng = context.rules.moves, island.rng
    if rng.random() < _CROSSED:
        other, tasks = _other(context, island, level)
        return crossover(genome, other, rng), Proposal("crossover", tasks)
    names = [name for name in moves for _ in range(_OFTEN.get(name, 1))]
    name = names[int(rng.integers(len(names)))]
    return moves[name](context.target_graph, genome, rng), Proposal(name)


def _promises(context: SearchContext, child: Genome, parent: Genome, level: int) -> Asking[bool]:
    """Whether what is new of it fits, and, where segments run one after the other, is not expected to be much slower than what it replaces.

    By the estimate, which errs on both alike.
    """
    old, kept = set(parent), set(child)
    new = [gene for gene in child if gene not in old]
    raws = yield from context.features([*new, *(gene for gene in parent if gene not in kept)])
    fitting = [raw for raw in raws if raw is not None]
    if len(fitting) < len(raws):
        return False
    if context.rules.several > 1:
        return True
    expected = expected_cycles(np.stack(fitting), context.rules.at[level])
    return bool(expected[: len(new)].sum() <= _NEAR * expected[len(new) :].sum())
