"""Cost classes: one object for all operators of equal cost in any place of a model; parts of operators have classes too.

Tilings and features are cached by cost class: equal layers of a network and the parts of a channel split share them.
Classes are compared by identity, because tens of numbers and a machine take long to hash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp


@dataclass(frozen=True, eq=False)
class CostClass:
    """The first operator of its class, and its target graph."""

    target_graph: TargetGraph
    spec: TargetOp


@lru_cache(maxsize=1 << 14)
def cost_class_of(target_graph: TargetGraph, spec: TargetOp) -> CostClass:
    """The class of an operator.  Operators of a class have equal sizes, machine, types of operands and images of a batch tile."""
    return _first(
        _Keyed(
            (target_graph.machine, target_graph.together, target_graph.dtypes_of(spec), *spec.sizes(target_graph.storages)),
            CostClass(target_graph, spec),
        )
    )


@dataclass(frozen=True)
class _Keyed:
    sizes: tuple[object, ...]
    kind: CostClass = field(compare=False)


@lru_cache(maxsize=1 << 14)
def _first(keyed: _Keyed) -> CostClass:
    return keyed.kind
