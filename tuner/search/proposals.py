"""Proposals of programs besides children: segmentations, placements, stages, with persistent tensors."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.space.gene import Genome
from tuner.measure.request import BASELINE, PLACEMENT, SHORTEST_PATH, Proposal
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.placement import segment_cut


def propose_programs(context: SearchContext, count: int) -> Asking[list[Genome]]:
    """Propose at most `count` unmeasured programs, in order of merit.

    Proposals that depend only on the table are divided among the shards, so that no two measure the same.
    """
    programs: dict[Genome, None] = {}

    def take(genome: Genome | None, proposal: Proposal) -> None:
        if genome is not None and not context.known.measured(genome):
            programs.setdefault(genome)
            context.propose(genome, proposal)

    placement_genomes, first = (yield from _placement_programs(context)), context.share.index == 0
    context.wide = context.rules.wide or (context.placer is not None and not placement_genomes)
    if first and placement_genomes and context.turn % context.config.placement.every == 0:
        for group in range(len(context.table.groups)):
            take(context.table.singles(group), BASELINE)  # the baseline; placements would leave no room for it
    for genome in placement_genomes[:count]:
        take(genome, PLACEMENT)
    for segmentation, proposal in _table_programs(context) if len(programs) < count else ():
        take(segmentation, proposal)
    return list(programs)[:count]


def _placement_programs(context: SearchContext) -> Asking[list[Genome]]:
    """Placer's proposals for one level, with staged programs among them; levels take turns.

    None where they are not expected to beat every segment on all cores: then the search continues as without a placer.
    """
    if context.placer is None:
        return []
    order = context.rules.order
    level = order[(context.turn + context.share.index) % len(order)]
    best_genomes = [m.genome for m in sorted(context.known.population.members, key=lambda m: (int(m.cycles[level]), m.task))[:3]]
    border = float(context.known.border[level])
    rng = context.generator(2)
    staged = yield from _stage_programs(context)
    return context.placer.proposals(level, border, best_genomes, rng, context.known.measured, staged)


def _stage_programs(context: SearchContext) -> Asking[list[Genome]]:
    """Stages of the cheapest segmentation by short segments on one core; levels and shards take turns."""
    placement, rules = context.config.placement, context.rules
    number, remainder = divmod(context.turn - 1, placement.every)  # not before other programs than the initial ones are measured
    if context.placer is None or not context.turn or remainder or number % context.share.count != context.share.index:
        return []
    level = rules.order[number % len(rules.order)]
    border = float(context.known.border[level])
    segmentation = context.table.segmentation(level, border, longest=placement.longest, width=1)
    pieces = None if segmentation is None else context.placer.cut_graph(segment_cut(segmentation[0]), level, border)
    staged = None if pieces is None else (yield from context.placer.propose_stages(pieces, level, border))
    return [] if staged is None else list(dict.fromkeys([staged.genome, *staged.schedules]))


def _table_programs(context: SearchContext) -> Iterator[tuple[Genome | None, Proposal]]:
    """Segmentations: the cheapest of every level at several prices of a border, and noisy ones; and the tuned layer-by-layer genome.

    They get the persistent tensors that are expected to make them faster.

    With several cores they use all of them: a segmentation of mixed widths would ignore the cost of changes between them.
    """
    rules, border = context.rules, context.known.border
    width = [granted.cores if rules.several > 1 else None for granted in rules.granted]
    if context.share.index == 0 and (context.placer is None or context.wide):
        yield from ((context.table.singles(group), BASELINE) for group in range(len(context.table.groups)))
    if not context.config.use.segmentations:
        return
    prices = [(price, level) for price in (1.0, 0.5, 0.0, 1.5) for level in rules.order]
    for index, (price, level) in enumerate(prices):
        if (index + context.turn) % context.share.count == context.share.index:
            segmentation = context.table.segmentation(level, price * border[level], width=width[level])
            yield context.add_persistent(segmentation[0], level) if segmentation else None, SHORTEST_PATH
    for level in rules.order * 2:
        segmentation = context.table.segmentation(level, border[level], 0.02, context.rng, width=width[level])
        yield context.add_persistent(segmentation[0], level) if segmentation else None, SHORTEST_PATH
