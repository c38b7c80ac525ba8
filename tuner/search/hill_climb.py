"""Children by hill climbing: changes of a level's best program, each tried in the complete program, and kept if faster.

Persistent tensors and the on-chip placement of neighbours take effect only in complete programs; segmentations of separately measured
segments do not see them.  The simulator does, in a few milliseconds for a program that differs in one segment.  This is not a measurement:
nothing is read from a board, logged or counted.  The final child is measured as any program.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from compiler.cost.features import expected_cycles
from compiler.space.gene import Genome
from compiler.space.mutators import crossover
from tuner.measure.request import Proposal
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.placement import runs_in_sequence
from tuner.search.population import Population

# Weight of a move in draws, 1 by default: from gains over time in earlier searches.
_OFTEN = {"toggle_held": 4, "change_end": 3, "change_tiling": 3, "change_passes": 2, "change_prefetch": 2}
_CROSSED = 0.2  # share of changes that take a stretch from another program
_NOISE = 0.04  # noise of the segmentation that supplies stretches
_GOLDEN = (5**0.5 - 1) / 2  # golden ratio: its multiples spread evenly
_IDLE, _HALVED = 2, 8  # the changes of a child are halved for every `_HALVED` programs without gain but the first `_IDLE` such periods
_LEAST = 8  # least number of changes without gain
_NEAR = 1.03  # largest ratio of estimated cycles of new segments to replaced ones: hardly any change beyond it wins


def grow_children(context: SearchContext, count: int, programs: Collection[Genome]) -> Asking[list[Genome]]:
    """Grow at most `count` new programs, not in `programs`; none if no program was measured."""
    children = list[Genome]()
    for number in range(count if context.config.search.changes and context.known.population.members else 0):
        level = _level(context, context.number * count + number)
        child = yield from _grow_child(context, level, {*programs, *children})
        if child is not None:
            children.append(child)
    return children


def _level(context: SearchContext, number: int) -> int:
    """Level of a child: levels get shares (multiples of the golden ratio)."""
    shares = np.cumsum(context.rules.level_weights)
    return int(np.searchsorted(shares, number * _GOLDEN % 1 * shares[-1], "right"))


def _grow_child(context: SearchContext, level: int, programs: Collection[Genome]) -> Asking[Genome | None]:
    """Grow a child from one of a level's best programs until `_patience` changes in a row gain nothing.

    The child is a new program, not always faster.
    """
    population = context.known.population
    best, idle, patience = population.parent(level, context.rng), 0, _patience(context, population, level)
    if context.placer is not None and not context.explores:
        context.wide = runs_in_sequence(best.genome)  # no proposal of this job says whether to place segments
    current, lineage = best.genome, Proposal(parents=(best.task,))
    cycles = yield from context.foreseen(current, level)
    history, candidates = {current}, list[tuple[float, Genome]]()
    while idle < patience:
        idle += 1
        mutant, step = _change(context, current, level)
        child = None if mutant is None else context.permitted(mutant, level)
        if child is None or child in history:
            continue
        history.add(child)
        step = Proposal(",".join(filter(None, (lineage.by, step.by))), tuple(dict.fromkeys((*lineage.parents, *step.parents))))
        context.propose(child, step)
        if not (yield from _promises(context, child, current, level)):
            continue
        child_cycles = yield from context.foreseen(child, level)
        if child not in programs and not context.known.measured(child):
            candidates.append((child_cycles, child))
        if child_cycles < cycles:
            current, lineage, cycles, idle = child, step, child_cycles, 0
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _patience(context: SearchContext, population: Population, level: int) -> int:
    """Number of changes: `search.changes`, halved again and again while programs do not make the level's best faster.

    So a long search spends its time on measurements once changes gain nothing.
    """
    limit = context.config.search.changes
    return max(min(limit, _LEAST), limit >> max(0, population.idle[level] // _HALVED - _IDLE))


def _stretch_source(context: SearchContext, level: int) -> tuple[Genome, tuple[str, ...]]:
    """Source of stretches, and its task: a segmentation that is nearly the cheapest, or another program of the population."""
    noisy = context.config.use.segmentations and context.rng.random() < 0.5
    segmentation = context.table.segmentation(level, context.known.border[level], _NOISE, context.rng) if noisy else None
    if segmentation is not None:
        return segmentation[0], ()
    members = context.known.population.members
    member = members[int(context.rng.integers(len(members)))]
    return member.genome, (member.task,)


def _change(context: SearchContext, genome: Genome, level: int) -> tuple[Genome | None, Proposal]:
    """Change a genome by one move, or by a stretch of another program."""
    moves, rng = context.rules.moves, context.rng
    if rng.random() < _CROSSED:
        partner, tasks = _stretch_source(context, level)
        return crossover(genome, partner, rng), Proposal("crossover", tasks)
    names = [name for name in moves for _ in range(_OFTEN.get(name, 1))]
    name = names[int(rng.integers(len(names)))]
    return moves[name](context.target_graph, genome, rng), Proposal(name)


def _promises(context: SearchContext, child: Genome, parent: Genome, level: int) -> Asking[bool]:
    """Whether the new segments fit and, for segments in sequence, are not estimated much slower than those they replace.

    The estimate has the same error for both.
    """
    parent_genes, child_genes = set(parent), set(child)
    new = [gene for gene in child if gene not in parent_genes]
    raws = yield from context.features([*new, *(gene for gene in parent if gene not in child_genes)])
    fitting = [raw for raw in raws if raw is not None]
    if len(fitting) < len(raws):
        return False
    # on several cores segments run side by side, and their sum says nothing; but a program of one segment is its segment
    if context.rules.several > 1 and len(child) + len(parent) > 2:
        return True
    estimates = expected_cycles(np.stack(fitting), context.rules.at[level])
    return bool(estimates[: len(new)].sum() <= _NEAR * estimates[len(new) :].sum())
