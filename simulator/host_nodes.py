"""Host nodes of a compiled ONNX file: the nodes around its containers, unsupported by the NPU, run by onnxruntime unchanged.

Nodes that depend on no subgraph run before the first one; nodes that depend on the first but not the second run between the two; and so on.
All run in this process on one thread.  Bodies of compiled functions are dropped on reading: the containers replace them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto

from simulator.exact_onnxruntime import REFUSALS, exact_session
from simulator.npu.errors import BadInputError
from simulator.onnx_names import DOMAIN, EP_DOMAIN, EP_OP, names_read

Array = NDArray[Any]
Values = dict[str, Array]
MAX_VALUES = 1 << 30  # limit of one input


@dataclass(frozen=True)
class HostPort:
    """An input or output of the model.  shape: None for an output of unknown shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


class HostNodes:
    """inputs, outputs: tensors of the whole model.  pieces: (inputs, outputs) of every container's node, in the file's order.

    Raises `BadInputError` if the file is no model, or has another number of containers.
    """

    def __init__(self, data: bytes, where: str, pieces: int) -> None:
        try:
            model = onnx.load_model_from_string(data)
        except (DecodeError, ValueError) as error:
            raise BadInputError(f"{where}: not an ONNX file, or damaged ({' '.join(str(error).split())[:200]})") from None
        graph = model.graph
        compiled = [node for node in graph.node if node.domain == DOMAIN or (node.domain == EP_DOMAIN and node.op_type == EP_OP)]
        if len(compiled) != pieces:
            raise BadInputError(f"{where}: {len(compiled)} compiled nodes, it holds {pieces} containers")
        self.where = where
        weights = {tensor.name for tensor in graph.initializer}
        self.inputs = tuple(_port(item, where) for item in graph.input if item.name not in weights)
        self.outputs = tuple(_port(item, where) for item in graph.output)
        for port in self.inputs:
            if port.shape is None or math.prod(port.shape) > MAX_VALUES:
                raise BadInputError(f"{where}: input {port.name!r} has shape {port.shape}; accepted: at most {MAX_VALUES} values")
        self.pieces = tuple(([name for name in node.input if name not in weights], list(node.output)) for node in compiled)
        # nodes between the pieces, with the weights that they read
        stages = _stages(graph.node, compiled)
        self._model = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        self._model.functions.extend(f for f in model.functions if f.domain != DOMAIN)
        outputs = {item.name for item in graph.output}
        read = names_read(node for nodes in stages for node in nodes) | outputs
        self._weights = [tensor for tensor in graph.initializer if tensor.name in read]
        self._stages = []
        for s, nodes in enumerate(stages):
            stage_outputs = {name for node in nodes for name in node.output} | (outputs & weights if s == 0 else set())
            later = names_read(node for later_nodes in stages[s + 1 :] for node in later_nodes)
            wanted = outputs | later | {name for inputs, _ in self.pieces[s:] for name in inputs}
            self._stages.append(_Run(self, nodes, sorted((stage_outputs & wanted) - {""})))

    def run(self, stage: int, values: Mapping[str, Array]) -> Values:
        """Values, with outputs of the nodes before piece `stage`; stage len(pieces): nodes behind the last piece."""
        return self._stages[stage](dict(values))

    def nodes(self, stage: int) -> list[NodeProto]:
        """Nodes of a stage with used outputs."""
        return self._stages[stage].nodes if self._stages[stage].wanted else []

    def index_limit(self, name: str) -> int:
        """Upper limit of indices in an input: the shortest table that a Gather reads with them; 2 without any."""
        tables = {tensor.name: tensor for tensor in self._weights}
        lengths = []
        for node in (node for stage in self._stages for node in stage.nodes):
            if node.op_type == "Gather" and name in node.input[1:] and node.input[0] in tables:
                axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
                lengths += tables[node.input[0]].dims[axis:][:1]
        return max(1, min(lengths, default=2))


def _stages(nodes: Iterable[NodeProto], compiled: Sequence[NodeProto]) -> list[list[NodeProto]]:
    """Host nodes by the number of compiled nodes that must run before them."""
    stages: list[list[NodeProto]] = [[] for _ in range(len(compiled) + 1)]
    first_stage: dict[str, int] = {}  # name -> first stage in which the tensor exists
    pieces = 0
    for node in nodes:
        if any(node is compiled_node for compiled_node in compiled):
            pieces += 1
            first_stage |= dict.fromkeys(node.output, pieces)
        else:
            stage = max((first_stage.get(name, 0) for name in names_read([node])), default=0)
            stages[stage].append(node)
            first_stage |= dict.fromkeys(node.output, stage)
    return stages


class _Run:
    """Nodes of one stage as a model for onnxruntime, with input types of the first values."""

    def __init__(self, host: HostNodes, nodes: Sequence[NodeProto], wanted: Sequence[str]) -> None:
        self.host, self.nodes, self.wanted = host, list(nodes), list(wanted)
        self._session: Any = None
        self._names: list[str] = []

    def __call__(self, values: Values) -> Values:
        if not self.wanted:
            return values
        try:
            if self._session is None:
                self._session = self._load(values)
            outputs = self._session.run(self.wanted, {name: values[name] for name in self._names})
        except REFUSALS as error:
            line = " ".join(str(error).split())[:300]
            raise BadInputError(f"{self.host.where}: onnxruntime cannot run the nodes of the host: {line}") from None
        return values | dict(zip(self.wanted, outputs, strict=True))

    def _load(self, values: Values) -> Any:
        model = deepcopy(self.host._model)
        model.graph.name = "host"
        model.graph.node.extend(self.nodes)
        read = names_read(self.nodes)
        model.graph.initializer.extend(tensor for tensor in self.host._weights if tensor.name in read | set(self.wanted))
        initial = {tensor.name for tensor in model.graph.initializer}
        self._names = sorted(name for name in read if name in values and name not in initial)
        for name in self._names:
            dtype = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, values[name].shape))
        model.graph.output.extend(ValueInfoProto(name=name) for name in self.wanted)
        return exact_session(model)


def _port(item: ValueInfoProto, where: str) -> HostPort:
    kind = item.type.tensor_type
    is_static = kind.HasField("shape") and all(d.HasField("dim_value") and d.dim_value >= 0 for d in kind.shape.dim)
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    except KeyError:
        raise BadInputError(f"{where}: {item.name!r} has data type {kind.elem_type}; accepted: a tensor of a type that numpy has") from None
    return HostPort(item.name, dtype, tuple(int(d.dim_value) for d in kind.shape.dim) if is_static else None)
