"""Operators cut by their output channels: what each of several cores makes of a segment, with the weights of its own channels only.

Part i of m of an operator is an operator: the same rows, a run of its planes, the weights and constants that belong to them.  So a part of
a segment is a segment of a unit whose operators are parts, and nothing below needs to know.  A dense convolution or product with constants
reads all of its input in every part; what works channel by channel (depthwise convolutions, poolings, chains, attention head by head)
reads its own channels only and may follow in the same segment, because what it reads is made on the same core.
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
    """`count` units, in each of which the operators [start, stop) are a part of what they were; why not where that cannot be.

    A part may not read what another part of the same segment makes: that would be on another core.
    """
    if count == 1:
        return (target_graph,)
    cuts = []
    for k in range(start, stop):
        found = _cut(target_graph, k, count)
        if isinstance(found, str):
            return Infeasible(target_graph.operators[k].name, found)
        cuts.append(found)
    for at in range(count):
        for k in range(start, stop):
            for source in target_graph.producers[k]:
                if source >= start and not _own(cuts[k - start][at], target_graph.operators[source].y, cuts[source - start][at].y):
                    reader = target_graph.operators[source].name
                    what = f"part {at} of {count} of its channels would read channels of {reader} from another core"
                    return Infeasible(target_graph.operators[k].name, what)
    return tuple(
        replace(target_graph, operators=(*target_graph.operators[:start], *(parts[at] for parts in cuts), *target_graph.operators[stop:]))
        for at in range(count)
    )


def can_split(target_graph: TargetGraph, start: int, stop: int, count: int) -> bool:
    """Whether `channel_parts` finds some."""
    return not isinstance(channel_parts(target_graph, start, stop, count), Infeasible)


@lru_cache(maxsize=1024)
def largest(parts: tuple[TargetGraph, ...], start: int, stop: int) -> TargetGraph:
    """The part with the most planes of results, the first of equals: what fits for it fits for all."""
    return max(parts, key=lambda target_graph: sum(spec.y.planes for spec in target_graph.operators[start:stop]))


def _own(part: TargetOp, whole: TensorSlice, made: TensorSlice) -> bool:
    """Whether all that a part reads of what an operator makes is in that operator's own part."""
    for read in part.reads:
        if read.overlaps(whole):
            first, last = max(read.plane, whole.plane), min(read.plane + read.planes, whole.plane + whole.planes)
            if first < made.plane or last > made.plane + made.planes:
                return False
    return True


@lru_cache(maxsize=4096)
def _cut(target_graph: TargetGraph, kernel: int, count: int) -> list[TargetOp] | str:
    """The parts of an operator, the same ones in every segment that has it, or what is in the way."""
    spec = target_graph.operators[kernel]
    step = spec.channel_step(count, target_graph.type_of(spec.y))
    if isinstance(step, str):
        return step
    steps = spec.y.planes // step
    if steps < count:
        return f"{steps} runs of channels that can be made apart, for {count} cores"
    bounds = (steps * i // count * step for i in range(count + 1))
    found = [spec.channel_part(first, last, target_graph.type_of(spec.y)) for first, last in pairwise(bounds)]
    whole = [part for part in found if part is not None]
    return whole if len(whole) == count else f"{count} nearly equal runs of channels would cut a group of its channels"
