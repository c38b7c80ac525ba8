"""Isolation of the integer operators of a quantised model: in the resulting model each reads given inputs instead of another's result.

On the NPU heads are channels, laid out by the previous operator; the host uses separate axes.  So an operator is isolated together with the
views before it, and an operator on separate heads reads and writes heads and channels in one axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from compiler.frontend.handlers.qdq_fusion import FusedModel, fuse_groups
from compiler.frontend.onnx_io.fold import VIEWS
from simulator.onnx_kinds import INTEGERS_ON_NPU
from simulator.onnx_names import names_read

Array = NDArray[Any]
_GIVEN = "tilefarm.given."
# operator over heads -> axes of [b, heads, m, k] in the host's order, as a sequence or as images
_OVER_HEADS: Mapping[str, Sequence[int]] = {"QLinearMatMul": (0, 2, 1, 3), "QLinearSoftmax": (0, 1, 3, 2)}


class IsolatedOperators(NamedTuple):
    """Model of isolated integer operators.

    given: its inputs by name.  kinds: operator type of each output.  expected: its outputs, in their shapes.
    """

    model: ModelProto
    given: Mapping[str, Array]
    kinds: Mapping[str, str]
    expected: Mapping[str, Array]


def on_integers(node: NodeProto, types: Mapping[str, int]) -> bool:
    """Whether a node computes from or to 8-bit integers."""
    names = [*node.input, *node.output]
    return node.op_type not in VIEWS and any(types.get(name) in INTEGERS_ON_NPU for name in names if name)


def isolate_operators(
    model: ModelProto, npu_nodes: Iterable[int], types: Mapping[str, int], values: Mapping[str, Array]
) -> IsolatedOperators:
    """Isolate the integer operators among the nodes `npu_nodes` that have inputs and outputs in `values`; each reads its inputs from
    outside."""
    npu_nodes, groups = set(npu_nodes), fuse_groups(model)
    constants = {item.name for item in groups.model.graph.initializer}  # includes tables of groups
    builder = _Builder(model, groups, constants, values)
    for node, members in zip(groups.model.graph.node, groups.members, strict=True):
        read = [name for name in node.input if name and name not in constants]
        if members <= npu_nodes and on_integers(node, types) and read and all(name in values for name in (*read, *node.output)):
            builder.add(node, [model.graph.node[i] for i in sorted(members)], read)
    return builder.finish()


class _Builder:
    def __init__(self, model: ModelProto, groups: FusedModel, constants: set[str], values: Mapping[str, Array]) -> None:
        self.model, self.constants, self.values = model, constants, values
        self.views = {node.output[0]: node for node in groups.model.graph.node if node.op_type in VIEWS and node.domain in ("", "ai.onnx")}
        self.isolated = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        self.isolated.graph.name = "alone"
        self.given: dict[str, Array] = {}
        self.kinds: dict[str, str] = {}
        self.expected: dict[str, Array] = {}

    def add(self, node: NodeProto, members: Sequence[NodeProto], read: Sequence[str]) -> None:
        """Add an operator.  members: its nodes.  read: its inputs except constants."""
        y = node.output[0]
        order = _OVER_HEADS.get(node.op_type, ()) if self.values[y].ndim == 4 else ()
        if len(read) != (2 if node.op_type == "QLinearMatMul" else 1):
            order = ()  # a product with a constant goes over channels
        renamed = {name: self._connect_input(name, f"{y}.{i}", order) for i, name in enumerate(read)}
        if order:
            renamed[y] = f"{y}.heads"
        for member in members:
            copy = self.isolated.graph.node.add()
            copy.CopyFrom(member)
            copy.input[:] = [renamed.get(name, name) for name in copy.input]
            copy.output[:] = [renamed.get(name, name) for name in copy.output]
        self.kinds[y], self.expected[y] = node.op_type, self.values[y]
        if order:
            moved = self.values[y].transpose(order)
            self.expected[y] = moved.reshape(_joined_heads_shape(moved.shape, order))
            self.isolated.graph.node.append(helper.make_node("Transpose", [renamed[y]], [f"{y}.moved"], perm=list(order)))
            self._reshape(f"{y}.moved", y, self.expected[y].shape)

    def _connect_input(self, name: str, prefix: str, order: Sequence[int]) -> str:
        """Name of the tensor that an operator reads in place of `name`.  order: () without heads."""
        source, chain = name, list[NodeProto]()
        # through the views in front of the operator
        while order and source in self.views and self.views[source].input[0] in self.values:
            node = self.views[source]
            if not self.constants.issuperset(node.input[1:]):
                break
            chain.append(node)
            source = node.input[0]
        value = self.values[source]
        if value.ndim != 4 or not order:
            input_name = _GIVEN + source
            self.given[input_name] = value
        else:
            moved = value.transpose(order)
            input_name, shape = f"{_GIVEN}{source}.{''.join(map(str, order))}", moved.shape
            self.given[input_name] = moved.reshape(_joined_heads_shape(shape, order))
            self._reshape(input_name, f"{prefix}.apart", shape)
            inverse = np.argsort(order).tolist()
            self.isolated.graph.node.append(helper.make_node("Transpose", [f"{prefix}.apart"], [f"{prefix}.given"], perm=inverse))
            input_name = f"{prefix}.given"
        for i, node in enumerate(reversed(chain)):
            copy = self.isolated.graph.node.add()
            copy.CopyFrom(node)
            copy.name, copy.input[0], copy.output[0] = f"{prefix}.{i}", input_name, f"{prefix}.{i}"
            input_name = copy.output[0]
        return input_name

    def _reshape(self, source: str, target: str, shape: Sequence[int]) -> None:
        self.isolated.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{target}.shape"))
        self.isolated.graph.node.append(helper.make_node("Reshape", [source, f"{target}.shape"], [target]))

    def finish(self) -> IsolatedOperators:
        graph = self.isolated.graph
        used = names_read(graph.node)
        graph.initializer.extend(item for item in self.model.graph.initializer if item.name in used)
        for values, ports in ((self.given, graph.input), (self.expected, graph.output)):
            ports.extend(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in values.items()
            )
        return IsolatedOperators(self.isolated, self.given, self.kinds, self.expected)


def _joined_heads_shape(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Shape with joined heads: [b, m, heads, k] as a sequence [b, m, heads * k], [b, heads, k, m] as images [b, heads * k, m]."""
    b, first, second, third = shape
    return (b, first, second * third) if order[1] == 2 else (b, first * second, third)
