"""Lane orders for tensors between grouped convolutions: a block of 16 channels belongs to one group of who writes it, and of who reads it.

Behind a shuffle a group takes some channels of every group in front of it.  Channels that both have in the same groups come side by side,
as many as fill blocks, and those that are left over behind them.  So most blocks of weights on either side are zeros alone, which are not
multiplied (`unit.needed`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.lanes import Pattern, Patterns
from compiler.ir.operators import Convolution

Ints = NDArray[np.int64]


def order_by_groups(graph: Graph, patterns: Patterns) -> None:
    """Define the order of free classes that grouped convolutions write and read, where fewer groups share a block so.

    What the host sees keeps its order.  Only once nothing is united any more.
    """
    groups: dict[str, dict[bytes, Ints]] = {}
    for op in graph.operators:
        if isinstance(op, Convolution) and op.groups > 1 and not op.is_depthwise:
            for name in (op.x, op.y):
                root, of_root = _source(patterns, name)
                mine = np.empty(len(of_root), np.int64)
                mine[of_root] = np.arange(len(of_root)) * op.groups // len(of_root)
                groups.setdefault(root, {})[mine.tobytes()] = mine
    host = {patterns.find(name) for name in (*graph.constants, *(port.tensor for port in (*graph.inputs, *graph.outputs)))}
    for root, found in groups.items():
        if root in patterns.pattern or root in host:
            continue
        labels = np.stack(list(found.values()))
        order, natural = _in_blocks(labels, patterns.block), np.arange(labels.shape[1])
        if _shared(labels[:, order], patterns.block) < _shared(labels, patterns.block):
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


def _in_blocks(labels: Ints, block: int) -> Ints:
    """Channels with all labels alike in whole blocks, then what is left of all of them.  labels: [which, channels]."""
    cells = np.unique(labels, axis=1, return_inverse=True)[1].reshape(-1)
    every = [np.flatnonzero(cells == cell) for cell in range(cells.max() + 1)]
    whole = [len(cell) // block * block for cell in every]
    fronts, rests = zip(*[np.split(cell, [size]) for cell, size in zip(every, whole, strict=True)], strict=True)
    return np.concatenate([*fronts, *rests])


def _shared(labels: Ints, block: int) -> int:
    """Groups that blocks belong to, all added up."""
    starts = range(0, labels.shape[1], block)
    return sum(len(np.unique(mine[start : start + block])) for mine in labels for start in starts)
