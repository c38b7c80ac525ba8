"""How many blocks a window needs, and can hold: W = max(1, min(ceil(latency / II), floor((capacity - resident) / live bytes per block))).

latency: a block through all operators, one after the other.  II, the initiation interval: what the busier of the two lanes, or the bus,
needs per block.  resident: what L1 holds whatever the window is; live bytes: what one more block under way takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.cost.features import operator_cycles
from compiler.plan.plan import Tiling
from compiler.schedule.window import load_cycles
from compiler.segment.lanes import lanes
from compiler.segment.memory import tensor_requests, weight_requests
from compiler.segment.segment import StripBlocks


def formula_window(strip: StripBlocks, prefetch: int, tilings: Sequence[Tiling], capacity: int) -> int:
    """W of a segment with these tilings, weights streamed; at most its iterations.  capacity: blocks of L1."""
    unit, blocks = strip
    iterations = blocks.count * unit.storages[unit.operators[blocks.start].y.storage].n
    work = [0.0, 0.0, float(load_cycles(unit, blocks, range(blocks.count)).sum())]
    for k, lane in enumerate(lanes(unit, blocks.start, blocks.stop).tolist()):
        work[lane] += operator_cycles(strip, k, tilings[k]) * unit.together
    latency, interval = work[0] + work[1], max(work)
    needed = -int(-latency // interval) if interval else 1
    chunks = max(sum(request.size for request in weight_requests(unit, blocks, k, tiling)) for k, tiling in enumerate(tilings))
    one, two = (sum(request.size for request in tensor_requests(unit, blocks, prefetch, window)) for window in (1, 2))
    live = two - one
    room = 1 + (capacity - chunks - one) // live if live else needed
    return max(1, min(needed, room, iterations))
