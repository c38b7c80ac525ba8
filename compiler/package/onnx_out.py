"""Compiled ONNX file: the original model, with the containers of its subgraphs inside.

Nodes of the host stay unchanged, before, between and after the nodes that replace subgraphs.

The file is written field by field: protobuf merges parts of a message.  So neither the weights nor the containers are copied into a
second model or serialised into one long string (VGG-19: 575 MB and 290 MB).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from compiler.frontend.onnx_io.large_constants import ExternalData
from compiler.frontend.onnx_io.protobuf_wire import field_head, tensor_pieces
from compiler.frontend.partition.partition import Partition, Subgraph
from simulator.npu.container import Container
from simulator.npu.container_file import VERSION as CONTAINER_VERSION
from simulator.npu.container_file import decode
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.npu.files import atomic_write
from simulator.npu.parts import BLOCK_BYTES
from simulator.onnx_names import ATTRIBUTE, DOMAIN, EP_ATTRIBUTE, EP_DOMAIN, EP_OP, SEAL_HEAD, SEAL_KEY, Style, names_read

Chunk = bytes | memoryview

_LIMIT_BYTES = 2**31 - 1  # limit of a protobuf message
_FUNCTION_IR_VERSION = 8  # the first one with model-local functions


class PackedSubgraph(NamedTuple):
    """Subgraph with its container.  data: bytes of the container."""

    piece: Subgraph
    container: Container
    data: tuple[Chunk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.data))


def write_onnx(part: Partition, containers: Sequence[bytes], out_path: str | Path, style: Style = "function", origin: str = "") -> None:
    """Write a model with the containers of its subgraphs to `out_path`, atomically.  origin: file name of the model.

    function: a node of the model-local function `tilefarm.Partition<k>` per subgraph; the body is the subgraph, and the attribute
    `container` is ignored by other runtimes.  Weights stay initialisers of the main graph and are inputs of the function.
    epcontext: a node com.microsoft::EPContext per subgraph, all containers inside the first one; no body, and only the weights of host
    nodes.  epcontext-external: as `epcontext`, but with the containers in `<name>_tilefarm.bin` beside the file, which is written first.

    Models are not changed.  Raises `ContainerError` for a container that cannot be decoded, `BadInputError` where it belongs to another
    model's inputs and outputs or the file would pass 2 GB, `UnsupportedError` for a model that is compiled already.
    """
    write_packed(_compiled(part, containers), part, out_path, style, origin)


def write_packed(
    compiled: Sequence[PackedSubgraph], part: Partition, out_path: str | Path, style: Style = "function", origin: str = ""
) -> None:
    """Write a compiled file as `write_onnx`, from decoded containers."""
    for entry in compiled:
        _check_ports(entry.piece.npu.graph, entry.container)
    path = Path(out_path)
    if style == "function":
        chunks = _with_containers(part, compiled)
    else:
        file = context_file(path) if style == "epcontext-external" else None
        chunks = _epcontext_style(part, compiled, origin, file)
    shorter = "epcontext-external leaves weights and containers out" if style == "epcontext" else "epcontext leaves the weights out"
    _check_size(chunks, out_path, f"style {shorter}")
    if style == "epcontext-external":
        atomic_write(path.parent / context_file(path), [chunk for entry in compiled for chunk in entry.data])
    atomic_write(path, chunks)


def write_body(part: Partition, out_path: str | Path) -> None:
    """Write a file of style function without containers, which stock onnxruntime runs, with the subgraphs marked.

    Raises `BadInputError` where it would pass 2 GB, `UnsupportedError` as `write_onnx`.
    """
    chunks = _function_style(part, [[] for _ in part.pieces])
    _check_size(chunks, out_path, "its weights alone are too large to run it elsewhere")
    atomic_write(Path(out_path), chunks)


@contextmanager
def file_with_body(part: Partition, compiled: Path, style: Style, folder: Path | None = None) -> Iterator[Path]:
    """Path of a file with the model of a compiled file: itself, or a temporary one for styles without it.  Raises as `write_body`."""
    if style == "function":
        yield compiled
        return
    with TemporaryDirectory(prefix="tilefarm-", dir=folder) as temporary:
        write_body(part, Path(temporary) / "body.onnx")
        yield Path(temporary) / "body.onnx"


def onnx_bytes(part: Partition, containers: Sequence[bytes]) -> bytes:
    """Bytes of the file that `write_onnx` writes in style function.  Raises as `write_onnx`."""
    compiled = _compiled(part, containers)
    for entry in compiled:
        _check_ports(entry.piece.npu.graph, entry.container)
    return b"".join(_with_containers(part, compiled))


def _check_size(chunks: Sequence[Chunk], out_path: str | Path, instead: str) -> None:
    size = sum(len(chunk) for chunk in chunks)
    if size > _LIMIT_BYTES:
        raise BadInputError(f"{out_path}: {size:,} bytes, an ONNX file holds {_LIMIT_BYTES:,}; {instead}")


def _compiled(part: Partition, containers: Sequence[bytes]) -> list[PackedSubgraph]:
    return [PackedSubgraph(piece, decode(data), (data,)) for piece, data in zip(part.pieces, containers, strict=True)]


def context_file(path: Path) -> str:
    """Name of the file of the containers, in the folder of `path`, by onnxruntime's guidelines."""
    return f"{path.stem}_{DOMAIN}.bin"


