"""Centring of residual sums that only layer normalisations read: their mean over the channels becomes 0.

In a pre-norm transformer convolutions with constant weights add to one residual sum, and layer normalisations subtract its mean over the
channels.  With the mean subtracted from weights, biases and constants instead, the mean of the sum is always 0, and no normalisation
has to compute it (SliceGPT, Ashkboos et al., ICLR 2024, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.ir.graph import Graph
from compiler.ir.operators import Conv, LayerNorm, Operator, Pool, Reflow, Vector


def with_centred_sums(graph: Graph) -> Graph:
    """Graph with centred sums, and normalisations marked as `centred`."""
    sums = frozenset[str]()
    for op in graph.operators:
        if isinstance(op, LayerNorm) and not op.centred and op.x not in sums:
            sums |= _sums(op.x, graph)
    if not sums:
        return graph
    operators = tuple(_centred(op, sums) for op in graph.operators)
    constants = {name: values - values.mean(1, keepdims=True) if name in sums else values for name, values in graph.constants.items()}
    return replace(graph, operators=operators, constants=constants)


def _centred(op: Operator, sums: frozenset[str]) -> Operator:
    if isinstance(op, Conv) and op.y in sums:
        return replace(op, weights=op.weights - op.weights.mean(0, keepdims=True), bias=op.bias - op.bias.mean())
    return replace(op, centred=True) if isinstance(op, LayerNorm) and op.x in sums else op


def _sums(tensor: str, graph: Graph) -> frozenset[str]:
    """Tensors connected with `tensor` by additions; empty where one of them is produced or read in another way."""
    producers, consumers = graph.producers(), graph.consumers()
    sums, pending = set[str](), [tensor]
    while pending:
        tensor = pending.pop()
        if tensor in sums:
            continue
        sums.add(tensor)
        addends = _added(producers[tensor]) if tensor in producers else [] if tensor in graph.constants else None
        readers = [op for op in consumers[tensor] if not isinstance(op, LayerNorm) or op.centred]
        linear = all(tensor in (_added(op) or ()) for op in readers) and not any(isinstance(op, Conv) and op.x == tensor for op in readers)
        if addends is None or not linear or any(port.tensor == tensor for port in graph.outputs):
            return frozenset()
        pending += [*addends, *(op.y for op in readers)]
    return frozenset(sums)


def _added(op: Operator) -> Sequence[str] | None:
    """Summands of an operator, apart from products with constants; None if its mean does not follow from theirs."""
    if isinstance(op, Conv) and op.groups == 1 and op.activation == "none":
        return () if op.residual is None else (op.residual,)
    is_reflow = isinstance(op, Reflow) and not op.fill
    is_row_selection = isinstance(op, Pool) and (op.mode, op.kernel) == ("max", (1, 1)) and max(op.pads) <= 0
    is_sum = isinstance(op, Vector) and all(step.op == "add" and step.operand >= 0 for step in op.steps)
    return op.inputs if is_reflow or is_row_selection or is_sum else None
