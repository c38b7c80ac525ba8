"""Names of nodes, attributes and tensors in a compiled ONNX file, for processes that load no kernels."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from onnx import NodeProto

Style = Literal["function", "epcontext", "epcontext-external"]  # forms of a compiled file (`compiler.package.onnx_out.write_onnx`)

DOMAIN = "tilefarm"
ATTRIBUTE = "container"
EP_DOMAIN, EP_OP, EP_ATTRIBUTE = "com.microsoft", "EPContext", "ep_cache_context"
FRAMES_KEY = "tilefarm.frames"  # key of the model's metadata: frames of the original model in a run
# Key of the last field of a compiled file: a metadata entry with a digest over all bytes before it except the containers, which
# have digests of their own.  It has the same length in every file, so it is found even if earlier bytes are damaged.  Its length is written
# in one byte more than needed: a program that saves the model again writes the shorter form, and is recognised by it.
SEAL_KEY = "tilefarm.sha256"
_ENTRY_BYTES = 2 + len(SEAL_KEY) + 2 + 64
SEAL_HEAD = b"\x72%c\x00\x0a%c%b\x12\x40" % (_ENTRY_BYTES | 128, len(SEAL_KEY), SEAL_KEY.encode())
SEAL_BYTES = len(SEAL_HEAD) + 64


def fresh_name(name: str, *taken: Container[str]) -> str:
    """The name, with underscores appended until it is not taken."""
    while any(name in names for names in taken):
        name += "_"
    return name


def refill(field: Any, messages: Iterable[Any]) -> None:
    """Replace the messages of a repeated field, perhaps by some of its own."""
    messages = list(messages)
    del field[:]
    field.extend(messages)


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Names that nodes, or graphs inside them, read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                names |= names_read(graph.node) | {port.name for port in graph.output}
    return names - {""}
