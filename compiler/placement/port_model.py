"""How long placed pieces take on cores that share the DDR port: an estimate, from each piece's time and bytes when it runs alone.

Every core runs its pieces by number.  A piece that moves m in t cycles alone asks the port for m / t per cycle; where all that run ask for
more than the port has, they get max-min fair shares (as `simulator.ddr` divides it) and slow down by what they miss.
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
    """What each piece waits for: before[first[i] : first[i + 1]] of piece i."""

    first: Ints
    before: Ints


def wired(count: int, before: Ints, after: Ints) -> Wiring:
    """Of `count` pieces, from edges before[e] -> after[e], each from a smaller to a larger number; edges may come twice."""
    pairs = np.unique(after * count + before) if count else np.zeros(0, np.int64)
    return Wiring(np.searchsorted(pairs, np.arange(count + 1) * max(1, count)), pairs % max(1, count))


def core_masks(placed: Sequence[tuple[int, ...]]) -> Masks:
    """Cores as sets: bit c is core c."""
    return np.array([sum(1 << core for core in cores) for cores in placed], np.uint64)


def replayed(times: Floats, moved: Floats, wiring: Wiring, cores: Masks, port: float, delay: float = 0.0) -> float:
    """Cycles until every piece is done.

    times: cycles of each piece alone on its cores.  moved: what it loads and stores, in the unit of `port` per cycle.
    cores: sets of cores, none empty.  delay: cycles of a flag between cores.
    """
    return float(_replay(times, moved, wiring.first, wiring.before, cores, float(port), float(delay)))


@njit(cache=True)
def _next(cores: Masks, core: int, node: int) -> int:
    """The first piece from `node` on that runs on a core."""
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
    left, speed = times.copy(), np.ones(nodes)
    running = np.empty(max(1, width), np.int64)
    count, done, now = 0, 0, 0.0
    while done < nodes:
        wake = np.inf
        for c in range(width):
            node = head[c]
            if node == nodes or busy & cores[node]:
                continue
            ready = 0.0
            for other in range(width):
                if (cores[node] >> np.uint64(other)) & np.uint64(1) and head[other] != node:
                    ready = np.inf
            for k in range(first[node], first[node + 1]):
                source = before[k]
                if finish[source] < 0.0:
                    ready = np.inf
                else:
                    # on one core, the same, there is nothing to wait for but the queue
                    alone = cores[source] == cores[node] and cores[node] & (cores[node] - np.uint64(1)) == 0
                    ready = max(ready, finish[source] + (0.0 if alone else delay))
            if ready > now:
                wake = min(wake, ready)
                continue
            busy |= cores[node]
            running[count] = node
            count += 1
        _share(running[:count], times, moved, port, speed)
        step = wake - now
        for r in range(count):
            step = min(step, left[running[r]] / speed[running[r]])
        now += step
        kept = 0
        for r in range(count):
            node = running[r]
            left[node] -= step * speed[node]
            if left[node] > 1e-6:
                running[kept] = node
                kept += 1
                continue
            finish[node] = now
            done += 1
            busy &= ~cores[node]
            for c in range(width):
                if head[c] == node:
                    head[c] = _next(cores, c, node + 1)
        count = kept
    return now


@njit(cache=True)
def _share(running: Ints, times: Floats, moved: Floats, port: float, speed: Floats) -> None:
    """Sets speed[running]: what each gets of what it asks for, the least demanding first."""
    rest, served = port, np.zeros(running.shape[0], np.bool_)
    for turn in range(running.shape[0]):
        least, at = np.inf, 0
        for r in range(running.shape[0]):
            node = running[r]
            asked = moved[node] / times[node] if times[node] > 0.0 else 0.0
            if not served[r] and asked < least:
                least, at = asked, r
        even = rest / (running.shape[0] - turn)
        given = min(least, even)
        speed[running[at]] = given / least if least > 0.0 else 1.0
        rest -= given
        served[at] = True
