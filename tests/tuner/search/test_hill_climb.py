"""Children: tried in whole programs by the simulator, for every level its share, and none of it a measurement."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from compiler.cost.features import expected_cycles
from compiler.ops.lower_graph import make_unit
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.space.gene import Genome, block_counts, find_fault
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product
from tests.models import small_graph
from tests.tuner.search.searching import LEVELS, Local, LocalSearch
from tuner.measure.budgeted import MeasureBudget
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu
from tuner.measure.request import Proposal, Request
from tuner.measure.target import results
from tuner.search import hill_climb as module
from tuner.search.ask_tell import Asking, run_to_end
from tuner.search.context import SearchContext
from tuner.search.epoch import EVOLVING
from tuner.search.hill_climb import _level, grow_children
from tuner.search.population import Individual


@lru_cache(maxsize=4)
def target_graph(machine: str = "edge") -> TargetGraph:
    return make_unit(small_graph("inception_block"), load_machine(machine), DataType.float16)


def begun(measure: Local, *overrides: str) -> LocalSearch:
    """With the baseline in its population, and nothing else."""
    search = LocalSearch(measure.evaluator.target_graph, "search.lag=0", *overrides)
    genome = single_operators(search.rules.target_graph)
    assert not isinstance(genome, Infeasible)
    context = search.context(epoch=EVOLVING)
    run_to_end(context.measure_programs([genome]), MeasureBudget(measure, (search.known,)))
    return search


@pytest.mark.parametrize("machine", ["edge", "tiny"])
def test_a_child_is_the_fastest_that_was_tried(machine: str) -> None:
    """It is new and legal, takes what was said when it was tried, and is faster than its parent: by single operators anything is."""
    measure = Local(target_graph(machine))
    search = begun(measure, "search.changes=24")
    context, population = search.context(epoch=EVOLVING), search.known.population
    session = MeasureBudget(measure)
    found = run_to_end(grow_children(context, 3, ()), session)
    tried = [request.genome for request in measure.asked if request.kind == "program" and not request.measure]
    assert len(found) == len(set(found)) == 3
    assert not session.programs, "nothing of it is a measurement"
    for level, genome in zip(levels(context, 3), found, strict=True):
        assert find_fault(search.rules.target_graph, genome, True) is None
        assert genome in tried
        assert not context.known.measured(genome)
        run_to_end(context.measure_programs([genome]), MeasureBudget(measure, (search.known,)))
        cycles = search.known.program_cycles(genome)
        assert cycles is not None
        assert cycles[level] == run_to_end(context.foreseen(genome, level), MeasureBudget(measure))
        assert cycles[level] < population.best(level).cycles[level]


def test_child_ends_after_a_run_of_useless_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before: what wins later is tried, too."""
    measure = Local(target_graph())
    search = begun(measure, "search.changes=20")
    drawn, won = 0, list[int]()
    change, foreseen = module._change, SearchContext.foreseen

    def changed(*given: Any) -> tuple[Genome | None, Proposal]:
        nonlocal drawn
        drawn += 1
        return change(*given)

    def timed(context: SearchContext, genome: Genome, level: int) -> Asking[float]:
        took = yield from foreseen(context, genome, level)
        if not fastest or took < fastest[-1]:
            fastest.append(took)
            won.append(drawn)
        return took

    fastest = list[float]()
    monkeypatch.setattr(module, "_change", changed)
    monkeypatch.setattr(SearchContext, "foreseen", timed)
    run_to_end(grow_children(search.context(epoch=EVOLVING), 1, ()), MeasureBudget(measure))
    assert won[-1] > 20
    assert (np.diff(won) <= 20).all()
    assert drawn == won[-1] + 20


