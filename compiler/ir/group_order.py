"""Lane orders for tensors between grouped convolutions: a block of 16 channels belongs to one group of who writes it, and of who reads it.

Behind a shuffle a group takes some channels of every group in front of it.  Channels that both have in the same groups come side by side,
as many as fill blocks, then halves of blocks, two of which have a group in common, and what is left over behind them.
So most blocks of weights on either side are zeros alone, which are not multiplied (`target.zero_blocks`).
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
    """of: int64 [channels], the group of a convolution that each of a tensor's channels belongs to.

    weight: channels of a group on the convolution's other side, times taps, which are multiplied with every block that has one of its own.
    """

    of: Ints
    weight: int


def order_by_groups(graph: Graph, patterns: Patterns) -> None:
    """Define the order of free classes that grouped convolutions write and read, where fewer groups share a block so.

    What the host sees keeps its order.  Only once nothing is united any more.
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
        labels = list(by_groups.values())  # of who writes first
        natural = np.arange(len(labels[0].of))
        order = min([natural, *_orders(labels, patterns.block)], key=lambda order: _multiplied(labels, order, patterns.block))
        if order is not natural:
            lanes = np.empty_like(natural)
            lanes[order] = natural
            patterns.define(root, Pattern("groups", (), tuple(lanes.tolist())))


def _source(patterns: Patterns, name: str) -> tuple[str, Ints]:
    """The class that a tensor is a shuffle of, itself if it is none, and which channel of that each channel is."""
    root = patterns.find(name)
    pattern = patterns.pattern.get(root)
    if pattern is None or pattern.kind != "shuffle":
        return root, np.arange(patterns.channels[root])
    source, of_source = _source(patterns, pattern.inputs[0])
    return source, of_source[list(pattern.order)]


def _orders(labels: list[Labels], block: int) -> Iterator[Ints]:
    """For each of the labels an order of channels: where no cell fills a block, half blocks of those that share this label do.

    A *cell* has the channels that have all labels alike.
    """
    for first in labels:
        cells = np.unique([first.of, *(label.of for label in labels)], axis=1, return_inverse=True)[1].reshape(-1)
        remainders, full_blocks = [np.flatnonzero(cells == cell) for cell in range(cells.max() + 1)], []
        for size in (block, block // 2):
            full_blocks += [remainder[: len(remainder) // size * size] for remainder in remainders]
            remainders = [remainder[len(remainder) // size * size :] for remainder in remainders]
        yield np.concatenate([*full_blocks, *remainders])


def _multiplied(labels: list[Labels], order: Ints, block: int) -> int:
    """What all blocks of this order are multiplied with."""
    of_block = np.arange(len(order)) // block
    return sum(label.weight * np.unique([label.of[order], of_block], axis=1).shape[1] for label in labels)
