"""What of a model runs on the NPU where some of it cannot: pieces, and the nodes around them that stay with the host.

The nodes that the handlers refuse are found by translating all of them, one by one: behind a refused one its outputs are taken for inputs.
The first piece is the convex set of the others that has the most multiply-accumulates (`compiler.frontend.partition.convex`).  Then it
counts as one node that is taken, and the heaviest convex set of what is left is the next piece, if it is worth it
(`compiler.frontend.partition.offload_cost`); and so on.  With each piece contracted to a node the model stays without a cycle, so there is
an order in which all of them can run.

At its border a piece's tensors have ONNX's own order, which may not suit a node that liked them as the NPU had left them; so what was
chosen is translated again as it stands, until nothing in it is refused.  A node that is refused for how a Transpose or Reshape has left its
input, and would be taken with that input from the host, stays; the host moves the values instead.

Nodes that only constants go into are computed here and belong to nobody: who reads one gets the value.  A group of nodes that is one
operator on integers (`compiler.frontend.handlers.qdq_fusion`) is chosen as a whole, with the DequantizeLinear of its weights.  Floats of
the host become integers there, and integers for the host floats: as integers they are a quarter of the bytes, and three channels are an
image.
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

from compiler.frontend.handlers.qdq_fusion import grouped
from compiler.frontend.handlers.to_graph import Translator, fold
from compiler.frontend.onnx_io.attributes import attributes, known_shapes, label
from compiler.frontend.onnx_io.large_constants import NOTHING, ExternalData
from compiler.frontend.partition.convex import heaviest_convex
from compiler.frontend.partition.macs import node_macs
from compiler.frontend.partition.offload_cost import NodeWork, Offload, PieceWork
from compiler.frontend.partition.support_check import Abilities, Able, Handlers, Trial, trial
from compiler.ir.quantised.parameters import STORED
from simulator.npu.errors import UnsupportedError
from simulator.onnx_names import fresh_name, names_read

Array = NDArray[Any]
MAX_TRIES = 64  # sets that are looked at in vain: each costs a minimum cut and a translation
_OUTSIDE = "supported, but what the NPU does not support lies between it and the partition"
_LITTLE = "supported, but not worth a piece of its own: less work than a launch takes"
_VIEWS = "supported, but nothing to compute"
_COMPARED = "compared exactly; of nothing but -inf, as in a masked row, the NPU has the lowest finite number"
_INTEGER_BYTES = {TensorProto.INT8: 1, TensorProto.UINT8: 1, TensorProto.INT32: 4}
_ON_INTEGERS = frozenset({"ConvInteger", "MatMulInteger", "QGemm", "QLinearConv", "QLinearMatMul"})
_ENDS = {
    "QuantizeLinear": "supported, but the NPU reads integers, which the host makes of its floats",
    "DequantizeLinear": "supported, but the NPU gives integers, of which the host makes floats",
}


@dataclass(frozen=True)
class HostNode:
    """A node that the host runs.

    name: or its first output's.  why: without its name.  macs: None where nobody can count them.  refused: by the NPU, else it only lies
    behind or before one that is.
    """

    name: str
    op_type: str
    why: str
    macs: int | None
    refused: bool


@dataclass(frozen=True, eq=False)
class Subgraph:
    """What runs on the NPU in one go.  npu: a model of its own (the whole one where that is all of it).  inside: numbers of its nodes."""

    name: str
    npu: ModelProto
    inside: frozenset[int]


@dataclass(frozen=True, eq=False)
class Partition:
    """model: as it was read.  pieces: what the NPU runs of it, in an order in which they can run.

    host: the nodes that are in no piece, but for those that only constants go into.  data: of a hollow model, which is one piece.
    """

    model: ModelProto
    pieces: tuple[Subgraph, ...]
    host: tuple[HostNode, ...]
    data: ExternalData = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the model is one piece, and the host has nothing to do."""
        return bool(self.pieces) and self.pieces[0].npu is self.model

    def without(self, reasons: Mapping[int, str]) -> Partition:
        """Some pieces, by their numbers, left to the host, and why; the others keep their order."""
        parts = _Parts(self.model)
        why = {i: f"supported, but {reasons[k]}" for k in reasons for i in self.pieces[k].inside}
        host_nodes = {node.name: node for node in self.host}
        pieces = [piece for k, piece in enumerate(self.pieces) if k not in reasons]
        host = parts.host({i for piece in pieces for i in piece.inside}, {}, why)
        return Partition(self.model, _named(pieces), tuple(host_nodes.get(node.name, node) for node in host))


class AllOnHostError(UnsupportedError):
    """A model of which nothing can run on the NPU.  part: without a piece."""

    def __init__(self, why: str, part: Partition) -> None:
        super().__init__(f"nothing of it can run on the NPU: {why}")
        self.part = part


def _named(pieces: Iterable[Subgraph]) -> tuple[Subgraph, ...]:
    return tuple(replace(piece, name=f"Partition{k}") for k, piece in enumerate(pieces))


def whole(model: ModelProto, data: ExternalData = NOTHING) -> Partition:
    """All of it.  data: of a hollow one."""
    return Partition(model, _named([Subgraph("", model, frozenset(range(len(model.graph.node))))]), (), data)