def variant_table(container: Container) -> str:
    """JSON for people and other tools: level -> remaining DDR, plan, same_as, cycles at every level; the controller's table.

    This project does not read it.
    """
    rows = {
        v.level: {
            "ddr": container.machine.contention[v.level].model_dump(),
            "plan": v.plan_digest,
            "same_as": container.same_as(v.level),
            "variant_cycles": dict(v.cycles),
        }
        for v in container.variants
    }
    machine = {"machine": container.machine.name, "machine_digest": container.machine.digest}
    return json.dumps({**machine, "levels": rows, "controller": None if container.controller is None else container.controller.dump()})


def _check_ports(graph: GraphProto, container: Container) -> None:
    """Raise `BadInputError` where names or positions of ports differ from the graph's."""
    weights = {tensor.name for tensor in graph.initializer}
    for kind, ports in (("input", graph.input), ("output", graph.output)):
        graph_ports = [port.name for port in ports if port.name not in weights]
        container_ports = [b.name for b in container.memory.buffers if b.kind == kind]
        if graph_ports != container_ports:
            raise BadInputError(f"container: its {kind}s are {container_ports}, the model's are {graph_ports}")


# --- style function ------------------------------------------------------------------------------------------------


def _with_containers(part: Partition, compiled: Sequence[PackedSubgraph]) -> list[Chunk]:
    return _function_style(part, [_container_attributes(entry) for entry in compiled], compiled)


def _function_style(part: Partition, attributes: Sequence[list[Chunk]], compiled: Sequence[PackedSubgraph] = ()) -> list[Chunk]:
    """File of style function.  attributes: serialised fields of each subgraph's node.  compiled: the subgraphs with containers in them."""
    model = part.model
    if any(f.domain == DOMAIN for f in model.functions) or any(n.domain == DOMAIN for n in model.graph.node):
        raise UnsupportedError("model: it is compiled already (a node or function of domain tilefarm); compile the original")
    host = _Host(part)
    shell = _shell(part, host)
    shell.ir_version = max(model.ir_version, _FUNCTION_IR_VERSION)
    shell.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    shell.functions.extend(model.functions)
    bodies: list[list[Chunk]] = []
    weights_by_name: dict[str, TensorProto] = {}
    for piece, fields in zip(part.pieces, attributes, strict=True):
        function, weights = _function(model, piece)
        shell.functions.append(function)
        weights_by_name |= {tensor.name: tensor for tensor in weights}
        node = NodeProto(op_type=piece.name, domain=DOMAIN, name=piece.name, input=function.input, output=function.output)
        bodies.append(_field(GraphProto, "node", [node.SerializeToString(deterministic=True), *fields]))
    return _file(shell, bodies, host, list(weights_by_name.values()), part.data, compiled)


