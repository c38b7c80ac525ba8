"""Border tensors: tensors that cross a segment's borders, in DDR or in the memory that all cores share."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.segment.strips import leaves_segment
from compiler.target.target_graph import TargetGraph


class BorderTensor(NamedTuple):
    """Tensor at a segment's borders.  stored: number of planes that the segment stores.  loaded: number of planes that it loads."""

    name: str
    stored: int
    loaded: int


@lru_cache(maxsize=1024)
def scratch_tensors(target_graph: TargetGraph) -> frozenset[str]:
    """Tensors that only operators of the target graph access."""
    return frozenset(buffer.name for buffer in target_graph.memory.of_kind("scratch"))


@lru_cache(maxsize=1 << 14)
def border_tensors(target_graph: TargetGraph, start: int, stop: int) -> tuple[BorderTensor, ...]:
    """Border tensors of operators [start, stop), in the order of DDR, without constants and without tensors that the host accesses."""
    planes_of: dict[int, list[int]] = {}
    for k in range(start, stop):
        spec = target_graph.operators[k]
        if leaves_segment(target_graph, k, stop):
            planes_of.setdefault(spec.y.storage, [0, 0])[0] += spec.y.planes
        outside = [target_graph.operators[source].y for source in target_graph.producers[k] if source < start]
        for read_slice in dict.fromkeys(spec.reads):
            if any(read_slice.overlaps(producer) for producer in outside):
                planes_of.setdefault(read_slice.storage, [0, 0])[1] += read_slice.planes
    names = scratch_tensors(target_graph)
    return tuple(
        BorderTensor(target_graph.storages[storage].name, *planes)
        for storage, planes in sorted(planes_of.items())
        if target_graph.storages[storage].name in names
    )


@lru_cache(maxsize=1 << 14)
def border_names(target_graph: TargetGraph, start: int, stop: int) -> frozenset[str]:
    """Names of the border tensors of operators [start, stop)."""
    return frozenset(tensor.name for tensor in border_tensors(target_graph, start, stop))
