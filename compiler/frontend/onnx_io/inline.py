"""Inlining of nodes that abbreviate other nodes.

These are calls of the model's functions, `WRITTEN_OUT` and `BODIES`; `If` of a known condition, and `Loop` of a known count within the byte
budget.  A branch or a body first becomes a function, with captured tensors as inputs; onnx's inliner does the rest.

Handlers for each of these operators were not chosen, since they would repeat the definitions of onnx; `--check` compares with the inlined
body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper, parser

from compiler.frontend.onnx_io import onnx_sandbox
from compiler.frontend.onnx_io.attributes import attributes, opset_of
from compiler.frontend.onnx_io.memory_budget import REPEATED_NODE_BYTES, ByteBudget
from simulator.onnx_names import DOMAIN as COMPILED
from simulator.onnx_names import names_read, refill

Array = NDArray[Any]
DOMAIN = "tilefarm.inline"  # domain of functions that this module creates
# Operators without a handler whose bodies consist mostly of operators with handlers.  Excluded are bodies with a loop or random numbers,
# and DynamicQuantizeLinear, which the host runs as one operator.
WRITTEN_OUT = frozenset({
    "Attention", "CastLike", "LogSoftmax", "MeanVarianceNormalization", "RMSNormalization", "ReduceLogSumExp", "RotaryEmbedding",
    "Shrink", "SwiGLU", "ThresholdedRelu",
})  # fmt: skip
# Bodies of onnxruntime's operators: text with inputs A, B, ..., names of outputs, default attributes.  `$` is a number of the type of A.
# Add of an absent input is the other operand.
_HALVED = "F = Add(E, $1) G = Mul(S, F) Y = Mul(G, $0.5)"
_GELU = f"S = Add(A, B) T = Mul(S, $0.70710678) E = Erf(T) {_HALVED}"
_TANH = "S = Add(A, B) P = Mul(S, S) Q = Mul(P, S) R = Mul(Q, $0.044715) T = Add(S, R) U = Mul(T, $0.79788456) E = Tanh(U)"
_NORM = "S = Add(A, B) Z = Add(S, E) Y = LayerNormalization<axis = -1, epsilon = {epsilon}>(Z, C, D)"
_ROOT = "P = Mul(Z, Z) {mean} V = Add(M, ${epsilon}) R = Sqrt(V) N = Div(Z, R)"
_RMS = f"S = Add(A, B) Z = Add(S, D) {_ROOT} Y = Mul(N, C)"
BODIES: dict[str, tuple[str, tuple[str, ...], dict[str, float]]] = {
    "BiasGelu": (_GELU, ("Y",), {}),
    "FastGelu": (f"{_TANH} {_HALVED}", ("Y",), {}),
    "FusedMatMul": ("M = MatMul(A, B) Y = Mul(M, ${alpha})", ("Y",), {"alpha": 1.0}),
    "Gelu": (_GELU, ("Y",), {}),
    "QuickGelu": ("T = Mul(A, ${alpha}) E = Sigmoid(T) Y = Mul(A, E)", ("Y",), {"alpha": 1.702}),
    "SimplifiedLayerNormalization": (f"Z = Identity(A) {_ROOT} Y = Mul(N, B)", ("Y",), {"epsilon": 1e-5}),
    "SkipLayerNormalization": (_NORM, ("Y", "", "", "Z"), {"epsilon": 1e-12}),
    "SkipSimplifiedLayerNormalization": (_RMS, ("Y", "", "", "Z"), {"epsilon": 1e-12}),
}
_NUMBER = r"\$([-+.e\d]+)"
_VERSION = 17  # the first opset with all operators of the bodies


def with_bodies(model: ModelProto, constants: Mapping[str, Array], budget: ByteBudget, model_bytes: int, where: str) -> ModelProto | None:
    """Model with all such nodes inlined; None if there are no such nodes.

    constants: known tensors.  Unrolled loops count against the budget.  Raises as `onnx_sandbox.check` does.
    """
    if any(function.domain == COMPILED for function in model.functions):
        return None  # a compiled file is refused later
    calls, operators = _Calls(model, constants, budget), _written_out(model)
    nodes = [new for node in model.graph.node for new in calls.of(node)]
    if not calls.functions and not operators and not model.functions:
        return None
    # the inliner looks up operand types in value_info, and ignores initialisers
    constant = {info.name: helper.make_tensor_value_info(info.name, info.data_type, list(info.dims)) for info in model.graph.initializer}
    copy = deepcopy(model)
    del copy.graph.node[:]
    copy.MergeFrom(ModelProto(graph=GraphProto(node=nodes, value_info=constant.values()), functions=calls.functions))
    copy.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    try:
        inlined = onnx_sandbox.inline(copy, model_bytes, where, operators)
    except onnx_sandbox.LibraryError:
        return None  # even without inlining, the calls are correct
    refill(inlined.graph.value_info, (info for info in inlined.graph.value_info if info.name not in constant))
    refill(inlined.opset_import, (info for info in inlined.opset_import if info.domain != DOMAIN))
    before, after = ([node.op_type for node in graph_model.graph.node] for graph_model in (model, inlined))
    return inlined if calls.functions or before != after else None


def _written_out(model: ModelProto) -> list[str]:
    """Operators of `WRITTEN_OUT` in the model whose inputs all have known types, on which a body may depend."""
    graph = model.graph
    typed_names = {"", *(tensor.name for tensor in (*graph.input, *graph.value_info, *graph.output, *graph.initializer))}
    nodes = [node for node in graph.node if node.domain in ("", "ai.onnx") and node.op_type in WRITTEN_OUT]
    unknown = {node.op_type for node in nodes if not typed_names.issuperset(node.input)}
    return sorted({node.op_type for node in nodes} - unknown)


class _Calls:
    """Conversion of nodes to calls of functions, with the collected functions."""

    def __init__(self, model: ModelProto, constants: Mapping[str, Array], budget: ByteBudget) -> None:
        self.opsets, self.opset = list(model.opset_import), opset_of(model)
        self.constants, self.budget = constants, budget
        self.functions: list[FunctionProto] = []

    def of(self, node: NodeProto) -> Iterator[NodeProto]:
        values, recent = attributes(node), self.opset >= _VERSION
        if node.domain == "com.microsoft" and recent and (function := _body(node, values, self.opset)) is not None:
            outputs = [name for name, body_output in zip_longest(node.output, BODIES[node.op_type][1], fillvalue="") if body_output]
            yield self._call(function, filter(None, node.input), outputs)
        elif node.op_type == "If" and node.input[0] in self.constants:
            branch = values["then_branch" if self.constants[node.input[0]].all() else "else_branch"]
            yield self._call(_function(branch), _read_outside(branch), node.output)
        elif node.op_type == "Loop" and recent and (times := self._trip_count(node, values["body"])) is not None:
            yield from self._repeated(node, values["body"], times)
        else:
            yield node

    def _call(self, function: FunctionProto, inputs: Iterable[str], outputs: Iterable[str]) -> NodeProto:
        if not function.domain:
            function.name, function.domain = f"f{len(self.functions)}", DOMAIN
            function.opset_import.extend(self.opsets)
            self.functions.append(function)
        return helper.make_node(function.name, list(inputs), list(outputs), domain=DOMAIN)

    def _trip_count(self, node: NodeProto, body: GraphProto) -> int | None:
        """Trip count of a loop; None where it is unknown or exceeds the budget."""
        trip_count, condition = (self.constants.get(name, np.array(not name)) for name in node.input[:2])
        if node.input[0] not in self.constants or not condition.all() or not _is_endless(body):
            return None
        times, has_scans = int(trip_count.max()), len(node.output) > len(node.input) - 2
        room = times * (body.ByteSize() + REPEATED_NODE_BYTES * len(body.node))
        return times if times >= has_scans and self.budget.take(room) else None

    def _repeated(self, node: NodeProto, body: GraphProto, times: int) -> Iterator[NodeProto]:
        function, carried, rows = _function(body), list(node.input[2:]), list[list[str]]()
        base = f"{DOMAIN}.{next(filter(None, node.output))}"
        yield helper.make_node("Constant", [], [f"{base}.true"], value=numpy_helper.from_array(np.array(True)))
        yield helper.make_node("Constant", [], [f"{base}.first"], value_ints=[0])
        for k in range(times):
            outputs = [f"{base}.{k}.{i}" for i in range(len(body.output))]
            yield helper.make_node("Constant", [], [f"{base}.{k}"], value_int=k)
            yield self._call(function, [f"{base}.{k}", f"{base}.true", *carried, *_read_outside(body)], outputs)
            carried, scans = outputs[1 : 1 + len(carried)], outputs[1 + len(carried) :]
            rows.append([f"{name}.row" for name in scans])
            yield from (helper.make_node("Unsqueeze", [name, f"{base}.first"], [f"{name}.row"]) for name in scans)
        results = [name or f"{base}.unread{i}" for i, name in enumerate(node.output)]
        yield from (helper.make_node("Identity", [last], [name]) for last, name in zip(carried, results, strict=False))
        stacked = zip(results[len(carried) :], zip(*rows, strict=True), strict=False)
        yield from (helper.make_node("Concat", list(parts), [name], axis=0) for name, parts in stacked)


def _body(node: NodeProto, values: Mapping[str, Any], version: int) -> FunctionProto | None:
    """Function of an operator of com.microsoft, for its present inputs; None for operators or features beyond `BODIES`."""
    text, outputs, defaults = BODIES.get(node.op_type, ("", (), {}))
    surplus = [name for name, body_name in zip(node.output, (*outputs, *[""] * len(node.output)), strict=False) if name and not body_name]
    if not text or surplus or any(value for key, value in values.items() if key not in defaults):
        return None
    mean = "M = ReduceMean<axes = [-1]>(P)" if version < 18 else "I = Constant<value = int64[1] {-1}>() M = ReduceMean(P, I)"
    text = text.format(mean=mean, **{key: float(values.get(key, number)) for key, number in defaults.items()})
    numbers = sorted(set(re.findall(_NUMBER, text)))
    constants = [f"k{i} = Constant<value = float {{{number}}}>() c{i} = CastLike(k{i}, A)" for i, number in enumerate(numbers)]
    text = re.sub(_NUMBER, lambda match: f"c{numbers.index(match[1])}", text)
    inputs = [chr(ord("A") + i) for i, name in enumerate(node.input) if name]
    head = f'<domain: "", opset_import: []> f ({", ".join(inputs)}) => ({", ".join(filter(None, outputs))})'
    function = parser.parse_function(f"{head} {{ {' '.join(constants)} {text} }}")
    defined_names = {*inputs, *(name for inner in function.node for name in inner.output)}
    for inner in function.node:
        inner.input[:] = [name for name in inner.input if name in defined_names]
        if inner.op_type == "Add" and len(inner.input) == 1:
            inner.op_type = "Identity"
    return function


def _function(graph: GraphProto) -> FunctionProto:
    """Function of a branch or a body; captured tensors are inputs after its own."""
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    constants += [helper.make_node("Constant", [], [tensor.values.name], sparse_value=tensor) for tensor in graph.sparse_initializer]
    inputs = [*(tensor.name for tensor in graph.input), *_read_outside(graph)]
    return FunctionProto(input=inputs, output=[tensor.name for tensor in graph.output], node=[*constants, *graph.node])


def _read_outside(graph: GraphProto) -> list[str]:
    return sorted((names_read(graph.node) | {tensor.name for tensor in graph.output}) - _own_names(graph))


def _own_names(graph: GraphProto) -> set[str]:
    """Names defined in a graph and its inner graphs."""
    names = {entry.name for entry in (*graph.input, *graph.initializer, *(entry.values for entry in graph.sparse_initializer))}
    inner = [g for node in graph.node for entry in node.attribute for g in (entry.g, *entry.graphs)]
    return names.union(*(node.output for node in graph.node), *map(_own_names, inner))


def _is_endless(body: GraphProto) -> bool:
    """Whether the body of a loop never stops it: its condition is passed on, or constant true."""
    function = _function(body)
    makers, name = {name: node for node in function.node for name in node.output}, body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    value = attributes(makers[name]).get("value") if name in makers else None
    return name == body.input[1].name or (value is not None and bool(numpy_helper.to_array(value).all()))
