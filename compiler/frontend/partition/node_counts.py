"""Nodes of a model on the NPU, of those with arithmetic and of those that only move data: each kind has a share of its own."""

from __future__ import annotations

from typing import NamedTuple

from compiler.frontend.partition.partition import Partition

DATA_MOVES = frozenset({
    "ChannelShuffle", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
})  # fmt: skip


class NodeCounts(NamedTuple):
    """Numbers of nodes: on the NPU, and of the model without those that depend on constants only."""

    arithmetic_on_npu: int
    arithmetic: int
    moves_on_npu: int
    moves: int

    def __str__(self) -> str:
        arithmetic = f"{self.arithmetic_on_npu:,} of {self.arithmetic:,} with arithmetic"
        return f"nodes on the NPU: {arithmetic}, {self.moves_on_npu:,} of {self.moves:,} that only move data"


def count_nodes(part: Partition) -> NodeCounts:
    """Counts of a model's nodes by kind."""
    inside = [part.model.graph.node[i].op_type in DATA_MOVES for subgraph in part.pieces for i in subgraph.inside]
    outside = [node.op_type in DATA_MOVES for node in part.host]
    moves, total = sum(inside), len(inside) + len(outside)
    return NodeCounts(len(inside) - moves, total - moves - sum(outside), moves, moves + sum(outside))
