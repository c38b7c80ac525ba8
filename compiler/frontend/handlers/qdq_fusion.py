"""QDQ fusion: operators between DequantizeLinear and QuantizeLinear become operators on integers, grouped as in onnxruntime.

`fuse_groups` rewrites ONNX to ONNX: its output has the operators of the QOperator form, so that the same handlers translate both forms
(`compiler.frontend.handlers.quantised`).  A group is an operator whose inputs all come from DequantizeLinear and whose result only one
QuantizeLinear reads, with activations of one type.  Operators that only move values move integers where scale and zero point are equal on
both sides.  Element-wise functions of one tensor become a table (`compiler.frontend.handlers.lookup_tables`).  All other operators stay in
floating point, between DequantizeLinear and QuantizeLinear.

A group runs as a whole or not at all, so a partition needs the nodes of every group.  Before partitioning every group gets its own
DequantizeLinear nodes (`separate_groups`), as in onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.handlers.dynamic_zero_points import column_groups
from compiler.frontend.handlers.lookup_tables import TABLE_OPERATORS, evaluate_table
from compiler.frontend.onnx_io.attributes import attributes, label
from compiler.frontend.onnx_io.large_constants import LargeConstant
from compiler.frontend.onnx_io.scales import GROUP_DOMAIN, MOVES, MS, UNARY
from compiler.ir.quantised.affine import fit_affine
from compiler.ir.quantised.tables import integers_of_type
from simulator.npu.errors import BadInputError
from simulator.onnx_kinds import INTEGERS_ON_NPU
from simulator.onnx_names import fresh_name, names_read, refill

NO_CONSTANTS: Mapping[str, LargeConstant] = {}  # no external constants
PRODUCTS = ("Conv", "Gemm", "MatMul")
# operator -> operator on integers, and its domain; inputs: (x, scale, zero point) of each operand, then scale and zero point of the result
_OF_INPUTS = {"Add": ("QLinearAdd", MS), "Mul": ("QLinearMul", MS), "MatMul": ("QLinearMatMul", "")}


class FusedModel(NamedTuple):
    """Model with every group as one node.  members: for each node, the numbers of the original nodes that it replaces."""

    model: ModelProto
    members: tuple[frozenset[int], ...]


def fuse_groups(model: ModelProto, beside: Mapping[str, LargeConstant] = NO_CONSTANTS) -> FusedModel:
    """Copy of a model with every group as one node.  beside: external constants."""
    return _with_columns(_of_scales(model, beside))


def _with_columns(grouping: FusedModel) -> FusedModel:
    """Fuse products with computed column offsets, and the operators on their sums, to one node each."""
    groups = column_groups(grouping.model)
    if not groups:
        return grouping
    copy = deepcopy(grouping.model)
    merged_numbers = {i for group in groups.values() for i in group.members}
    nodes: list[_FusedNode] = []
    for i, (node, members) in enumerate(zip(grouping.model.graph.node, grouping.members, strict=True)):
        if i in groups:
            nodes.append(_FusedNode(groups[i].node, frozenset().union(*(grouping.members[k] for k in groups[i].members))))
        elif i not in merged_numbers:
            nodes.append(_FusedNode(node, members))
    refill(copy.graph.node, (entry.node for entry in nodes))
    return FusedModel(copy, tuple(entry.members for entry in nodes))


def _of_scales(model: ModelProto, beside: Mapping[str, LargeConstant]) -> FusedModel:
    """Fuse the groups between DequantizeLinear and QuantizeLinear."""
    if all(node.op_type != "DequantizeLinear" for node in model.graph.node):
        return FusedModel(model, tuple(frozenset({i}) for i in range(len(model.graph.node))))
    copy = deepcopy(model)
    groups = GroupFinder(copy, beside)
    groups.drop_limits()
    fusions = [groups.of(node) for node in groups.nodes]
    nodes = [_FusedNode(node, groups.numbers([node])) if new is None else new for node, new in zip(groups.nodes, fusions, strict=True)]
    outputs = {new.node.output[0] for new in fusions if new is not None}
    nodes = [group for group in nodes if group.node.op_type != "QuantizeLinear" or group.node.output[0] not in outputs]
    nodes = _read(nodes, {entry.name for entry in copy.graph.output})
    refill(copy.graph.node, (group.node for group in nodes))
    copy.graph.initializer.extend(numpy_helper.from_array(groups.tables[name], name) for name in sorted(groups.tables))
    if outputs and MS not in {entry.domain for entry in copy.opset_import}:
        copy.opset_import.append(helper.make_opsetid(MS, 1))
    return FusedModel(copy, tuple(group.members for group in nodes))


def separate_groups(model: ModelProto, beside: Mapping[str, LargeConstant] = NO_CONSTANTS) -> ModelProto:
    """Copy of the model in which every group has DequantizeLinear nodes of its own; the model itself where nothing is shared."""
    read_counts = Counter(entry.name for entry in model.graph.output)
    for node in model.graph.node:
        read_counts.update([*node.input, *(names_read([node]) - set(node.input))])
    if not any(node.op_type == "DequantizeLinear" and read_counts[node.output[0]] > 1 for node in model.graph.node):
        return model
    copy = deepcopy(model)
    groups = GroupFinder(copy, beside)
    groups.drop_limits()
    # duplicate a DequantizeLinear for every group that shares it
    in_group = {groups.number[id(node)] for node in groups.nodes if groups.of(node) is not None}
    del copy.graph.node[:]
    types = {entry.name: entry for entry in model.graph.value_info}
    output_names = {name for node in model.graph.node for name in node.output}
    shared: dict[str, NodeProto] = {}
    for number, node in enumerate(model.graph.node):
        node_copy = copy.graph.node.add()
        node_copy.CopyFrom(node)
        if node.op_type == "DequantizeLinear":
            shared[node.output[0]] = node
        if number not in in_group:
            continue
        for i, name in enumerate(node_copy.input):
            if name not in shared or read_counts[name] < 2:
                continue
            read_counts[name] -= 1  # the last reader keeps the original
            fresh = fresh_name(f"{name}.{read_counts[name]}", read_counts, output_names)
            output_names.add(fresh)
            dequantise = deepcopy(shared[name])
            node_copy.input[i] = dequantise.output[0] = fresh
            dequantise.name = f"{dequantise.name}.{read_counts[name]}" if dequantise.name else ""
            copy.graph.node.insert(len(copy.graph.node) - 1, dequantise)
            if name in types:
                copy.graph.value_info.add().CopyFrom(types[name])
                copy.graph.value_info[-1].name = fresh
    return copy


class _FusedNode(NamedTuple):
    """Node of a group, with the numbers of the original nodes that it replaces."""

    node: NodeProto
    members: frozenset[int]


def _read(nodes: Iterable[_FusedNode], read_names: set[str]) -> list[_FusedNode]:
    """Nodes with a reader, in execution order."""
    live_nodes: list[_FusedNode] = []
    for entry in reversed(list(nodes)):
        if not read_names.isdisjoint(entry.node.output):
            read_names |= names_read([entry.node])
            live_nodes.append(entry)
    return live_nodes[::-1]


class GroupFinder:
    def __init__(self, model: ModelProto, beside: Mapping[str, LargeConstant]) -> None:
        self.nodes = list(model.graph.node)
        self.number = {id(node): i for i, node in enumerate(self.nodes)}
        self.opsets, self.ir_version = list(model.opset_import), model.ir_version
        self.tables: dict[str, NDArray[Any]] = {}
        self.dropped: dict[int, int] = {}  # id of a QuantizeLinear -> number of the redundant limit before it
        self.beside = beside
        self.opset = max((tensor.version for tensor in model.opset_import if tensor.domain in ("", "ai.onnx")), default=1)
        self.outputs = {tensor.name for tensor in model.graph.output}
        self.constants: dict[str, NDArray[Any]] = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in model.graph.initializer
            if len(tensor.dims) < 2 and tensor.name not in self.beside
        }
        self.ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
        self.types: Mapping[str, int] = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        typed = (*model.graph.input, *model.graph.value_info, *model.graph.output)
        self.computed: dict[str, int] = {tensor.name: tensor.type.tensor_type.elem_type for tensor in typed}
        self.link()

    def link(self) -> None:
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def drop_limits(self) -> None:
        """Drop Relu and Clip before a QuantizeLinear whose own saturation is equal or tighter."""
        limit_ids = []
        for node in self.nodes:
            after = self.quantised(node) if node.op_type in ("Relu", "Clip") else None
            if after is not None and self._within(node, after):
                after.input[0] = node.input[0]
                self.dropped[id(after)] = self.number[id(node)]
                limit_ids.append(id(node))
        self.nodes = [node for node in self.nodes if id(node) not in limit_ids]
        self.link()

    def _within(self, node: NodeProto, after: NodeProto) -> bool:
        scale, zero = self.constants.get(after.input[1]), self.constants.get(after.input[2]) if len(after.input) > 2 else np.uint8(0)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1 or zero.dtype not in (np.uint8, np.int8):
            return False
        ends, zero_point = np.iinfo(zero.dtype), int(zero.reshape(()))
        if node.op_type == "Relu":
            return zero_point == ends.min
        lower_limit, upper_limit = (self.constants.get(name) if name else None for name in (*node.input[1:], "", "")[:2])
        low, high = ((np.float32(end) - np.float32(zero_point)) * scale.reshape(()) for end in (ends.min, ends.max))
        has_limit = [bool(name) for name in (*node.input[1:], "", "")[:2]]
        if (has_limit[0] and lower_limit is None) or (has_limit[1] and upper_limit is None):
            return False
        return bool((lower_limit is None or low >= lower_limit) and (upper_limit is None or high <= upper_limit))

    def dequantised(self, name: str) -> NodeProto | None:
        """DequantizeLinear that produces a tensor; None for other producers."""
        node = self.producer.get(name)
        return node if node is not None and node.op_type == "DequantizeLinear" and self.plain(node) else None

    def quantised(self, node: NodeProto) -> NodeProto | None:
        """QuantizeLinear that is the only reader of a node's output; None without it."""
        readers = self.readers.get(node.output[0], [])
        if len(readers) != 1 or readers[0].op_type != "QuantizeLinear" or node.output[0] in self.outputs or any(node.output[1:]):
            return None
        return readers[0] if self.plain(readers[0]) and readers[0].input[0] == node.output[0] else None

    def plain(self, node: NodeProto) -> bool:
        """Whether scale and zero point are constants without blocks."""
        has_constants = all(name in self.constants or name in self.beside or not name for name in node.input[1:])
        return has_constants and not attributes(node).get("block_size", 0)

    def type_of(self, node: NodeProto) -> int:
        """Type of the integers of a QuantizeLinear or DequantizeLinear."""
        if len(node.input) > 2 and node.input[2]:
            return self.types[node.input[2]]
        if node.op_type == "QuantizeLinear":
            return TensorProto.UINT8  # other types have a zero point (`compiler.frontend.onnx_io.load`)
        x = node.input[0]
        source = self.producer.get(x)
        if source is not None and source.op_type == "QuantizeLinear":
            return self.type_of(source)
        return self.types.get(x) or self.computed.get(x, TensorProto.UINT8)

    def numbers(self, nodes: Iterable[NodeProto]) -> frozenset[int]:
        nodes = list(nodes)
        limits = {self.dropped[id(node)] for node in nodes if id(node) in self.dropped}
        return frozenset({self.number[id(node)] for node in nodes} | limits)

    def of(self, node: NodeProto) -> _FusedNode | None:
        """Fused node for a node and its QuantizeLinear; None where it stays in floats."""
        if node.domain not in ("", "ai.onnx"):
            return None
        after = self.quantised(node)
        if after is None:
            return None
        return self._on_integers(node, after) or self._by_channels(node, after) or self._table_node(node, after)

    def _on_integers(self, node: NodeProto, after: NodeProto) -> _FusedNode | None:
        """Fused node for which onnxruntime has a kernel, or None."""
        before = [self.dequantised(name) for name in node.input]
        if not before or before[0] is None:
            return None
        sources = [source for source in before if source is not None]
        if any(self.type_of(source) not in INTEGERS_ON_NPU for source in (*sources[:2], after)):
            return None
        if node.op_type in MOVES:
            sources, replacement = sources[:1], self._moved_integers(node, before[0], after)
        elif len(sources) < len(before) or len({self.type_of(source) for source in (sources[0], after)}) > 1:
            return None
        else:
            replacement = self._made(node, sources, after)
        return None if replacement is None else _FusedNode(replacement, self.numbers([*sources, node, after]))

    def _table_node(self, node: NodeProto, after: NodeProto) -> _FusedNode | None:
        """Table for an element-wise chain from a DequantizeLinear to this node, or None."""
        chain, first = [node], None
        while first is None:
            last = chain[-1]
            computed = [name for name in last.input if name and name not in self.constants]
            operands = [self.constants[name] for name in last.input if name in self.constants]
            if last.op_type not in TABLE_OPERATORS or last.domain not in ("", "ai.onnx") or len(computed) != 1:
                return None
            if any(value.size != 1 for value in operands) or len(self.readers[last.output[0]]) != 1 or last.output[0] in self.outputs:
                return None
            first, source = self.dequantised(computed[0]), self.producer.get(computed[0])
            if first is None and source is None:
                return None
            if first is None and source is not None:
                chain.append(source)
        nodes = [first, *reversed(chain), after]
        if first.input[0] in self.types or any(
            self.type_of(border) not in INTEGERS_ON_NPU or self.several(border) for border in (first, after)
        ):
            return None
        table = evaluate_table(nodes, self.constants, (self.type_of(first), self.type_of(after)), self.opsets, self.ir_version)
        if table is None:
            return None
        name = f"{after.output[0]}.table"
        self.tables[name] = table
        lookup = helper.make_node(
            "Table", [*self._three(first), *self._two(after), name], [after.output[0]], name=node.name, domain=GROUP_DOMAIN
        )
        return _FusedNode(lookup, self.numbers(nodes))

    def _by_channels(self, node: NodeProto, after: NodeProto) -> _FusedNode | None:
        """Multiply-add per channel for a batch normalisation, where it is exact for all 256 integers; else None."""
        before = self.dequantised(node.input[0]) if node.op_type == "BatchNormalization" else None
        values, names = attributes(node), node.input[1:]
        if before is None or len(names) != 4 or values.get("training_mode", 0):
            return None
        large = {name: self.beside[name].array() for name in names if name in self.beside}
        constants = self.constants | large
        if any(name not in constants for name in names):
            return None
        types = self.type_of(before), self.type_of(after)
        if before.input[0] in self.types or not {*types} <= {*INTEGERS_ON_NPU} or self.several(before) or self.several(after):
            return None
        # fit the multiply-add to onnxruntime's results, near the slope by the formula
        scale, _, _, variance = (constants[name].astype(np.float64) for name in names)
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = scale / np.sqrt(variance + float(values.get("epsilon", 1e-5)))
        targets = evaluate_table([before, node, after], constants, types, self.opsets, self.ir_version, len(factor))
        if targets is None or not np.isfinite(factor).all():
            return None
        x_scale, y_scale = (self.constants[border.input[1]].reshape(()) for border in (before, after))
        fit = fit_affine(integers_of_type(helper.tensor_dtype_to_np_dtype(types[0])), targets, x_scale * factor / y_scale)
        if fit is None:
            return None
        table_names = [f"{after.output[0]}.{field}" for field in fit._fields]
        self.tables |= dict(zip(table_names, fit, strict=True))
        inputs = [*self._three(before), *self._two(after), *table_names]
        affine = helper.make_node("Affine", inputs, [after.output[0]], name=node.name, domain=GROUP_DOMAIN)
        return _FusedNode(affine, self.numbers([before, node, after]))

    def several(self, node: NodeProto) -> bool:
        """Whether scales or zero points differ along an axis."""
        return any(name not in self.constants or self.constants[name].size != 1 for name in node.input[1:] if name)

    def _made(self, node: NodeProto, before: list[NodeProto], after: NodeProto) -> NodeProto | None:
        values, ends = attributes(node), after.input[1:]
        inputs = [name for source in before for name in self._three(source)]
        activations = {self.type_of(source) for source in before}
        if any(self.scale(source).dtype != np.float32 for source in [*before, after]) or not self._suits_products(node, before):
            return None
        if node.op_type == "Conv":
            if not self._counts_in_products(before):
                return None
            return self._node(
                "QLinearConv", "", node, after, [*inputs[:6], *self._two(after), *(source.input[0] for source in before[2:])], values
            )
        if node.op_type == "Gemm":
            if len(before) > 2 and (values.get("alpha", 1.0), values.get("beta", 1.0)) != (1.0, 1.0):
                return None  # QGemm's alpha scales the bias too
            gemm_values = {key: value for key, value in values.items() if key != "beta"}
            addend = before[2].input[0] if len(before) > 2 else ""
            return self._node("QGemm", MS, node, after, [*inputs[:6], addend, *self._two(after)], gemm_values)
        if node.op_type == "MatMul" or (node.op_type in _OF_INPUTS and len(activations) == 1):
            kind, domain = _OF_INPUTS[node.op_type]
            return self._node(kind, domain, node, after, [*inputs, *self._two(after)], values)
        if node.op_type == "Concat" and len(activations) == 1:
            return self._node("QLinearConcat", MS, node, after, [*self._two(after), *inputs], values)
        if node.op_type in UNARY and len(ends) > 0:
            opset_value = {"opset": self.opset} if node.op_type == "Softmax" else {}
            return self._node(f"QLinear{node.op_type}", MS, node, after, [*inputs, *self._two(after)], {**values, **opset_value})
        return None

    def scale(self, node: NodeProto) -> NDArray[Any]:
        """Constant scale of a QuantizeLinear or DequantizeLinear."""
        name = node.input[1]
        return self.constants[name] if name in self.constants else self.beside[name].array()

    def has_channels(self, node: NodeProto, weights: NodeProto) -> bool:
        """Whether scales of a product's weights are above 0, and a single one or one per output channel.

        Raises BadInputError for scales of a convolution along another axis: onnxruntime applies them to output channels without a check.
        """
        scale, rank = self.scale(weights), self.ranks.get(weights.input[0])
        all_positive = not (scale <= 0).any()
        if not all_positive or not rank or scale.size == 1:
            return all_positive
        channels = 0 if node.op_type == "Conv" or attributes(node).get("transB", 0) else rank - 1
        axis = int(attributes(weights).get("axis", 1))
        if axis % rank != channels and node.op_type == "Conv":
            raise BadInputError(f"{label(node)}: scales of its weights along axis {axis}; expected its output channels, axis {channels}")
        return axis % rank == channels

    def _suits_products(self, node: NodeProto, before: list[NodeProto]) -> bool:
        """Whether the inputs of a product meet the conditions of onnxruntime's integer products; true for other nodes."""
        if node.op_type not in PRODUCTS or len(before) < 2:
            return True
        in_floats = node.op_type == "Gemm" and self.several(before[0])
        return not in_floats and self.has_channels(node, before[1]) and all(self.type_of(bias) == TensorProto.INT32 for bias in before[2:])

    def _counts_in_products(self, before: list[NodeProto]) -> bool:
        """Whether the bias has the scale of the products, within onnxruntime's tolerance, which it requires of convolutions only.

        Otherwise its integers are no sums, and the convolution stays in floats.
        """
        if len(before) < 3 or self.several(before[0]):
            return True  # several scales of an activation are reported by the reader
        x, w, bias = map(self.scale, before)
        if len({w.size, bias.size} - {1}) > 1:
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isclose(bias.reshape(-1), x.reshape(-1) * w.reshape(-1), rtol=1e-2, atol=1e-6).all())

    def _moved_integers(self, node: NodeProto, before: NodeProto, after: NodeProto) -> NodeProto | None:
        """Node that moves integers, where scale and zero point are equal before and after; else None."""
        for input_name, output_name in zip(self._two(before), self._two(after), strict=True):
            are_constant = input_name in self.constants and output_name in self.constants
            if input_name != output_name and not (are_constant and np.array_equal(self.constants[input_name], self.constants[output_name])):
                return None
        if self.type_of(before) != self.type_of(after):
            return None
        out = deepcopy(node)
        out.input[0], out.output[0] = before.input[0], after.output[0]
        return out

    def _two(self, node: NodeProto) -> list[str]:
        """Names of scale and zero point."""
        return [node.input[1], node.input[2] if len(node.input) > 2 else ""]

    def _three(self, node: NodeProto) -> list[str]:
        return [node.input[0], *self._two(node)]

    def _node(self, kind: str, domain: str, node: NodeProto, after: NodeProto, inputs: list[str], values: Mapping[str, Any]) -> NodeProto:
        return helper.make_node(kind, inputs, [after.output[0]], name=node.name or node.output[0], domain=domain, **values)
