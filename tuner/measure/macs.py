"""Multiply-accumulates in a target graph, and those that a program really computes (for a model: `compiler.frontend.partition.macs`)."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.program import Program


def npu_macs(target_graph: TargetGraph, model: ModelProto) -> int:
    """Multiply-accumulates of the model's products on the matrix unit, without the banded product of an LRN, which only sums up a
    window."""
    windows = {f"{node.name or node.output[0]}.window" for node in model.graph.node if node.op_type == "LRN"}
    return sum(spec.macs for spec in target_graph.operators if spec.name not in windows) * target_graph.storages[0].n


def program_macs(program: Program) -> int:
    """Multiply-accumulates of all products of a program, with padding and recomputed halo: at least those of the model."""
    total = 0
    for code in program.streams:
        rows = code[np.isin(code[:, isa.OP], isa.PRODUCT_OPS)].astype(np.int64)
        total += int(isa.macs(rows).sum())
    return total
