"""What an island does in an epoch.

| epoch | islands | does                                                                                            |
|-------|---------|-------------------------------------------------------------------------------------------------|
| 0     | one     | measures the model layer by layer: a run that is stopped at once has a result                   |
| 1     | all     | measures its share of what the run began with, and of the first segments: every operator alone, short runs |
| 2 ..  | all     | evolves: measures segments that may help, proposes programs, picks by prediction, measures them |
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from compiler.plan.plan import Infeasible
from compiler.space.gene import Genome
from compiler.space.starts import single_operators
from simulator.npu.errors import InfeasibleError
from tuner.search.children import children
from tuner.search.explore import first_genes, unknown
from tuner.search.lab import Lab
from tuner.search.population import Island
from tuner.search.proposals import proposed, varied
from tuner.search.segments import explore

FIRST, BEGINNING, EVOLVING = 0, 1, 2  # epochs; the last is where evolution starts
LAG = 1  # epochs of others that an island need not have heard of, from there on: a rule of the search, its results follow from it
ESTIMATE_ERROR = 0.02  # of programs, where all cores run one segment after the other


def run_epoch(lab: Lab, island: Island) -> None:
    """Changes the island, and the lab's knowledge and findings.  `InfeasibleError` where not even single operators fit."""
    if lab.epoch == FIRST:
        _layer_by_layer(lab, island)
    elif lab.epoch == BEGINNING:
        _first_programs(lab, island)
        _first_segments(lab)
    else:
        _evolve(lab, island, lab.epoch - EVOLVING)


def exchanges(epoch: int, every: int) -> bool:
    """Whether islands take in the elites of their neighbours at the start of this epoch."""
    return epoch > EVOLVING and (epoch - EVOLVING) % every == 0


def _layer_by_layer(lab: Lab, island: Island) -> None:
    genome = single_operators(lab.unit)
    machine = lab.unit.machine.name
    if isinstance(genome, Infeasible):
        raise InfeasibleError(f"{machine}: {genome}")
    found, measurements = lab.measure_programs([lab.rules.all_permitted(genome)], predicted=False)
    if measurements[0].status == "infeasible":
        raise InfeasibleError(f"{machine}: layer by layer: {measurements[0].error}")
    island.admit(found, lab.config.search)


def _first_programs(lab: Lab, island: Island) -> None:
    """This island's share of what the run began with, as far as it fits here."""
    given = [lab.rules.all_permitted(genome) for genome in lab.known.proposed[lab.island :: lab.rules.islands]]
    fitting = [whole for whole in lab.repaired(given) if whole is not None and not lab.known.measured(whole)]
    if fitting:
        lab.measure_segments(unknown(lab.table, [gene for genome in fitting for gene in genome]))
        found, _ = lab.measure_programs(list(dict.fromkeys(fitting)))
        island.admit(found, lab.config.search)


def _first_segments(lab: Lab) -> None:
    genome = single_operators(lab.unit)
    # the genome's own genes too: an operator may fit only in more blocks than every operator is tried in
    mine = [] if isinstance(genome, Infeasible) else list(genome)
    every = lab.wanted([*mine, *first_genes(lab.unit, lab.table, lab.config.use.halo_cache)])
    lab.measure_segments(every[lab.island :: lab.rules.islands])


def _evolve(lab: Lab, island: Island, turn: int) -> None:
    config, count = lab.config, lab.config.search.generation
    if lab.rules.islands > 1 and exchanges(lab.epoch, config.search.exchange_every):
        island.admit(lab.known.elites.get((lab.island - 1) % lab.rules.islands, []), config.search)
    explore(lab, island)
    wanted = proposed(lab, island, count, turn)
    others = varied(lab, island, count - len(wanted), turn, wanted)
    others += children(lab, island, count - len(wanted) - len(others), {*wanted, *others})
    whole = lab.repaired([*wanted, *others])
    fitting = [genome for genome in whole if genome is not None and not lab.known.measured(genome)]
    if lab.placer is not None and not lab.wide:
        fitting = hopeful(lab, fitting, {genome for genome in whole[: len(wanted)] if genome is not None})
    found, _ = lab.measure_programs(list(dict.fromkeys(fitting)))
    island.admit(found, config.search)


def hopeful(lab: Lab, genomes: list[Genome], wanted: Collection[Genome]) -> list[Genome]:
    """Those that are wanted, and of the others those that are expected to be as fast at some level.

    Where segments are placed, what is proposed gains so much in the first epochs that changes of older programs only cost what could be
    measured when more is known.
    """
    first = [genome in wanted for genome in genomes]
    if not any(first):
        return genomes
    expected = np.stack(lab.expected(genomes))
    promising = (expected <= (1 + ESTIMATE_ERROR) * expected[first].min(0)).any(1)
    return [genome for genome, kept in zip(genomes, promising | first, strict=True) if kept]
