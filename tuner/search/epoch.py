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

FIRST, BEGINNING, EVOLVING = 0, 1, 2  # numbers of the first epochs; from EVOLVING on a job does not wait for the epoch before


def run_shard(asking: Asking[None], session: MeasureBudget, knowledge: Knowledge, collector: Collector) -> bool:
    """Run a shard of an epoch; returns whether it finished, False for an exhausted budget.  knowledge, collector: listen to the session.

    Raises `TilefarmError` for invalid requests.
    """

    def measured(requests: Sequence[Request]) -> Sequence[Measurement]:
        check_requests(knowledge.structures.target_graph, requests)
        measurements = session(requests)
        border = border_of(knowledge.table, requests, measurements)
        if border is not None:
            collector.border = border
            knowledge.add_border(border)
        return measurements

    try:
        run_to_end(asking, measured)
    except BudgetExhausted:
        return False
    return True


def first_programs(rules: SearchLimits, collector: Collector, begun: Mapping[Genome, str] = MappingProxyType({})) -> Asking[None]:
    """First epoch: a program of single operators for each of the machine's grants.

    begun: initial program of the run -> origin, measured next; programs that need disabled options are left to the strategy.
    Raises `InfeasibleError` if even single operators do not fit.
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
    initial = dict[Genome, Proposal]()
    for genome, origin in begun.items():
        if (allowed := rules.all_permitted(genome)) not in genomes:
            initial.setdefault(allowed, Proposal(origin))
    if initial and collector.individuals:  # no more requests to a board that never answers
        yield [Request("program", genome, proposal=origin) for genome, origin in initial.items()]
