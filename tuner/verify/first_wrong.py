"""Search for the first operator of a compiled file with wrong values.  The model in the file is compiled again, in two ways.

1. Layer by layer, with every tensor of its subgraphs as an output, in one run.  Each is compared with onnxruntime by the limits of
   `tuner.verify.values`; the first tensor beyond its limit is the result.
2. If the extra outputs hide the fault: parts of the model up to one operator, by bisection, with fusion as `compile` does without plans.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.autoplan import quick_plans
from compiler.build import containers_of, default_by_level, measure, package
from compiler.diagnostics.float_range import out_of_range_lines
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
from simulator.npu.errors import TilefarmError
from simulator.onnx_names import refill
from simulator.session import InferenceSession
from tuner.verify.fixed_point import apply_fixed_point, nodes_between
from tuner.verify.reference import StoredTensors, run_reference
from tuner.verify.reference_body import expand_bodies
from tuner.verify.values import TensorComparison, compare_values

Plans = Callable[[LoweredModel], Mapping[str, Plan]]


@dataclass(frozen=True)
class FirstWrong:
    """First operator with a wrong value.  operator: its kind and name.  tensor: its output.  weights: remarks on weights up to it."""

    operator: str
    tensor: str
    compared: TensorComparison
    weights: tuple[str, ...] = ()

    def __str__(self) -> str:
        output_text = "" if self.operator.endswith(repr(self.tensor)) else f", which makes {self.tensor!r}"
        return "; ".join([f"the first operator whose value is wrong is {self.operator}{output_text}: {self.compared}", *self.weights])


def first_wrong(
    body: Path, compiled: Compiled, feeds: Mapping[str, NDArray[Any]], level: str, failed_outputs: Sequence[str]
) -> FirstWrong | None:
    """Find the first wrong operator; None without one, as when this compiler compiles the model correctly.

    body: a file with the model.  failed_outputs: names of outputs of the compiled file that failed the check.
    """
    model = onnx.load(body)
    frames = frame_count(model)
    pieces = expand_bodies(model)
    npu_tensors = {name for piece in pieces for k in piece.nodes for name in model.graph.node[k].output}
    model = load_model(model, where=str(body))
    search = _Search(model, ModelSpec(body, compiled.machine, compiled.dtype, frames=frames), feeds, level)
    names = search.tensors(npu_tensors)
    fault = search.first(names, default_by_level)
    bad = max((names.index(name) for name in failed_outputs if name in names), default=-1)
    if fault is None and bad >= 0 and (fault := search.first([names[bad]], quick_plans)) is not None:
        # bisection: the tensor at index `good` is right (-1: the inputs), and the one at `bad` is wrong, which `fault` describes
        good = -1
        while bad - good > 1:
            middle = (bad + good) // 2
            middle_fault = search.first([names[middle]], quick_plans)
            good, bad, fault = (middle, bad, fault) if middle_fault is None else (good, middle, middle_fault)
    return fault


class _Search:
    def __init__(self, model: ModelProto, source: ModelSpec, feeds: Mapping[str, NDArray[Any]], level: str) -> None:
        self.model, self.source, self.feeds, self.level = model, source, feeds, level
        graph = model.graph
        self.types = {item.name: item for item in (*graph.value_info, *graph.output) if has_shape(item)}
        self.makers = {name: label(node) for node in graph.node for name in node.output}

    def tensors(self, npu_tensors: set[str]) -> list[str]:
        """Tensors among `npu_tensors` that the host can receive, in graph order; of a group of nodes only its outputs."""
        groups = fuse_groups(self.model)
        self.makers |= {name: label(node) for node in groups.model.graph.node for name in node.output}
        outputs = [(members, name) for node, members in zip(groups.model.graph.node, groups.members, strict=True) for name in node.output]
        outputs = [(members, name) for members, name in outputs if name in npu_tensors and name in self.types]
        unsupported = check_support(self._truncate([name for _, name in outputs], self.model.graph.node), SUPPORTED, None).refused.keys()
        return [name for members, name in outputs if members.isdisjoint(unsupported)]

    def _truncate(self, names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> ModelProto:
        """Model with other outputs, and only the nodes that they need."""
        part = deepcopy(self.model)
        refill(part.graph.output, (self.types[name] for name in names))
        refill(part.graph.node, nodes)
        return part

    def first(self, names: Sequence[str], plans: Plans) -> FirstWrong | None:
        """First wrong tensor if the model ends in these tensors; None without one, or if this part cannot be compiled."""
        model = self._truncate(names, nodes_between(self.model.graph.node, set(), set(names)))
        try:
            lowered = lower_model(self.source, model)
            measured = measure(lowered, {self.level: plans(lowered)[self.level]})
            with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
                path = Path(folder) / "anew.onnx"
                package(lowered, containers_of(lowered, measured), path)
                session = InferenceSession(path)
                expected = apply_fixed_point(
                    run_reference(path, self.feeds, StoredTensors.of(session.compiled)), session.compiled, path, self.feeds
                )
                compared = compare_values(session, self.feeds, expected, self.level).compared
        except TilefarmError:  # this compiler or onnxruntime may reject a part
            return None
        weights = tuple(out_of_range_lines(lowered.weights_beyond, self.source.dtype))
        return next(
            (FirstWrong(self.makers[name], name, comparison, weights) for name, comparison in compared.items() if not comparison.ok), None
        )
