"""Prefetch bound, Theorem 2 of `docs/bounds.md`: the size of the chip limits the weights that can be loaded before their operators run.

A weight is finished when all its products are computed.  Its input channel is complete then, so all operators that produced this channel
are finished as well.  Operators two products back are finished entirely.  So a given amount of work can finish only a limited number of
weight bytes.  All other weights are still to be loaded, except weights that are on chip.  Channels of a concatenation may wait for
different operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.dependences import Needs
from compiler.bound.phases import NO_OPERATORS, Ops, mixes
from compiler.ir.operators import Convolution, Operator, QuantisedSoftmax, Softmax
from compiler.ir.operators.matmul import HeadedProduct
from compiler.target.target_graph import TargetGraph

Floats = NDArray[np.float64]


class UnfinishedWeights(NamedTuple):
    """Curve of unfinished weights.

    work: float64 [p], cycles.  weights_left: float64 [p], bytes; with at most work[i] cycles done, at least weights_left[i] are unfinished.
    """

    work: Floats
    weights_left: Floats


class ChannelShare(NamedTuple):
    """Share of an operator's weights with equal predecessors (docs/bounds.md, Lemma 4).  part: fraction of the operator's weights.

    before: operators that are finished as soon as one weight of the share is finished.
    """

    part: float
    before: Ops


class _Channels:
    """Sets of operators that are finished when a channel of a tensor is complete, each with a number.

    sets_of: tensor -> numbers of its channels' sets, int64 [c].
    """

    def __init__(self) -> None:
        self.sets: list[Ops] = [NO_OPERATORS]
        self.sets_of: dict[str, NDArray[np.int64]] = {}
        self._numbers: dict[Ops, int] = {NO_OPERATORS: 0}

    def number(self, ops: Ops) -> int:
        if ops not in self._numbers:
            self._numbers[ops] = len(self.sets)
            self.sets.append(ops)
        return self._numbers[ops]

    def unions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the unions of sets, int64 [r], one for each row of numbers of sets, int64 [r, n]."""
        unique_rows, row = np.unique(rows, axis=0, return_inverse=True)
        numbers = [self.number(NO_OPERATORS.union(*(self.sets[i] for i in set(numbers_of_row)))) for numbers_of_row in unique_rows.tolist()]
        return np.array(numbers, np.int64)[row.reshape(-1)]


def finished_before(target_graph: TargetGraph, needs: Needs) -> list[tuple[ChannelShare, ...]]:
    """Shares of every operator's weights.  needs: dependences of the graph."""
    channels, shapes = _Channels(), target_graph.graph.shapes
    leaves = {leaf.name: leaf for leaf in needs.produced}
    readings = {(leaf.name, r.reader, r.operand): r for leaf in (*needs.produced, *needs.given) for r in leaf.readings}
    complete: list[Ops] = []  # per operator: operators, with itself, that are finished when its full result is complete
    shares: list[tuple[ChannelShare, ...]] = []
    for spec in target_graph.operators:
        op, k = spec.operator, spec.index
        read: list[NDArray[np.int64]] = []  # per operand, [c]: number of the set of each channel, -1 for an unread channel
        finished_with: list[Ops] = []  # per operand: operators that are finished when the full operand is complete
        for operand, name in enumerate(op.operands):
            numbers, finished = np.full(shapes[name][1], -1, np.int64), NO_OPERATORS
            for part, of_leaf, positions in needs.parts[name]:
                if (reading := readings.get((part, k, operand))) is None:
                    continue
                wanted = reading.box.channels[of_leaf]
                numbers[positions[wanted]] = 0
                # a channel is complete for this reader only if it reads all needed pixels of it
                leaf = leaves.get(part)
                if leaf is not None and leaf.needed is not None and reading.box.same_pixels(leaf.needed):
                    numbers[positions[wanted]] = channels.sets_of[part][of_leaf[wanted]]
                    finished |= complete[leaf.maker] if reading.box.same(leaf.needed) else NO_OPERATORS
            read.append(numbers)
            finished_with.append(finished)
        complete.append(NO_OPERATORS.union(*finished_with) | {k})
        channels.sets_of[op.y] = _result_sets(op, channels, [np.maximum(numbers, 0) for numbers in read], finished_with[0], shapes[op.y][1])
        kinds, counts = np.unique(read[0][read[0] >= 0], return_counts=True)
        shares.append(tuple(ChannelShare(n / counts.sum(), channels.sets[i]) for i, n in zip(kinds.tolist(), counts.tolist(), strict=True)))
    return shares


