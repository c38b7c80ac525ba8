"""What of a model runs on the NPU where some of it cannot: one partition, and the nodes around it that stay with the host.

The nodes that the handlers refuse are found by translating all of them, one by one: behind a refused one its outputs are taken for inputs.
The partition is the convex set of the others that has the most multiply-accumulates (`compiler.frontend.convex`).  At its border
tensors have ONNX's own order, which may not suit a node that liked them as the NPU had left them; so what was chosen is
translated again as it stands, until nothing in it is refused.  A node that is refused for how a Transpose or Reshape has left its
input, and would be taken with that input from the host, stays; the host moves the values instead.

Nodes that only constants go into are computed here and belong to nobody: who reads one gets the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from compiler.frontend.attributes import attributes, label
from compiler.frontend.convex import heaviest_convex
from compiler.frontend.macs import known_shapes, node_macs
from compiler.frontend.to_graph import Handler, Translator, fold, translate_node
from simulator.npu.errors import UnsupportedError
from simulator.onnx_container import names_read

Array = NDArray[Any]
MAX_FOLDED = 1 << 24  # values of a constant that is computed here
_OUTSIDE = "supported, but what the NPU does not support lies between it and the partition"
# what onnx's evaluator raises on operators and attributes that it was not tried on
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class HostNode:
    """A node that the host runs.  name: or its first output's.  refused: by the NPU, else it only lies behind or before one that is."""

    name: str
    op_type: str
    why: str
    macs: int
    refused: bool


@dataclass(frozen=True, eq=False)
class Partition:
    """model: as it was read.  npu: what the NPU runs of it, a model of its own (`model` itself where that is all of it).

    inside: numbers of the model's nodes that are in `npu`.  host: the others, but for those that only constants go into.
    """

    model: ModelProto
    npu: ModelProto
    inside: frozenset[int]
    host: tuple[HostNode, ...]


def whole(model: ModelProto) -> Partition:
    """All of it."""
    return Partition(model, model, frozenset(range(len(model.graph.node))), ())


def partition(model: ModelProto, handlers: Mapping[str, Handler]) -> Partition:
    """The heaviest partition of a model from `load_model`.  Raises `UnsupportedError` where nothing of it can run on the NPU."""
    parts = _Parts(model)
    refused: dict[int, str] = {}
    while True:
        inside = parts.choose(refused)
        npu, numbers = parts.extract(inside)
        trial = _trial(npu, dict(handlers))
        if trial.refused:
            refused |= {numbers[i]: why for i, why in _blamed(parts, npu, numbers, trial, dict(handlers)).items()}
        elif trial.operators:
            return Partition(model, npu, frozenset(inside), parts.host(inside, refused))
        else:
            first = min(refused, default=None)
            raise UnsupportedError(f"nothing of it can run on the NPU: {'it has no operators' if first is None else refused[first]}")


