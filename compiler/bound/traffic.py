"""Traffic bound, Theorem 3 of `docs/bounds.md`: bytes that every program moves between DDR and chip, given the bytes on chip.

The bound counts weights, inputs and outputs once.  It then adds bytes for disjoint windows of operators: the bytes that do not fit on chip
when the first value of the window's last operator is complete.  At that time each inner result is on chip, or is computed later from
weights that were used before; a minimum cut finds the cheapest choice.  The best set of windows is a longest path over their borders.
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


class LeastTraffic(NamedTuple):
    """Bytes that move between DDR and chip at least once: the model's inputs and constants, the weights, the model's outputs."""

    inputs: int
    weights: int
    outputs: int


class Excess(NamedTuple):
    """Operators [start, stop) that move a number of bytes more than once."""

    start: int
    stop: int
    bytes: int


def least_traffic(target_graph: TargetGraph, needs: Needs, weights: NDArray[np.int64]) -> LeastTraffic:
    outputs = sum(leaf.touched_bytes for leaf in needs.produced if leaf.outside)
    constants = target_graph.graph.constants
    inputs = sum(leaf.touched_bytes if leaf.name in constants else _in_blocks(leaf) for leaf in needs.given)
    return LeastTraffic(inputs, int(weights.sum()), outputs)


def _in_blocks(leaf: Leaf) -> int:
    """Bytes of a model input: DMAs move whole blocks, and a block has channels of one pixel only, or an image of four lanes."""
    lanes = BLOCK_BYTES // leaf.size_bytes
    if len(leaf.touched) <= FOUR < lanes and leaf.size_bytes < SUM_BYTES:
        return int(leaf.touched.max()) * FOUR * leaf.images * leaf.size_bytes
    planes = np.sort(leaf.touched)[::-1][::lanes]  # each plane counts at least the pixels of its most read channel
    return int(planes.sum()) * leaf.images * BLOCK_BYTES


class FusedGraph(NamedTuple):
    """Graph for windows.  held: bytes of each operator's result.  twice: bytes of DDR traffic if the result is stored and loaded again.

    weights: bytes of each operator's weights.  makers: producers of its inputs, if a share of its result needs at least that share of
    theirs.
    ends: operators that may end a window: each of their values depends on all channels.
    """

    held: list[int]
    twice: list[int]
    weights: list[int]
    makers: list[list[int]]
    ends: list[bool]


def fused_of(target_graph: TargetGraph, needs: Needs, weights: NDArray[np.int64]) -> FusedGraph:
    held = [leaf.needed_bytes for leaf in needs.produced]
    twice = [size if leaf.outside else 2 * size for leaf, size in zip(needs.produced, held, strict=True)]
    makers: list[list[int]] = [[] for _ in target_graph.operators]
    for leaf in needs.produced:
        for reading in leaf.readings:
            if reading.spread and leaf.needed is not None and reading.box.same(leaf.needed):
                makers[reading.reader].append(leaf.maker)
    ends = [isinstance(spec.operator, Convolution) and spec.operator.groups == 1 for spec in target_graph.operators]
    return FusedGraph(held, twice, weights.tolist(), makers, ends)


def find_excess(fused: FusedGraph, capacity: int) -> tuple[Excess, ...]:
    """Disjoint windows with the largest total excess.  Excess of a window: its bytes beyond `capacity` bytes on chip."""
    count = len(fused.held)
    best: list[tuple[int, tuple[Excess, ...]]] = [(0, ())]
    for last in range(count):
        choice = best[-1]
        for window in _ending(fused, last, capacity):
            before, windows = best[window.start]
            if before + window.bytes > choice[0]:
                choice = before + window.bytes, (*windows, window)
        best.append(choice)
    return best[-1][1]


def _ending(fused: FusedGraph, last: int, capacity: int) -> list[Excess]:
    """Windows that end with an operator; each one has more excess than all shorter ones."""
    if not fused.ends[last]:
        return []
    gains = [0] * (last + 1)
    # at most `capacity` bytes are on chip; a byte of weights is loaded again, a byte of a result is written and read

    for sizes, factor in ((fused.held, 1), (fused.twice, 2)):
        if sizes[last] <= factor * capacity:
            continue
        cut = GrowingCut()
        nodes = {last: cut.node()}
        cut.arc(SOURCE, nodes[last], sizes[last])
        for start in range(last - 1, -1, -1):
            if readers := [reader for reader in nodes if start in fused.makers[reader]]:
                stored_node, nodes[start] = cut.node(), cut.node()
                for reader in readers:
                    cut.arc(nodes[reader], stored_node, ENDLESS)
                cut.arc(stored_node, nodes[start], sizes[start])
                cut.arc(nodes[start], DRAIN, fused.weights[start])
                gains[start] = max(gains[start], cut.grow() - factor * capacity)
                if cut.value == sizes[last]:  # the flow cannot grow any more
                    break
    windows: list[Excess] = []
    for start in range(last, -1, -1):
        if gains[start] > (windows[-1].bytes if windows else 0):
            windows.append(Excess(start, last + 1, gains[start]))
    return windows
