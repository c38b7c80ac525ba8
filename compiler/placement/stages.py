"""Stages: a graph cut into steps that run in sequence, each of a few groups that run in parallel.

Dynamic programming over the remaining nodes (Ding et al., IOS: Inter-Operator Scheduler for CNN Acceleration, MLSys 2021):
cost[S] = min over endings E of S of cost[S without E] + T(E).  An ending is a set of nodes that no other node of S waits for; its groups
are its connected components.  T is measured, because the groups of a stage share the DDR port, and no formula gives their common time.

Measurements are slow, so they are lazy: the best cut by a lower bound of T is found, its stages are measured, and so on until every stage
of the best cut has been.  With a true lower bound no better cut is missed; without a bound all stages are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from compiler.placement.dag import Dag, Nodes, members

Group = tuple[int, ...]
Stage = tuple[Group, ...]
Bound = Callable[[Stage], int]


@dataclass(frozen=True)
class Pruning:
    """Limits of stages: nodes of a group (r of the paper), groups of a stage (s)."""

    group_nodes: int = 3
    groups: int = 4


@dataclass(frozen=True)
class StagePartition:
    """Stages in order, and their total cycles.

    states: visited sets of remaining nodes.  steps: (state, ending) pairs.  measured: number of measured stages.
    """

    stages: tuple[Stage, ...]
    cycles: int
    states: int
    steps: int
    measured: int


@dataclass
class States:
    """Every set of remaining nodes, smallest first (number 0 is empty), and the steps from each state: (next state, ending)."""

    sets: list[Nodes]
    steps: list[list[tuple[int, int]]]
    endings: list[Nodes] = field(repr=False)

    @property
    def step_count(self) -> int:
        return sum(map(len, self.steps))


def endings(dag: Dag, remaining: Nodes, pruning: Pruning) -> Iterator[Nodes]:
    """Sets of nodes that no other node in `remaining` waits for, as large as `pruning` allows, each once."""
    largest = pruning.group_nodes * pruning.groups
    last = sum(1 << node for node in members(remaining) if not dag.after[node] & remaining)
    todo: list[tuple[Nodes, Nodes, Nodes]] = [(0, last, 0)]  # ending, nodes that may join it, nodes that may not join any more
    while todo:
        ending, free, banned = todo.pop()
        for node in members(free & ~banned):
            grown = ending | 1 << node
            groups = dag.components(grown)
            if max(map(len, groups)) <= pruning.group_nodes:
                if len(groups) <= pruning.groups:
                    yield grown
                if grown.bit_count() < largest:
                    freed = sum(1 << p for p in dag.predecessors[node] if remaining >> p & 1 and not dag.after[p] & remaining & ~grown)
                    todo.append((grown, free & ~(1 << node) | freed, banned))
            banned |= 1 << node


def enumerate_states(dag: Dag, pruning: Pruning, most_states: int | None = None, most_steps: int | None = None) -> States | None:
    """All states and steps; None if there are more than the limits allow."""
    number = {(1 << len(dag)) - 1: 0}
    steps_of: list[list[tuple[Nodes, int]]] = []
    kinds: dict[Nodes, int] = {}
    todo, count = list(number), 0
    for remaining in todo:
        steps = []
        for ending in endings(dag, remaining, pruning):
            next_set = remaining & ~ending
            steps.append((next_set, kinds.setdefault(ending, len(kinds))))
            if next_set not in number:
                number[next_set] = len(number)
                todo.append(next_set)
        steps_of.append(steps)
        count += len(steps)
        if (most_states is not None and len(number) > most_states) or (most_steps is not None and count > most_steps):
            return None
    order = sorted(number, key=lambda nodes: (nodes.bit_count(), nodes))
    place = {nodes: i for i, nodes in enumerate(order)}
    return States(order, [[(place[next_set], kind) for next_set, kind in steps_of[number[nodes]]] for nodes in order], list(kinds))


def partition(
    dag: Dag, states: States, bound: Bound | None = None, most_measured: int | None = None
) -> Generator[Sequence[Stage], Sequence[int], StagePartition]:
    """Find the cheapest cut into stages.  Yields stages to measure, and receives the cycles of each.

    bound: at most the measured cycles.  most_measured: limit of measured stages; at the limit the best cut of measured stages is returned.
    """
    stages = [dag.components(ending) for ending in states.endings]
    measured_cycles: list[int | None] = [None] * len(stages)
    count = 0

    def ask(indices: list[int]) -> Generator[Sequence[Stage], Sequence[int], None]:
        nonlocal count
        for index, cycles in zip(indices, (yield [stages[index] for index in indices]), strict=True):
            measured_cycles[index] = cycles
        count += len(indices)

    if bound is None:
        yield from ask(list(range(len(stages))))
    guesses = [0 if bound is None else bound(stage) for stage in stages]
    while True:
        limit_reached = most_measured is not None and count >= most_measured
        costs = [guess if cycles is None else cycles for guess, cycles in zip(guesses, measured_cycles, strict=True)]
        cycles, path = _cheapest(
            states, [None if limit_reached and measured_cycles[index] is None else cost for index, cost in enumerate(costs)]
        )
        open_ = [index for index in path if measured_cycles[index] is None]
        if not open_:
            return StagePartition(tuple(stages[index] for index in path), cycles, len(states.sets), states.step_count, count)
        yield from ask(open_)


def _cheapest(states: States, costs: Sequence[int | None]) -> tuple[int, list[int]]:
    """Cycles and endings, in the order of execution, of the cheapest way to the empty set; an ending without a cost is not used."""
    best: list[int | None] = [0]
    back: list[tuple[int, int]] = [(0, 0)]
    for steps in states.steps[1:]:
        least: int | None = None
        way = (0, 0)
        for next_state, ending in steps:
            cost, before = costs[ending], best[next_state]
            if cost is not None and before is not None and (least is None or before + cost < least):
                least, way = before + cost, (next_state, ending)
        best.append(least)
        back.append(way)
    total = best[-1]
    if total is None:
        raise RuntimeError("no cut into measured stages")
    state, path = len(best) - 1, []
    while state:
        state, ending = back[state]
        path.append(ending)
    return total, path[::-1]