def partition(
    model: ModelProto, handlers: Handlers, offload: Offload | None = None, able: Able | None = None, no_floats: str = ""
) -> Partition:
    """The heaviest piece of a model from `load_model`; with `offload` also the next ones that are worth it.

    model: every operator on integers has its nodes for itself (`quantised_groups.apart`).  able: of each operator on integers as a graph,
    whether the machine can.  no_floats: why it can no other, or ''.  Raises `AllOnHostError` where nothing of it can run on the NPU.
    """
    parts, abilities = _Parts(model), None if able is None else Abilities(able, no_floats)
    compared = names_read(node for node in model.graph.node if node.op_type == "Equal")
    maxima = {i for i, node in enumerate(parts.nodes) if node.op_type in ("ReduceMax", "ReduceMin")}
    refused: dict[int, str] = {i: _COMPARED for i in maxima if not compared.isdisjoint(parts.nodes[i].output)}
    declined: dict[int, str] = {}
    subgraphs: list[Subgraph] = []
    tries = 0
    while True:
        taken_sets = [piece.inside for piece in subgraphs]
        if subgraphs and (tries == MAX_TRIES or parts.too_little(refused.keys() | declined.keys(), taken_sets, offload)):
            break
        inside = parts.choose(refused.keys() | declined.keys(), taken_sets)
        if ends := parts.ends(inside):
            declined |= {i: _ENDS[parts.nodes[i].op_type] for i in ends}
            continue
        npu = parts.extract(inside)
        check = trial(npu, handlers, abilities)
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
                why = offload.declined(parts.work(npu, inside))
            if why is None:
                subgraphs.append(Subgraph("", npu, frozenset(inside)))
            else:
                declined |= dict.fromkeys(inside, why)
                tries += 1
    npu_nodes = {i for piece in subgraphs for i in piece.inside}
    host_reasons = dict.fromkeys(parts.working, _OUTSIDE if offload is None else _LITTLE) | declined
    return Partition(model, _named(parts.ordered(subgraphs)), parts.host(npu_nodes, refused, host_reasons))


def without_ends(model: ModelProto) -> Partition | None:
    """All of a quantised model as one piece, but for what the host does at its ends; None where it does nothing there, or all."""
    parts = _Parts(model)
    inside = list(parts.working)
    while ends := parts.ends(inside):
        inside = [i for i in inside if i not in ends]
    if not inside or len(inside) == len(parts.working):
        return None
    host_reasons = {i: _ENDS.get(parts.nodes[i].op_type, "") for i in parts.working}
    return Partition(model, _named([Subgraph("", parts.extract(inside), frozenset(inside))]), parts.host(set(inside), {}, host_reasons))


