"""Reordering: a target graph with the same operators in another order, over the same memory.

Storages, weights and their addresses do not change.  So segments of differently ordered graphs exchange tensors in DDR as segments of one
graph do, and variants of a container may have different orders.  Only the neighbours and the number of an operator change; records keep
the number in the original graph (`TargetOp.tag`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.target.target_graph import TargetGraph


def permute_to(target_graph: TargetGraph, names: Sequence[str]) -> TargetGraph | Infeasible:
    """Target graph with its operators in the order of `names`; or the reason why the order is illegal.

    names: names of all operators, every operator behind its producers.
    """
    numbers = _numbers(target_graph)
    order = [numbers.get(name, -1) for name in names]
    if order == list(range(len(target_graph.operators))):
        return target_graph
    done = set[int]()
    for position, (name, k) in enumerate(zip(names, order, strict=True)):
        if k < 0:
            return Infeasible(f"operator {position}", f"{name!r} is none of the model's {len(numbers)}")
        if k in done:
            return Infeasible(f"operator {position}", f"{name!r} is there already; expected every operator once")
        late = [target_graph.operators[source].name for source in target_graph.producers[k] if source not in done]
        if late:
            return Infeasible(f"operator {position}", f"{name!r} reads what {late[0]!r} makes; expected it behind that")
        done.add(k)
    if len(done) < len(numbers):
        missing = next(spec.name for k, spec in enumerate(target_graph.operators) if k not in done)
        return Infeasible(f"operator {len(names)}", f"is missing; expected {missing!r} somewhere")
    return permute(target_graph, tuple(order))


@lru_cache(maxsize=256)
def _numbers(target_graph: TargetGraph) -> dict[str, int]:
    """Numbers of operators by name."""
    return {spec.name: k for k, spec in enumerate(target_graph.operators)}


@lru_cache(maxsize=256)
def permute(target_graph: TargetGraph, order: tuple[int, ...]) -> TargetGraph:
    """Target graph whose k-th operator is operator order[k] of `target_graph`.  The order must be topological."""
    place = {old: new for new, old in enumerate(order)}

    def numbers(operators: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(place[k] for k in operators))

    return replace(
        target_graph,
        operators=tuple(
            replace(target_graph.operators[old], index=new, named=target_graph.operators[old].tag) for new, old in enumerate(order)
        ),
        producers={new: numbers(target_graph.producers[old]) for new, old in enumerate(order)},
        consumers={new: numbers(target_graph.consumers[old]) for new, old in enumerate(order)},
        escapes=frozenset(numbers(target_graph.escapes)),
    )
