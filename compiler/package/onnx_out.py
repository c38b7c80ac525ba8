"""The compiled ONNX file: the model as it was, and the container inside it.

Nodes that the NPU does not run stay what they were, before and after the one that stands for the partition.

The file is written field by field, as protobuf allows: a message given in several pieces is the pieces merged.  So neither the weights
nor the container are copied into a second model or serialised into one long string (VGG-19: 575 MB and 290 MB).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from compiler.frontend.partition import Partition
from simulator.npu.container import Container, decode
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.npu.files import atomic_write
from simulator.onnx_container import ATTRIBUTE, DOMAIN, EP_ATTRIBUTE, EP_DOMAIN, EP_OP, names_read

Style = Literal["function", "epcontext"]
Chunk = bytes | memoryview

PARTITION = "Partition0"
_LIMIT_BYTES = 2**31 - 1  # of a protobuf message
_FUNCTION_IR_VERSION = 8  # the first one with model-local functions


def write_onnx(part: Partition, container_bytes: bytes, out_path: str | Path, style: Style = "function") -> None:
    """Write a model with the container of its partition to `out_path`, whole or not at all.

    function: one node of the model-local function `tilefarm.Partition0`, whose body is the partition's graph and whose attribute
    `container` no other runtime looks at.  Weights stay initialisers of the main graph and are inputs of the function.
    epcontext: one node com.microsoft::EPContext with the container inside; no body, no weights but those of host nodes.

    Models are not changed.  Raises `ContainerError` for a container that cannot be decoded, `BadInputError` where it belongs to another
    model's inputs and outputs or the file would pass 2 GB, `UnsupportedError` for a model that is compiled already.
    """
    container = decode(container_bytes)
    _check_ports(part.npu.graph, container)
    chunks = (_function_style if style == "function" else _epcontext_style)(part, container, container_bytes)
    size = sum(len(chunk) for chunk in chunks)
    if size > _LIMIT_BYTES:
        raise BadInputError(f"{out_path}: {size:,} bytes, an ONNX file holds {_LIMIT_BYTES:,}; style epcontext leaves the weights out")
    atomic_write(Path(out_path), chunks)


def variant_table(container: Container) -> str:
    """JSON for people and other tools: level -> share, plan, same_as, cycles at every level.  Nothing here reads it back."""
    rows = {
        v.level: {
            "ddr_share": v.share_units / 65536,
            "plan": v.plan_digest,
            "same_as": container.same_as(v.level),
            "variant_cycles": dict(v.cycles),
        }
        for v in container.variants
    }
    return json.dumps({"machine": container.machine.name, "machine_digest": container.machine.digest, "levels": rows})


def _check_ports(graph: GraphProto, container: Container) -> None:
    weights = {tensor.name for tensor in graph.initializer}
    for kind, ports in (("input", graph.input), ("output", graph.output)):
        mine = sorted(port.name for port in ports if port.name not in weights)
        theirs = sorted(b.name for b in container.memory.buffers if b.kind == kind)
        if mine != theirs:
            raise BadInputError(f"container: its {kind}s are {theirs}, the model's are {mine}")


# --- style function ------------------------------------------------------------------------------------------------


def _function_style(part: Partition, container: Container, container_bytes: bytes) -> list[Chunk]:
    model, graph = part.model, part.npu.graph
    if any(f.domain == DOMAIN for f in model.functions) or any(n.domain == DOMAIN for n in model.graph.node):
        raise UnsupportedError("model: it is compiled already (a node or function of domain tilefarm); compile the original")
    if graph.sparse_initializer:
        raise UnsupportedError(f"model: sparse initialiser {graph.sparse_initializer[0].values.name!r}; make it dense")
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [port.name for port in graph.input if port.name not in weights]
    used = names_read(graph.node)
    passed = [tensor for tensor in graph.initializer if tensor.name in used]
    outputs = [port.name for port in graph.output]
    through = set(outputs) & (weights | set(inputs))
    if through:
        raise UnsupportedError(f"model: output {min(through)!r} is also an input or an initialiser; put an Identity between")

    function = FunctionProto(name=PARTITION, domain=DOMAIN, input=[*inputs, *(t.name for t in passed)], output=outputs)
    function.doc_string = "The original graph.  The compiled programs are in the attribute `container` of the node."
    function.attribute.extend([ATTRIBUTE, "notes"])
    function.opset_import.extend(model.opset_import)
    function.node.extend(graph.node)

    node = NodeProto(op_type=PARTITION, domain=DOMAIN, name=PARTITION, input=function.input, output=outputs)
    node.attribute.append(helper.make_attribute("notes", variant_table(container)))
    container_attribute = AttributeProto(name=ATTRIBUTE, type=AttributeProto.TENSOR)
    tensor = TensorProto(name=ATTRIBUTE, data_type=TensorProto.UINT8, dims=[len(container_bytes)])

    host = _Host(part)
    rest = _shell(part, host)
    rest.ir_version = max(model.ir_version, _FUNCTION_IR_VERSION)
    rest.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    rest.functions.extend(model.functions)
    rest.functions.append(function)
    body = _field(TensorProto, "raw_data", [container_bytes])
    body = _field(AttributeProto, "t", [tensor.SerializeToString(), *body])
    body = _field(NodeProto, "attribute", [container_attribute.SerializeToString(), *body])
    body = _field(GraphProto, "node", [node.SerializeToString(deterministic=True), *body])
    return _file(rest, body, host, passed)


# --- style epcontext -----------------------------------------------------------------------------------------------


def _epcontext_style(part: Partition, container: Container, container_bytes: bytes) -> list[Chunk]:
    """Attributes as onnxruntime's EP-context design lists them."""
    node = helper.make_node(
        EP_OP,
        [b.name for b in container.memory.of_kind("input")],
        [port.name for port in part.npu.graph.output],
        name=PARTITION,
        domain=EP_DOMAIN,
        main_context=1,
        embed_mode=1,
        source=DOMAIN,
        hardware_architecture=container.machine.name,
        partition_name=PARTITION,
        notes=variant_table(container),
    )
    cache = AttributeProto(name=EP_ATTRIBUTE, type=AttributeProto.STRING)
    host = _Host(part)
    rest = _shell(part, host)
    if host.nodes:
        rest.functions.extend(part.model.functions)
    if all(opset.domain != EP_DOMAIN for opset in rest.opset_import):
        rest.opset_import.append(helper.make_opsetid(EP_DOMAIN, 1))
    body = [cache.SerializeToString(), *_field(AttributeProto, "s", [container_bytes])]
    body = _field(GraphProto, "node", [node.SerializeToString(deterministic=True), *_field(NodeProto, "attribute", body)])
    return _file(rest, body, host, [])


