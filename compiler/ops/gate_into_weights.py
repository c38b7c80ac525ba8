"""Fusion of a gate (a factor per channel, as in squeeze-excite) into the weights of the 1x1 convolution behind it.

A convolution from `c` to `n` channels has `c n` weights; its input has `c` values per pixel.  If the image has many more pixels than `n`,
VECTOR multiplies fewer values, and the image does not pass through UB.  Gated weights are no constants, so the convolution becomes a
product of two tensors.  Its right operand is the weights as an image of `n` pixels.

The rule needs twice as many pixels as output channels.  A rule without this factor makes EfficientNet-B0 slower at `severe`, because gated
weights are ready late.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.operators import Conv, MatMul, Operator, Step, Vector
from simulator.npu.machine import Machine
from simulator.npu.parts import Memory

_PIXELS_PER_CHANNEL = 2  # least ratio of pixels to output channels, because gated weights are ready late


def with_gated_weights(graph: Graph, machine: Machine) -> Graph:
    """The graph with gates in weights where this saves multiplications.  Machines without L0B cannot load a computed right operand."""
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
        if not _is_gate(gate, graph) or not _takes_gate(conv, graph):
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


def _is_gate(op: Vector, graph: Graph) -> bool:
    """Whether `op` only multiplies an image by one number per channel."""
    if len(op.inputs) != 2 or [(step.op, step.operand) for step in op.steps] != [("mul", 1)]:
        return False
    image, gate = (graph.shapes[name] for name in op.inputs)
    return image[0] == 1 and gate[2:] == (1, 1) != image[2:]


def _takes_gate(conv: Conv, graph: Graph) -> bool:
    """Whether `conv` is a plain 1x1 convolution with enough pixels."""
    if conv.groups > 1 or conv.weights.shape[2:] != (1, 1) or conv.stride != (1, 1) or any(conv.pads) or conv.activation != "none":
        return False
    _, channels, h, w = graph.shapes[conv.y]
    return _PIXELS_PER_CHANNEL * channels <= h * w and conv.residual != conv.x
