"""RandWire, small regime (Xie et al. 2019, table 1): three stages of 32 randomly wired nodes, WS(4, 0.75).

An edge of the Watts-Strogatz graph goes from the lower to the higher number.  A node is a weighted sum of its inputs, ReLU, a separable
3x3 convolution and BatchNormalization.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tuner.zoo.builders.net import Net, Tensor

NEIGHBOURS, REWIRED = 4, 0.75


def randwire(size: int = 224, nodes: int = 32, channels: int = 78, classes: int = 1000, graph: int = 0) -> ModelProto:
    """Build the network.  size: pixels per side.  nodes: per stage, at least 6.  channels: C of the paper.  graph: seed of the wiring."""
    net = Net("randwire")
    rng = np.random.default_rng(graph)
    x = net.batch_norm(net.conv(net.input("image", (1, 3, size, size)), channels // 2, 3, 2))
    x = net.batch_norm(net.conv(net.relu(x), channels, 3, 2))
    for factor in (1, 2, 4):
        x = _stage(net, x, watts_strogatz(nodes, NEIGHBOURS, REWIRED, rng), channels * factor)
    x = net.relu(net.batch_norm(net.conv(net.relu(x), 1280, 1)))
    return net.model(net.classifier(x, classes))


def watts_strogatz(nodes: int, neighbours: int, rewired: float, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Predecessors of every node.  A ring, each node joined to its nearest `neighbours`; an edge keeps one end and moves the other
    with probability `rewired` (Watts and Strogatz 1998)."""
    edges = {frozenset((u, (u + step) % nodes)) for step in range(1, neighbours // 2 + 1) for u in range(nodes)}
    for step in range(1, neighbours // 2 + 1):
        for u in range(nodes):
            edge = frozenset((u, (u + step) % nodes))
            free = [v for v in range(nodes) if v != u and frozenset((u, v)) not in edges]
            if edge in edges and free and rng.random() < rewired:
                edges.remove(edge)
                edges.add(frozenset((u, free[int(rng.integers(len(free)))])))
    return [tuple(sorted(min(edge) for edge in edges if max(edge) == node)) for node in range(nodes)]


def _stage(net: Net, image: Tensor, predecessors: list[tuple[int, ...]], channels: int) -> Tensor:
    """Stage: nodes without a predecessor read its input at stride 2; the mean of unread nodes is its output."""
    outputs: list[Tensor] = []
    for sources in predecessors:
        total = image
        if len(sources) == 1:
            total = outputs[sources[0]]
        elif sources:
            scaled = [net.mul(outputs[source], net.weight(1)) for source in sources]
            total = scaled[0]
            for item in scaled[1:]:
                total = net.add(total, item)
        y = net.conv(net.relu(total), total.channels, 3, 1 if sources else 2, groups=total.channels)
        outputs.append(net.batch_norm(net.conv(y, channels, 1)))
    read = {source for sources in predecessors for source in sources}
    sinks = [tensor for node, tensor in enumerate(outputs) if node not in read]
    total = sinks[0]
    for item in sinks[1:]:
        total = net.add(total, item)
    return net.mul(total, net.number(1 / len(sinks)))
