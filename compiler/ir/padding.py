"""Padding lanes (lanes without a channel): their values, and masks that set them to zero where a reader requires zeros.

A tensor takes whole planes of lanes and instructions work on whole blocks, so a function with f(0) != 0 writes f(0) to its padding lanes.
Most readers ignore them: padding lanes meet zero weights or stay padding.  A sum over the lanes of two computed tensors requires zeros
(`Operator.requires_zeros`).  Each operator states the values of its padding lanes (`Operator.padding`).  Where a requirement is not met,
the element-wise chain that wrote the values is masked once for all readers, or the tensor is copied with zeros there.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.graph import Graph
from compiler.ir.layout import Layout, assign, identity_conv
from compiler.ir.operators import ZERO, Operator, Values, Vector
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.parts import DataType


def padding_values(layout: Layout) -> dict[str, Values]:
    """Tensor -> values that its padding lanes may hold; an empty set where every lane has a channel."""
    values: dict[str, Values] = {port.tensor: ZERO for port in layout.graph.inputs}
    values |= dict.fromkeys(layout.graph.constants, ZERO)
    for op in layout.graph.operators:
        full = len(layout.placements[op.y].lanes) == layout.placements[op.y].planes * layout.type_of(op.y).lanes
        values[op.y] = frozenset() if full else op.padding([values[name] for name in op.inputs], layout.type_of(op.y).storage.type)
    return values


def assign_with_masks(graph: Graph, dtype: DataType) -> Layout:
    """Layout of a graph, with masks added where a reader requires zeros in padding lanes.

    A mask can change what later operators require, so the layout is assigned again until nothing is missing.
    """
    while True:
        layout = assign(graph, dtype)
        layout = replace(layout, padding=padding_values(layout))
        wanted = {name for op in layout.graph.operators for name in _missing(op, layout)}
        if not wanted:
            return layout
        graph = _Masks(layout, wanted).applied()


def _missing(op: Operator, layout: Layout) -> tuple[str, ...]:
    """Inputs without the zeros that the operator requires."""
    return op.requires_zeros([layout.padding[name] for name in op.inputs], layout.type_of(op.y).storage.type)


def _zero(quantisation: Quantisation | None) -> Values:
    return ZERO if quantisation is None else frozenset({float(quantisation.zero_point[0])})


class _Masks:
    """Masks of one graph: chains to mask in place, and tensors to copy."""

    def __init__(self, layout: Layout, wanted: set[str]) -> None:
        self.layout, self.producers = layout, layout.graph.producers()
        self.chains, self.copied = set[str](), set[str]()
        for name in sorted(wanted):
            chains = self._chains(name)
            if chains is None:
                self.copied.add(name)
            else:
                self.chains |= chains

    def _chains(self, name: str) -> set[str] | None:
        """Chains whose masks set the padding lanes of the tensor to zero; None if no masks of chains can."""
        types = self.layout.graph.types
        if self.layout.padding[name] <= _zero(types.get(name)):
            return set()
        op = self.producers.get(name)
        if op is None:
            return None
        if isinstance(op, Vector) and op.steps:
            return {name}
        rounding = self.layout.type_of(name).storage.type
        if not op.padding([_zero(types.get(operand)) for operand in op.inputs], rounding) <= _zero(types.get(name)):
            return None
        operand_chains = [self._chains(operand) for operand in op.inputs]
        return None if None in operand_chains else set().union(*(chains for chains in operand_chains if chains is not None))

    def applied(self) -> Graph:
        """Graph with masked chains, and with a masked copy in front of each reader that requires one."""
        graph = self.layout.graph
        shapes, types, operators = dict(graph.shapes), dict(graph.types), list[Operator]()
        copies = dict[str, str]()
        for op in graph.operators:
            missing = _missing(op, self.layout)
            for name in missing:
                if name in self.copied and name not in copies:
                    copies[name] = f"{name}.masked"
                    shapes[copies[name]], quantisation = shapes[name], types.get(name)
                    if quantisation is not None:
                        types[copies[name]] = quantisation
                    operators.append(self._copy(name, copies[name], quantisation))
            if isinstance(op, Vector) and op.y in self.chains:
                op = op.with_mask(shapes[op.y][1])
            operators.append(op.with_inputs([copies.get(name, name) if name in missing else name for name in op.inputs]))
        return replace(graph, operators=tuple(operators), shapes=shapes, types=types)

    def _copy(self, name: str, copy: str, quantisation: Quantisation | None) -> Operator:
        """Copy of a tensor with zeros in padding lanes; for integers a product with 1 whose weights are zero in padding lanes."""
        shape = self.layout.graph.shapes[name]
        if quantisation is not None:
            return identity_conv(f"{copy}.copy", name, copy, shape, quantisation)
        return Vector(f"{copy}.copy", (name,), copy, ()).with_mask(shape[1])
