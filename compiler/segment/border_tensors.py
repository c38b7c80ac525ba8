"""Which tensors cross a segment's borders, and how many bytes do: what may lie in DDR or in the memory that all cores share."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.segment.strips import leaves
from compiler.target.target_graph import TargetGraph


class BorderTensor(NamedTuple):
    """A tensor that a segment's borders cut: planes that the segment stores, and planes that its operators load."""

    name: str
    stored: int
    loaded: int


@lru_cache(maxsize=1024)
def hidden(target_graph: TargetGraph) -> frozenset[str]:
    """Tensors that nobody but the unit's operators sees."""
    return frozenset(buffer.name for buffer in target_graph.memory.of_kind("scratch"))


@lru_cache(maxsize=1 << 14)
def border_tensors(target_graph: TargetGraph, start: int, stop: int) -> tuple[BorderTensor, ...]:
    """Of operators [start, stop), in the order of the tensors in DDR; those that the host sees, and constants, are not among them."""
    found: dict[int, list[int]] = {}
    for k in range(start, stop):
        spec = target_graph.operators[k]
        if leaves(target_graph, k, stop):
            found.setdefault(spec.y.storage, [0, 0])[0] += spec.y.planes
        outside = [target_graph.operators[source].y for source in target_graph.producers[k] if source < start]
        for piece in dict.fromkeys(spec.reads):
            if any(piece.overlaps(made) for made in outside):
                found.setdefault(piece.storage, [0, 0])[1] += piece.planes
    names = hidden(target_graph)
    return tuple(
        BorderTensor(target_graph.storages[at].name, *planes)
        for at, planes in sorted(found.items())
        if target_graph.storages[at].name in names
    )


@lru_cache(maxsize=1 << 14)
def border_names(target_graph: TargetGraph, start: int, stop: int) -> frozenset[str]:
    """Their names."""
    return frozenset(each.name for each in border_tensors(target_graph, start, stop))