def _function(model: ModelProto, piece: Subgraph) -> tuple[FunctionProto, list[TensorProto]]:
    """Graph of the subgraph as a function, and the weights among its inputs."""
    graph = piece.npu.graph
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
    function = FunctionProto(name=piece.name, domain=DOMAIN, input=[*inputs, *(t.name for t in passed)], output=outputs)
    function.doc_string = "The original graph.  The compiled programs are in the attribute `container` of the node."
    function.attribute.extend([ATTRIBUTE, "notes"])
    function.opset_import.extend(model.opset_import)
    function.node.extend(graph.node)
    return function, passed


def _container_attributes(entry: PackedSubgraph) -> list[Chunk]:
    notes = NodeProto(attribute=[helper.make_attribute("notes", variant_table(entry.container))])
    attribute = AttributeProto(name=ATTRIBUTE, type=AttributeProto.TENSOR)
    tensor = TensorProto(name=ATTRIBUTE, data_type=TensorProto.UINT8, dims=[entry.size_bytes])
    body = _field(TensorProto, "raw_data", entry.data)
    body = _field(AttributeProto, "t", [tensor.SerializeToString(), *body])
    return [notes.SerializeToString(deterministic=True), *_field(NodeProto, "attribute", [attribute.SerializeToString(), *body])]


# --- style epcontext -----------------------------------------------------------------------------------------------


def _epcontext_style(part: Partition, compiled: Sequence[PackedSubgraph], origin: str, file: str | None) -> list[Chunk]:
    """File by onnxruntime's EP-context design (docs/run-folder.md): one context for all nodes, stored in the first one."""
    host = _Host(part)
    shell = _shell(part, host)
    if host.nodes:
        shell.functions.extend(part.model.functions)
    if all(opset.domain != EP_DOMAIN for opset in shell.opset_import):
        shell.opset_import.append(helper.make_opsetid(EP_DOMAIN, 1))
    payload: list[Chunk] = [chunk for entry in compiled for chunk in entry.data] if file is None else [file.encode()]
    bodies = [_epcontext_node(entry, origin, file is None, payload if k == 0 else None) for k, entry in enumerate(compiled)]
    return _file(shell, bodies, host, [], part.data, compiled)


def _epcontext_node(entry: PackedSubgraph, origin: str, embedded: bool, payload: list[Chunk] | None) -> list[Chunk]:
    """EPContext node of a subgraph.  payload: None where another node contains it."""
    container, name = entry.container, entry.piece.name
    node = helper.make_node(
        EP_OP,
        [b.name for b in container.memory.of_kind("input")],
        [port.name for port in entry.piece.npu.graph.output],
        name=name,
        domain=EP_DOMAIN,
        main_context=int(payload is not None),
        embed_mode=int(embedded),
        source=DOMAIN,
        ep_sdk_version=f"container {CONTAINER_VERSION}",
        hardware_architecture=container.machine.name,
        partition_name=name,
        notes=variant_table(container),
        max_size=container.memory.size_blocks * BLOCK_BYTES,
        **({"onnx_model_filename": origin} if origin else {}),
    )
    body: list[Chunk] = []
    if payload is not None:
        cache = AttributeProto(name=EP_ATTRIBUTE, type=AttributeProto.STRING)
        body = _field(NodeProto, "attribute", [cache.SerializeToString(), *_field(AttributeProto, "s", payload)])
    return _field(GraphProto, "node", [node.SerializeToString(deterministic=True), *body])


# --- both ------------------------------------------------------------------------------------------------------------


