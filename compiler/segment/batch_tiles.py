"""Images that are worked on together: a block is all rows of several images, so that weights that do not stay come once for all of them.

A unit's tensors have n images.  That of groups of them has n / `together`, in each of which an operator does for image after image what
it does for one: a segment of it has fewer iterations and larger slots in L1, and else nothing needs to know.  Products alone see all images
of a group at once: their loop over tiles of pixels goes over the images, too, inside that over chunks of weights.

A slot of L1 has the images of a group plane by plane, one behind the other in each.

A constant of one image is read by all of them: in a unit of groups its n is 0.

Rings of rows (`halo: cache`, what is held) are of one image after the other, so a block is whole images, and nothing of it is held.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.target.target_graph import TargetGraph


@lru_cache(maxsize=64)
def counts_together(target_graph: TargetGraph) -> tuple[int, ...]:
    """How many of a unit's images can be worked on together: the divisors of their number."""
    return tuple(count for count in range(1, target_graph.images + 1) if target_graph.images % count == 0)


def tile_batch(target_graph: TargetGraph, together: int) -> TargetGraph | Infeasible:
    """The unit of groups of so many images; itself where that is one."""
    if together == 1:
        return target_graph
    if together not in (able := counts_together(target_graph)):
        return Infeasible("images", f"{together} together of {target_graph.images}; accepted: {', '.join(map(str, able))}")
    return _grouped(target_graph, together)


@lru_cache(maxsize=512)
def _grouped(target_graph: TargetGraph, together: int) -> TargetGraph:
    storages = tuple(replace(storage, n=storage.n // together) for storage in target_graph.storages)
    return replace(target_graph, storages=storages, together=together)
