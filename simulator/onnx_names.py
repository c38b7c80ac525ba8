"""What nodes, attributes and tensors of a compiled ONNX file are called: for a process that loads no kernel to read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

DOMAIN = "tilefarm"
ATTRIBUTE = "container"
EP_DOMAIN, EP_OP, EP_ATTRIBUTE = "com.microsoft", "EPContext", "ep_cache_context"


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Every name that nodes, or graphs inside them, read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                names |= names_read(graph.node) | {port.name for port in graph.output}
    return names - {""}
