"""Containers inside a compiled ONNX file, one per subgraph, found without parsing the model around them.

A container is in one of two places: attribute `container` (a uint8 tensor) of a node of domain `tilefarm`, or the context of nodes
`com.microsoft::EPContext` whose `source` is `tilefarm` (rules: docs/run-folder.md).  A context has the containers of all subgraphs in
sequence; each starts with its length.  It is in `ep_cache_context` of the node with main_context = 1, or in the file named there
(embed_mode = 0).

All other bytes, such as bodies of compiled functions and weights, are under a digest in the file's last field
(`simulator.onnx_names.SEAL_KEY`).  A file saved by another program has another form, and no digest to compare with.

The file is walked as protobuf fields (encoding: protobuf.dev/programming-guides/encoding): the original weights, most of the file, are
skipped and never copied.  Field numbers are those of onnx.proto, which never change.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from simulator.npu.container_file import MAGIC, container_lengths
from simulator.npu.errors import BadInputError
from simulator.onnx_names import ATTRIBUTE, DOMAIN, EP_ATTRIBUTE, EP_DOMAIN, EP_OP, SEAL_BYTES, SEAL_HEAD, SEAL_KEY

# message -> field numbers of onnx.proto
_MODEL_PRODUCER, _MODEL_DOMAIN, _MODEL_VERSION, _MODEL_DOC, _MODEL_GRAPH, _MODEL_METADATA = 2, 4, 5, 6, 7, 14
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_DOC, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 2, 10, 11, 12, 13
_INFO_NAME, _INFO_TYPE, _TYPE_TENSOR, _TENSOR_TYPE_KIND = 1, 2, 1, 1
_NODE_NAME, _NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 3, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_TENSOR = 1, 3, 4, 5
_TENSOR_RAW_DATA = 9
_ENTRY_KEY, _ENTRY_VALUE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_TEXT = 1 << 20


def read_container(path: str | os.PathLike[str]) -> bytes:
    """Bytes of the one container in a compiled ONNX file (`simulator.npu.container_file.decode` checks them).

    Raises `BadInputError` for a file that cannot be read, is no ONNX model, or holds no container or several.
    """
    containers = find_containers(read_file(path), str(path), Path(path).parent)
    if len(containers) != 1:
        raise BadInputError(f"{path}: holds {len(containers)} containers, expected one")
    return containers[0][1]


def read_file(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of a file, memory-mapped.  Raises `BadInputError`."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadInputError(f"{path}: empty; expected a compiled ONNX model")
            # left to the collector: views into it outlive an exception that passes through here
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(mapped)
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from None


def is_only_node(view: memoryview, where: str, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether a container with these ports is the file's only node, with the graph's inputs and outputs in this order."""
    graphs = list(_submessages(view, _MODEL_GRAPH, where))
    nodes = [node for graph in graphs for node in _submessages(graph, _GRAPH_NODE, where)]
    ports = [
        [_text(port, _INFO_NAME, where, _MOST_TEXT) for graph in graphs for port in _submessages(graph, kind, where)]
        for kind in (_GRAPH_INPUT, _GRAPH_OUTPUT)
    ]
    return len(nodes) == 1 and ports == [[name.encode() for name in names] for names in (inputs, outputs)]


def has_body(view: memoryview, where: str) -> bool:
    """Whether a compiled ONNX file holds the model itself, as functions."""
    nodes = (node for graph in _submessages(view, _MODEL_GRAPH, where) for node in _submessages(graph, _GRAPH_NODE, where))
    return any(_text(node, _NODE_DOMAIN, where) == DOMAIN.encode() for node in nodes)


def find_containers(view: memoryview, where: str, folder: Path | None = None) -> list[tuple[str, bytes]]:
    """(name of the node, bytes) of every container in the bytes of an ONNX file, in the order of the nodes.

    folder: folder of the file, for external contexts.  A compiled file without containers belongs to a model that runs on the host.
    Raises `BadInputError` for a file that is no ONNX model or not compiled, and for a missing external context.
    """
    containers: list[tuple[str, bytes]] = []
    contexts: list[_Context] = []
    payloads: list[memoryview] = []
    for graph in _submessages(view, _MODEL_GRAPH, where):
        for node in _submessages(graph, _GRAPH_NODE, where):
            domain = _text(node, _NODE_DOMAIN, where)
            name = _text(node, _NODE_NAME, where).decode(errors="replace")
            if domain == DOMAIN.encode():
                bodies = list(_of_function(node, where))
                payloads += bodies
                containers += [(name, bytes(body)) for body in bodies]
            elif domain == EP_DOMAIN.encode() and _text(node, _NODE_OP_TYPE, where) == EP_OP.encode():
                context = _Context(node, name, where)
                contexts += [context] if context.source == DOMAIN.encode() else []
    payloads += [entry.payload for entry in contexts if entry.main and entry.embedded and entry.payload is not None]
    if contexts:
        containers += _of_contexts(contexts, where, folder)
    if not containers and not _is_sealed(view, where):
        raise BadInputError(f"{where}: holds no container: compile it first")
    for _, body in containers:
        if body[: len(MAGIC)] != MAGIC:
            raise BadInputError(f"{where}: its attribute is no container (starts with {body[: len(MAGIC)]!r})")
    _check_seal(view, payloads, where)
    return containers


