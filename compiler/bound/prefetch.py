"""Theorem 2 of `docs/bounds.md`: weights whose operators need work done first fit on chip only up to its size.

A weight is finished when all its products are made.  Its channel of the input was then complete, so what that channel is made of is
finished as well: two products back, whole operators.  So after so much work no more than so many bytes of weights can be finished, and all
others but what lies on chip are still to come.  Channels of one input may wait for different operators, where it is a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.bound.dependences import Needs
from compiler.bound.phases import NOTHING, Ops, mixes
from compiler.ir.operators import Convolution, Operator, QuantisedSoftmax, Softmax
from compiler.ir.operators.matmul import HeadedProduct
from compiler.target.target_graph import TargetGraph

Floats = NDArray[np.float64]


class Behind(NamedTuple):
    """work, weights_left: float64 [p]; while no more than work[i] is done, at least weights_left[i] bytes are not finished."""

    work: Floats
    weights_left: Floats


class ChannelShare(NamedTuple):
    """Part of an operator's weights, and operators that are finished as soon as one of these is (docs/bounds.md, Lemma 4)."""

    part: float
    before: Ops


class _Channels:
    """Which operators are finished where a channel of a leaf is complete: int64 [c] of each leaf, numbers of sets."""

    def __init__(self) -> None:
        self.sets: list[Ops] = [NOTHING]
        self.of: dict[str, NDArray[np.int64]] = {}
        self._numbers: dict[Ops, int] = {NOTHING: 0}

    def number(self, ops: Ops) -> int:
        if ops not in self._numbers:
            self._numbers[ops] = len(self.sets)
            self.sets.append(ops)
        return self._numbers[ops]

    def joined(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [r]: of each row of numbers [r, several] that of all its sets together."""
        each, row = np.unique(rows, axis=0, return_inverse=True)
        numbers = [self.number(NOTHING.union(*(self.sets[i] for i in set(some)))) for some in each.tolist()]
        return np.array(numbers, np.int64)[row.reshape(-1)]


def finished_before(target_graph: TargetGraph, needs: Needs) -> list[tuple[ChannelShare, ...]]:
    """Of every operator its weights, by what is finished as soon as one of them is."""
    channels, shapes = _Channels(), target_graph.graph.shapes
    makers = {leaf.name: leaf for leaf in needs.made}
    touches = {(leaf.name, r.reader, r.operand): r for leaf in (*needs.made, *needs.given) for r in leaf.readings}
    whole: list[Ops] = []  # finished where all of a result is complete, the operator among them
    shares: list[tuple[ChannelShare, ...]] = []
    for spec in target_graph.operators:
        op, k = spec.operator, spec.index
        read: list[NDArray[np.int64]] = []  # of each operand, [c]: sets of its channels, -1 where nobody asks for them
        wholly: list[Ops] = []  # of each operand: finished where all of it is complete
        for operand, name in enumerate(op.operands):
            numbers, of_all = np.full(shapes[name][1], -1, np.int64), NOTHING
            for part, of_leaf, at in needs.parts[name]:
                if (touch := touches.get((part, k, operand))) is None:
                    continue
                asked = touch.box.channels[of_leaf]
                numbers[at[asked]] = 0
                leaf = makers.get(part)
                if leaf is not None and leaf.needed is not None and touch.box.same_pixels(leaf.needed):
                    numbers[at[asked]] = channels.of[part][of_leaf[asked]]
                    of_all |= whole[leaf.maker] if touch.box.same(leaf.needed) else NOTHING
            read.append(numbers)
            wholly.append(of_all)
        whole.append(NOTHING.union(*wholly) | {k})
        channels.of[op.y] = _made_of(op, channels, [np.maximum(numbers, 0) for numbers in read], wholly[0], shapes[op.y][1])
        kinds, counts = np.unique(read[0][read[0] >= 0], return_counts=True)
        shares.append(tuple(ChannelShare(n / counts.sum(), channels.sets[i]) for i, n in zip(kinds.tolist(), counts.tolist(), strict=True)))
    return shares


def _made_of(op: Operator, channels: _Channels, read: list[NDArray[np.int64]], wholly: Ops, made: int) -> NDArray[np.int64]:
    """int64 [made]: sets of the channels of a result.  wholly: what is finished where all of the first operand is complete."""
    first, *others = read
    if mixes(op):
        first = np.full(made, channels.number(wholly), np.int64)
    elif isinstance(op, Convolution | Softmax | QuantisedSoftmax | HeadedProduct):
        groups = op.heads if isinstance(op, HeadedProduct) else op.groups
        first = np.repeat(channels.joined(first.reshape(groups, -1)), made // groups)
    elif len(first) != made:  # in another order: what all of them have in common
        first = np.full(made, channels.number(frozenset.intersection(*(channels.sets[i] for i in set(first.tolist())))), np.int64)
    same = [] if isinstance(op, HeadedProduct) else [other for other in others if len(other) == made]
    return channels.joined(np.stack([first, *same], 1)) if same else first


def behind(work: Floats, spread: Floats, weights: Floats, shares: Sequence[tuple[ChannelShare, ...]]) -> Behind:
    """work: cycles of every operator.  spread: those without which none of its weights is finished, in proportion for a part of them.

    weights: bytes.  shares: as `finished_before` has them.  Finished weights are those of what comes before the share with most work there,
    and, for what work is left, of shares with no more work before them, those that cost least a byte first.
    """
    of = np.array([k for k, mine in enumerate(shares) for _ in mine if weights[k] > 0], np.int64)
    each = [share for k, mine in enumerate(shares) for share in mine if weights[k] > 0]
    part = np.array([share.part for share in each])
    before = {ops: np.array(sorted(ops), np.int64) for ops in dict.fromkeys(share.before for share in each)}
    needed = {ops: float(work[mine].sum()) for ops, mine in before.items()}
    done = np.array([needed[share.before] for share in each])
    cost_of, gain_of = spread[of] * part, weights[of] * part
    asked = np.unique(np.append(done, work.sum()))
    most = np.zeros(len(asked))
    ratio = np.argsort(cost_of / np.maximum(gain_of, 1e-9), kind="stable")
    for ops, mine in before.items():
        start = needed[ops]
        inside = np.zeros(len(work), np.bool_)
        inside[mine] = True
        order = ratio[(done[ratio] <= start) & ~inside[of[ratio]]]
        cost, gain = (np.concatenate([[0.0], np.cumsum(values[order])]) for values in (cost_of, gain_of))
        allowed = asked > start  # at `start` itself nothing more than before: the bound is taken just below
        left = asked[allowed] - start
        last = np.searchsorted(cost, left, side="right") - 1  # shares that are finished whole, those that cost nothing among them
        after = np.minimum(last + 1, len(cost) - 1)
        more = gain[last] + (gain[after] - gain[last]) * (left - cost[last]) / np.maximum(cost[after] - cost[last], 1e-9)
        most[allowed] = np.maximum(most[allowed], weights[mine].sum() + more)
    return Behind(asked, np.maximum(0.0, weights.sum() - most))