class _Parts:
    """One model, and who reads what of whom."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.shapes = known_shapes(model)
        self.constants = _constants(model, self.shapes)
        self.outputs = [item.name for item in model.graph.output]
        self.reads = [names_read([node]) for node in self.nodes]
        self.producer = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.types = {item.name: item for item in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
        self.macs = [node_macs(node, self.shapes) for node in self.nodes]
        live = _live(self.reads, self.producer, self.outputs)
        self.working = [i for i in sorted(live) if not all(name in self.constants for name in self.nodes[i].output if name)]

    def choose(self, refused: Iterable[int]) -> list[int]:
        """The heaviest convex set of nodes that avoids some; of equal ones one with more nodes."""
        place = {i: k for k, i in enumerate(self.working)}
        edges = [
            (place[self.producer[name]], place[i])
            for i in self.working
            for name in sorted(self.reads[i])
            if name in self.producer and self.producer[name] in place
        ]
        weights = [self.macs[i] * (len(place) + 1) + 1 for i in self.working]
        return sorted(self.working[k] for k in heaviest_convex(edges, weights, {place[i] for i in refused}))

    def extract(self, inside: list[int]) -> tuple[ModelProto, list[int]]:
        """The nodes as a model, and their numbers in this one.  Computed constants are initialisers of a new name."""
        if len(inside) == len(self.nodes):
            return self.model, inside
        chosen = set(inside)
        inner = {name for i in inside for name in self.nodes[i].output if name}
        read = {name for i in inside for name in self.reads[i]}
        outside = {name for i in self.working if i not in chosen for name in self.reads[i]} | set(self.outputs)
        sub = ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        sub.graph.name = self.model.graph.name or "model"
        initial = {item.name for item in self.model.graph.initializer}
        renamed = {name: self._fresh(f"{name}.constant") for name in sorted(read) if name in self.constants and name not in initial}
        for i in inside:
            node = NodeProto()
            node.CopyFrom(self.nodes[i])
            node.input[:] = [renamed.get(name, name) for name in node.input]
            sub.graph.node.append(node)
        sub.graph.initializer.extend(item for item in self.model.graph.initializer if item.name in read)
        sub.graph.initializer.extend(numpy_helper.from_array(np.asarray(self.constants[name]), new) for name, new in renamed.items())
        order = [item.name for item in self.model.graph.input] + [name for node in self.nodes for name in node.output]
        for name in dict.fromkeys(order):
            if name in read and name not in inner and name not in self.constants:
                sub.graph.input.append(self._type(name))
            elif name in inner and name in outside:
                sub.graph.output.append(self._type(name))
            elif name in inner and name in self.types:
                sub.graph.value_info.append(self.types[name])
        return sub, inside

    def host(self, inside: list[int], refused: Mapping[int, str]) -> tuple[HostNode, ...]:
        chosen = set(inside)
        return tuple(
            HostNode(node.name or node.output[0], node.op_type, _short(refused.get(i, _OUTSIDE)), self.macs[i], i in refused)
            for i, node in enumerate(self.nodes)
            if i in self.working and i not in chosen
        )

    def _type(self, name: str) -> ValueInfoProto:
        return self.types.get(name, ValueInfoProto(name=name))

    def _fresh(self, name: str) -> str:
        taken = self.producer.keys() | {item.name for item in (*self.model.graph.input, *self.model.graph.initializer)}
        while name in taken:
            name += "_"
        return name


def _short(why: str) -> str:
    """Without the list of everything that is supported."""
    return why.partition("; supported are ")[0]


def _live(reads: list[set[str]], producer: Mapping[str, int], outputs: Iterable[str]) -> set[int]:
    """Nodes that an output depends on."""
    live: set[int] = set()
    todo = [producer[name] for name in outputs if name in producer]
    while todo:
        i = todo.pop()
        if i not in live:
            live.add(i)
            todo += [producer[name] for name in reads[i] if name in producer]
    return live


class _Trial(NamedTuple):
    """refused: node -> why.  views: nodes that only say how a tensor lies.  operators: how many there are of the others."""

    refused: dict[int, str]
    views: set[int]
    operators: int


def _blamed(parts: _Parts, npu: ModelProto, numbers: list[int], trial: _Trial, handlers: dict[str, Handler]) -> dict[int, str]:
    """Which nodes of a trial go to the host: those that are refused, or the views before them where these are what is wrong."""
    blamed: dict[int, str] = {}
    producer = {name: i for i, node in enumerate(npu.graph.node) for name in node.output}
    for i, why in trial.refused.items():
        node = npu.graph.node[i]
        views = {producer[name] for name in node.input if name in producer} & trial.views
        if views and not _trial(parts.extract([numbers[i]])[0], handlers).refused:
            reader = label(node)
            blamed |= {v: f"{label(npu.graph.node[v])}: {reader} cannot read its result where it lies on the NPU" for v in views}
        else:
            blamed[i] = why
    return blamed


def _trial(model: ModelProto, handlers: dict[str, Handler]) -> _Trial:
    """Every node on its own: see the top."""
    state = Translator(model)
    types = {item.name: item for item in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    refused: dict[int, str] = {}

    def from_host(names: Iterable[str]) -> None:
        for name in names:
            if name in types and not _strange(types[name]):
                state.receive(name, tuple(d.dim_value for d in types[name].type.tensor_type.shape.dim))

    from_host(item.name for item in model.graph.input if not state.is_constant(item.name))
    received = set(state.views)
    views: set[int] = set()
    for i, node in enumerate(model.graph.node):
        before = len(state.operators)
        try:
            for name in node.input:
                if name and name not in state.views and not state.is_constant(name):
                    what = _strange(types[name]) if name in types else "of unknown type"
                    raise state.refuse(node, f"input {name!r} is {what}; float of a known shape is supported")
            translate_node(state, node, handlers)
            if len(state.operators) == before:
                views.add(i)
        except UnsupportedError as error:
            refused[i] = str(error)
            from_host(node.output)
            received.update(name for name in node.output if name in state.views)
    producer = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    taken: set[str] = set()
    for item in model.graph.output:
        if item.name not in producer or (i := producer[item.name]) in refused:
            continue
        try:
            tensor = state.hand_over(item.name).tensor
            if tensor in received or tensor in taken:
                raise state.refuse(model.graph.node[i], f"{item.name!r} is another view of {tensor!r}, which the host has as well")
            taken.add(tensor)
        except UnsupportedError as error:
            refused[i] = str(error)
    return _Trial(refused, views, len(state.operators))


def _strange(item: ValueInfoProto) -> str:
    """What keeps a tensor from being handed to the NPU, or ''."""
    kind = item.type.tensor_type
    if not item.type.HasField("tensor_type") or not kind.HasField("shape"):
        return "of unknown shape"
    if kind.elem_type != TensorProto.FLOAT:
        return TensorProto.DataType.Name(kind.elem_type).lower()
    if any(d.dim_value < 1 for d in kind.shape.dim):
        return "of unknown shape"
    return ""


def _constants(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Every tensor that is known: initialisers, shapes, and what nodes make of constants."""
    state = Translator(model)
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or not node.output:
            continue
        if node.op_type == "Shape" and node.input[0] in shapes and node.input[0] not in state.constants:
            dims, values = shapes[node.input[0]], attributes(node)
            state.constants[node.output[0]] = np.asarray(dims[values.get("start", 0) : values.get("end", len(dims))], np.int64)
            continue
        known = node.op_type == "Constant" or (node.input and all(name in state.constants for name in node.input if name))
        if known and not fold(state, node, attributes(node)):
            state.constants |= _evaluated(model, node, state.constants, shapes)
    return state.constants


def _evaluated(model: ModelProto, node: NodeProto, known: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """A node of constants by onnx's own evaluator; {} where that cannot, or the result would be too large."""
    from onnx.reference import ReferenceEvaluator  # 0.4 s: only models that are not supported as a whole pay for it

    names = [name for name in node.output if name]
    if names_read([node]) - known.keys() or any(name not in shapes or math.prod(shapes[name]) > MAX_FOLDED for name in names):
        return {}
    inputs = list(dict.fromkeys(name for name in node.input if name))
    ports = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(known[n].dtype), known[n].shape) for n in inputs]
    graph = onnx.helper.make_graph([node], "constant", ports, [ValueInfoProto(name=name) for name in names])
    try:
        evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=model.opset_import))
        found = evaluator.run(names, {name: known[name] for name in inputs})
    except _FAILURES:
        return {}
    return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}
