"""Convolutions whose groups are no whole planes: products of CUBE are dense, so some of what it multiplies beside weights are zeros.

Counted are the blocks of weights that are multiplied whatever the plan (`target.zero_blocks`); a tiling adds those that lie between them.
Depthwise convolutions are left to the text of a unit: they are as dense as a block of channels everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from compiler.ir.operators import Convolution
from compiler.ops.conv import ConvSpec
from compiler.target.target_graph import TargetGraph


class GroupStructure(NamedTuple):
    """Of a model: convolutions that multiply more than their weights, their MACs, and those that CUBE does for them, at least."""

    convolutions: int
    macs: int
    multiplied_macs: int

    def line(self) -> str:
        count = "1 convolution multiplies" if self.convolutions == 1 else f"{self.convolutions} convolutions multiply"
        them = "its" if self.convolutions == 1 else "their"
        return f"group structure: {count} {self.multiplied_macs / self.macs:.1f} times {them} weights, since groups are no whole planes"


def weights_multiplied(spec: ConvSpec) -> int | None:
    """Values of weights that every pixel is multiplied with, zeros among them; None for a convolution without groups."""
    if not isinstance(spec.operator, Convolution) or spec.operator.groups == 1:
        return None
    blocks = int(spec.needed.sum()) if spec.needed.size else spec.n1 * spec.k1
    return spec.groups * blocks * spec.fractal.columns * spec.fractal.lanes


def grouped(target_graphs: Iterable[TargetGraph]) -> GroupStructure | None:
    """Of a model's pieces; None where no convolution in groups multiplies more than its weights."""
    structure = GroupStructure(0, 0, 0)
    for target_graph in target_graphs:
        for spec in target_graph.operators:
            op, multiplied = spec.operator, weights_multiplied(spec) if isinstance(spec, ConvSpec) else None
            if multiplied is None or not isinstance(op, Convolution) or op.weights.shape[1] == 1 or multiplied == op.weights.size:
                continue
            macs, pixels = spec.macs * target_graph.images, spec.out_h * spec.out_w * target_graph.images
            structure = GroupStructure(structure.convolutions + 1, structure.macs + macs, structure.multiplied_macs + pixels * multiplied)
    return structure if structure.convolutions else None
