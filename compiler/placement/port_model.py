"""Time estimate of placed segments on cores that share the DDR port, from each segment's time and bytes when it runs alone.

Every core runs its segments by number.  A segment that moves m in t cycles alone asks the port for m / t per cycle; if all running
segments ask for more than the port has, they get max-min fair shares (as `simulator.ddr` divides it) and slow down in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Masks = NDArray[np.uint64]


class Wiring(NamedTuple):
    """Predecessors of segments: before[first[i] : first[i + 1]] of segment i."""

    first: Ints
    before: Ints


def wire_segments(count: int, before: Ints, after: Ints) -> Wiring:
    """Wiring of `count` segments from edges before[e] -> after[e], each from a smaller to a larger number; edges may come twice."""
    pairs = np.unique(after * count + before) if count else np.zeros(0, np.int64)
    return Wiring(np.searchsorted(pairs, np.arange(count + 1) * max(1, count)), pairs % max(1, count))


def core_masks(placed: Sequence[tuple[int, ...]]) -> Masks:
    """Cores as sets: bit c is core c."""
    return np.array([sum(1 << core for core in cores) for cores in placed], np.uint64)


def replay_cycles(times: Floats, moved: Floats, wiring: Wiring, cores: Masks, port: float, delay: float = 0.0) -> float:
    """Cycles until every segment is done.

    times: cycles of each segment alone on its cores.  moved: its loads and stores, in the unit of `port` per cycle.
    cores: sets of cores, none empty.  delay: cycles of a flag between cores.
    """
    return float(_replay(times, moved, wiring.first, wiring.before, cores, float(port), float(delay)))


@njit(cache=True)
def _next(cores: Masks, core: int, node: int) -> int:
    """First segment from `node` on that runs on a core."""
    while node < cores.shape[0] and not (cores[node] >> np.uint64(core)) & np.uint64(1):
        node += 1
    return node


@njit(cache=True)
def _replay(times: Floats, moved: Floats, first: Ints, before: Ints, cores: Masks, port: float, delay: float) -> float:
    nodes = times.shape[0]
    every = np.uint64(0)
    for node in range(nodes):
        every |= cores[node]
    width = 0
    while width < 64 and every >> np.uint64(width):
        width += 1
    head = np.empty(width, np.int64)
    for c in range(width):
        head[c] = _next(cores, c, 0)
    busy = np.uint64(0)
    finish = np.full(nodes, -1.0)
    remaining, speed = times.copy(), np.ones(nodes)
    running = np.empty(max(1, width), np.int64)
    count, done, now = 0, 0, 0.0
    while done < nodes:
        wake = np.inf
        for c in range(width):
            node = head[c]
            if node == nodes or busy & cores[node]:
                continue
            ready = 0.0
            for other_core in range(width):
                if (cores[node] >> np.uint64(other_core)) & np.uint64(1) and head[other_core] != node:
                    ready = np.inf
            for k in range(first[node], first[node + 1]):
                source = before[k]
                if finish[source] < 0.0:
                    ready = np.inf
                else:
                    # on one and the same core only the queue is waited for
                    same_core = cores[source] == cores[node] and cores[node] & (cores[node] - np.uint64(1)) == 0
                    ready = max(ready, finish[source] + (0.0 if same_core else delay))
            if ready > now:
                wake = min(wake, ready)
                continue
            busy |= cores[node]
            running[count] = node
            count += 1
        _share(running[:count], times, moved, port, speed)
        step = wake - now
        for r in range(count):
            step = min(step, remaining[running[r]] / speed[running[r]])
        now += step
        running_count = 0
        for r in range(count):
            node = running[r]
            remaining[node] -= step * speed[node]
            if remaining[node] > 1e-6:
                running[running_count] = node
                running_count += 1
                continue
            finish[node] = now
            done += 1
            busy &= ~cores[node]
            for c in range(width):
                if head[c] == node:
                    head[c] = _next(cores, c, node + 1)
        count = running_count
    return now


@njit(cache=True)
def _share(running: Ints, times: Floats, moved: Floats, port: float, speed: Floats) -> None:
    """Set speed[running]: each one's share of its demand, the least demanding first."""
    bandwidth, served = port, np.zeros(running.shape[0], np.bool_)
    for turn in range(running.shape[0]):
        least, position = np.inf, 0
        for r in range(running.shape[0]):
            node = running[r]
            demand = moved[node] / times[node] if times[node] > 0.0 else 0.0
            if not served[r] and demand < least:
                least, position = demand, r
        even = bandwidth / (running.shape[0] - turn)
        granted = min(least, even)
        speed[running[position]] = granted / least if least > 0.0 else 1.0
        bandwidth -= granted
        served[position] = True