# --- both ------------------------------------------------------------------------------------------------------------


class _Host:
    """Nodes around the partition, in their order: those that do not depend on it, and those that do."""

    def __init__(self, part: Partition) -> None:
        graph = part.model.graph
        reads = [names_read([node]) for node in graph.node]
        producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
        todo = [port.name for port in (*graph.output, *part.npu.graph.input)]
        needed: set[int] = set()
        while todo:
            i = producer.get(todo.pop())
            if i is not None and i not in needed and i not in part.inside:
                needed.add(i)
                todo += reads[i]
        late = {port.name for port in part.npu.graph.output}
        self.before: list[NodeProto] = []
        self.after: list[NodeProto] = []
        for i in sorted(needed):
            depends = bool(reads[i] & late)
            (self.after if depends else self.before).append(graph.node[i])
            late.update(graph.node[i].output if depends else ())
        self.reads = names_read(self.nodes) | (set() if part.npu is part.model else {port.name for port in graph.output})
        self._graph = graph

    def weights(self, there: set[str]) -> list[TensorProto]:
        """Initialisers that host nodes read and that are not there already."""
        return [tensor for tensor in self._graph.initializer if tensor.name in self.reads - there]

    @property
    def nodes(self) -> list[NodeProto]:
        return self.before + self.after


def _shell(part: Partition, host: _Host) -> ModelProto:
    """The model up to the partition's node, without weights and the types of tensors inside it, which are not in this graph any more."""
    model = part.model
    shell = ModelProto(
        ir_version=model.ir_version,
        producer_name="tilefarm",
        model_version=model.model_version,
        domain=model.domain,
        doc_string=model.doc_string,
        opset_import=model.opset_import,
        metadata_props=model.metadata_props,
    )
    shell.graph.name = model.graph.name or "graph"
    shell.graph.doc_string = model.graph.doc_string
    weights = {tensor.name for tensor in model.graph.initializer}
    shell.graph.input.extend(port for port in model.graph.input if port.name not in weights)
    shell.graph.output.extend(model.graph.output)
    ports = {port.name for port in model.graph.output}
    border = host.reads | {name for node in host.nodes for name in node.output}
    shell.graph.value_info.extend(item for item in model.graph.value_info if item.name in border and item.name not in ports)
    shell.graph.node.extend(host.before)
    return shell


def _file(shell: ModelProto, partition: list[Chunk], host: _Host, passed: Sequence[TensorProto]) -> list[Chunk]:
    """All pieces; fields that repeat are in the order in which they come."""
    chunks: list[Chunk] = [shell.SerializeToString(deterministic=True), *_field(ModelProto, "graph", partition)]
    if host.after:
        chunks += _field(ModelProto, "graph", [GraphProto(node=host.after).SerializeToString(deterministic=True)])
    for weight in (*passed, *host.weights({weight.name for weight in passed})):
        chunks += _field(ModelProto, "graph", _field(GraphProto, "initializer", [weight.SerializeToString()]))
    return chunks


def _field(message: type, name: str, body: Sequence[Chunk]) -> list[Chunk]:
    """A length-delimited field on the wire: its tag, its length and its body, the body in pieces."""
    number = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    head = bytes(_varint(number << 3 | 2)) + bytes(_varint(sum(len(piece) for piece in body)))
    return [head, *body]


def _varint(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
