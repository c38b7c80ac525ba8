"""Between cores: which stores of other cores a load waits for.

Cores share data only through DDR, where a program writes every block at most once: every storage has an address of its own
(`unit.storages`), and every row of it is stored by one block of one segment.  So all that one core ever waits for is a store of another,
MTE3 -> MTE2, and two cores that write into one granule are in nobody's way: the table below keeps the last store of *each* core into
every granule of DDR.

A load knows what earlier loads of its core waited for, so waits on a pair of cores come in the order of their SETs, and one flag id per
pair suffices.  Its count: after `limit` SETs towards a core, the last of which stands behind the last store so far and so covers all later
waits, the next store waits for that core's last load so far.  By then every one of those SETs has been taken: the count begins anew.  Of
such answers at most one stands at a time, because the next one follows `limit` SETs that come after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints, Ints32
from simulator.npu.machine import Engine

_MTE2, _MTE3 = int(Engine.MTE2), int(Engine.MTE3)


class Shared(NamedTuple):
    """What is known between the cores of a program; -1: nobody."""

    stored: Ints32  # [granules of DDR, cores]: last store of every core
    seen: Ints  # [cores, cores]: the last store of the second that the first has waited for
    standing: Ints  # [cores, cores]: SETs of the first towards the second since the first last waited for it
    last_load: Ints  # [cores] last instruction of MTE2
    last_store: Ints  # [cores] last instruction of MTE3


def new_shared(granules: int, cores: int) -> Shared:
    """Nothing stored."""
    pairs = (cores, cores)
    return Shared(
        np.full((granules, cores), -1, np.int32),
        np.full(pairs, -1, np.int64),
        np.zeros(pairs, np.int64),
        np.full(cores, -1, np.int64),
        np.full(cores, -1, np.int64),
    )


@njit(cache=True)
def forget(s: Shared) -> None:
    """A new program: nothing stored."""
    s.stored[:] = -1
    s.seen[:] = -1
    s.standing[:] = 0
    s.last_load[:] = -1
    s.last_store[:] = -1


@njit(cache=True)
def waits(
    engine: Bytes8,
    span: Ints32,
    start: Ints32,
    bound: Ints32,
    core: int,
    first: int,
    limit: int,
    s: Shared,
    source: Ints32,
    target: Ints32,
) -> int:
    """Fills source and target with the edges from other cores to a part's instructions (`first` ..); returns how many."""
    granules, cores = s.stored.shape
    need = np.empty(cores, np.int64)
    edges = 0
    for j in range(engine.shape[0]):
        e = engine[j]
        name = first + j
        if e == _MTE3:
            for other in range(cores):
                if s.standing[core, other] == limit:
                    source[edges] = s.last_load[other]
                    target[edges] = first + j
                    edges += 1
                    s.standing[core, other] = 0
            s.last_store[core] = name
        elif e == _MTE2:
            need[:] = -1
            for k in range(start[j], start[j + 1]):
                a = span[k, 0]
                if a & 1 or bound[a >> 1] >= granules:  # DDR comes first
                    continue
                for g in range(bound[a >> 1], bound[span[k, 1]]):
                    for other in range(cores):
                        need[other] = max(need[other], s.stored[g, other])
            for other in range(cores):
                if other == core or need[other] <= s.seen[core, other]:
                    continue
                store = need[other]
                if s.standing[other, core] == limit - 1:
                    store = s.last_store[other]
                s.standing[other, core] += 1
                s.seen[core, other] = store
                source[edges] = store
                target[edges] = first + j
                edges += 1
            s.last_load[core] = name
    for j in range(engine.shape[0]):  # nobody on this core waits for itself here, so its stores may be told at the end
        if engine[j] != _MTE3:
            continue
        for k in range(start[j], start[j + 1]):
            a = span[k, 0]
            if a & 1 == 0 or bound[a >> 1] >= granules:
                continue
            for g in range(bound[a >> 1], bound[span[k, 1]]):
                s.stored[g, core] = first + j
    return edges
