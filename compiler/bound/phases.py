"""Phases of a program that no schedule lets overlap: what has to be over before a value is there, and what can only begin behind it.

Before the first value of some operators much is complete: one behind a mean over all pixels needs all of these, one of an attention all
keys.  Such a value is a barrier: work before it and work behind it share no cycle, so what engines do not do before it they have no time
for behind it (docs/bounds.md, Lemma 5).
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
NOTHING: Ops = frozenset()
LEAST_PART = 0.002  # of all work that a phase is worth its while for


class Phases(NamedTuple):
    """first, last: int64 [n], phases in which the work of an operator may be done, of so many."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    phases: int

    @classmethod
    def one(cls, operators: int) -> Phases:
        return cls(np.zeros(operators, np.int64), np.zeros(operators, np.int64), 1)


class Reads(NamedTuple):
    """Of an operator: its operands, each the leaves that it is made of and how they are read."""

    operands: dict[int, list[tuple[Leaf, Touch]]]

    def alone(self, operand: int) -> bool:
        """Whether an operand is one leaf: a channel of a concatenation is in one of its parts."""
        return len(self.operands[operand]) == 1


def reads_of(target_graph: TargetGraph, needs: Needs) -> list[Reads]:
    found = [Reads({}) for _ in target_graph.operators]
    for leaf in (*needs.made, *needs.given):
        for touch in leaf.readings:
            found[touch.reader].operands.setdefault(touch.operand, []).append((leaf, touch))
    return found


def mixes(op: Operator) -> bool:
    """Whether a value of its result is made of all channels of its first input."""
    if isinstance(op, Convolution | Softmax | QuantisedSoftmax):
        return op.groups == 1
    return op.heads == 1 if isinstance(op, HeadedProduct) else isinstance(op, LayerNorm)


def before_first(target_graph: TargetGraph, needs: Needs) -> list[Ops]:
    """Of every operator those that are complete before any value of its result is (docs/bounds.md, Lemma 5)."""
    complete: list[Ops] = []  # where all of a result is, the operator among them
    pixel: list[Ops] = []  # where all channels of a pixel are
    value: list[Ops] = []
    for spec, reads in zip(target_graph.operators, reads_of(target_graph, needs), strict=True):
        of_all, of_pixel, of_value = {spec.index}, set[int](), set[int]()
        for operand, parts in reads.operands.items():
            for leaf, touch in parts:
                if leaf.maker < 0 or leaf.needed is None:
                    continue
                k, same = leaf.maker, touch.box.same(leaf.needed)
                all_channels = np.array_equal(touch.box.channels, leaf.needed.channels)
                of_all |= complete[k] if same else NOTHING
                across = complete[k] if same and touch.every else pixel[k] if all_channels else value[k]
                of_pixel |= across
                if operand == 0 and mixes(spec.operator):
                    of_value |= across
                elif reads.alone(operand):
                    of_value |= value[k]
        complete.append(frozenset(of_all))
        pixel.append(frozenset(of_pixel))
        value.append(frozenset(of_value))
    return value


def behind_first(target_graph: TargetGraph, reads: list[Reads], barrier: int) -> tuple[list[bool], list[bool]]:
    """Of every operator, whether all its values, and whether all its work, come after the first value of another one's result."""
    values, work = [False] * len(target_graph.operators), [False] * len(target_graph.operators)
    values[barrier] = True
    for spec, mine in zip(target_graph.operators[barrier + 1 :], reads[barrier + 1 :], strict=True):
        op = spec.operator
        of_one = {i: [leaf.maker >= 0 and values[leaf.maker] for leaf, _ in parts] for i, parts in mine.operands.items()}
        wholly = {i: bool(parts) and all(parts) for i, parts in of_one.items()}
        if isinstance(op, Vector) and any(step.op == "take" for step in op.steps):  # what came before is given up
            values[spec.index] = work[spec.index] = bool(wholly) and all(wholly.values())
            continue
        values[spec.index] = any(wholly.values()) or (mixes(op) and any(of_one.get(0, ())))
        work[spec.index] = wholly.get(0, False) or (isinstance(op, HeadedProduct) and wholly.get(1, False))
    return values, work


def phases_of(target_graph: TargetGraph, needs: Needs, work: NDArray[np.float64]) -> Phases:
    """work: of every operator, in any unit: barriers with little between them are not worth a phase."""
    count = len(target_graph.operators)
    first, last = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    if any(leaf.images > 1 for leaf in needs.made):  # a value needs its own image alone
        return Phases.one(count)
    reads, phase, allowed = reads_of(target_graph, needs), 0, [True] * count
    for barrier, before in enumerate(before_first(target_graph, needs)):
        news = [k for k in before if last[k] < 0]
        if not allowed[barrier] or work[news].sum() <= LEAST_PART * work.sum():
            continue
        last[news] = phase
        phase += 1
        allowed, behind = behind_first(target_graph, reads, barrier)
        first[behind] = phase
    last[last < 0] = phase
    return Phases(first, last, phase + 1)
