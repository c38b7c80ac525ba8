"""Channel split over cores: each core computes some output channels of a segment, with the weights of these channels only.

Part i of m of an operator is an operator, too: it has the same rows, some planes, and the weights and constants of these planes.
So a part of a segment is a segment of a target graph whose operators are parts, and lower levels need not know about the split.
A dense convolution or a product with constants reads all of its input in every part.  Channelwise operators (depthwise convolutions,
poolings, chains, attention head by head) read only their own channels.  The same core computes these channels, so channelwise operators may
follow in the same segment.

Cores synchronise only where a load reads a tensor that another core stored; there are no barriers between segments.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from compiler.plan.plan import Infeasible
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp


@lru_cache(maxsize=1024)
def channel_parts(target_graph: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...] | Infeasible:
    """Split operators [start, stop) into `count` parts, one target graph per part; or the reason why the split is impossible.

    A part may not read channels of another part of the same segment, because another core has these channels.
    """
    if count == 1:
        return (target_graph,)
    cuts = []
    for k in range(start, stop):
        parts_of = _cut(target_graph, k, count)
        if isinstance(parts_of, str):
            return Infeasible(target_graph.operators[k].name, parts_of)
        cuts.append(parts_of)
    for index in range(count):
        for k in range(start, stop):
            for source in target_graph.producers[k]:
                if source >= start and not _own(cuts[k - start][index], target_graph.operators[source].y, cuts[source - start][index].y):
                    reader = target_graph.operators[source].name
                    reason = f"part {index} of {count} of its channels would read channels of {reader} from another core"
                    return Infeasible(target_graph.operators[k].name, reason)
    return tuple(
        replace(
            target_graph, operators=(*target_graph.operators[:start], *(parts[index] for parts in cuts), *target_graph.operators[stop:])
        )
        for index in range(count)
    )


def can_split(target_graph: TargetGraph, start: int, stop: int, count: int) -> bool:
    """Whether `channel_parts` succeeds."""
    return not isinstance(channel_parts(target_graph, start, stop, count), Infeasible)


@lru_cache(maxsize=1024)
def largest_part(parts: tuple[TargetGraph, ...], start: int, stop: int) -> TargetGraph:
    """First part with the most planes of results: if this part fits, all parts fit."""
    return max(parts, key=lambda target_graph: sum(spec.y.planes for spec in target_graph.operators[start:stop]))


def _own(part: TargetOp, output: TensorSlice, own_part: TensorSlice) -> bool:
    """Whether the planes that `part` reads of another operator's `output` all lie in `own_part`, the slice of the same core."""
    for read in part.reads:
        if read.overlaps(output):
            first, last = max(read.plane, output.plane), min(read.plane + read.planes, output.plane + output.planes)
            if first < own_part.plane or last > own_part.plane + own_part.planes:
                return False
    return True


@lru_cache(maxsize=4096)
def _cut(target_graph: TargetGraph, kernel: int, count: int) -> list[TargetOp] | str:
    """Parts of an operator, which do not depend on its segment; or the reason why the operator cannot be split."""
    spec = target_graph.operators[kernel]
    step = spec.channel_step(count, target_graph.type_of(spec.y))
    if isinstance(step, str):
        return step
    steps = spec.y.planes // step
    if steps < count:
        return f"{steps} runs of channels that can be made apart, for {count} parts"
    bounds = (steps * i // count * step for i in range(count + 1))
    candidates = [spec.channel_part(first, last, target_graph.type_of(spec.y)) for first, last in pairwise(bounds)]
    parts = [part for part in candidates if part is not None]
    return parts if len(parts) == count else f"{count} nearly equal runs of channels would cut a group of its channels"
