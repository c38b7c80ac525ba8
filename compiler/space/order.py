"""In which order a search has a model's operators: segments are runs of it, so it decides what can be fused.

Exporters write branches in any order, often one layer of all branches after the other; then no run of operators is a branch.  `depth`
follows a branch as far as it can be followed; `narrow` takes what leaves the least alive behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from compiler.segment.permuted import arranged
from compiler.unit.unit import Unit

Order = Literal["file", "depth", "narrow"]
ORDERS: tuple[Order, ...] = get_args(Order)


def ordered(unit: Unit, order: Order) -> Unit:
    """The unit with its operators in such an order, whichever it has them in."""
    if order == "file":
        found = sorted(range(len(unit.kernels)), key=lambda k: unit.kernels[k].tag)
    else:
        found = _taken(unit, _latest if order == "depth" else _growth)
    return unit if found == list(range(len(found))) else arranged(unit, tuple((k,) for k in found))


Rank = Callable[[Unit, int, list[int], list[int]], tuple[int, ...]]


def _taken(unit: Unit, rank: Rank) -> list[int]:
    """Kernels in an order: of those whose operands are made the one of the lowest rank, the first in the file of equals."""
    waits = [len(unit.producers[k]) for k in range(len(unit.kernels))]
    unread = [len(unit.consumers[k]) for k in range(len(unit.kernels))]
    made_at = [-1] * len(waits)
    ready = [k for k, count in enumerate(waits) if not count]
    order = list[int]()
    while ready:
        k = min(ready, key=lambda k: (*rank(unit, k, made_at, unread), unit.kernels[k].tag))
        ready.remove(k)
        made_at[k] = len(order)
        order.append(k)
        for source in unit.producers[k]:
            unread[source] -= 1
        for reader in unit.consumers[k]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return order


def _latest(unit: Unit, k: int, made_at: list[int], unread: list[int]) -> tuple[int, ...]:
    """What reads the result made last comes first."""
    return (-max((made_at[source] for source in unit.producers[k]), default=-1),)


def _growth(unit: Unit, k: int, made_at: list[int], unread: list[int]) -> tuple[int, ...]:
    """Blocks of results that are alive after it and were not before; of equals as `_latest`."""
    freed = (source for source in unit.producers[k] if unread[source] == 1 and source not in unit.escapes)
    return _blocks(unit, k) - sum(_blocks(unit, source) for source in freed), *_latest(unit, k, made_at, unread)


def _blocks(unit: Unit, k: int) -> int:
    y = unit.kernels[k].y
    return y.planes * unit.storages[y.storage].plane_blocks
