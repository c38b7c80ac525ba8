"""Champions, baselines and the robust program of a run's searches, as plans of the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compiler.model import LoweredModel
from compiler.plan.plan import Plan, joined
from simulator.npu.files import write_atomically
from simulator.npu.machine import BASELINE
from simulator.terminal import say
from tuner.config import TuneConfig
from tuner.farm.board_finals import plan_for, verdicts
from tuner.farm.measurement_budget import Spending
from tuner.farm.robust_program import robust_plans
from tuner.farm.search_run import SearchEnd, SearchRun
from tuner.farm.subgraph_searches import SearchedSubgraph
from tuner.measure.baseline import faster_in_file_order
from tuner.measure.grants import NEVER, same_grants
from tuner.measure.runners import runner_spec
from tuner.platform.local_files import LocalPath
from tuner.run_session import SessionEnd
from tuner.runs.folder import OWN
from tuner.selection.finals import Verdict
from tuner.store.champions import Champion
from tuner.tune_request import TuneRequest


class ChosenPlans(NamedTuple):
    """Plans of a run.  by_search: name of a file in `plans/` -> plan of each search.  plans: the same for the whole model.

    champions, baselines: level -> plan of the model.  verdicts: outcome of the finals on a board; () without a board.
    """

    ends: Sequence[SearchEnd]
    spending: Spending
    verdicts: tuple[Verdict, ...]
    by_search: dict[str, list[Plan]]
    plans: Mapping[str, Plan]
    champions: Mapping[str, Plan]
    baselines: Mapping[str, Plan]


def choose_plans(model: LoweredModel, end: SessionEnd[LocalPath], config: TuneConfig, request: TuneRequest) -> ChosenPlans:
    """Champions, baselines and the robust program, written to `plans/`; a board that measures runs the finals first."""
    folder, searches, runs = end
    levels, target_graphs = runs[0].levels, [run.spec.target_graph for run in runs]
    ends = [run.ended(str(folder.path)) for run in runs]
    groups = [[levels[index] for index in group] for group in same_grants(model.machine, levels)]
    bases = {  # levels that grant the same have one baseline, named by the first of them
        group[0]: [
            faster_in_file_order(model.compilers[search.pieces[0]], end.baselines[levels.index(group[0])].plan(target_graph), group)
            for target_graph, search, end in zip(target_graphs, searches, ends, strict=True)
        ]
        for group in groups
    }
    spending, board_verdicts = Spending.of(config, len(levels), len(searches)), tuple[Verdict, ...]()
    if runner_spec(config) is not None:
        tell = (lambda _: None) if request.quiet else say
        places = [run.place for run in runs]
        board_verdicts = verdicts(model, searches, places, bases, config, spending, request.address, tell)
    if board_verdicts:
        best = {level: [verdict.plans[level] for verdict in board_verdicts] for level in levels}
        fitting = [plan for verdict in board_verdicts if (plan := verdict.robust) is not None]
        robust = fitting if len(fitting) == len(board_verdicts) else None
    else:
        best = {
            level: [end.best[i].plan(target_graph) for target_graph, end in zip(target_graphs, ends, strict=True)]
            for i, level in enumerate(levels)
        }
        robust = robust_plans(folder.path, searches, levels)
    names = {level: BASELINE if level == levels[0] else f"{BASELINE}.{level}" for level in bases}
    search_plans = {**best, **{names[level]: plans for level, plans in bases.items()}, **({} if robust is None else {"robust": robust})}
    plans = {name: _model_plan(model, searches, chosen) for name, chosen in search_plans.items()}
    champions = {level: plans[level] for level in levels}
    baselines = {level: plans[names[group[0]]] for group in groups for level in group}
    write_plans(folder.plans, plans)
    write_plans(folder.plans / OWN, champions)
    return ChosenPlans(ends, spending, board_verdicts, search_plans, plans, champions, baselines)


def write_plans(folder: LocalPath, plans: Mapping[str, Plan]) -> None:
    for name, plan in plans.items():
        write_atomically(folder / f"{name}.json", [plan.to_json().encode()])


def store_champions(runs: Sequence[SearchRun], model: LoweredModel, choice: ChosenPlans) -> None:
    """Write the champions of each search to the store, if there is one."""
    for index, run in enumerate(runs):
        if run.storing is None:
            continue
        counts, levels = run.ledger.counted, run.levels
        champions = {}
        for i, level in enumerate(levels):
            individual = counts.champions.best[i]
            assert individual is not None
            cycles = {name: int(count) for name, count in zip(levels, individual.cycles, strict=True) if count < NEVER}
            champions[level] = Champion(plan=choice.by_search[level][index], cycles=cycles)
        robust = choice.by_search["robust"][index] if "robust" in choice.by_search else None
        run.storing.keep(model.digest, champions, robust, counts.champions.programs, counts.readings)


def _model_plan(model: LoweredModel, searches: Sequence[SearchedSubgraph], search_plans: Sequence[Plan]) -> Plan:
    """Plan of a model: each subgraph has the plan of its search, in the names of the search's first subgraph."""
    plans: dict[int, Plan] = {}
    for search, plan in zip(searches, search_plans, strict=True):
        plans |= {
            k: plan if k == search.pieces[0] else plan_for(plan, model.target_graphs[search.pieces[0]], model.target_graphs[k])
            for k in search.pieces
        }
    return joined({name: plans[k] for k, name in enumerate(model.names)})
