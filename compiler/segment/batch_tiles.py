"""Batch tiling: a block is all rows of several images, so that weights that do not stay are loaded once for all of them.

The tensors of a target graph have n images.  The graph of groups has n / `together`, in each of which an operator repeats its work for
every image: a segment has fewer iterations and larger slots in L1, and nothing else changes.  Only products see all images of a group at
once: their loop over tiles of pixels runs over the images too, inside that over chunks of weights.

A slot of L1 has the images of a group plane by plane, one behind the other in each.

A constant of one image is read by all of them: in a graph of groups its n is 0.

Rings of rows (`halo: cache`, persistent tensors) are of one image after the other, so a block here has all rows of its images, and none of
its tensors are persistent.

Images are not rows of one tall image, because windows end at the edges of images and every kind would need a second notion of rows.
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
    """Possible numbers of images per group: the divisors of their number."""
    return tuple(count for count in range(1, target_graph.images + 1) if target_graph.images % count == 0)


def tile_batch(target_graph: TargetGraph, together: int) -> TargetGraph | Infeasible:
    """Target graph of groups of so many images; the graph itself for one."""
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
