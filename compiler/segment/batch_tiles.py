"""Batch tiling: a block is all rows of several images, so that streamed weights are loaded once for these images.

The tensors of a target graph have n images.  In the graph of groups, tensors have n / `together` groups, and an operator repeats its work
for every image of a group.  A segment has fewer iterations and larger slots in L1, and nothing else changes.  Only products process all
images of a group at once: their loop over tiles of pixels, inside the loop over chunks of weights, runs over the images too.

A slot of L1 has the images of a group plane by plane: the images of a plane lie one behind the other.

All images read a constant that has one image: the n of the constant is 0 in a graph of groups.

Rings of rows (`halo: cache`, persistent tensors) hold the rows of one image after the other.  So a block here has all rows of its images,
and no tensor of the segment is persistent.

A group is not one tall image: windows end at the edges of images, and every kind of operator would need a second notion of rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from compiler.plan.plan import Infeasible
from compiler.segment.segment_transform import RewrittenSegment, SegmentTransform
from compiler.target.target_graph import TargetGraph


@lru_cache(maxsize=64)
def counts_together(target_graph: TargetGraph) -> tuple[int, ...]:
    """Possible numbers of images per group: the divisors of the number of images."""
    return tuple(count for count in range(1, target_graph.images + 1) if target_graph.images % count == 0)


def tile_batch(target_graph: TargetGraph, together: int) -> TargetGraph | Infeasible:
    """Target graph of groups of `together` images; the graph itself for groups of one image."""
    if together == 1:
        return target_graph
    if together not in (counts := counts_together(target_graph)):
        return Infeasible("images", f"{together} together of {target_graph.images}; accepted: {', '.join(map(str, counts))}")
    return _grouped(target_graph, together)


@lru_cache(maxsize=512)
def _grouped(target_graph: TargetGraph, together: int) -> TargetGraph:
    storages = tuple(replace(storage, n=storage.n // together) for storage in target_graph.storages)
    return replace(target_graph, storages=storages, together=together)


def _split(target_graph: TargetGraph, settings: Any, start: int, stop: int) -> RewrittenSegment | Infeasible:
    batch_graph, order = tile_batch(target_graph, settings.images), tuple(range(stop - start))
    return batch_graph if isinstance(batch_graph, Infeasible) else RewrittenSegment(batch_graph, order, {"images": settings.images}, -1)


BATCH_TILES = SegmentTransform(
    lambda settings: settings.images > 1,
    lambda settings: f"{settings.images} images in a block",
    {"blocks": "{0.blocks} blocks", "held": "tensors held"},
    _split,
)
