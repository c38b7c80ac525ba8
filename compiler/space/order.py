"""In which order a search has a model's operators: segments are runs of it, so it decides what can be fused.

Exporters write branches in any order, often one layer of all branches after the other; then no run of operators is a branch.  `depth`
follows a branch as far as it can be followed.
"""

from __future__ import annotations

from typing import Literal, get_args

from compiler.segment.permuted import permuted
from compiler.unit.unit import Unit

Order = Literal["file", "depth"]
ORDERS: tuple[Order, ...] = get_args(Order)


def ordered(unit: Unit, order: Order) -> Unit:
    """The unit with its operators in such an order, whichever it has them in."""
    if order == "file":
        found = sorted(range(len(unit.operators)), key=lambda k: unit.operators[k].tag)
    else:
        found = _depth_first(unit)
    return unit if found == list(range(len(found))) else permuted(unit, tuple(found))


def _depth_first(unit: Unit) -> list[int]:
    """Of the operators whose operands are made, the one that reads the result made last, the first in the file of equals."""
    waits = [len(unit.producers[k]) for k in range(len(unit.operators))]
    made_at = [-1] * len(waits)
    ready = [k for k, count in enumerate(waits) if not count]
    order = list[int]()
    while ready:
        k = min(ready, key=lambda k: (-max((made_at[source] for source in unit.producers[k]), default=-1), unit.operators[k].tag))
        ready.remove(k)
        made_at[k] = len(order)
        order.append(k)
        for reader in unit.consumers[k]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return order
