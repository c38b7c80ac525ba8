"""Operators that are alike: one object for all that cost the same, wherever in a model they are and whichever part of one they are.

What is kept of an operator, tilings and features, is kept by its kind: a network's equal layers and the parts of a channel split share it.
Kinds are compared by identity, because tens of numbers and a machine take long to hash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp


@dataclass(frozen=True, eq=False)
class CostClass:
    """The first operator of its kind that was met, and where."""

    target_graph: TargetGraph
    spec: TargetOp


@lru_cache(maxsize=1 << 14)
def kind_of(target_graph: TargetGraph, spec: TargetOp) -> CostClass:
    """Operators are alike where their sizes are, on one machine with operands of the same types, of as many images together."""
    return _first(
        _Met(
            (target_graph.machine, target_graph.together, target_graph.dtypes_of(spec), *spec.sizes(target_graph.storages)),
            CostClass(target_graph, spec),
        )
    )


@dataclass(frozen=True)
class _Met:
    sizes: tuple[object, ...]
    kind: CostClass = field(compare=False)


@lru_cache(maxsize=1 << 14)
def _first(met: _Met) -> CostClass:
    return met.kind
