"""Sibling convolutions: of one input and one window, so that one convolution could make all of their results.

One convolution loads its input into L0A once for all of them, and its last tile of channels is fuller.  But it is one operator: its weights
are resident or streamed together, and it belongs to one segment.  So it does not always pay: plans choose, segment by segment
(`segment.siblings`).  `merge_siblings` merges them in the graph, for every plan, which says what it brings layer by layer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.graph import Concat, Conv, Graph, Operator, Shuffle, output_shape

Window = tuple[object, ...]


def families(graph: Graph) -> list[tuple[Conv, ...]]:
    """Convolutions that could be one, two or more together, in their order.

    Those whose result has its place in a Concat, or in the host's memory, are left alone: it would have to be copied there.
    """
    consumers = graph.consumers()
    outputs = {port.tensor for port in graph.outputs}
    found: dict[Window, list[Conv]] = {}
    for op in graph.operators:
        if not isinstance(op, Conv) or op.groups > 1 or op.residual is not None or op.y in outputs:
            continue
        if any(isinstance(reader, Concat | Shuffle) for reader in consumers[op.y]):
            continue
        window = (op.x, op.weights.shape[2:], op.stride, op.dilation, op.pads, op.activation, op.limit)
        found.setdefault(window, []).append(op)
    return [tuple(family) for family in found.values() if len(family) > 1]


def merge_siblings(graph: Graph, chosen: list[tuple[Conv, ...]]) -> Graph:
    """The graph with every chosen family as one convolution, where the first of them stood."""
    first = {family[0].y: family for family in chosen}
    gone = {op.y for family in chosen for op in family}
    operators: list[Operator] = []
    shapes = dict(graph.shapes)
    for op in graph.operators:
        if op.y in first:
            family = first[op.y]
            weights = np.concatenate([item.weights for item in family])
            bias = np.concatenate([item.bias for item in family])
            merged = replace(family[0], y=f"{op.y}.siblings", weights=weights, bias=bias)
            shapes[merged.y] = output_shape(merged, [shapes[merged.x]])
            operators.append(merged)
            begin = 0
            for item in family:
                channels = len(item.bias)
                operators.append(Shuffle(f"{item.name}.part", merged.y, item.y, tuple(range(begin, begin + channels))))
                begin += channels
        elif op.y not in gone:
            operators.append(op)
    made = replace(graph, operators=tuple(operators), shapes=shapes)
    made.verify()
    return made
