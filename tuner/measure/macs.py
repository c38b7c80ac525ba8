"""Multiply-accumulates of what the NPU was given, and of what a program really does (of a model: `compiler.frontend.partition.macs`)."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.program import Program


def npu_macs(target_graph: TargetGraph, model: ModelProto) -> int:
    """Of the model's products that the unit computes.  The banded product of an LRN is not one of them: it is how we add up a window."""
    windows = {f"{node.name or node.output[0]}.window" for node in model.graph.node if node.op_type == "LRN"}
    return sum(spec.macs for spec in target_graph.operators if spec.name not in windows) * target_graph.storages[0].n


def program_macs(program: Program) -> int:
    """Of every product, padding and recomputed halo included: at least what the model has."""
    total = 0
    for code in program.streams:
        rows = code[np.isin(code[:, isa.OP], isa.PRODUCTS)].astype(np.int64)
        total += int(isa.macs(rows).sum())
    return total
