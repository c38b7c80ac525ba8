"""Parts of a compiled file's body, compiled anew for its machine: the model up to some tensors, or its operators one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from compiler.build import containers_of, measure, package
from compiler.frontend import load_model
from compiler.frontend.frames import frame_count
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.handlers.to_graph import has_shape
from compiler.frontend.lower import SUPPORTED
from compiler.frontend.onnx_io.attributes import label
from compiler.frontend.partition.support_check import check_support
from compiler.model import LoweredModel, ModelSpec, lower_model
from compiler.plan.plan import Plan
from simulator.compiled import Compiled
from simulator.onnx_names import refill
from tuner.verify.fixed_point import nodes_between
from tuner.verify.reference_body import expand_bodies

Plans = Callable[[LoweredModel], Mapping[str, Plan]]


class BodyParts:
    """Parts of the body of a file.  body: a file with the model, if the compiled file has none.

    names: tensors of the NPU that the host can receive, in graph order; of a group of nodes only its outputs.  makers: tensor -> its node.
    """

    def __init__(self, body: Path, compiled: Compiled, level: str) -> None:
        model = onnx.load(body)
        self.source, self.level = ModelSpec(body, compiled.machine, compiled.dtype, frames=frame_count(model)), level
        pieces = expand_bodies(model)
        npu_tensors = {name for piece in pieces for k in piece.nodes for name in model.graph.node[k].output}
        self.model = load_model(model, where=str(body))
        graph = self.model.graph
        self.types = {item.name: item for item in (*graph.value_info, *graph.output) if has_shape(item)}
        groups = fuse_groups(self.model)
        self.makers = {name: label(node) for nodes in (graph.node, groups.model.graph.node) for node in nodes for name in node.output}
        self.names = self._tensors(npu_tensors, list(zip(groups.model.graph.node, groups.members, strict=True)))

    def _tensors(self, npu_tensors: set[str], groups: Iterable[tuple[NodeProto, frozenset[int] | set[int]]]) -> list[str]:
        outputs = [(members, name) for node, members in groups for name in node.output if name in npu_tensors and name in self.types]
        unsupported = check_support(self._with([name for _, name in outputs], self.model.graph.node), SUPPORTED, None).refused.keys()
        return [name for members, name in outputs if members.isdisjoint(unsupported)]

    def _with(self, names: Iterable[str], nodes: Iterable[NodeProto]) -> ModelProto:
        part = deepcopy(self.model)
        refill(part.graph.output, (self.types[name] for name in names))
        refill(part.graph.node, nodes)
        return part

    def up_to(self, names: Iterable[str]) -> ModelProto:
        """Model with other outputs, and only the nodes that they need."""
        names = list(names)
        return self._with(names, nodes_between(self.model.graph.node, set(), set(names)))

    def compile(self, part: ModelProto, plans: Plans, out: Path) -> LoweredModel:
        """Write a part compiled for the file's machine and level.  Raises as `lower_model`, and `InfeasibleError`."""
        lowered = lower_model(self.source, part)
        measured = measure(lowered, {self.level: plans(lowered)[self.level]})
        package(lowered, containers_of(lowered, measured), out)
        return lowered
