"""ONNX graph of several frames of a model.

The frames are stacked along the first axis of inputs, outputs and the ports of subgraphs.  The body of a subgraph splits its
inputs, contains the nodes of one frame once per frame, and concatenates their outputs; so do host nodes.  Constants of the graph, such
as the shape of a Reshape, stay unchanged.  Nodes that depend on constants only are not copied.

New nodes and tensors have the prefix `OWNER.frame0/`, `OWNER.split/` or `OWNER.join/`, the owner being a subgraph or `Host`, so that the
original nodes can be restored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from onnx import ModelProto, NodeProto, ValueInfoProto, helper

from compiler.frontend.onnx_io.attributes import opset_of
from compiler.frontend.onnx_io.load import MAX_VALUES
from simulator.npu.errors import BadInputError
from simulator.onnx_names import FRAMES_KEY, names_read, refill

if TYPE_CHECKING:
    from compiler.frontend.partition.partition import Partition, Subgraph

_HOST = "Host"
_ADDED = re.compile(r"(?:Host|Partition\d+)\.(frame\d+|split|join)/(.*)", re.DOTALL)
_COUNTED_SPLITS = 18  # first opset in which Split requires the number of parts


def check_frames(model: ModelProto, frames: int) -> None:
    """Raise `BadInputError` where inputs or outputs have no axis for frames, or a tensor of all frames has too many values."""
    if frames == 1:
        return
    for tensor, least in (*((tensor, 2) for tensor in model.graph.input), *((tensor, 1) for tensor in model.graph.output)):
        _check_axes(tensor, least)
    for tensor in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if frames * math.prod(dim.dim_value for dim in tensor.type.tensor_type.shape.dim) > MAX_VALUES:
            raise BadInputError(f"frames {frames}: tensor {tensor.name!r} has more than {MAX_VALUES} values in all of them")


def add_frames(part: Partition, frames: int) -> Partition:
    """Partition with `frames` frames.  part: partition of one frame.

    Raises `BadInputError` where a tensor has no axis for frames, or an output depends on no input.
    """
    return part if frames == 1 else _Framing(part, frames).partition()


def frame_count(model: ModelProto) -> int:
    """Number of frames per run of a written model."""
    return next((int(entry.value) for entry in model.metadata_props if entry.key == FRAMES_KEY), 1)


def restore_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Original nodes of a model with frames."""
    frame_nodes = []
    for node in nodes:
        frame_name = _ADDED.fullmatch(node.name)
        if frame_name is not None and frame_name[1] != "frame0":
            continue
        copy = deepcopy(node)
        if frame_name is not None:
            copy.name = frame_name[2]
            _rename(copy, {name: match[2] for name in (*node.output, *names_read([node])) if (match := _ADDED.fullmatch(name))})
        frame_nodes.append(copy)
    return frame_nodes


