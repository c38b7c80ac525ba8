"""Lanes of sums that have a channel, of a unit's products of two tensors."""

from __future__ import annotations

from compiler.ir.operators import HeadedProduct
from compiler.unit.unit import Unit


def summed_lanes(unit: Unit) -> dict[int, int]:
    """As `simulator.lane_sums` takes them."""
    products = [(spec.tag, spec.operator) for spec in unit.operators]
    return {tag: unit.graph.shapes[op.a][1] // op.heads for tag, op in products if isinstance(op, HeadedProduct)}
