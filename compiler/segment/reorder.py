"""The same operators in another order: another unit over the same memory.

Storages, weights and their addresses stay where they are, so segments of differently permuted units meet in DDR as those of one unit do,
and variants of a container need not agree.  What changes is which operators are neighbours, and which number each of them has; records keep
the number of the unit that was permuted (`OperatorSpec.tag`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.target.target_graph import TargetGraph


def permuted_to(target_graph: TargetGraph, names: Sequence[str]) -> TargetGraph | Infeasible:
    """The unit with its operators in the order of their names; why not where these are others, or none after what it reads."""
    known = _numbers(target_graph)
    order = [known.get(name, -1) for name in names]
    if order == list(range(len(target_graph.operators))):
        return target_graph
    made = set[int]()
    for at, (name, k) in enumerate(zip(names, order, strict=True)):
        if k < 0:
            return Infeasible(f"operator {at}", f"{name!r} is none of the model's {len(known)}")
        if k in made:
            return Infeasible(f"operator {at}", f"{name!r} is there already; expected every operator once")
        late = [target_graph.operators[source].name for source in target_graph.producers[k] if source not in made]
        if late:
            return Infeasible(f"operator {at}", f"{name!r} reads what {late[0]!r} makes; expected it behind that")
        made.add(k)
    if len(made) < len(known):
        missing = next(spec.name for k, spec in enumerate(target_graph.operators) if k not in made)
        return Infeasible(f"operator {len(names)}", f"is missing; expected {missing!r} somewhere")
    return permuted(target_graph, tuple(order))


@lru_cache(maxsize=256)
def _numbers(target_graph: TargetGraph) -> dict[str, int]:
    """Of operators by their names."""
    return {spec.name: k for k, spec in enumerate(target_graph.operators)}


@lru_cache(maxsize=256)
def permuted(target_graph: TargetGraph, order: tuple[int, ...]) -> TargetGraph:
    """A unit whose k-th operator is operator order[k] of this one.  The order has to be a topological one."""
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
