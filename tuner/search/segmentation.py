"""The strategy that comes along: segments are measured alone, shortest paths over them propose programs, and populations evolve.

| epoch | does                                                                                                       |
|-------|------------------------------------------------------------------------------------------------------------|
| 1     | measures its share of what the run began with, and of operators alone; the first one, what begins a search |
| 2 ..  | evolves: measures segments that may help, proposes programs, picks by prediction, measures them             |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

import numpy as np

from compiler.space.gene import Gene, Genome
from tuner.cost_model.interface import Predictor
from tuner.measure.request import BASELINE, SHORTEST_PATH, Proposal
from tuner.search.ask_tell import Asking
from tuner.search.bootstrap import Bootstrap, changed_operators, corrected, operators_alone
from tuner.search.context import SearchContext
from tuner.search.epoch import BEGINNING, EVOLVING, exchanges
from tuner.search.explore import first_genes, unknown
from tuner.search.hill_climb import children
from tuner.search.island_state import pack_island, unpack_island
from tuner.search.knowledge import Knowledge
from tuner.search.population import Individual, Island
from tuner.search.proposals import proposed
from tuner.search.segment_proposals import explore
from tuner.search.strategy import StrategyContext

ESTIMATE_ERROR = 0.02  # of programs, where all cores run one segment after the other


class Segmentation:
    """See `tuner.search.strategy.SearchStrategy`."""

    version: ClassVar[str] = "2"

    def __init__(self, context: StrategyContext, state: bytes | None) -> None:
        self.context = context
        rng = np.random.default_rng([context.seed, 1 + context.island])
        self.island = Island(rng) if state is None else unpack_island(state)

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        self.known, self.models = known, models

    def ask(self, epoch: int) -> Asking[None]:
        context = SearchContext(self.context.rules, self.known, self.context.island, epoch, self.models)
        if epoch == BEGINNING:
            self.island.admit(context.known.elites.get(0, []), context.config.search)
            first = _first_segments(context)  # its share of them, before it knows more than others
            yield from _first_programs(context, self.island)
            context.proposer = BASELINE
            yield from context.measure_segments(unknown(context.table, first))
        else:
            yield from _evolve(context, self.island, epoch - EVOLVING)

    def elites(self) -> Sequence[Individual]:
        return self.island.members

    def state(self) -> bytes:
        return pack_island(self.island)


def _first_programs(context: SearchContext, island: Island) -> Asking[None]:
    """The segments of this island's share of what the run began with, and what of it fits only when cut; the first one's, what measured
    segments say, too."""
    given = dict[Genome, None]()
    for genome, by in list(context.known.proposed.items())[context.island :: context.rules.islands]:
        given.setdefault(allowed := context.rules.all_permitted(genome))
        context.propose(allowed, Proposal(by))
    yield from _measure_programs(context, island, [*given])
    context.proposer = SHORTEST_PATH
    if context.island == 0 and context.config.use.segmentations:
        found = yield from corrected(context, (yield from Bootstrap(context).measured()))
        yield from _measure_programs(context, island, found)
        yield from _measure_programs(context, island, [context.held(genome, level) for level, genome in enumerate(found)])


def _measure_programs(context: SearchContext, island: Island, genomes: Sequence[Genome]) -> Asking[None]:
    """With their segments, as far as they fit."""
    repaired = yield from context.repaired(genomes)
    whole = [genome for genome in repaired if genome is not None]
    yield from context.measure_segments(unknown(context.table, [gene for genome in whole for gene in genome]))
    fitting = [genome for genome in dict.fromkeys(whole) if not context.known.measured(genome)]
    island.admit((yield from context.measure_programs(fitting)), context.config.search)


def _first_segments(context: SearchContext) -> list[Gene]:
    """This island's share of every operator alone; on several cores in many ways, and short runs, on each number of them: placement chooses
    among these.
    """
    genes = operators_alone(context)
    if context.rules.several > 1:
        genes += first_genes(context.target_graph, context.table, context.config.use.halo_cache)
    every = context.wanted(context.at_every_grant(genes))
    return every[context.island :: context.rules.islands]


def _evolve(context: SearchContext, island: Island, turn: int) -> Asking[None]:
    config, count = context.config, context.config.search.generation
    if context.rules.islands > 1 and exchanges(context.epoch, config.search.exchange_every):
        island.admit([each for elites in context.known.elites.values() for each in elites], config.search)
    context.proposer = BASELINE
    yield from context.measure_segments(context.wanted(context.at_every_grant(changed_operators(context, turn))))
    yield from explore(context, island)
    wanted = yield from proposed(context, island, count, turn)
    others = yield from children(context, island, count - len(wanted), turn, wanted)
    # alone as well, so that segmentations, and children of other islands, have what these came to
    yield from context.measure_segments(context.wanted([gene for genome in others for gene in genome]))
    whole = yield from context.repaired([*wanted, *others])
    fitting = [genome for genome in whole if genome is not None and not context.known.measured(genome)]
    if context.placer is not None and not context.wide:
        fitting = hopeful(context, fitting, {genome for genome in whole[: len(wanted)] if genome is not None})
    found = yield from context.measure_programs(list(dict.fromkeys(fitting)))
    island.admit(found, config.search)


def hopeful(context: SearchContext, genomes: list[Genome], wanted: Collection[Genome]) -> list[Genome]:
    """Those that are wanted, and of the others those that are expected to be as fast at some level.

    Where segments are placed, what is proposed gains so much in the first epochs that changes of older programs only cost what could be
    measured when more is known.
    """
    first = [genome in wanted for genome in genomes]
    if not any(first):
        return genomes
    expected = np.stack(context.expected(genomes))
    promising = (expected <= (1 + ESTIMATE_ERROR) * expected[first].min(0)).any(1)
    return [genome for genome, kept in zip(genomes, promising | first, strict=True) if kept]
