"""The container inside a compiled ONNX file, found without parsing the model around it.

Two homes: attribute `container` (a uint8 tensor) of a node of domain `tilefarm`, and `ep_cache_context` (bytes) of a
`com.microsoft::EPContext` whose `source` is `tilefarm`.  The file is walked as protobuf fields (encoding:
protobuf.dev/programming-guides/encoding): the original weights, most of the file, are skipped and never copied.  Field numbers are those of
onnx.proto, which never change.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from simulator.npu.container import MAGIC
from simulator.npu.errors import BadInputError

if TYPE_CHECKING:  # reading a container takes no onnx
    from onnx import NodeProto

DOMAIN = "tilefarm"
ATTRIBUTE = "container"
EP_DOMAIN, EP_OP, EP_ATTRIBUTE = "com.microsoft", "EPContext", "ep_cache_context"

# message -> field numbers of onnx.proto
_MODEL_GRAPH = 7
_GRAPH_NODE = 1
_NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_STRING, _ATTRIBUTE_TENSOR = 1, 4, 5
_TENSOR_RAW_DATA = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_container(path: str | os.PathLike[str]) -> bytes:
    """Bytes of the one container in a compiled ONNX file (not decoded yet: `simulator.npu.container.decode` says whether they are whole).

    Raises `BadInputError` for a file that cannot be read, is no ONNX model, or holds no container or several.
    """
    return find_container(read_file(path), str(path))


def read_file(path: str | os.PathLike[str]) -> memoryview:
    """A file's bytes, mapped.  Raises `BadInputError`."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadInputError(f"{path}: empty; expected a compiled ONNX model")
            # left to the collector: views into it outlive an exception that passes through here
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(mapped)
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from None


def nodes_of(view: memoryview, where: str) -> int:
    """How many nodes the graph of an ONNX file has: one where the container is all of it."""
    return sum(1 for graph in _submessages(view, _MODEL_GRAPH, where) for _ in _submessages(graph, _GRAPH_NODE, where))


def find_container(view: memoryview, where: str) -> bytes:
    """`read_container` for the bytes of an ONNX file; `where` names them in errors."""
    found = []
    for graph in _submessages(view, _MODEL_GRAPH, where):
        for node in _submessages(graph, _GRAPH_NODE, where):
            found += [bytes(body) for body in _of_node(node, where)]
    if len(found) != 1:
        what = "no container: compile it first" if not found else f"{len(found)} containers, expected one"
        raise BadInputError(f"{where}: holds {what}")
    if found[0][: len(MAGIC)] != MAGIC:
        raise BadInputError(f"{where}: its attribute is no container (starts with {found[0][: len(MAGIC)]!r})")
    return found[0]


def _of_node(node: memoryview, where: str) -> Iterator[memoryview]:
    domain = _text(node, _NODE_DOMAIN, where)
    if domain == DOMAIN.encode():
        for attribute in _submessages(node, _NODE_ATTRIBUTE, where):
            if _text(attribute, _ATTRIBUTE_NAME, where) == ATTRIBUTE.encode():
                for tensor in _submessages(attribute, _ATTRIBUTE_TENSOR, where):
                    yield from _submessages(tensor, _TENSOR_RAW_DATA, where)
    elif domain == EP_DOMAIN.encode() and _text(node, _NODE_OP_TYPE, where) == EP_OP.encode():
        attributes = {_text(a, _ATTRIBUTE_NAME, where): a for a in _submessages(node, _NODE_ATTRIBUTE, where)}
        source = attributes.get(b"source")
        if source is not None and _text(source, _ATTRIBUTE_STRING, where) == DOMAIN.encode() and EP_ATTRIBUTE.encode() in attributes:
            yield from _submessages(attributes[EP_ATTRIBUTE.encode()], _ATTRIBUTE_STRING, where)


def _text(message: memoryview, number: int, where: str) -> bytes:
    last = b""
    for body in _submessages(message, number, where):
        if len(body) > 1024:  # names that we compare with are short; others need not be copied
            return b""
        last = bytes(body)
    return last


def _submessages(message: memoryview, number: int, where: str) -> Iterator[memoryview]:
    """Bodies of the length-delimited fields with this number, in order; everything else is checked and skipped."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at, where)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(message, at, where)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        elif wire == _BYTES:
            size, at = _varint(message, at, where)
            if size > end - at:
                raise BadInputError(f"{where}: not an ONNX model, or cut short (a field of {size} bytes, {end - at} are left)")
            if tag >> 3 == number:
                yield message[at : at + size]
            at += size
        else:
            raise BadInputError(f"{where}: not an ONNX model (wire type {wire})")
        if at > end or tag >> 3 == 0:
            raise BadInputError(f"{where}: not an ONNX model, or cut short")


def _varint(message: memoryview, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadInputError(f"{where}: not an ONNX model, or cut short")


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Every name that nodes, or graphs inside them, read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                names |= names_read(graph.node) | {port.name for port in graph.output}
    return names - {""}