def _is_sealed(view: memoryview, where: str) -> bool:
    """Whether this package wrote the file, even if another program saved it since."""
    at_end = view[-SEAL_BYTES:][: len(SEAL_HEAD)] == SEAL_HEAD
    return at_end or any(_text(entry, _ENTRY_KEY, where) == SEAL_KEY.encode() for entry in _submessages(view, _MODEL_METADATA, where))


def _check_seal(view: memoryview, payloads: Sequence[memoryview], where: str) -> None:
    """Check the digest in a file's last field.  Raises `BadInputError` if it differs or is missing."""
    sealed, seal = view[:-SEAL_BYTES], view[-SEAL_BYTES:]
    if seal[: len(SEAL_HEAD)] != SEAL_HEAD:
        if _is_sealed(view, where):
            return
        raise BadInputError(f"{where}: no digest of its model: cut short, or of an earlier version of tilefarm; compile it again")
    digest, offset = hashlib.sha256(), 0
    for payload in payloads:
        start = _address(payload) - _address(view) if payload else offset
        digest.update(sealed[offset:start])
        offset = start + len(payload)
    digest.update(sealed[offset:])
    if digest.hexdigest().encode() != seal[len(SEAL_HEAD) :]:
        raise BadInputError(f"{where}: damaged: its model is not the one whose digest it has; copy it again, or compile it again")


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _of_function(node: memoryview, where: str) -> Iterator[memoryview]:
    for attribute in _submessages(node, _NODE_ATTRIBUTE, where):
        if _text(attribute, _ATTRIBUTE_NAME, where) == ATTRIBUTE.encode():
            for tensor in _submessages(attribute, _ATTRIBUTE_TENSOR, where):
                yield from _submessages(tensor, _TENSOR_RAW_DATA, where)


class _Context:
    """Attributes of an EPContext node, with the defaults of the operator's schema."""

    def __init__(self, node: memoryview, name: str, where: str) -> None:
        attributes = {_text(a, _ATTRIBUTE_NAME, where): a for a in _submessages(node, _NODE_ATTRIBUTE, where)}
        self.name = name
        self.source = _string(attributes, b"source", where)
        self.main = _integer(attributes, b"main_context", where)
        self.embedded = _integer(attributes, b"embed_mode", where)
        self.payload: memoryview | None = None
        if EP_ATTRIBUTE.encode() in attributes:
            for body in _submessages(attributes[EP_ATTRIBUTE.encode()], _ATTRIBUTE_STRING, where):
                self.payload = body


def _of_contexts(contexts: list[_Context], where: str, folder: Path | None) -> list[tuple[str, bytes]]:
    """Containers of the EPContext nodes: the i-th node has the i-th container of the contexts, in order."""
    parts: list[bytes] = []
    for context in contexts:
        if context.main:
            if context.payload is None:
                raise BadInputError(f"{where}: EPContext {context.name!r} has main_context = 1 and no {EP_ATTRIBUTE}")
            data = context.payload if context.embedded else _external_file(bytes(context.payload[:_MOST_TEXT]), where, folder)
            parts += [bytes(data[start:stop]) for start, stop in container_lengths(data)]
    if len(parts) != len(contexts):
        raise BadInputError(f"{where}: {len(contexts)} EPContext nodes, their contexts hold {len(parts)} containers")
    return [(context.name, part) for context, part in zip(contexts, parts, strict=True)]


def _external_file(name: bytes, where: str, folder: Path | None) -> memoryview:
    """External file of a node.  Raises `BadInputError` unless it is in the model's folder or below it."""
    text = name.decode(errors="replace")
    if not is_inside(text):
        raise BadInputError(f"{where}: {EP_ATTRIBUTE} {text!r}: expected a path relative to the model, inside its folder")
    if folder is None:
        raise BadInputError(f"{where}: its context is in the file {text!r} beside it; open the model by its path")
    path = folder / text
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
        raise BadInputError(f"{where}: its context {path} is not there")
    return read_file(path)


