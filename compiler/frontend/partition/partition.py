"""Partition of a model into subgraphs for the NPU and the remaining host nodes.

Unsupported nodes are found by translating all nodes one by one; outputs of an unsupported node are treated as inputs.
The first subgraph is the convex set of supported nodes with the most multiply-accumulates (`compiler.frontend.partition.convex`).  It then
counts as one avoided node, and the heaviest convex set of the remaining nodes is the next subgraph, if offloading pays
(`compiler.frontend.partition.offload_cost`); and so on.  With each subgraph contracted to a node the model stays acyclic, so all of them
can be ordered.

At its border a subgraph's tensors have ONNX's order, which may not suit a node that could read the NPU's layout.  So a chosen set is
translated again on its own until no node is refused.  If a node is refused only because of the layout that a Transpose or Reshape leaves,
the node stays and the Transpose or Reshape moves to the host.

Nodes that depend on constants only are folded and belong to no subgraph.  A group of nodes that is one operator on integers
(`compiler.frontend.handlers.qdq_fusion`) is chosen as a whole, with the DequantizeLinear of its weights.  The host converts between floats
and integers at the border: integers are a quarter of the bytes, and three channels are an image.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.handlers.to_graph import Translator, fold
from compiler.frontend.onnx_io.attributes import attributes, known_shapes, label
from compiler.frontend.onnx_io.large_constants import NO_DATA, ExternalData
from compiler.frontend.partition.convex import heaviest_convex
from compiler.frontend.partition.macs import node_macs
from compiler.frontend.partition.offload_cost import NodeWork, Offload, SubgraphWork
from compiler.frontend.partition.support_check import Handlers, MachineCheck, MachineSupport, SupportCheck, check_support
from compiler.ir.quantised.parameters import STORED
from simulator.npu.errors import UnsupportedError
from simulator.onnx_names import fresh_name, names_read

Array = NDArray[Any]
MAX_TRIES = 64  # limit of declined sets: each costs a minimum cut and a translation
_OUTSIDE = "supported, but what the NPU does not support lies between it and the partition"
_LITTLE = "supported, but not worth a piece of its own: less work than a launch takes"
_VIEWS = "supported, but nothing to compute"
_COMPARED = "compared exactly; for a row of -inf, as of a mask, the NPU gives the lowest finite number"
_INTEGER_BYTES = {TensorProto.INT8: 1, TensorProto.UINT8: 1, TensorProto.INT32: 4}
_ON_INTEGERS = frozenset({"ConvInteger", "MatMulInteger", "QGemm", "QLinearConv", "QLinearMatMul"})
_ENDS = {
    "QuantizeLinear": "supported, but the host makes the integers that the NPU reads",
    "DequantizeLinear": "supported, but the host makes floats of the integers that the NPU gives",
}
# accepted forms, for reasons that do not say them
_ACCEPTED = {
    _OUTSIDE: "a supported form of the host nodes between it and the partition",
    _LITTLE: "more work beside it, which pays for a launch",
    _VIEWS: "arithmetic beside it on the NPU",
    _COMPARED: "a result that no Equal reads",
    **dict.fromkeys(_ENDS.values(), "arithmetic on the host's side of it on the NPU"),
}


@dataclass(frozen=True)
class HostNode:
    """Node on the host.

    name: its name, or the name of its first output.  why: reason, without the name.  macs: multiply-accumulates; None: unknown.  refused:
    True if the NPU does not support the node; False if only its position keeps it on the host.  work: for an estimate of its time.
    """

    name: str
    op_type: str
    why: str
    macs: int | None
    refused: bool
    work: NodeWork

    @property
    def accepted(self) -> str:
        """Change that would bring it to the NPU: the end of its reason if that names supported forms."""
        stated = self.why.rpartition("; ")[2] if "; " in self.why else ""
        if any(word in stated for word in ("supported", "expected", "accepted")):
            return stated
        general = "supported operators with the same values" if self.refused else "a subgraph that pays for its launch"
        return _ACCEPTED.get(self.why, general)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Nodes for one NPU program.  npu: a model of them (the original where it has all nodes).  inside: numbers of the nodes."""

    name: str
    npu: ModelProto
    inside: frozenset[int]


