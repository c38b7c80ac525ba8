"""Fusion of a gate, a factor per channel as of squeeze-excite, into the weights of the 1x1 convolution behind it.

A convolution of `n` channels reads `c` channels of every pixel; of its weights there are `c n`.  Where pixels are many times `n`, VECTOR
multiplies less, and the image is not moved to UB and back for it.  What is computed is no constant, so the convolution becomes a product of
two tensors, whose right operand is the weights as an image of `n` pixels.

The rule asks for twice as many pixels as output channels: with gated weights wherever they are smaller than the image, EfficientNet-B0 is
slower at `severe`, because they come late.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.operators import Conv, MatMul, Operator, Step, Vector
from simulator.npu.machine import Machine
from simulator.npu.parts import Memory

_FEWER = 2  # pixels for a channel of the result, at least: what VECTOR has made of weights comes late


def with_gated_weights(graph: Graph, machine: Machine) -> Graph:
    """The graph with gates in weights where that is less to multiply.  Only L0B brings a computed right operand into order."""
    if not machine.has(Memory.L0B):
        return graph
    producers, consumers = graph.producers(), graph.consumers()
    read = {port.tensor for port in graph.outputs}
    shapes, constants = dict(graph.shapes), dict(graph.constants)
    replacements: dict[str, list[Operator]] = {}
    for conv in graph.operators:
        gate = producers.get(conv.x) if isinstance(conv, Conv) else None
        if not isinstance(conv, Conv) or not isinstance(gate, Vector) or gate.y in read or len(consumers[gate.y]) > 1:
            continue
        if not _gates(gate, graph) or not _takes_gate(conv, graph):
            continue
        n, c = conv.weights.shape[:2]
        weights, gated, y = f"{conv.name}/weights", f"{conv.name}/gated", conv.y if conv.residual is None else f"{conv.name}/product"
        constants[weights] = np.ascontiguousarray(conv.weights[:, :, 0, 0].T).reshape(1, c, n, 1)
        shapes |= {weights: (1, c, n, 1), gated: (1, c, n, 1), y: graph.shapes[conv.y]}
        del shapes[gate.y]
        replacements[gate.y] = [Vector(gate.name, (weights, gate.inputs[1]), gated, gate.steps)]
        replacements[conv.y] = [MatMul(conv.name, gate.inputs[0], gated, y, 1, True, conv.bias)]
        if conv.residual is not None:
            replacements[conv.y].append(Vector(f"{conv.name}/residual", (y, conv.residual), conv.y, (Step("add", operand=1),)))
    operators = tuple(operator for op in graph.operators for operator in replacements.get(op.y, [op]))
    return replace(graph, operators=operators, shapes=shapes, constants=constants)


def _gates(op: Vector, graph: Graph) -> bool:
    """Whether it multiplies an image by one number for every channel, and does nothing else."""
    if len(op.inputs) != 2 or [(step.op, step.operand) for step in op.steps] != [("mul", 1)]:
        return False
    image, gate = (graph.shapes[name] for name in op.inputs)
    return image[0] == 1 and gate[2:] == (1, 1) != image[2:]


def _takes_gate(conv: Conv, graph: Graph) -> bool:
    """Whether it is a product of pixels, of which there are many."""
    if conv.groups > 1 or conv.weights.shape[2:] != (1, 1) or conv.stride != (1, 1) or any(conv.pads) or conv.activation != "none":
        return False
    _, channels, h, w = graph.shapes[conv.y]
    return _FEWER * channels <= h * w and conv.residual != conv.x
