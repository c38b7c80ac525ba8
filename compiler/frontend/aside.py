"""Nodes of constants that are kept from being folded: their results are inputs of a skeleton, as large weights are.

What they read besides may be folded, fused or dropped there under its name; so they keep copies of their own, under other names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from compiler.frontend.attributes import attributes
from compiler.frontend.budget import Budget, item_bytes
from compiler.frontend.macs import Shapes, known_shapes

COPIES = 8  # of what it folds onnxslim has, in onnxruntime, in numpy and in protobuf


class Aside(NamedTuple):
    """nodes: with those before them, in order.  constants: what these read.  names: their results.  unknown: of how many the size is."""

    nodes: list[NodeProto]
    constants: list[TensorProto]
    names: set[str]
    unknown: int


def set_aside(skeleton: ModelProto, model: ModelProto, budget: Budget) -> Aside:
    """Take nodes out of a skeleton of a model whose folding does not fit an eighth of the budget, or is of unknown size."""
    shapes = known_shapes(model)
    types = {item.name: item for item in (*model.graph.value_info, *model.graph.output)}
    initial = {item.name: item for item in skeleton.graph.initializer}
    made: dict[str, NodeProto] = {}  # by what else is folded
    kept, cut, unknown = [], [], 0
    for node in skeleton.graph.node:
        names = [name for name in node.output if name]
        shape_of = node.op_type in ("Shape", "Size") and node.input[0] in shapes
        if node.op_type == "Constant" or shape_of or (node.input and all(n in made or n in initial for n in node.input if n)):
            size = _size(names, shapes, types)
            if node.op_type == "Constant" or shape_of or (size is not None and budget.take(size, COPIES)):
                made |= dict.fromkeys(names, node)
            elif all(name in types for name in names):
                cut.append(node)
                unknown += size is None
                continue
        kept.append(node)
    if not cut:
        return Aside([], [], set(), 0)
    aside = _with_what_they_read(cut, made, initial, shapes, model, unknown)
    skeleton.graph.input.extend(types[name] for name in sorted(aside.names))
    rest = [item for item in skeleton.graph.value_info if item.name not in aside.names]
    del skeleton.graph.node[:]
    skeleton.graph.node.extend(kept)
    del skeleton.graph.value_info[:]
    skeleton.graph.value_info.extend(rest)
    return aside


def put_back(model: ModelProto, aside: Aside) -> None:
    """In place; what nothing reads any more is dropped."""
    inputs = [item for item in model.graph.input if item.name not in aside.names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    read = {name for node in model.graph.node for name in node.input}
    needed = []
    for node in reversed(aside.nodes):
        if not read.isdisjoint(node.output):
            needed.append(node)
            read.update(node.input)
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*reversed(needed), *rest])
    model.graph.initializer.extend(item for item in aside.constants if item.name in read)


def _size(names: list[str], shapes: Shapes, types: Mapping[str, ValueInfoProto]) -> int | None:
    """Bytes of some tensors; None where a shape is not known."""
    if any(name not in shapes or name not in types for name in names):
        return None
    return sum(math.prod(shapes[name]) * item_bytes(types[name].type.tensor_type.elem_type) for name in names)


def _with_what_they_read(
    cut: list[NodeProto],
    made: Mapping[str, NodeProto],
    initial: Mapping[str, TensorProto],
    shapes: Shapes,
    model: ModelProto,
    unknown: int,
) -> Aside:
    suffix = _suffix(model)
    names = {name for node in cut for name in node.output if name}
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    done: set[str] = set()

    def own(name: str) -> str:
        return name + suffix if name in made or name in initial else name

    def copied(node: NodeProto, outputs: list[str]) -> None:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [own(name) for name in node.input]
        copy.output[:] = outputs
        nodes.append(copy)

    def bring(name: str) -> None:
        # a stack of our own: chains are as long as a file has them
        todo = [(name, False)]
        while todo:
            name, ready = todo.pop()
            if name in done:
                continue
            if name in initial:
                copy = TensorProto()
                copy.CopyFrom(initial[name])
                copy.name = own(name)
                constants.append(copy)
                done.add(name)
            elif (node := made.get(name)) is None:
                continue
            elif node.op_type in ("Shape", "Size"):
                constants.append(numpy_helper.from_array(_known(node, shapes[node.input[0]]), own(name)))
                done.add(name)
            elif not ready:
                todo += [(name, True), *((item, False) for item in node.input if item)]
            else:
                copied(node, [own(item) if item else "" for item in node.output])
                done.update(node.output)

    for node in cut:
        for item in node.input:
            bring(item)
        copied(node, list(node.output))
    return Aside(nodes, constants, names, unknown)


def _known(node: NodeProto, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """What Shape or Size of a tensor of known shape is."""
    if node.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    values = attributes(node)
    return np.asarray(shape[values.get("start", 0) : values.get("end", len(shape))], np.int64)


def _suffix(model: ModelProto) -> str:
    """No name in the model ends in it."""
    names = [item.name for item in (*model.graph.initializer, *model.graph.input)]
    names += [name for node in model.graph.node for name in (*node.input, *node.output)]
    suffix = ".aside"
    while any(name.endswith(suffix) for name in names):
        suffix += "_"
    return suffix
