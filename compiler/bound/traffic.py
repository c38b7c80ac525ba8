"""Theorem 3 of `docs/bounds.md`: bytes of DDR that every program moves, with so many bytes on chip.

Weights, inputs and outputs once; and for windows of operators that share none, what does not fit on chip at the time when the first value
of the window's last operator is complete.  Each inner result is then there, or made from then on with weights that were used before: the
cheapest choice is a minimum cut.  The best set of windows is a shortest path over their borders, the other way round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.dependences import Leaf, Needs
from compiler.bound.engine_work import FOUR
from compiler.ir.max_flow import DRAIN, ENDLESS, SOURCE, GrowingCut
from compiler.ir.operators import Convolution
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import BLOCK_BYTES, SUM_BYTES


class Once(NamedTuple):
    """Bytes that come from and go to DDR at least once: of the model's inputs and constants, of weights, of its outputs."""

    inputs: int
    weights: int
    outputs: int


class Excess(NamedTuple):
    """Operators [start, stop) that move so many bytes more than once."""

    start: int
    stop: int
    bytes: int


def once(target_graph: TargetGraph, needs: Needs, weights: NDArray[np.int64]) -> Once:
    outputs = sum(leaf.touched_bytes for leaf in needs.made if leaf.outside)
    constants = target_graph.graph.constants
    inputs = sum(leaf.touched_bytes if leaf.name in constants else _in_blocks(leaf) for leaf in needs.given)
    return Once(inputs, int(weights.sum()), outputs)


def _in_blocks(leaf: Leaf) -> int:
    """Bytes of an input of the model: DMAs move whole blocks, and a block has channels of one pixel, or an image of four lanes."""
    lanes = BLOCK_BYTES // leaf.size_bytes
    if len(leaf.touched) <= FOUR < lanes and leaf.size_bytes < SUM_BYTES:
        return int(leaf.touched.max()) * FOUR * leaf.images * leaf.size_bytes
    planes = np.sort(leaf.touched)[::-1][::lanes]  # of each plane at least the pixels of the channel of it that is read most
    return int(planes.sum()) * leaf.images * BLOCK_BYTES


class FusedGraph(NamedTuple):
    """What windows are made of.  held: bytes of an operator's result; twice: those that DDR moves where it lies there meanwhile.

    weights: bytes.  makers: operators that make what an operator reads, where a part of its result needs as large a part of theirs.
    ends: operators that may be the last of a window: each of their values is made of all channels."""

    held: list[int]
    twice: list[int]
    weights: list[int]
    makers: list[list[int]]
    ends: list[bool]


def fused_of(target_graph: TargetGraph, needs: Needs, weights: NDArray[np.int64]) -> FusedGraph:
    held = [leaf.needed_bytes for leaf in needs.made]
    twice = [size if leaf.outside else 2 * size for leaf, size in zip(needs.made, held, strict=True)]
    makers: list[list[int]] = [[] for _ in target_graph.operators]
    for leaf in needs.made:
        for reading in leaf.readings:
            if reading.spread and leaf.needed is not None and reading.box.same(leaf.needed):
                makers[reading.reader].append(leaf.maker)
    ends = [isinstance(spec.operator, Convolution) and spec.operator.groups == 1 for spec in target_graph.operators]
    return FusedGraph(held, twice, weights.tolist(), makers, ends)


def excess(fused: FusedGraph, capacity: int) -> tuple[Excess, ...]:
    """Windows that share no operator, of which most bytes follow together: those of each beyond `capacity` bytes on chip."""
    count = len(fused.held)
    best: list[tuple[int, tuple[Excess, ...]]] = [(0, ())]
    for last in range(count):
        found = best[-1]
        for window in _ending(fused, last, capacity):
            before, windows = best[window.start]
            if before + window.bytes > found[0]:
                found = before + window.bytes, (*windows, window)
        best.append(found)
    return best[-1][1]


def _ending(fused: FusedGraph, last: int, capacity: int) -> list[Excess]:
    """Windows that end with an operator, each with more bytes than every shorter one."""
    if not fused.ends[last]:
        return []
    gains = [0] * (last + 1)
    # what is on chip is at most `capacity`; a byte of weights is loaded once more, one of a result written and read
    for held, factor in ((fused.held, 1), (fused.twice, 2)):
        if held[last] <= factor * capacity:
            continue
        cut = GrowingCut()
        made = {last: cut.node()}
        cut.arc(SOURCE, made[last], held[last])
        for start in range(last - 1, -1, -1):
            if readers := [reader for reader in made if start in fused.makers[reader]]:
                there, made[start] = cut.node(), cut.node()
                for reader in readers:
                    cut.arc(made[reader], there, ENDLESS)
                cut.arc(there, made[start], held[start])
                cut.arc(made[start], DRAIN, fused.weights[start])
                gains[start] = max(gains[start], cut.grow() - factor * capacity)
                if cut.value == held[last]:  # it grows no more
                    break
    found: list[Excess] = []
    for start in range(last, -1, -1):
        if gains[start] > (found[-1].bytes if found else 0):
            found.append(Excess(start, last + 1, gains[start]))
    return found
