"""Phases of a program that no schedule can overlap: work that must end before a value exists, and work that can only begin after it.

Some operators need complete tensors before their first value: a mean over all pixels needs all pixels, an attention needs all keys.  Such
an operator is a barrier: work before its first value and work after it share no cycle.  So engines cannot make up after the barrier for
cycles that they were idle before it (docs/bounds.md, Lemma 5).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.dependences import Leaf, Needs, Touch
from compiler.ir.operators import Convolution, LayerNorm, Operator, QuantisedSoftmax, Softmax, Vector
from compiler.ir.operators.matmul import HeadedProduct
from compiler.target.target_graph import TargetGraph

Ops = frozenset[int]
NO_OPERATORS: Ops = frozenset()
LEAST_PART = 0.002  # least share of all work for a phase


class Phases(NamedTuple):
    """Phases in which the work of an operator may be done.  first, last: int64 [n], indices of phases."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    phases: int

    @classmethod
    def one(cls, operators: int) -> Phases:
        return cls(np.zeros(operators, np.int64), np.zeros(operators, np.int64), 1)


class Reads(NamedTuple):
    """Operands of an operator, each with its leaves and how they are read."""

    operands: dict[int, list[tuple[Leaf, Touch]]]

    def is_single(self, operand: int) -> bool:
        """Whether an operand is a single leaf; a channel of a concatenation lies in one of several leaves."""
        return len(self.operands[operand]) == 1


def reads_of(target_graph: TargetGraph, needs: Needs) -> list[Reads]:
    reads = [Reads({}) for _ in target_graph.operators]
    for leaf in (*needs.produced, *needs.given):
        for touch in leaf.readings:
            reads[touch.reader].operands.setdefault(touch.operand, []).append((leaf, touch))
    return reads


def mixes(op: Operator) -> bool:
    """Whether one value of the operator's result depends on all channels of its first input."""
    if isinstance(op, Convolution | Softmax | QuantisedSoftmax):
        return op.groups == 1
    return op.heads == 1 if isinstance(op, HeadedProduct) else isinstance(op, LayerNorm)


def before_first(target_graph: TargetGraph, needs: Needs) -> list[Ops]:
    """Operators that are complete before any value of an operator's result is, for every operator (docs/bounds.md, Lemma 5)."""
    complete: list[Ops] = []  # before all of a result, the operator included
    pixel: list[Ops] = []  # before all channels of a pixel
    value: list[Ops] = []
    for spec, reads in zip(target_graph.operators, reads_of(target_graph, needs), strict=True):
        of_all, of_pixel, of_value = {spec.index}, set[int](), set[int]()
        for operand, parts in reads.operands.items():
            for leaf, touch in parts:
                if leaf.maker < 0 or leaf.needed is None:
                    continue
                k, same = leaf.maker, touch.box.same(leaf.needed)
                all_channels = np.array_equal(touch.box.channels, leaf.needed.channels)
                of_all |= complete[k] if same else NO_OPERATORS
                across = complete[k] if same and touch.every else pixel[k] if all_channels else value[k]
                of_pixel |= across
                if operand == 0 and mixes(spec.operator):
                    of_value |= across
                elif reads.is_single(operand):
                    of_value |= value[k]
        complete.append(frozenset(of_all))
        pixel.append(frozenset(of_pixel))
        value.append(frozenset(of_value))
    return value


def behind_first(target_graph: TargetGraph, reads: list[Reads], barrier: int) -> tuple[list[bool], list[bool]]:
    """For every operator: whether all its values, and whether all its work, come after the first value of operator `barrier`."""
    values, work = [False] * len(target_graph.operators), [False] * len(target_graph.operators)
    values[barrier] = True
    for spec, operator_reads in zip(target_graph.operators[barrier + 1 :], reads[barrier + 1 :], strict=True):
        op = spec.operator
        of_one = {i: [leaf.maker >= 0 and values[leaf.maker] for leaf, _ in parts] for i, parts in operator_reads.operands.items()}
        wholly = {i: bool(parts) and all(parts) for i, parts in of_one.items()}
        if isinstance(op, Vector) and any(step.op == "take" for step in op.steps):  # earlier values are not counted
            values[spec.index] = work[spec.index] = bool(wholly) and all(wholly.values())
            continue
        values[spec.index] = any(wholly.values()) or (mixes(op) and any(of_one.get(0, ())))
        work[spec.index] = wholly.get(0, False) or (isinstance(op, HeadedProduct) and wholly.get(1, False))
    return values, work


def phases_of(target_graph: TargetGraph, needs: Needs, work: NDArray[np.float64]) -> Phases:
    """Phases of a target graph.  work: work of every operator, in any unit; a barrier with little work since the last one starts no
    phase."""
    count = len(target_graph.operators)
    first, last = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    if any(leaf.images > 1 for leaf in needs.produced):  # a value needs its own image alone
        return Phases.one(count)
    reads, phase, allowed = reads_of(target_graph, needs), 0, [True] * count
    for barrier, before in enumerate(before_first(target_graph, needs)):
        new_operators = [k for k in before if last[k] < 0]
        if not allowed[barrier] or work[new_operators].sum() <= LEAST_PART * work.sum():
            continue
        last[new_operators] = phase
        phase += 1
        allowed, later = behind_first(target_graph, reads, barrier)
        first[later] = phase
    last[last < 0] = phase
    return Phases(first, last, phase + 1)