@dataclass(frozen=True, eq=False)
class Partition:
    """Model with its subgraphs for the NPU.  model: the original.  pieces: subgraphs in execution order.

    host: nodes outside subgraphs, without those that depend on constants only.  data: weights of a hollow model of one subgraph.
    """

    model: ModelProto
    pieces: tuple[Subgraph, ...]
    host: tuple[HostNode, ...]
    data: ExternalData = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the model is one subgraph without host nodes."""
        return bool(self.pieces) and self.pieces[0].npu is self.model

    def without(self, reasons: Mapping[int, str]) -> Partition:
        """Partition with some subgraphs moved to the host.  reasons: by number of the subgraph."""
        parts = _Parts(self.model)
        why = {i: f"supported, but {reasons[k]}" for k in reasons for i in self.pieces[k].inside}
        host_nodes = {node.name: node for node in self.host}
        subgraphs = [subgraph for k, subgraph in enumerate(self.pieces) if k not in reasons]
        host = parts.host({i for subgraph in subgraphs for i in subgraph.inside}, {}, why)
        return Partition(self.model, _named(subgraphs), tuple(host_nodes.get(node.name, node) for node in host))


class AllOnHostError(UnsupportedError):
    """Error for a model without supported nodes.  part: its partition without subgraphs."""

    def __init__(self, why: str, part: Partition) -> None:
        super().__init__(f"nothing of it can run on the NPU: {why}")
        self.part = part


def _named(subgraphs: Iterable[Subgraph]) -> tuple[Subgraph, ...]:
    return tuple(replace(subgraph, name=f"Partition{k}") for k, subgraph in enumerate(subgraphs))


def whole_model(model: ModelProto, data: ExternalData = NO_DATA) -> Partition:
    """Partition of a model into one subgraph.  data: weights of a hollow model."""
    return Partition(model, _named([Subgraph("", model, frozenset(range(len(model.graph.node))))]), (), data)


def partition(
    model: ModelProto, handlers: Handlers, offload: Offload | None = None, able: MachineCheck | None = None, no_floats: str = ""
) -> Partition:
    """Partition of a model from `load_model`: its heaviest subgraph, and with `offload` further ones that pay.

    model: with separate nodes for every operator on integers (`qdq_fusion`).  able: raises for integer operators that the machine cannot
    run.  no_floats: reason why it runs no float operators, or ''.  Raises `AllOnHostError` where no node can run on the NPU.
    """
    parts, abilities = _Parts(model), None if able is None else MachineSupport(able, no_floats)
    compared = names_read(node for node in model.graph.node if node.op_type == "Equal")
    maxima = {i for i, node in enumerate(parts.nodes) if node.op_type in ("ReduceMax", "ReduceMin")}
    refused: dict[int, str] = {i: _COMPARED for i in maxima if not compared.isdisjoint(parts.nodes[i].output)}
    declined: dict[int, str] = {}
    subgraphs: list[Subgraph] = []
    tries = 0
    # every round adds a subgraph, or excludes nodes: refused ones (unsupported), or declined ones (not worth it)
    while True:
        subgraph_nodes = [subgraph.inside for subgraph in subgraphs]
        if subgraphs and (tries == MAX_TRIES or parts.too_little(refused.keys() | declined.keys(), subgraph_nodes, offload)):
            break
        inside = parts.choose(refused.keys() | declined.keys(), subgraph_nodes)
        if ends := parts.ends(inside):
            declined |= {i: _ENDS[parts.nodes[i].op_type] for i in ends}
            continue
        npu = parts.extract(inside)
        check = check_support(npu, handlers, abilities)
        if check.refused:
            blamed = _blamed(parts, npu, inside, check, handlers, abilities)
            refused |= {member: why for i, why in blamed.items() for member in parts.together(inside[i])}
        elif not check.operators and not subgraphs:
            first = min(refused, key=lambda i: (parts.nodes[i].op_type in _ENDS, -(parts.macs[i] or 0), i), default=None)
            reason = "it has no operators" if first is None else f"{label(parts.nodes[first])}: {refused[first]}"
            raise AllOnHostError(reason, Partition(model, (), parts.host(set(), refused, dict.fromkeys(parts.working, _VIEWS))))
        else:
            why = _VIEWS if not check.operators else None
            if subgraphs and offload is not None and why is None:
                why = offload.reason_to_decline(parts.work(npu, inside))
            if why is None:
                subgraphs.append(Subgraph("", npu, frozenset(inside)))
            else:
                declined |= dict.fromkeys(inside, why)
                tries += 1
    npu_nodes = {i for subgraph in subgraphs for i in subgraph.inside}
    host_reasons = dict.fromkeys(parts.working, _OUTSIDE if offload is None else _LITTLE) | declined
    return Partition(model, _named(parts.ordered(subgraphs)), parts.host(npu_nodes, refused, host_reasons))


def partition_without_ends(model: ModelProto) -> Partition | None:
    """Partition of a quantised model with only the conversions at its ends on the host; None without such conversions."""
    parts = _Parts(model)
    inside = list(parts.working)
    while ends := parts.ends(inside):
        inside = [i for i in inside if i not in ends]
    if not inside or len(inside) == len(parts.working):
        return None
    host_reasons = {i: _ENDS.get(parts.nodes[i].op_type, "") for i in parts.working}
    return Partition(model, _named([Subgraph("", parts.extract(inside), frozenset(inside))]), parts.host(set(inside), {}, host_reasons))


class _Parts:
    """Dependences between the nodes of one model."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.shapes = known_shapes(model.graph)
        groups = [members for members in fuse_groups(model).members if len(members) > 1]
        self.groups = {i: members for members in groups for i in members}
        self.constants = _constants(model, self.groups)
        self.outputs = [item.name for item in model.graph.output]
        self.reads = [names_read([node]) for node in self.nodes]
        self.producer = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.types = {item.name: item for item in (*model.graph.value_info, *model.graph.input, *model.graph.output)}
        self.macs = [node_macs(node, self.shapes) for node in self.nodes]
        live = _live(self.reads, self.producer, self.outputs)
        self.working = [i for i in sorted(live) if not all(name in self.constants for name in self.nodes[i].output if name)]

    def ends(self, inside: Iterable[int]) -> set[int]:
        """Conversions at the ends of a set of nodes: quantisation of its inputs, dequantisation of its outputs."""
        inside = set(inside)
        single = {i: self.nodes[i] for i in inside if i not in self.groups}
        written_names = {name for i in inside for name in self.nodes[i].output}
        read_names = {name for i in inside for name in self.reads[i]}
        return {
            i
            for i, node in single.items()
            if (node.op_type == "QuantizeLinear" and node.input[0] not in written_names and self._to_bytes(node))
            or (node.op_type == "DequantizeLinear" and node.output[0] not in read_names)
        }

    def _to_bytes(self, node: NodeProto) -> bool:
        """Whether a QuantizeLinear produces integers of 8 bits; others are refused later with a better message."""
        zero = self.constants.get([*node.input, ""][2])
        return zero is None or zero.dtype in STORED

    def together(self, node: int) -> frozenset[int]:
        """Nodes of the group of a node."""
        return self.groups.get(node, frozenset({node}))

    def choose(self, avoided: Iterable[int], subgraph_nodes: Sequence[frozenset[int]] = ()) -> list[int]:
        """Heaviest convex set of nodes without the nodes `avoided`.  subgraph_nodes: nodes of each subgraph so far; the set closes no cycle
        through them.

        Ties: the set with fewer avoided predecessors, so that its successors may form one subgraph; then the set with more nodes.
        """
        order = self.quotient(subgraph_nodes)
        position = {i: k for k, members in enumerate(order) for i in members}
        edges = {
            (position[self.producer[name]], position[i])
            for i in self.working
            for name in self.reads[i]
            if name in self.producer and self.producer[name] in position
        }
        barred = {position[i] for i in (*avoided, *(i for nodes in subgraph_nodes for i in nodes)) if i in position}
        inner = sorted((a, b) for a, b in edges if a != b)
        before = [0] * len(order)  # bits of the barred positions before each position
        for a, b in sorted(inner, key=lambda edge: edge[1]):
            before[b] |= before[a] | (1 << a if a in barred else 0)
        scale = len(barred) + 1
        weights = [
            sum(self.macs[i] or 0 for i in members) * scale * len(self.working) + scale - before[k].bit_count()
            for k, members in enumerate(order)
        ]
        positions = heaviest_convex(inner, weights, barred)
        return sorted(i for k in positions for i in order[k])

    def quotient(self, subgraph_nodes: Sequence[frozenset[int]]) -> list[list[int]]:
        """Working nodes in a topological order; nodes of a group or of a subgraph share one entry."""
        owner = {i: min(members) for i, members in self.groups.items()} | {i: min(nodes) for nodes in subgraph_nodes for i in nodes}
        if not owner:
            return [[i] for i in self.working]
        before: dict[int, set[int]] = {owner.get(i, i): set() for i in self.working}  # the nodes of a group stay together
        members: dict[int, list[int]] = {key: [] for key in before}
        for i in self.working:
            owner_key = owner.get(i, i)
            members[owner_key].append(i)
            sources = (owner.get(self.producer[name], self.producer[name]) for name in sorted(self.reads[i]) if name in self.producer)
            before[owner_key].update(key for key in sources if key in before and key != owner_key)
        return [members[key] for key in TopologicalSorter({key: sorted(keys) for key, keys in before.items()}).static_order()]

    def ordered(self, subgraphs: Sequence[Subgraph]) -> list[Subgraph]:
        """Subgraphs in execution order."""
        by_first = {min(subgraph.inside): subgraph for subgraph in subgraphs}
        return [
            by_first[key] for members in self.quotient([subgraph.inside for subgraph in subgraphs]) if (key := min(members)) in by_first
        ]

    def too_little(self, avoided: Iterable[int], subgraph_nodes: Sequence[frozenset[int]], offload: Offload | None) -> bool:
        """Whether the remaining nodes take the host no longer than a launch, or no further subgraph is requested."""
        excluded = set(avoided).union(*subgraph_nodes)
        remaining_work = [self.node_work(i) for i in self.working if i not in excluded]
        return not remaining_work or offload is None or offload.host_s(remaining_work) <= offload.launch_s

    def node_work(self, node: int) -> NodeWork:
        names = {*self.reads[node], *(name for name in self.nodes[node].output if name)}
        integers = node in self.groups or self.nodes[node].op_type in _ON_INTEGERS
        return NodeWork(self.macs[node] or 0, sum(math.prod(self.shapes.get(name, (0,))) for name in names), integers)

    def work(self, npu: ModelProto, inside: Sequence[int]) -> SubgraphWork:
        """Work of the nodes `inside`.  npu: a model of them."""
        border = [(port.type.tensor_type.elem_type, self.shapes[port.name]) for port in (*npu.graph.input, *npu.graph.output)]
        weights = [(port.data_type, tuple(port.dims)) for port in npu.graph.initializer]
        (floats, of_floats), (integers, of_integers) = (
            [_total_size(tensors, integer) for tensors in (weights, border)] for integer in (False, True)
        )
        return SubgraphWork(tuple(self.node_work(i) for i in inside), floats, of_floats, integers, of_integers)

    def extract(self, inside: list[int]) -> ModelProto:
        """Model of the nodes `inside`.  Folded constants become initialisers with new names."""
        made_once = len(set(self.outputs)) == len(self.outputs) and all(name in self.producer for name in self.outputs)
        if len(inside) == len(self.nodes) and made_once:
            return self.model
        chosen = set(inside)
        inner = {name for i in inside for name in self.nodes[i].output if name}
        read = {name for i in inside for name in self.reads[i]}
        outside = {name for i in self.working if i not in chosen for name in self.reads[i]} | set(self.outputs)
        sub = ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        sub.graph.name = self.model.graph.name or "model"
        initial, given = ({item.name for item in items} for items in (self.model.graph.initializer, self.model.graph.input))
        computed = [name for name in sorted(read) if name in self.constants and name not in initial]
        renamed = {name: fresh_name(f"{name}.constant", self.producer, initial, given) for name in computed}
        for i in inside:
            node = deepcopy(self.nodes[i])
            node.input[:] = [renamed.get(name, name) for name in node.input]
            sub.graph.node.append(node)
        sub.graph.initializer.extend(item for item in self.model.graph.initializer if item.name in read)
        sub.graph.initializer.extend(numpy_helper.from_array(np.asarray(self.constants[name]), new) for name, new in renamed.items())
        ports = [*(item.name for item in self.model.graph.input), *self.outputs]  # in the model's order, before tensors between subgraphs
        for name in dict.fromkeys([*ports, *(name for node in self.nodes for name in node.output)]):
            if name in read and name not in inner and name not in self.constants:
                sub.graph.input.append(self._type(name))
            elif name in inner and name in outside:
                sub.graph.output.append(self._type(name))
            elif name in inner and name in self.types:
                sub.graph.value_info.append(self.types[name])
        return sub

    def host(self, chosen: set[int], refused: Mapping[int, str], reasons: Mapping[int, str]) -> tuple[HostNode, ...]:
        """Host nodes: working nodes that are not chosen, with the reason from `refused`, else from `reasons`."""
        why = {i: (refused.get(i) or reasons.get(i, "")).partition("; supported are ")[0] for i in self.working}  # without the list
        return tuple(
            HostNode(node.name or node.output[0], node.op_type, why[i], self.macs[i], i in refused, self.node_work(i))
            for i, node in enumerate(self.nodes)
            if i in why and i not in chosen
        )

    def _type(self, name: str) -> ValueInfoProto:
        return self.types.get(name, ValueInfoProto(name=name))