def restore_ports(model: ModelProto, frames: int) -> None:
    """Restore input and output shapes of one frame, in place, in a model with the nodes of one frame."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for tensor in (*model.graph.input, *model.graph.output):
        dims = tensor.type.tensor_type.shape.dim
        if tensor.name not in weights and dims and dims[0].HasField("dim_value"):
            dims[0].dim_value //= frames
    del model.graph.value_info[:]


class _Framing:
    def __init__(self, part: Partition, frames: int) -> None:
        self.part, self.frames, graph = part, frames, part.model.graph
        self.live = {port.name for port in graph.input}  # tensors that differ between frames
        for node in graph.node:
            if names_read([node]) & self.live:
                self.live.update(name for name in node.output if name)
        for port in graph.output:
            if port.name not in self.live:
                raise BadInputError(f"output {port.name!r} depends on no input, so it is the same in all frames; leave it out")

    def partition(self) -> Partition:
        """Framed partition: host nodes in order, then the nodes of the subgraphs."""
        model, pieces = self.part.model, [self._piece(piece) for piece in self.part.pieces]
        npu_nodes = {i for piece in self.part.pieces for i in piece.inside}
        read_names = {port.name for piece in pieces for port in piece.graph.input} | {port.name for port in model.graph.output}
        host = _Copies(self, _HOST, opset_of(model))
        nodes = [copy for i, node in enumerate(model.graph.node) if i not in npu_nodes for copy in host.of(node, read_names)]
        subgraphs = []
        for piece, npu in zip(self.part.pieces, pieces, strict=True):
            numbers = range(len(nodes), len(nodes) + len(npu.graph.node))
            subgraphs.append(replace(piece, npu=npu, inside=frozenset(numbers)))
            nodes += npu.graph.node
        return replace(self.part, model=pieces[0] if self.part.whole else self._model(model, nodes), pieces=tuple(subgraphs))

    def _piece(self, piece: Subgraph) -> ModelProto:
        graph = piece.npu.graph
        for port in (*graph.input, *graph.output):
            _check_axes(port, 1)
        outputs = {port.name for port in graph.output}
        copies = _Copies(self, piece.name, opset_of(self.part.model))
        return self._model(piece.npu, [copy for node in graph.node for copy in copies.of(node, outputs)])

    def _model(self, model: ModelProto, nodes: Sequence[NodeProto]) -> ModelProto:
        """Copy of a model with other nodes, and with shapes of all frames."""
        framed_model = deepcopy(model)
        refill(framed_model.graph.node, nodes)
        for port in (*framed_model.graph.input, *framed_model.graph.output, *framed_model.graph.value_info):
            dims = port.type.tensor_type.shape.dim
            if port.name in self.live and dims and dims[0].HasField("dim_value"):
                dims[0].dim_value *= self.frames
        framed_model.metadata_props.add(key=FRAMES_KEY, value=str(self.frames))
        return framed_model


class _Copies:
    """Copies of the nodes of one owner, frame by frame."""

    def __init__(self, framing: _Framing, owner: str, opset: int) -> None:
        self.framing, self.owner, self.opset = framing, owner, opset
        self.split_tensors = set[str]()  # tensors with a copy per frame

    def of(self, node: NodeProto, joined_names: set[str]) -> list[NodeProto]:
        """Copies of a node, after the splits of their inputs and before the concatenation of the tensors `joined_names`."""
        live, frames = self.framing.live, self.framing.frames
        inputs = sorted(names_read([node]) & live)
        if not inputs:
            return [node]
        copies = [self._split(name) for name in inputs if name not in self.split_tensors]
        self.split_tensors.update(inputs, (name for name in node.output if name))
        names = [name for name in (*inputs, *node.output) if name]
        for frame in range(frames):
            copy = deepcopy(node)
            copy.name = self._of(frame, node.name or node.output[0])
            _rename(copy, {name: self._of(frame, name) for name in names})
            copies.append(copy)
        return copies + [self._join(name) for name in node.output if name in joined_names]

    def _of(self, frame: int, name: str) -> str:
        return f"{self.owner}.frame{frame}/{name}"

    def _split(self, name: str) -> NodeProto:
        parts = [self._of(frame, name) for frame in range(self.framing.frames)]
        counted = {"num_outputs": len(parts)} if self.opset >= _COUNTED_SPLITS else {}
        return helper.make_node("Split", [name], parts, f"{self.owner}.split/{name}", axis=0, **counted)

    def _join(self, name: str) -> NodeProto:
        parts = [self._of(frame, name) for frame in range(self.framing.frames)]
        return helper.make_node("Concat", parts, [name], f"{self.owner}.join/{name}", axis=0)


def _check_axes(tensor: ValueInfoProto, least: int) -> None:
    shape = [dim.dim_value or dim.dim_param for dim in tensor.type.tensor_type.shape.dim]
    if len(shape) < least:
        raise BadInputError(f"{tensor.name!r} of shape {shape}: has no first axis for frames; {least} or more axes are supported")


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename tensors of a node, in place, also in its inner graphs."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner_node in graph.node:
                _rename(inner_node, names)
            for port in graph.output:
                port.name = names.get(port.name, port.name)
