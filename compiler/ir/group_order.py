"""Lane orders of tensors between grouped convolutions: a block of 16 channels belongs to one group of its writer and of its reader.

After a shuffle a group reads some channels of every group before it.  Channels with the same groups on both sides become neighbours:
first full blocks, then half blocks, paired by a common group, then the remaining channels.
So most blocks of weights on either side hold only zeros, which are not multiplied (`target.zero_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.lanes import Pattern, Patterns
from compiler.ir.operators import Convolution

Ints = NDArray[np.int64]


class Labels(NamedTuple):
    """of: int64 [channels], the group of a convolution that each channel of a tensor belongs to.

    weight: channels of a group on the other side of the convolution, times taps: the cost of every block that has a channel of the group.
    """

    of: Ints
    weight: int


def order_by_groups(graph: Graph, patterns: Patterns) -> None:
    """Define the lane order of free classes between grouped convolutions, where this reduces the groups per block.

    Tensors of the host keep their order.  Call it after the last `Patterns.unite`.
    """
    labels_of_root: dict[str, dict[bytes, Labels]] = {}
    for op in graph.operators:
        if isinstance(op, Convolution) and op.groups > 1 and not op.is_depthwise:
            taps = op.weights[0, 0].size
            for name, depth in ((op.x, len(op.weights) // op.groups), (op.y, op.weights.shape[1])):
                root, of_root = _source(patterns, name)
                groups = np.empty(len(of_root), np.int64)
                groups[of_root] = np.arange(len(of_root)) * op.groups // len(of_root)
                by_groups, key = labels_of_root.setdefault(root, {}), groups.tobytes()
                by_groups[key] = Labels(groups, depth * taps + (by_groups[key].weight if key in by_groups else 0))
    host = {patterns.find(name) for name in (*graph.constants, *(port.tensor for port in (*graph.inputs, *graph.outputs)))}
    for root, by_groups in labels_of_root.items():
        if root in patterns.pattern or root in host:
            continue
        labels = list(by_groups.values())  # the writer's labels come first
        natural = np.arange(len(labels[0].of))
        order = min([natural, *_orders(labels, patterns.block)], key=lambda order: _multiplication_count(labels, order, patterns.block))
        if order is not natural:
            lanes = np.empty_like(natural)
            lanes[order] = natural
            patterns.define(root, Pattern("groups", (), tuple(lanes.tolist())))


def _source(patterns: Patterns, name: str) -> tuple[str, Ints]:
    """Class that a tensor is a shuffle of (its own without a shuffle), and int64 [channels], the channel of that class."""
    root = patterns.find(name)
    pattern = patterns.pattern.get(root)
    if pattern is None or pattern.kind != "shuffle":
        return root, np.arange(patterns.channels[root])
    source, of_source = _source(patterns, pattern.inputs[0])
    return source, of_source[list(pattern.order)]


def _orders(labels: list[Labels], block: int) -> Iterator[Ints]:
    """Order of channels for each label: full blocks of one cell first, then half blocks of cells that share this label.

    A *cell* is the set of channels whose labels are all equal.
    """
    for first in labels:
        cells = np.unique([first.of, *(label.of for label in labels)], axis=1, return_inverse=True)[1].reshape(-1)
        remainders, full_blocks = [np.flatnonzero(cells == cell) for cell in range(cells.max() + 1)], []
        for size in (block, block // 2):
            full_blocks += [remainder[: len(remainder) // size * size] for remainder in remainders]
            remainders = [remainder[len(remainder) // size * size :] for remainder in remainders]
        yield np.concatenate([*full_blocks, *remainders])


def _multiplication_count(labels: list[Labels], order: Ints, block: int) -> int:
    """Multiplications of all blocks in this order of channels."""
    of_block = np.arange(len(order)) // block
    return sum(label.weight * np.unique([label.of[order], of_block], axis=1).shape[1] for label in labels)