class _Host:
    """Host nodes by stage: stage s depends on subgraph s - 1 and on no later one."""

    def __init__(self, part: Partition) -> None:
        graph = part.model.graph
        reads = [names_read([node]) for node in graph.node]
        producer = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
        inside = {i for piece in part.pieces for i in piece.inside}
        pending = [port.name for port in (*graph.output, *(port for piece in part.pieces for port in piece.npu.graph.input))]
        needed: set[int] = set()  # host nodes that an output or a subgraph depends on
        while pending:
            i = producer.get(pending.pop())
            if i is not None and i not in needed and i not in inside:
                needed.add(i)
                pending += reads[i]
        stage_of = {port.name: k + 1 for k, piece in enumerate(part.pieces) for port in piece.npu.graph.output}
        self.stages: list[list[NodeProto]] = [[] for _ in range(len(part.pieces) + 1)]
        for i in sorted(needed):
            stage = max((stage_of.get(name, 0) for name in reads[i]), default=0)
            self.stages[stage].append(graph.node[i])
            stage_of |= dict.fromkeys(graph.node[i].output, stage)
        self.reads = names_read(self.nodes) | (set() if part.whole else {port.name for port in graph.output})
        self._graph = graph

    def weights(self, written_names: set[str]) -> list[TensorProto]:
        return [tensor for tensor in self._graph.initializer if tensor.name in self.reads - written_names]

    @property
    def nodes(self) -> list[NodeProto]:
        return [node for stage in self.stages for node in stage]


def _shell(part: Partition, host: _Host) -> ModelProto:
    """Model up to the node of the first subgraph, without weights and without types of tensors inside subgraphs."""
    model = part.model
    shell = ModelProto(
        ir_version=model.ir_version,
        producer_name="tilefarm",
        model_version=model.model_version,
        domain=model.domain,
        doc_string=model.doc_string,
        opset_import=model.opset_import,
        metadata_props=[entry for entry in model.metadata_props if entry.key != SEAL_KEY],
    )
    shell.graph.name = model.graph.name or "graph"
    shell.graph.doc_string = model.graph.doc_string
    weights = {tensor.name for tensor in model.graph.initializer}
    shell.graph.input.extend(port for port in model.graph.input if port.name not in weights)
    shell.graph.output.extend(model.graph.output)
    ports = {port.name for port in model.graph.output}
    border = host.reads | {name for node in host.nodes for name in node.output}
    border |= {port.name for piece in part.pieces for port in (*piece.npu.graph.input, *piece.npu.graph.output)}
    shell.graph.value_info.extend(entry for entry in model.graph.value_info if entry.name in border and entry.name not in ports)
    shell.graph.node.extend(host.stages[0])
    return shell


def _file(
    shell: ModelProto, bodies: Sequence[list[Chunk]], host: _Host, passed: Sequence[TensorProto], data: ExternalData,
    compiled: Sequence[PackedSubgraph],
) -> list[Chunk]:  # fmt: skip
    """All chunks of the file; repeated fields in order.  data: raw data of weights.  compiled: containers excluded from the seal."""
    chunks: list[Chunk] = [shell.SerializeToString(deterministic=True)]
    for body, stage_nodes in zip(bodies, host.stages[1:], strict=True):
        chunks += _field(ModelProto, "graph", body)
        if stage_nodes:
            chunks += _field(ModelProto, "graph", [GraphProto(node=stage_nodes).SerializeToString(deterministic=True)])
    for weight in (*passed, *host.weights({weight.name for weight in passed})):
        pieces = tensor_pieces(weight, data.get(weight.name))
        chunks += _field(ModelProto, "graph", _field(GraphProto, "initializer", pieces))
    digest, container_chunks = hashlib.sha256(), {id(chunk) for entry in compiled for chunk in entry.data}
    for chunk in chunks:
        if id(chunk) not in container_chunks:
            digest.update(chunk)
    return [*chunks, SEAL_HEAD + digest.hexdigest().encode()]


def _field(message: type, name: str, body: Sequence[Chunk]) -> list[Chunk]:
    """Length-delimited field on the wire: tag, length, and the chunks of its body."""
    return [field_head(message, name, sum(len(piece) for piece in body)), *body]
