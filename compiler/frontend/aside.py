"""Nodes of constants that are kept from being folded: their results are inputs of a skeleton, as large weights are.

What they read besides may be folded, fused or dropped there under its name; so they have it of their own, under other names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from compiler.frontend.attributes import attributes
from compiler.frontend.budget import LIBRARY_PART, ByteBudget, item_bytes
from compiler.frontend.macs import Shapes
from compiler.frontend.settle import known_shapes

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


class Aside(NamedTuple):
    """nodes: in order.  constants: what they read that is given; before: a model without inputs whose outputs are the rest.

    names: results of the nodes.
    """

    nodes: list[NodeProto]
    constants: list[TensorProto]
    before: ModelProto
    names: set[str]


def set_aside(skeleton: ModelProto, large: set[str], budget: ByteBudget) -> Aside:
    """Take nodes out of a skeleton whose folding does not fit an eighth of the budget, or is of unknown size.

    large: constants that are among its inputs.  Raises `BadInputError` where what is not folded here is more than all that is left of it.
    """
    shapes = known_shapes(skeleton)
    types = {item.name: item for item in (*skeleton.graph.value_info, *skeleton.graph.output)}
    initial = {item.name: item for item in skeleton.graph.initializer}
    made: dict[str, NodeProto] = {}  # by what else is folded
    later, late = set(large), ByteBudget(budget.total_bytes)
    kept, cut = [], []
    for node in skeleton.graph.node:
        names = [name for name in node.output if name]
        read = [name for name in node.input if name]
        shape_of = node.op_type in ("Shape", "Size") and node.input[0] in shapes
        given = node.op_type == "Constant" or shape_of
        size = _size(names, shapes, types)
        if given or (read and all(name in made or name in initial for name in read)):
            if given or (size is not None and budget.take(size, LIBRARY_PART)):
                made |= dict.fromkeys(names, node)
            elif all(name in types for name in names):
                cut.append(node)
                later.update(names)
        elif read and all(name in made or name in initial or name in later for name in read):
            later.update(names)
        if not later.isdisjoint(names):
            late.spend(0 if node.op_type in VIEWS else size or 0, node)
        if not cut or cut[-1] is not node:
            kept.append(node)
    aside = _with_what_they_read(skeleton, cut, made, shapes)
    skeleton.graph.input.extend(types[name] for name in sorted(aside.names))
    rest = [item for item in skeleton.graph.value_info if item.name not in aside.names]
    del skeleton.graph.node[:]
    skeleton.graph.node.extend(kept)
    del skeleton.graph.value_info[:]
    skeleton.graph.value_info.extend(rest)
    return aside


def put_back(model: ModelProto, aside: Aside) -> None:
    """In place."""
    inputs = [item for item in model.graph.input if item.name not in aside.names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*aside.nodes, *rest])
    model.graph.initializer.extend(aside.constants)


def _size(names: list[str], shapes: Shapes, types: Mapping[str, ValueInfoProto]) -> int | None:
    """Bytes of some tensors; None where a shape is not known."""
    if any(name not in shapes or name not in types for name in names):
        return None
    return sum(math.prod(shapes[name]) * item_bytes(types[name].type.tensor_type.elem_type) for name in names)


def _with_what_they_read(skeleton: ModelProto, cut: list[NodeProto], made: Mapping[str, NodeProto], shapes: Shapes) -> Aside:
    initial = {item.name: item for item in skeleton.graph.initializer}
    suffix = _suffix(skeleton)
    todo = [name for node in cut for name in node.input if name]
    wanted = {name for name in todo if name in made}
    nodes: dict[str, NodeProto] = {}  # by their first outputs
    constants: dict[str, TensorProto] = {}
    while todo:
        name = todo.pop()
        node = made.get(name)
        if name in initial and name not in constants:
            constants[name] = TensorProto()
            constants[name].CopyFrom(initial[name])
            constants[name].name = name + suffix
        elif node is not None and node.op_type in ("Shape", "Size"):
            constants[name] = numpy_helper.from_array(_known(node, shapes[node.input[0]]), name + suffix)
        elif node is not None and node.output[0] not in nodes:
            nodes[node.output[0]] = node
            todo += [name for name in node.input if name]
    before = ModelProto(ir_version=skeleton.ir_version, opset_import=skeleton.opset_import)
    before.graph.name = "constants"
    before.graph.node.extend(_renamed(node, suffix) for node in skeleton.graph.node if node.output and node.output[0] in nodes)
    before.graph.initializer.extend(constants.values())
    before.graph.output.extend(ValueInfoProto(name=name + suffix) for name in sorted(wanted - constants.keys()))
    read = {name for node in cut for name in node.input}
    given = [constant for name, constant in constants.items() if name in read]
    return Aside([_renamed(node, suffix, results=False) for node in cut], given, before, {n for node in cut for n in node.output if n})


def _renamed(node: NodeProto, suffix: str, results: bool = True) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [name and name + suffix for name in node.input]
    if results:
        copy.output[:] = [name and name + suffix for name in node.output]
    return copy


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
