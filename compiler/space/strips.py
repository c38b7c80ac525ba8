"""Number of strips of a run of operators, by rule: the fewest strips that fit L1, and one strip if full rows fit.

Strips compute their halo twice and access DDR in short bursts.  So strips are for runs of which L1 cannot hold a few full rows, and for
runs whose weights can stay in L1 only next to rows of a strip (`planner.split_rules`).
"""

from __future__ import annotations

from functools import lru_cache

from compiler.ops.conv import product_of
from compiler.plan.plan import MAX_STRIPS, Infeasible
from compiler.segment.allocator import Buffer, BufferRequest, fits
from compiler.segment.blocks import rows_needed
from compiler.segment.memory_plan import tensor_requests
from compiler.segment.operator_run import run_of
from compiler.segment.segment import Outline, largest_strip
from compiler.segment.strips import leaves_segment, strips
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp, round_up
from simulator.npu.parts import L1_ALIGN_BLOCKS, Memory

_NARROWEST = 8  # least columns of a strip of several operators: in a narrower strip the halo is larger than the result


@lru_cache(maxsize=1 << 16)
def fewest_strips(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Smallest number of strips in which operators [start, stop) fit L1, in the finest blocks of rows; 1 if full rows fit, or if no strips
    fit."""
    if _fits(target_graph, start, stop, 1):
        return 1
    # powers of two bracket the number: `low` strips do not fit, `enough` fit
    largest = largest_strip_count(target_graph, start, stop)
    powers = [1 << i for i in range(1, largest.bit_length())]
    enough = next((count for count in (*powers, largest) if count > 1 and _fits(target_graph, start, stop, count)), 1)
    low = max((count for count in powers if count < enough), default=1)
    # bisection
    while enough - low > 1:
        middle = (low + enough) // 2
        if _fits(target_graph, start, stop, middle):
            enough = middle
        else:
            low = middle
    return enough


def largest_strip_count(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Largest number of strips that `fewest_strips` tries."""
    narrowest = min(target_graph.operators[k].out_w for k in range(start, stop) if leaves_segment(target_graph, k, stop))
    return max(1, min(MAX_STRIPS, narrowest // (1 if stop - start == 1 else _NARROWEST)))


def nearest_strips(target_graph: TargetGraph, start: int, stop: int, wanted: int) -> int:
    """Number of strips nearest to `wanted`: 1 if full rows fit; else `wanted`, between `fewest_strips` and `MAX_STRIPS`, if it is legal."""
    fewest = fewest_strips(target_graph, start, stop)
    if wanted <= fewest or fewest == 1:
        return fewest
    count = min(wanted, MAX_STRIPS)
    return fewest if isinstance(strips(target_graph, start, stop, count), Infeasible) else count


def _fits(target_graph: TargetGraph, start: int, stop: int, count: int) -> bool:
    """Whether L1 holds the smallest buffers of the run's tensors and the smallest chunks of weights, in `count` strips.

    For full rows a sum mostly decides it.
    """
    if count == 1 and _bound_blocks(target_graph, start, stop) <= room_blocks(target_graph.machine, Memory.L1):
        return True
    return _has_places(target_graph, start, stop, count)


def _has_places(target_graph: TargetGraph, start: int, stop: int, count: int) -> bool:
    """Whether the allocator finds places in L1 for these buffers, without or with cached halos."""
    most_blocks = max(1, min(rows.size for rows in rows_needed(target_graph)[start:stop]))
    finest = Outline(start, stop, columns=count, blocks=most_blocks)
    largest = largest_strip(target_graph, finest)
    if isinstance(largest, Infeasible):
        return False
    strip, _ = largest
    sizes = map(_smallest_chunks, strip.operators[start:stop])
    weights = [BufferRequest(Buffer("weights", k), size, k, k, 1 << k) for k, size in enumerate(sizes) if size]
    capacity = room_blocks(target_graph.machine, Memory.L1)
    all_cached = finest._replace(halo=(1 << stop - start) - 1)
    return any(fits((*tensor_requests(strip, way.blocks_of(strip), 1, 1), *weights), capacity) for way in (finest, all_cached))


def _bound_blocks(target_graph: TargetGraph, start: int, stop: int) -> int:
    """Blocks of L1 for the tensors of a run in one block and all its smallest chunks: an upper bound of the need in `_has_places`."""
    tensors = 0
    for allocation in run_of(target_graph, start, stop).allocations.values():
        storage = target_graph.storages[allocation.storage]
        tensors += round_up(allocation.planes * storage.h * storage.row_blocks, L1_ALIGN_BLOCKS)
    return tensors + sum(map(_smallest_chunks, target_graph.operators[start:stop]))


def _smallest_chunks(op: TargetOp) -> int:
    """Blocks of L1 of the two smallest chunks of an operator's weights; 0 for an operator without weights."""
    product = product_of(op)
    return 0 if product is None else min(op.weight_blocks, 2 * product.fractal.weight_blocks)