def is_inside(path: str) -> bool:
    """Whether a path, by the rules of Windows or POSIX, stays in its base folder."""
    posix, windows = PurePosixPath(path), PureWindowsPath(path)
    absolute = posix.is_absolute() or windows.is_absolute() or bool(windows.drive or windows.root)
    return bool(path) and not absolute and ".." not in posix.parts and ".." not in windows.parts and "\0" not in path


def _string(attributes: dict[bytes, memoryview], name: bytes, where: str) -> bytes:
    return _text(attributes[name], _ATTRIBUTE_STRING, where) if name in attributes else b""


def _integer(attributes: dict[bytes, memoryview], name: bytes, where: str) -> int:
    """Integer attribute: 1 if it is absent, 0 if its value is omitted, as protobuf does with zeros."""
    if name not in attributes:
        return 1
    return next((value for number, value in _fields(attributes[name], where) if number == _ATTRIBUTE_INT and isinstance(value, int)), 0)


def tensor_kinds(view: memoryview, where: str) -> dict[str, int]:
    """onnx's type numbers of inputs, outputs and tensors between nodes, where the file has them."""
    kinds: dict[str, int] = {}
    for graph in _submessages(view, _MODEL_GRAPH, where):
        for port in (_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO):
            for info in _submessages(graph, port, where):
                name = _text(info, _INFO_NAME, where, _MOST_TEXT).decode(errors="replace")
                for described in _submessages(info, _INFO_TYPE, where):
                    for tensor in _submessages(described, _TYPE_TENSOR, where):
                        kind = next((value for number, value in _fields(tensor, where) if number == _TENSOR_TYPE_KIND), 0)
                        kinds[name] = kind if isinstance(kind, int) else 0
    return kinds


def model_facts(view: memoryview, where: str) -> dict[str, object]:
    """The model's metadata: producer, domain, version, descriptions, graph's name, and its properties."""
    properties: dict[str, str] = {}
    for entry in _submessages(view, _MODEL_METADATA, where):
        properties[_text(entry, _ENTRY_KEY, where, _MOST_TEXT).decode(errors="replace")] = _text(
            entry, _ENTRY_VALUE, where, _MOST_TEXT
        ).decode(errors="replace")
    properties.pop(SEAL_KEY, None)  # the file's, not the model's
    graphs = list(_submessages(view, _MODEL_GRAPH, where))

    def of_graphs(number: int) -> str:
        return next((text.decode(errors="replace") for graph in graphs if (text := _text(graph, number, where, _MOST_TEXT))), "")

    def of_model(number: int) -> str:
        return _text(view, number, where, _MOST_TEXT).decode(errors="replace")

    version = next((value for number, value in _fields(view, where) if number == _MODEL_VERSION and isinstance(value, int)), 0)
    return {
        "producer_name": of_model(_MODEL_PRODUCER),
        "graph_name": of_graphs(_GRAPH_NAME),
        "domain": of_model(_MODEL_DOMAIN),
        "description": of_model(_MODEL_DOC),
        "graph_description": of_graphs(_GRAPH_DOC),
        "version": version,
        "custom_metadata_map": properties,
    }


def _text(message: memoryview, number: int, where: str, limit: int = 1024) -> bytes:
    last = b""
    for body in _submessages(message, number, where):
        if len(body) > limit:  # the compared names are short; longer ones need not be copied
            return b""
        last = bytes(body)
    return last


def _submessages(message: memoryview, number: int, where: str) -> Iterator[memoryview]:
    """Bodies of the length-delimited fields with this number, in order; everything else is checked and skipped."""
    for field, body in _fields(message, where):
        if field == number and isinstance(body, memoryview):
            yield body


def _fields(message: memoryview, where: str) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of the fields that are integers or have a length, in order; those of fixed size are skipped."""
    offset, end = 0, len(message)
    while offset < end:
        tag, offset = _varint(message, offset, where)
        wire, number = tag & 7, tag >> 3
        value: int | memoryview | None = None
        if wire == _VARINT:
            value, offset = _varint(message, offset, where)
        elif wire == _FIXED64:
            offset += 8
        elif wire == _FIXED32:
            offset += 4
        elif wire == _BYTES:
            size, offset = _varint(message, offset, where)
            if size > end - offset:
                raise BadInputError(f"{where}: not an ONNX model, or cut short (a field of {size} bytes, {end - offset} are left)")
            value = message[offset : offset + size]
            offset += size
        else:
            raise BadInputError(f"{where}: not an ONNX model (wire type {wire})")
        if offset > end or number == 0:
            raise BadInputError(f"{where}: not an ONNX model, or cut short")
        if value is not None:
            yield number, value


def _varint(message: memoryview, offset: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            break
        byte = message[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    raise BadInputError(f"{where}: not an ONNX model, or cut short")
