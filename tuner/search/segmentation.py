"""Built-in strategy: segments are measured separately, shortest paths over them propose programs, and populations evolve.

| epoch | does                                                                                                       |
|-------|------------------------------------------------------------------------------------------------------------|
| 1     | measures its shard of the initial programs and of single operators; the first job also runs the bootstrap |
| 2 ..  | of some jobs (`search.proposed`): measures promising segments, and programs that are proposed by them     |
|       | of the other jobs: grows children of the best programs                                                    |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from compiler.space.gene import Gene, Genome
from tuner.cost_model.interface import Predictor
from tuner.measure.request import BASELINE, SHORTEST_PATH, Proposal
from tuner.search.ask_tell import Asking
from tuner.search.bootstrap import Bootstrap, changed_operators, improve_segments, single_operator_genes
from tuner.search.context import SearchContext
from tuner.search.epoch import BEGINNING
from tuner.search.explore import first_genes, unmeasured_genes
from tuner.search.hill_climb import grow_children
from tuner.search.knowledge import Knowledge
from tuner.search.proposals import propose_programs
from tuner.search.segment_proposals import explore_segments
from tuner.search.strategy import StrategyContext


class Segmentation:
    """Built-in strategy: see `tuner.search.strategy.SearchStrategy`."""

    version: ClassVar[str] = "3"

    def __init__(self, context: StrategyContext) -> None:
        self.context = context

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        self.known, self.models = known, models

    def ask(self, epoch: int) -> Asking[None]:
        context = SearchContext(self.context.rules, self.known, self.context.shard, epoch, self.context.seed, self.models)
        if epoch == BEGINNING:
            first = _first_segments(context)  # before the jobs' knowledge differs
            yield from _first_programs(context)
            context.proposer = BASELINE
            yield from context.measure_segments(unmeasured_genes(context.table, first))
        else:
            yield from _evolve(context)


def _first_programs(context: SearchContext) -> Asking[None]:
    """Measure this job's shard of the initial programs, cut where they do not fit; in the first job also the bootstrap's programs."""
    initial = dict[Genome, None]()
    for genome, origin in list(context.known.proposed.items())[context.shard :: context.rules.shards]:
        initial.setdefault(permitted_genome := context.rules.all_permitted(genome))
        context.propose(permitted_genome, Proposal(origin))
    yield from _measure_programs(context, [*initial])
    context.proposer = SHORTEST_PATH
    if context.shard == 0 and context.config.use.segmentations:
        programs = yield from improve_segments(context, (yield from Bootstrap(context).measured()))
        yield from _measure_programs(context, programs)
        yield from _measure_programs(context, [context.add_persistent(genome, level) for level, genome in enumerate(programs)])


def _measure_programs(context: SearchContext, genomes: Sequence[Genome]) -> Asking[None]:
    """Measure programs with their segments, repaired to fit."""
    repaired = yield from context.repaired(genomes)
    feasible = [genome for genome in repaired if genome is not None]
    yield from context.measure_segments(unmeasured_genes(context.table, [gene for genome in feasible for gene in genome]))
    fitting = [genome for genome in dict.fromkeys(feasible) if not context.known.measured(genome)]
    yield from context.measure_programs(fitting)


def _first_segments(context: SearchContext) -> list[Gene]:
    """Shard of all single operators; with several cores in many forms, with short runs, on each number of cores: placement chooses among
    them.
    """
    genes = single_operator_genes(context)
    if context.rules.several > 1:
        genes += first_genes(context.target_graph, context.table, context.config.use.halo_cache)
    segments = context.unmeasured(context.limit_to_grants(genes))
    return segments[context.shard :: context.rules.shards]


def _evolve(context: SearchContext) -> Asking[None]:
    count, proposals = context.config.search.generation, list[Genome]()
    context.proposer = BASELINE
    if context.explores:
        yield from context.measure_segments(context.unmeasured(context.limit_to_grants(changed_operators(context))))
        yield from explore_segments(context)
        proposals = yield from propose_programs(context, count)
    children = yield from grow_children(context, count - len(proposals), proposals)
    # their segments too, for segmentations and for children of other jobs
    yield from context.measure_segments(context.unmeasured([gene for genome in children for gene in genome]))
    programs = yield from context.repaired([*proposals, *children])
    fitting = [genome for genome in programs if genome is not None and not context.known.measured(genome)]
    yield from context.measure_programs(list(dict.fromkeys(fitting)))
