"""Stages: a graph cut into steps that run one after the other, each of a few groups that run side by side.

Dynamic programming over what remains (Ding et al., IOS: Inter-Operator Scheduler for CNN Acceleration, MLSys 2021):
cost[S] = min over endings E of S of cost[S without E] + T(E), where an ending is a set that nothing in the rest of S waits for, and its
groups are its connected components.  T is measured, because the groups of a stage share the DDR port and no formula knows how they meet.

Measuring is what takes time, so it is done lazily: with a lower bound of T in place of T the best cut is found, its stages are measured,
and so on until every stage of the best cut has been.  Nothing better was left out if the bound is one; without a bound all are measured.
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
    """The largest stages that are looked at: nodes of a group (r of the paper), groups of a stage (s)."""

    group_nodes: int = 3
    groups: int = 4


@dataclass(frozen=True)
class StagePartition:
    """stages in the order in which they run; cycles of all.

    states: sets of remaining nodes that were visited.  steps: (state, ending) pairs.  measured: stages that T was asked for.
    """

    stages: tuple[Stage, ...]
    cycles: int
    states: int
    steps: int
    measured: int


@dataclass
class States:
    """Every set that can remain, smallest first (the empty one is number 0), and the steps from each: (what is left then, which ending)."""

    sets: list[Nodes]
    steps: list[list[tuple[int, int]]]
    endings: list[Nodes] = field(repr=False)

    @property
    def step_count(self) -> int:
        return sum(map(len, self.steps))


def endings(dag: Dag, remaining: Nodes, pruning: Pruning) -> Iterator[Nodes]:
    """Sets that nothing else in `remaining` waits for, as large as `pruning` allows, each once."""
    largest = pruning.group_nodes * pruning.groups
    last = sum(1 << node for node in members(remaining) if not dag.after[node] & remaining)
    todo: list[tuple[Nodes, Nodes, Nodes]] = [(0, last, 0)]  # ending, what may join it, what may not any more
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


def reachable(dag: Dag, pruning: Pruning, most_states: int | None = None, most_steps: int | None = None) -> States | None:
    """All states and steps; None where there are more than that."""
    number = {(1 << len(dag)) - 1: 0}
    found: list[list[tuple[Nodes, int]]] = []
    kinds: dict[Nodes, int] = {}
    todo, count = list(number), 0
    for remaining in todo:
        steps = []
        for ending in endings(dag, remaining, pruning):
            rest = remaining & ~ending
            steps.append((rest, kinds.setdefault(ending, len(kinds))))
            if rest not in number:
                number[rest] = len(number)
                todo.append(rest)
        found.append(steps)
        count += len(steps)
        if (most_states is not None and len(number) > most_states) or (most_steps is not None and count > most_steps):
            return None
    order = sorted(number, key=lambda nodes: (nodes.bit_count(), nodes))
    place = {nodes: i for i, nodes in enumerate(order)}
    return States(order, [[(place[rest], kind) for rest, kind in found[number[nodes]]] for nodes in order], list(kinds))


def partition(
    dag: Dag, states: States, bound: Bound | None = None, most_measured: int | None = None
) -> Generator[Sequence[Stage], Sequence[int], StagePartition]:
    """The cheapest cut into stages.  Gives stages to measure, and goes on with the cycles of each.

    bound: never more than what is measured.  most_measured: after so many stages the best cut of stages measured so far is taken.
    """
    stages = [dag.components(ending) for ending in states.endings]
    known: list[int | None] = [None] * len(stages)
    count = 0

    def ask(which: list[int]) -> Generator[Sequence[Stage], Sequence[int], None]:
        nonlocal count
        for at, cycles in zip(which, (yield [stages[at] for at in which]), strict=True):
            known[at] = cycles
        count += len(which)

    if bound is None:
        yield from ask(list(range(len(stages))))
    guesses = [0 if bound is None else bound(stage) for stage in stages]
    while True:
        over = most_measured is not None and count >= most_measured
        costs = [guess if cycles is None else cycles for guess, cycles in zip(guesses, known, strict=True)]
        cycles, path = _cheapest(states, [None if over and known[at] is None else cost for at, cost in enumerate(costs)])
        open_ = [at for at in path if known[at] is None]
        if not open_:
            return StagePartition(tuple(stages[at] for at in path), cycles, len(states.sets), states.step_count, count)
        yield from ask(open_)


def _cheapest(states: States, costs: Sequence[int | None]) -> tuple[int, list[int]]:
    """Cycles and endings, in the order in which they run, of the cheapest way to the empty set; an ending without a cost is not taken."""
    best: list[int | None] = [0]
    back: list[tuple[int, int]] = [(0, 0)]
    for steps in states.steps[1:]:
        least: int | None = None
        way = (0, 0)
        for rest, ending in steps:
            cost, before = costs[ending], best[rest]
            if cost is not None and before is not None and (least is None or before + cost < least):
                least, way = before + cost, (rest, ending)
        best.append(least)
        back.append(way)
    total = best[-1]
    if total is None:
        raise RuntimeError("no cut into measured stages")
    at, path = len(best) - 1, []
    while at:
        at, ending = back[at]
        path.append(ending)
    return total, path[::-1]
