"""Recognition of operators that exporters decompose: LayerNormalization, RMSNormalization and GELU.

| operator           | written as                                                                            |
|--------------------|---------------------------------------------------------------------------------------|
| LayerNormalization | d / sqrt(mean(d * d) + epsilon) with d = x - mean(x), over the last axis              |
| RMSNormalization   | x / sqrt(mean(x * x) + epsilon), over the last axis                                   |
| Gelu               | x * 0.5 * (1 + erf(x * sqrt(1/2))), factors in any order                              |
| Gelu (tanh)        | x * 0.5 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), factors in any order         |

Rewrites fold a following scale and shift into LayerNormalization later.  Nodes without readers are dropped, the others are sorted by depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from compiler.frontend.onnx_io.attributes import attributes, known_shapes, opset_of
from simulator.onnx_names import names_read, refill

ONE = "tilefarm.one"  # a scale of one value, broadcast by the translation
Factors = tuple[float, tuple[str, ...]]  # a number and tensors, in order of their names
_FUSED_INTO_PRODUCER = frozenset({"BatchNormalization", "Dropout", "Identity"})
_CLOSE = 2e-3  # exporters write 1.4142, some in float16


def recognise_patterns(model: ModelProto) -> ModelProto:
    """Model with recognised groups as single nodes, without unused nodes, and sorted by depth; the model itself where nothing changes."""
    producers = _Producers(model)
    replacements = {}
    for index, node in enumerate(model.graph.node):
        new = _layer_norm(producers, node) if node.op_type in ("Div", "Mul") else None
        new = new or (_gelu(producers, node) if node.op_type == "Mul" else None)
        if new is not None:
            replacements[index] = new
    nodes = [replacements.get(index, node) for index, node in enumerate(model.graph.node)]
    # drop nodes without readers, as the other nodes of a recognised group
    used = {output.name for output in model.graph.output}
    live_nodes = []
    for node in reversed(nodes):
        if used.isdisjoint(node.output):
            continue
        used |= names_read([node])
        live_nodes.append(node)
    live_nodes = _by_level(live_nodes[::-1])
    if live_nodes == nodes and not replacements:
        return model
    copy = deepcopy(model)
    refill(copy.graph.node, live_nodes)
    if replacements:
        copy.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), ONE))
    return copy


def _by_level(nodes: list[NodeProto]) -> list[NodeProto]:
    """Nodes sorted by depth, so that plans do not depend on an exporter's order; nodes that fuse with their producer add 0 to it."""
    level: dict[str, int] = {}
    levels = []
    for node in nodes:
        node_level = max((level.get(name, 0) for name in names_read([node])), default=0) + (node.op_type not in _FUSED_INTO_PRODUCER)
        levels.append(node_level)
        level |= dict.fromkeys(node.output, node_level)
    return [nodes[i] for i in sorted(range(len(nodes)), key=levels.__getitem__)]