class _Parts:
    """One model, and who reads what of whom."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.shapes = known_shapes(model.graph)
        groups = [members for members in grouped(model).members if len(members) > 1]
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
        """Of some nodes those that make integers of what the others do not make, or floats that they do not read."""
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
        """Whether a QuantizeLinear makes integers that the NPU reads; others it refuses, which says more."""
        zero = self.constants.get([*node.input, ""][2])
        return zero is None or zero.dtype in STORED

    def together(self, node: int) -> frozenset[int]:
        """The nodes of its group."""
        return self.groups.get(node, frozenset({node}))

    def choose(self, avoided: Iterable[int], taken: Sequence[frozenset[int]] = ()) -> list[int]:
        """The heaviest convex set of nodes that avoids some, and does not close a cycle through pieces that are taken.

        Of equal ones one whose nodes have less to wait for, so that what waits may be one piece too; then one with more nodes.
        """
        order = self.quotient(taken)
        position = {i: k for k, members in enumerate(order) for i in members}
        edges = {
            (position[self.producer[name]], position[i])
            for i in self.working
            for name in self.reads[i]
            if name in self.producer and self.producer[name] in position
        }
        barred = {position[i] for i in (*avoided, *(i for piece in taken for i in piece)) if i in position}
        inner = sorted((a, b) for a, b in edges if a != b)
        before = [0] * len(order)  # bits of the barred ones
        for a, b in sorted(inner, key=lambda edge: edge[1]):
            before[b] |= before[a] | (1 << a if a in barred else 0)
        scale = len(barred) + 1
        weights = [
            sum(self.macs[i] or 0 for i in members) * scale * len(self.working) + scale - before[k].bit_count()
            for k, members in enumerate(order)
        ]
        positions = heaviest_convex(inner, weights, barred)
        return sorted(i for k in positions for i in order[k])

    def quotient(self, taken: Sequence[frozenset[int]]) -> list[list[int]]:
        """The working nodes in a topological order, those of a group, or of a piece that is taken, together in one place."""
        owner = {i: min(members) for i, members in self.groups.items()} | {i: min(piece) for piece in taken for i in piece}
        if not owner:
            return [[i] for i in self.working]
        before: dict[int, set[int]] = {owner.get(i, i): set() for i in self.working}  # a group works as a whole
        members: dict[int, list[int]] = {key: [] for key in before}
        for i in self.working:
            owner_key = owner.get(i, i)
            members[owner_key].append(i)
            sources = (owner.get(self.producer[name], self.producer[name]) for name in sorted(self.reads[i]) if name in self.producer)
            before[owner_key].update(key for key in sources if key in before and key != owner_key)
        return [members[key] for key in TopologicalSorter({key: sorted(keys) for key, keys in before.items()}).static_order()]

    def ordered(self, pieces: Sequence[Subgraph]) -> list[Subgraph]:
        """Pieces as one can run after the other."""
        by_first = {min(piece.inside): piece for piece in pieces}
        return [by_first[key] for members in self.quotient([piece.inside for piece in pieces]) if (key := min(members)) in by_first]

    def too_little(self, avoided: Iterable[int], taken: Sequence[frozenset[int]], offload: Offload | None) -> bool:
        """Whether all that is left takes the host no longer than a launch, or nothing more is wanted."""
        settled = set(avoided).union(*taken)
        remaining_work = [self.node_work(i) for i in self.working if i not in settled]
        return not remaining_work or offload is None or offload.host_s(remaining_work) <= offload.launch_s

    def node_work(self, node: int) -> NodeWork:
        names = {*self.reads[node], *(name for name in self.nodes[node].output if name)}
        integers = node in self.groups or self.nodes[node].op_type in _ON_INTEGERS
        return NodeWork(self.macs[node] or 0, sum(math.prod(self.shapes.get(name, (0,))) for name in names), integers)

    def work(self, npu: ModelProto, inside: Sequence[int]) -> PieceWork:
        """npu: the nodes `inside` as a model."""
        border = [(port.type.tensor_type.elem_type, self.shapes[port.name]) for port in (*npu.graph.input, *npu.graph.output)]
        weights = [(port.data_type, tuple(port.dims)) for port in npu.graph.initializer]
        (floats, of_floats), (integers, of_integers) = (
            [_sized(tensors, integer) for tensors in (weights, border)] for integer in (False, True)
        )
        return PieceWork(tuple(self.node_work(i) for i in inside), floats, of_floats, integers, of_integers)

    def extract(self, inside: list[int]) -> ModelProto:
        """The nodes as a model.  Computed constants are initialisers of a new name."""
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
        ports = [*(item.name for item in self.model.graph.input), *self.outputs]  # in the model's order, before what lies between pieces
        for name in dict.fromkeys([*ports, *(name for node in self.nodes for name in node.output)]):
            if name in read and name not in inner and name not in self.constants:
                sub.graph.input.append(self._type(name))
            elif name in inner and name in outside:
                sub.graph.output.append(self._type(name))
            elif name in inner and name in self.types:
                sub.graph.value_info.append(self.types[name])
        return sub

    def host(self, chosen: set[int], refused: Mapping[int, str], reasons: Mapping[int, str]) -> tuple[HostNode, ...]:
        """Every working node that is not chosen, and why: it is refused, or as `rest` says."""
        why = {i: (refused.get(i) or reasons.get(i, "")).partition("; supported are ")[0] for i in self.working}  # without the list
        return tuple(
            HostNode(node.name or node.output[0], node.op_type, why[i], self.macs[i], i in refused)
            for i, node in enumerate(self.nodes)
            if i in why and i not in chosen
        )

    def _type(self, name: str) -> ValueInfoProto:
        return self.types.get(name, ValueInfoProto(name=name))


def _sized(tensors: Iterable[tuple[int, tuple[int, ...]]], integers: bool) -> int:
    """Bytes of those that the NPU has as integers, or how many values all others have."""
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


def _blamed(parts: _Parts, npu: ModelProto, numbers: list[int], check: Trial, handlers: Handlers, able: Abilities | None) -> dict[int, str]:
    """Which nodes of a trial go to the host: those that are refused, or the views before them where these are what is wrong."""
    blamed: dict[int, str] = {}
    view_of = {number: i for i in check.views for number in parts.together(numbers[i])}
    maker = {name: number for number in numbers for name in parts.nodes[number].output}

    def lies(name: str) -> int | None:
        """The view that says how a tensor lies; integers lie as the floats that they are made of."""
        while (number := maker.get(name, -1)) >= 0:
            if number in view_of or parts.nodes[number].op_type not in _ENDS:
                return view_of.get(number)
            name = parts.nodes[number].input[0]
        return None

    for i, why in check.refused.items():
        members = sorted(parts.together(numbers[i]))
        views = {view for member in members for name in parts.nodes[member].input if (view := lies(name)) is not None}
        if views and not trial(parts.extract(members), handlers, able).refused:
            blamed |= dict.fromkeys(views, f"{label(npu.graph.node[i])} cannot read its result where it lies on the NPU")
        else:
            blamed[i] = why
    return blamed


def _constants(model: ModelProto, excluded: Collection[int]) -> dict[str, Array]:
    """Every tensor that is known: initialisers, and what nodes make of them, but for those of some numbers."""
    state = Translator(model)
    for i, node in enumerate(model.graph.node):
        if node.domain in ("", "ai.onnx") and i not in excluded:
            fold(state, node, attributes(node))
    return state.constants
