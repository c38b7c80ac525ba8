"""What a model becomes on the NPU, whatever its tensors are called: for models that are written in several ways."""

from __future__ import annotations

import hashlib

from onnx import ModelProto

from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.offload_cost import Offload
from compiler.frontend.partition.partition import AllOnHostError
from compiler.ir.graph import Graph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType

OFFLOAD = Offload(load_machine("edge"), DataType.float16)


def graph_of(model: ModelProto) -> tuple[list[str], int]:
    """The operators of what the NPU has of it, whatever tensors are called, and how many nodes the host has."""
    try:
        graphs, part = lower_partition(prepare(model), OFFLOAD)
    except AllOnHostError as nothing:
        return [], len(nothing.part.host)
    return sorted(line for graph in graphs for line in shape_of(graph)), len(part.host)


def shape_of(graph: Graph) -> list[str]:
    """A line for each operator: what it makes of the graph's inputs, whatever tensors are called and in whatever order operators are."""
    made = {name: digest(f"{shape}") for name, shape in graph.shapes.items()}
    for op in graph.operators:
        steps = [(step.op, step.value, step.operand, step.register) for step in getattr(op, "steps", ())]
        made[op.y] = digest(f"{type(op).__name__} {[made[name] for name in op.inputs]} {graph.shapes[op.y]} {steps}")
    return sorted(f"{type(op).__name__} {graph.shapes[op.y]} {made[op.y]}" for op in graph.operators)


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