class _Producers:
    """Producers of tensors, and small constants."""

    def __init__(self, model: ModelProto) -> None:
        self.opset = opset_of(model)
        self.maker = {name: node for node in model.graph.node for name in node.output}
        self.shapes = known_shapes(model.graph)
        self.small = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if math.prod(t.dims) <= 8}
        for node in model.graph.node:
            if node.op_type == "Constant" and "value" in attributes(node):
                self.small[node.output[0]] = numpy_helper.to_array(attributes(node)["value"])

    def number(self, name: str) -> float | None:
        """Value of a constant of one value; None for other tensors."""
        array = self.small.get(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind in "fi" else None

    def producer(self, name: str, *op_types: str) -> NodeProto | None:
        """Producer of a tensor, if it is of one of these kinds; else None."""
        node = self.maker.get(name)
        return node if node is not None and node.op_type in op_types else None

    def with_number(self, node: NodeProto | None) -> tuple[str, float] | None:
        """(tensor, number) of an operator with these two inputs; None for others."""
        if node is None or len(node.input) != 2:
            return None
        for tensor, constant in (node.input, reversed(node.input)):
            value = self.number(constant)
            if value is not None and self.number(tensor) is None:
                return tensor, value
        return None

    def factors(self, name: str, depth: int = 4) -> Factors:
        """Factors of a tensor, through Mul, Div by a number and Pow with a small exponent."""
        value = self.number(name)
        if value is not None:
            return value, ()
        node = self.maker.get(name)
        if node is None or depth == 0:
            return 1.0, (name,)
        if node.op_type == "Mul":
            (left_factor, left_tensors), (right_factor, right_tensors) = (self.factors(operand, depth - 1) for operand in node.input)
            return left_factor * right_factor, tuple(sorted(left_tensors + right_tensors))
        if node.op_type == "Div" and (divisor := self.number(node.input[1])):
            left_factor, left_tensors = self.factors(node.input[0], depth - 1)
            return left_factor / divisor, left_tensors
        if node.op_type == "Pow" and self.number(node.input[1]) in (2.0, 3.0):
            exponent = int(self.number(node.input[1]) or 0)
            left_factor, left_tensors = self.factors(node.input[0], depth - 1)
            return left_factor**exponent, tuple(sorted(left_tensors * exponent))
        return 1.0, (name,)


def _near(value: float, target: float) -> bool:
    return abs(value - target) <= _CLOSE * abs(target)


def _mean(producers: _Producers, name: str) -> str | None:
    """Tensor x such that `name` is the mean of x over the last axis; None if `name` is no such mean."""
    node = producers.producer(name, "ReduceMean")
    if node is None:
        return None
    values = attributes(node)
    axes: Iterable[int] | NDArray[np.int64] = values.get("axes", ())
    if len(node.input) > 1:
        axes = producers.small.get(node.input[1], np.zeros(0, np.int64)).reshape(-1)
    last = ([-1], [len(producers.shapes.get(node.input[0], ())) - 1])
    return node.input[0] if [int(a) for a in axes] in last and values.get("keepdims", 1) else None


def _layer_norm(producers: _Producers, node: NodeProto) -> NodeProto | None:
    """LayerNormalization or RMSNormalization for a node d / sqrt(...) or d * (1 / sqrt(...)); None for others."""
    # (d, tensor of the square root): one pair for a Div, two at most for a Mul
    if node.op_type == "Div":
        pairs = [(node.input[0], node.input[1])]
    else:
        pairs = []
        for d, operand in (node.input, reversed(node.input)):
            inverse = producers.producer(operand, "Reciprocal")
            if inverse is not None:
                pairs.append((d, inverse.input[0]))
            inverse = producers.producer(operand, "Div")
            if inverse is not None and producers.number(inverse.input[0]) == 1:
                pairs.append((d, inverse.input[1]))
    for d, root in pairs:
        difference, square_root = producers.producer(d, "Sub"), producers.producer(root, "Sqrt")
        if square_root is None:
            continue
        variance = producers.with_number(producers.producer(square_root.input[0], "Add"))
        squares = _mean(producers, variance[0]) if variance is not None else None
        # without a difference from the mean: d is x itself
        if variance is not None and squares is not None and difference is None and producers.factors(squares) == (1.0, (d, d)):
            name = node.name or node.output[0]
            return helper.make_node("RMSNormalization", [d, ONE], [node.output[0]], name=name, axis=-1, epsilon=variance[1])
        if difference is None:
            continue
        x = difference.input[0]
        # an exporter may compute the same difference twice
        if variance is None or squares is None or _mean(producers, difference.input[1]) != x:
            continue
        factor, operands = producers.factors(squares)
        if factor == 1 and len(operands) == 2 and all(operand == d or _is_difference(producers, operand, x) for operand in operands):
            return helper.make_node(
                "LayerNormalization", [x, ONE], [node.output[0]], name=node.name or node.output[0], axis=-1, epsilon=variance[1]
            )
    return None


def _is_difference(producers: _Producers, name: str, source: str) -> bool:
    """Whether a tensor is `source` minus its mean."""
    node = producers.producer(name, "Sub")
    return node is not None and node.input[0] == source and _mean(producers, node.input[1]) == source


def _gelu(producers: _Producers, node: NodeProto) -> NodeProto | None:
    """Gelu for the last product of x * 0.5 * (1 + erf(..)), or tanh; None for others."""
    factor, tensors = producers.factors(node.output[0])
    if len(tensors) != 2 or not _near(factor, 0.5):
        return None
    for x, operand in (tensors, reversed(tensors)):
        plus = producers.with_number(producers.producer(operand, "Add"))
        inner = producers.producer(plus[0], "Erf", "Tanh") if plus is not None and plus[1] == 1 else None
        if inner is None:
            continue
        scale, argument = producers.factors(inner.input[0])
        exact = inner.op_type == "Erf" and argument == (x,) and _near(scale, math.sqrt(0.5))
        is_tanh = inner.op_type == "Tanh" and len(argument) == 1 and _near(scale, math.sqrt(2 / math.pi))
        if exact or (is_tanh and _cubic(producers, argument[0], x)):
            form = {} if exact else {"approximate": "tanh"}
            return helper.make_node("Gelu", [x], [node.output[0]], name=node.name or node.output[0], **form)
    return None


def _cubic(producers: _Producers, name: str, x: str) -> bool:
    """Whether a tensor is x + 0.044715 * x^3, the cubic term in any order of factors."""
    node = producers.producer(name, "Add")
    if node is None:
        return False
    for first, cubic_term in (node.input, reversed(node.input)):
        factor, tensors = producers.factors(cubic_term)
        if first == x and tensors == (x, x, x) and _near(factor, 0.044715):
            return True
    return False
