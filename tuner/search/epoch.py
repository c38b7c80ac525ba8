"""An epoch of an island, whatever its strategy: rounds of requests are measured, and what they say of borders is learnt.

| epoch | islands | does                                                                                  |
|-------|---------|---------------------------------------------------------------------------------------|
| 0     | one     | measures the model layer by layer, so that a run that is stopped at once has a result, and what the run began with |
| 1     | all     | what the strategy does first; it is everybody's ground, nobody goes on before all are done |
| 2 ..  | all     | what the strategy does, an epoch behind what others found                               |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from compiler.plan.plan import Infeasible
from compiler.space.gene import Genome
from compiler.space.level_limits import single_operators_at
from simulator.npu.errors import InfeasibleError
from tuner.measure.budgeted import BudgetExhausted, MeasureBudget
from tuner.measure.grants import NEVER, refusal
from tuner.measure.request import BASELINE, Measurement, Proposal, Request
from tuner.search.ask_tell import Asking, answered
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.overlap_saving import border_of
from tuner.search.population import Individual
from tuner.search.validate import check_requests

FIRST, BEGINNING, EVOLVING = 0, 1, 2  # epochs; from the last one on islands do not wait for each other
LAG = 1  # epochs of others that an island need not have heard of, from there on: a rule of the search, its results follow from it


def run_epoch(asking: Asking[None], session: MeasureBudget, known: Knowledge, collector: Collector) -> bool:
    """Whether it came to its end: else there was enough, and it was closed.  known, collector: listen to the session.

    Raises `TilefarmError` for requests of what is not there.
    """

    def measured(requests: Sequence[Request]) -> Sequence[Measurement]:
        check_requests(known.structures.target_graph, requests)
        measurements = session(requests)
        border = border_of(known.table, requests, measurements)
        if border is not None:
            collector.border = border
            known.add_border(border)
        return measurements

    try:
        answered(asking, measured)
    except BudgetExhausted:
        return False
    return True


def first_programs(rules: SearchLimits, collector: Collector, begun: Mapping[Genome, str] = MappingProxyType({})) -> Asking[None]:
    """The first epoch: a program of single operators for each of the machine's grants.  What it measured are the first island's elites.

    begun: what the run began with -> where it is from, measured next where anything can be; what does not fit without what a switch rules
    out is left to the strategy.
    Raises `InfeasibleError` where not even those fit.
    """
    machine, genomes = rules.target_graph.machine, dict[Genome, str]()
    for level in {granted: level for level, granted in zip(reversed(rules.levels), reversed(rules.granted), strict=True)}.values():
        genome = single_operators_at(rules.target_graph, level)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{machine.name}: {f'no plan fits level {level}: ' if rules.less else ''}{genome}")
        genomes.setdefault(rules.all_permitted(genome), level)
    for genome, measurement in zip(genomes, (yield [Request("program", genome, proposal=BASELINE) for genome in genomes]), strict=True):
        cycles, level = measurement.cycles, genomes[genome]
        if measurement.status == "infeasible":
            raise InfeasibleError(f"{machine.name}: layer by layer: {measurement.error}")
        if cycles is not None and cycles[rules.levels.index(level)] >= NEVER:
            raise InfeasibleError(f"{machine.name}: no plan fits level {level}: layer by layer {refusal(machine, level)}")
        _admit(collector, genome, measurement)
    others = dict[Genome, Proposal]()
    for genome, by in begun.items():
        if (allowed := rules.all_permitted(genome)) not in genomes:
            others.setdefault(allowed, Proposal(by))
    if others and collector.elites:  # a board that never answers is not asked again
        for genome, measurement in zip(
            others, (yield [Request("program", genome, proposal=by) for genome, by in others.items()]), strict=True
        ):
            _admit(collector, genome, measurement)


def _admit(collector: Collector, genome: Genome, measurement: Measurement) -> None:
    if measurement.cycles is not None:
        collector.elites.append(Individual(genome, measurement.cycles, measurement.task))


def exchanges(epoch: int, every: int) -> bool:
    """Whether islands take in the elites of their neighbours at the start of this epoch."""
    return epoch > EVOLVING and (epoch - EVOLVING) % every == 0