def _total_size(tensors: Iterable[tuple[int, tuple[int, ...]]], integers: bool) -> int:
    """Total bytes of the integer tensors, or the number of values of the others."""
    return sum(math.prod(dims) * _INTEGER_BYTES.get(kind, 1) for kind, dims in tensors if (kind in _INTEGER_BYTES) == integers)


def _live(reads: list[set[str]], producer: Mapping[str, int], outputs: Iterable[str]) -> set[int]:
    """Nodes that an output depends on."""
    live: set[int] = set()
    pending = [producer[name] for name in outputs if name in producer]
    while pending:
        i = pending.pop()
        if i not in live:
            live.add(i)
            pending += [producer[name] for name in reads[i] if name in producer]
    return live


def _blamed(
    parts: _Parts, npu: ModelProto, numbers: list[int], check: SupportCheck, handlers: Handlers, able: MachineSupport | None
) -> dict[int, str]:
    """Nodes of a trial for the host: refused nodes, or the views before them where only the layout is the reason."""
    blamed: dict[int, str] = {}
    view_of = {number: i for i in check.views for number in parts.together(numbers[i])}
    maker = {name: number for number in numbers for name in parts.nodes[number].output}

    def lies(name: str) -> int | None:
        """View that determines the layout of a tensor; integers have the layout of their floats."""
        while (number := maker.get(name, -1)) >= 0:
            if number in view_of or parts.nodes[number].op_type not in _ENDS:
                return view_of.get(number)
            name = parts.nodes[number].input[0]
        return None

    for i, why in check.refused.items():
        members = sorted(parts.together(numbers[i]))
        views = {view for member in members for name in parts.nodes[member].input if (view := lies(name)) is not None}
        if views and not check_support(parts.extract(members), handlers, able).refused:
            blamed |= dict.fromkeys(views, f"{label(npu.graph.node[i])} cannot read its result where it lies on the NPU")
        else:
            blamed[i] = why
    return blamed


def _constants(model: ModelProto, excluded: Collection[int]) -> dict[str, Array]:
    """Constant tensors: initialisers and folded nodes, except the nodes of `excluded` numbers."""
    state = Translator(model)
    for i, node in enumerate(model.graph.node):
        if node.domain in ("", "ai.onnx") and i not in excluded:
            fold(state, node, attributes(node))
    return state.constants
