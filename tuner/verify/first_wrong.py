"""Which operator of a compiled file's model makes wrong values?  Its body is compiled anew and executed up to one operator after another.

First layer by layer with every tensor of the pieces as an output, in one run: each is held against onnxruntime by the limits of
`tuner.verify.values`, and the first that is beyond its own is the one.  Where outputs everywhere hide the fault, parts of the model up to
one operator are compiled as `compile` does without plans, with the operators fused, by bisection.
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
from tuner.verify.fixed_point import between, referred
from tuner.verify.reference import Stored, reference
from tuner.verify.reference_body import body_of
from tuner.verify.values import Compared, values_of

Plans = Callable[[LoweredModel], Mapping[str, Plan]]


@dataclass(frozen=True)
class FirstWrong:
    """operator: its kind and name.  tensor: what it makes.  weights: what is said of those of all operators up to it."""

    operator: str
    tensor: str
    compared: Compared
    weights: tuple[str, ...] = ()

    def __str__(self) -> str:
        made = "" if self.operator.endswith(repr(self.tensor)) else f", which makes {self.tensor!r}"
        return "; ".join([f"the first operator whose value is wrong is {self.operator}{made}: {self.compared}", *self.weights])


def first_wrong(body: Path, compiled: Compiled, feeds: Mapping[str, NDArray[Any]], level: str, wrong: Sequence[str]) -> FirstWrong | None:
    """None where none is found, as of a model that this compiler compiles rightly.

    body: a file with the model.  wrong: names of tensors that are, in the compiled one.
    """
    model = onnx.load(body)
    frames = frame_count(model)
    pieces = body_of(model)
    inside = {name for piece in pieces for k in piece.nodes for name in model.graph.node[k].output}
    model = load_model(model, where=str(body))
    search = _Search(model, ModelSpec(body, compiled.machine, compiled.dtype, frames=frames), feeds, level)
    names = search.tensors(inside)
    found = search.first(names, default_by_level)
    last = max((names.index(name) for name in wrong if name in names), default=-1)
    if found is None and last >= 0 and (found := search.first([names[last]], quick_plans)) is not None:
        right = -1
        while last - right > 1:
            middle = (last + right) // 2
            here = search.first([names[middle]], quick_plans)
            right, last, found = (middle, last, found) if here is None else (right, middle, here)
    return found


class _Search:
    def __init__(self, model: ModelProto, source: ModelSpec, feeds: Mapping[str, NDArray[Any]], level: str) -> None:
        self.model, self.source, self.feeds, self.level = model, source, feeds, level
        graph = model.graph
        self.types = {item.name: item for item in (*graph.value_info, *graph.output) if has_shape(item)}
        self.makers = {name: label(node) for node in graph.node for name in node.output}

    def tensors(self, inside: set[str]) -> list[str]:
        """Those of some that the host can be given, in the order of the graph; of a group of nodes, what it makes as a whole."""
        whole = fuse_groups(self.model)
        self.makers |= {name: label(node) for node in whole.model.graph.node for name in node.output}
        made = [(members, name) for node, members in zip(whole.model.graph.node, whole.members, strict=True) for name in node.output]
        made = [(members, name) for members, name in made if name in inside and name in self.types]
        refused = check_support(self._until([name for _, name in made], self.model.graph.node), SUPPORTED, None).refused.keys()
        return [name for members, name in made if members.isdisjoint(refused)]

    def _until(self, names: Sequence[str], nodes: Sequence[onnx.NodeProto]) -> ModelProto:
        """The model with other outputs, and the nodes that these need."""
        found = deepcopy(self.model)
        refill(found.graph.output, (self.types[name] for name in names))
        refill(found.graph.node, nodes)
        return found

    def first(self, names: Sequence[str], plans: Plans) -> FirstWrong | None:
        """The first of some tensors that is wrong where the model ends in them; None where none is, or it cannot be compiled so."""
        model = self._until(names, between(self.model.graph.node, set(), set(names)))
        try:
            opened = lower_model(self.source, model)
            measured = measure(opened, {self.level: plans(opened)[self.level]})
            with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
                path = Path(folder) / "anew.onnx"
                package(opened, containers_of(opened, measured), path)
                session = InferenceSession(path)
                expected = referred(reference(path, self.feeds, Stored.of(session.compiled)), session.compiled, path, self.feeds)
                compared = values_of(session, self.feeds, expected, self.level).compared
        except TilefarmError:  # a part may be what this compiler, or onnxruntime, does not take
            return None
        weights = tuple(out_of_range_lines(opened.weights_beyond, self.source.dtype))
        return next((FirstWrong(self.makers[name], name, one, weights) for name, one in compared.items() if not one.ok), None)
