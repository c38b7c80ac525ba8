"""Shard of an epoch under any strategy: its rounds of requests are measured, and savings at borders are learned.

| epoch | shards | does                                                                                                      |
|-------|--------|-----------------------------------------------------------------------------------------------------------|
| 0     | one    | measures the model layer by layer, so that even a stopped run has a result, and the run's initial programs |
| 1     | all    | first step of the strategy; common ground: no job continues before all are done                           |
| 2 ..  | all    | further steps of the strategy, without the findings of the epoch before (`search.lag`)                     |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from compiler.plan.plan import Infeasible
from compiler.space.gene import Genome
from compiler.space.initial import spread
from compiler.space.level_limits import single_operators_at
from simulator.npu.errors import InfeasibleError
from tuner.measure.budgeted import BudgetExhausted, MeasureBudget
from tuner.measure.grants import NEVER, refusal
from tuner.measure.request import BASELINE, Measurement, Proposal, Request
from tuner.search.ask_tell import Asking, run_to_end
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.overlap_saving import border_of
from tuner.search.validate import check_requests

# numbers of epochs, as in the table above
FIRST = 0  # initial programs, in one shard
BEGINNING = 1  # first step of the strategy
EVOLVING = 2  # this epoch and all later ones: a job does not wait for the epoch before


def run_shard(requests_of_shard: Asking[None], measurer: MeasureBudget, knowledge: Knowledge, collector: Collector) -> bool:
    """Run a shard of an epoch; returns whether it finished, False for an exhausted budget.

    requests_of_shard: generator of its rounds.  measurer: measures a round within the budget.  knowledge, collector: they have to be among
    its listeners.  Raises `TilefarmError` for invalid requests.
    """

    def measure_round(requests: Sequence[Request]) -> Sequence[Measurement]:
        check_requests(knowledge.structures.target_graph, requests)
        measurements = measurer(requests)
        border = border_of(knowledge.table, requests, measurements)
        if border is not None:
            collector.border = border
            knowledge.add_border(border)
        return measurements

    try:
        run_to_end(requests_of_shard, measure_round)
    except BudgetExhausted:
        return False
    return True


def first_programs(limits: SearchLimits, collector: Collector, initial: Mapping[Genome, str] = MappingProxyType({})) -> Asking[None]:
    """First epoch: a program of single operators for each of the machine's grants.

    initial: initial program of the run -> origin, measured next, with fields that are switched off at their only value.
    Raises `InfeasibleError` if even single operators do not fit.
    """
    machine = limits.target_graph.machine
    # for each grant, the program of the first of the levels that have it
    first_levels = {grant: level for level, grant in zip(reversed(limits.levels), reversed(limits.granted), strict=True)}
    genome_levels = dict[Genome, str]()
    for level in first_levels.values():
        genome = single_operators_at(limits.target_graph, level)
        if isinstance(genome, Infeasible):
            prefix = f"no plan fits level {level}: " if limits.less else ""
            raise InfeasibleError(f"{machine.name}: {prefix}{genome}")
        genome_levels.setdefault(limits.all_permitted(genome), level)
    measurements = yield [Request("program", genome, proposal=BASELINE) for genome in genome_levels]
    for (genome, level), measurement in zip(genome_levels.items(), measurements, strict=True):
        if measurement.status == "infeasible" and limits.several > 1:  # one core has too many instructions for an operator
            wide = limits.all_permitted(spread(limits.target_graph, genome))
            (measurement,) = yield [Request("program", wide, proposal=BASELINE)]
        cycles = measurement.cycles
        if measurement.status == "infeasible":
            raise InfeasibleError(f"{machine.name}: layer by layer: {measurement.error}")
        if cycles is not None and cycles[limits.levels.index(level)] >= NEVER:
            raise InfeasibleError(f"{machine.name}: no plan fits level {level}: layer by layer {refusal(machine, level)}")
    # initial programs of the run
    proposals = dict[Genome, Proposal]()
    for genome, origin in initial.items():
        allowed_genome = limits.all_permitted(genome)
        if allowed_genome not in genome_levels:
            proposals.setdefault(allowed_genome, Proposal(origin))
    if proposals and collector.individuals:  # if no program ran so far, the board does not answer
        yield [Request("program", genome, proposal=proposal) for genome, proposal in proposals.items()]