def _result_sets(op: Operator, channels: _Channels, read: list[NDArray[np.int64]], finished_with: Ops, count: int) -> NDArray[np.int64]:
    """Numbers of the sets of a result's channels, int64 [count].  read: per operand, numbers of the sets of its channels.

    finished_with: operators that are finished when the full first operand is complete.
    """
    first, *further = read
    if mixes(op):
        first = np.full(count, channels.number(finished_with), np.int64)
    elif isinstance(op, Convolution | Softmax | QuantisedSoftmax | HeadedProduct):
        groups = op.heads if isinstance(op, HeadedProduct) else op.groups
        first = np.repeat(channels.unions(first.reshape(groups, -1)), count // groups)
    elif len(first) != count:  # channels in another order: the intersection of all sets
        first = np.full(count, channels.number(frozenset.intersection(*(channels.sets[i] for i in set(first.tolist())))), np.int64)
    same = [] if isinstance(op, HeadedProduct) else [numbers for numbers in further if len(numbers) == count]
    return channels.unions(np.stack([first, *same], 1)) if same else first


def unfinished_weights(work: Floats, spread: Floats, weights: Floats, shares: Sequence[tuple[ChannelShare, ...]]) -> UnfinishedWeights:
    """Curve of unfinished weights.  shares: see `finished_before`.

    work: float64 [operators], cycles.  weights: float64 [operators], bytes.  spread: float64 [operators], cycles that finish all weights of
    an operator; a part of the weights takes a proportional part.  For an amount of work, the share with the most work before it is chosen:
    all weights of the operators before this share are finished.  The remaining work finishes other shares with at most as much work before
    them, cheapest per byte first.
    """
    operator_of = np.array([k for k, members in enumerate(shares) for _ in members if weights[k] > 0], np.int64)
    flat_shares = [share for k, members in enumerate(shares) for share in members if weights[k] > 0]
    part = np.array([share.part for share in flat_shares])
    before = {ops: np.array(sorted(ops), np.int64) for ops in dict.fromkeys(share.before for share in flat_shares)}
    needed = {ops: float(work[members].sum()) for ops, members in before.items()}
    done = np.array([needed[share.before] for share in flat_shares])
    cost_of, gain_of = spread[operator_of] * part, weights[operator_of] * part
    totals = np.unique(np.append(done, work.sum()))
    best_gain = np.zeros(len(totals))
    ratio = np.argsort(cost_of / np.maximum(gain_of, 1e-9), kind="stable")
    for ops, members in before.items():
        start = needed[ops]
        inside = np.zeros(len(work), np.bool_)
        inside[members] = True
        order = ratio[(done[ratio] <= start) & ~inside[operator_of[ratio]]]
        cost, gain = (np.concatenate([[0.0], np.cumsum(values[order])]) for values in (cost_of, gain_of))
        allowed = totals > start  # strictly above `start`: at `start` the curve keeps its value from below
        spare = totals[allowed] - start
        last = np.searchsorted(cost, spare, side="right") - 1  # last fully finished share, with shares that cost no work
        after = np.minimum(last + 1, len(cost) - 1)
        more = gain[last] + (gain[after] - gain[last]) * (spare - cost[last]) / np.maximum(cost[after] - cost[last], 1e-9)
        best_gain[allowed] = np.maximum(best_gain[allowed], weights[members].sum() + more)
    return UnfinishedWeights(totals, np.maximum(0.0, weights.sum() - best_gain))
