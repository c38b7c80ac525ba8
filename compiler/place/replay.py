"""How long placed pieces take on cores that share the DDR port: an estimate, from each piece's time and bytes when it runs alone.

Every core runs its pieces by number.  A piece that moves m in t cycles alone asks the port for m / t per cycle; where all that run ask for
more than the port has, they get max-min fair shares (as `simulator.ddr` divides it) and slow down by what they miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def replayed(
    times: Sequence[float] | Floats,
    moved: Sequence[float] | Floats,
    edges: Sequence[tuple[int, int]],
    placed: Sequence[tuple[int, ...]],
    port: float,
    delay: float = 0.0,
) -> float:
    """Cycles until every piece is done.

    times: cycles of each piece alone on its cores.  moved: what it loads and stores, in the unit of `port` per cycle.
    edges: (before, after), from smaller to larger numbers.  placed: cores of each.  delay: cycles of a flag between cores.
    """
    by_target = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    before = np.array([a for a, _ in by_target], np.int64)
    first_before = np.searchsorted(np.array([b for _, b in by_target], np.int64), np.arange(len(placed) + 1))
    core = np.array([c for cores in placed for c in cores], np.int64)
    first_core = np.cumsum([0, *map(len, placed)])
    node = np.repeat(np.arange(len(placed)), np.diff(first_core))
    queue = node[np.argsort(core, kind="stable")]
    first_queue = np.concatenate(([0], np.cumsum(np.bincount(core))))
    values = np.array(times, np.float64), np.array(moved, np.float64)
    return float(_replay(*values, first_before, before, first_core, core, first_queue, queue, float(port), float(delay)))


@njit(cache=True)
def _replay(
    times: Floats,
    moved: Floats,
    first_before: Ints,
    before: Ints,
    first_core: Ints,
    core: Ints,
    first_queue: Ints,
    queue: Ints,
    port: float,
    delay: float,
) -> float:
    nodes, cores = times.shape[0], first_queue.shape[0] - 1
    head = first_queue[:-1].copy()
    busy = np.zeros(cores, np.bool_)
    finish = np.full(nodes, -1.0)
    left, speed = times.copy(), np.ones(nodes)
    running = np.empty(cores, np.int64)
    count, done, now = 0, 0, 0.0
    while done < nodes:
        wake = np.inf
        for c in range(cores):
            if busy[c] or head[c] == first_queue[c + 1]:
                continue
            node = queue[head[c]]
            ready = 0.0
            for k in range(first_core[node], first_core[node + 1]):
                if busy[core[k]] or queue[head[core[k]]] != node:
                    ready = np.inf
            for k in range(first_before[node], first_before[node + 1]):
                source = before[k]
                if finish[source] < 0.0:
                    ready = np.inf
                else:
                    ready = max(ready, finish[source] + (0.0 if _same(source, node, first_core, core) else delay))
            if ready > now:
                wake = min(wake, ready)
                continue
            for k in range(first_core[node], first_core[node + 1]):
                busy[core[k]] = True
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
            for k in range(first_core[node], first_core[node + 1]):
                busy[core[k]] = False
                head[core[k]] += 1
        count = kept
    return now


@njit(cache=True)
def _same(a: int, b: int, first_core: Ints, core: Ints) -> bool:
    """Whether both run on one core, the same: nothing to wait for but the queue."""
    i, j = first_core[a], first_core[b]
    return first_core[a + 1] == i + 1 and first_core[b + 1] == j + 1 and core[i] == core[j]


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
