"""Overhead of grouped convolutions whose groups do not fill planes: CUBE multiplies dense blocks, so also zeros between groups.

The count covers the blocks of weights that every plan multiplies (`target.zero_blocks`); a tiling may add blocks between them.
Depthwise convolutions are excluded: their blocks are equally dense everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from compiler.ir.operators import Convolution
from compiler.ops.conv import ConvSpec
from compiler.target.target_graph import TargetGraph


class GroupStructure(NamedTuple):
    """Convolutions of a model with multiplications by zero blocks: number, MACs, and minimum MACs of CUBE."""

    convolutions: int
    macs: int
    multiplied_macs: int

    def line(self) -> str:
        count = "1 convolution multiplies" if self.convolutions == 1 else f"{self.convolutions} convolutions multiply"
        them = "its" if self.convolutions == 1 else "their"
        return f"group structure: {count} {self.multiplied_macs / self.macs:.1f} times {them} weights, since groups are no whole planes"


def weights_multiplied(spec: ConvSpec) -> int | None:
    """Number of weights, with zeros, that CUBE multiplies per pixel; None for a convolution without groups."""
    if not isinstance(spec.operator, Convolution) or spec.operator.groups == 1:
        return None
    blocks = int(spec.needed.sum()) if spec.needed.size else spec.n1 * spec.k1
    return spec.groups * blocks * spec.fractal.columns * spec.fractal.lanes


def find_group_structure(target_graphs: Iterable[TargetGraph]) -> GroupStructure | None:
    """Group structure of a model's subgraphs; None if no convolution has groups that leave planes partly empty."""
    structure = GroupStructure(0, 0, 0)
    for target_graph in target_graphs:
        for spec in target_graph.operators:
            op, multiplied = spec.operator, weights_multiplied(spec) if isinstance(spec, ConvSpec) else None
            if multiplied is None or not isinstance(op, Convolution) or op.weights.shape[1] == 1 or multiplied == op.weights.size:
                continue
            macs, pixels = spec.macs * target_graph.images, spec.out_h * spec.out_w * target_graph.images
            structure = GroupStructure(structure.convolutions + 1, structure.macs + macs, structure.multiplied_macs + pixels * multiplied)
    return structure if structure.convolutions else None