def test_patience_halves_while_nothing_is_gained() -> None:
    """Some programs are free, a ten-thousandth is no faster, levels are apart."""
    search = begun(Local(target_graph()), "search.changes=64")
    context, population = search.context(epoch=EVOLVING), search.known.population
    best, patience = population.best(0), dict[int, int]()
    slower = Individual(best.genome, best.cycles + [1, -(best.cycles[1] // 2), 1], "slower")
    for count in range(65):
        patience[count] = module._patience(context, population, 0)
        population = population.admit([replace(slower, task=f"slower {count}")])
    assert {count: limit for count, limit in patience.items() if limit != patience.get(count - 1)} == {0: 64, 24: 32, 32: 16, 40: 8}
    assert module._patience(context, population, 1) < 64, "the first of them was faster, and no later one"
    assert population.idle == (65, 64, 65)
    little = int(best.cycles[0]) // 10_000
    for saved, idle in ((little - 1, 66), (2 * little + 2, 0)):
        population = population.admit([Individual(best.genome, best.cycles - saved, f"{saved}")])
        assert population.idle[0] == idle


def test_change_is_judged_against_its_predecessor() -> None:
    """By the estimate: what makes a small segment much slower makes next to no difference to a whole program, and is not tried."""
    measure = Local(target_graph())
    search = begun(measure)
    context, population = search.context(epoch=EVOLVING), search.known.population
    parent = population.best(0).genome
    others = [(*parent[:at], gene._replace(blocks=count), *parent[at + 1 :])
              for at, gene in enumerate(parent) for count in block_counts(context.target_graph, gene.start, gene.stop)]  # fmt: skip
    refused = 0
    for child in (each for each in others if each != parent):
        mine, theirs = (run_to_end(_estimates(context, genome), MeasureBudget(measure)) for genome in (child, parent))
        at = next(at for at, (new, old) in enumerate(zip(child, parent, strict=True)) if new != old)
        promising = run_to_end(module._promises(context, child, parent, 0), MeasureBudget(measure))
        assert promising == (mine[at] <= 1.03 * theirs[at])
        refused += not promising and sum(mine) <= 1.03 * sum(theirs)
    assert refused


@pytest.mark.parametrize("name", ["inception_block", "one product"])
def test_only_programs_of_one_segment_are_judged(name: str) -> None:
    """On several cores, the estimate refuses changes of the only segment as on one core, and none of a segment among others."""
    model = product(192, 96, 160) if name == "one product" else None
    measure = Local(target_graph("edge:cores=2") if model is None else make_case(model, machine_of(2, True), DataType.float16).target_graph)
    search = begun(measure)
    context, refused = search.context(epoch=EVOLVING), 0
    parent = search.known.population.best(0).genome
    for at, gene in enumerate(parent):
        for count in block_counts(context.target_graph, gene.start, gene.stop):
            child = (*parent[:at], gene._replace(blocks=count), *parent[at + 1 :])
            estimates = [run_to_end(_estimates(context, genome), MeasureBudget(measure)) for genome in (child, parent)]
            if child != parent and len(estimates[0]) == len(child):
                promising = run_to_end(module._promises(context, child, parent, 0), MeasureBudget(measure))
                assert promising == (model is None or estimates[0][at] <= 1.03 * estimates[1][at])
                refused += not promising
    assert bool(refused) == (model is not None)


def _estimates(context: SearchContext, genome: Genome) -> Asking[list[float]]:
    raws = yield from context.features(genome)
    return [float(expected_cycles(raw[None], context.rules.at[0])[0]) for raw in raws if raw is not None]


def test_moves_are_drawn_by_their_shares() -> None:
    search = begun(Local(target_graph()))
    drawn = Counter[str]()
    names = ["toggle_held", "change_tiling", "change_blocks"]
    search.rules.moves = {name: lambda *_, name=name: drawn.update([name]) for name in names}
    context, population = search.context(epoch=EVOLVING), search.known.population
    for _ in range(2000):
        module._change(context, population.best(0).genome, 0)
    assert [round(drawn[name] / drawn["change_blocks"]) for name in names] == [4, 3, 1]


def levels(context: SearchContext, count: int) -> list[int]:
    return [_level(context, number) for number in range(count)]


def test_levels_have_their_shares_of_the_children() -> None:
    search = LocalSearch(target_graph(), "search.lag=0")
    assert np.abs(np.bincount(levels(search.context(epoch=EVOLVING), 30)) - 10).max() <= 1
    search.rules.level_weights = np.array([1.0, 1.0, 3.0])
    assert np.abs(np.bincount(levels(search.context(epoch=EVOLVING), 30)) - [6, 6, 18]).max() <= 1


def test_without_changes_there_are_no_children() -> None:
    measure = Local(target_graph())
    search = begun(measure, "search.changes=0")
    asked = len(measure.asked)
    assert run_to_end(grow_children(search.context(epoch=EVOLVING), 3, ()), MeasureBudget(measure)) == []
    assert len(measure.asked) == asked


def test_changes_are_tried_on_the_described_machine() -> None:
    """Whoever measures: a board, or a target that is not the NPU, where there is nothing to try on."""
    u = target_graph()
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    slow = load_machine("edge").model_copy(update={"issue_cycles": 9})
    described, board = Evaluator(u, LEVELS), Evaluator(u, LEVELS, Npu(u, LEVELS, clock=slow))
    tried, measured = Request("program", genome, False), Request("program", genome)
    truth = described.measure(measured)
    assert (truth.cycles < board.measure(measured).cycles).all()
    for evaluator in (described, board):
        found = evaluator.measure(tried)
        assert found.task == ""
        assert found.cycles.tolist() == truth.cycles.tolist()
    assert Evaluator(u, LEVELS, _Constant()).measure(tried).values is None


class _Constant:
    """A target that says the same of everything."""

    def alone(self, plan: SegmentPlan, start: int) -> np.ndarray:
        return results(len(LEVELS), cycles=1)

    def stage(self, segments: object) -> np.ndarray:
        return results(len(LEVELS), cycles=1)

    def program(self, plan: Plan) -> np.ndarray:
        return results(len(LEVELS), cycles=1)
