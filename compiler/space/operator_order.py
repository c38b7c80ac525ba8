"""Order of the operators in a search.  Segments are runs of that order, so the order decides which operators can be fused.

Exporters write branches in any order, often layer by layer through all branches; then no run of operators is a branch.  `depth` follows
a branch to its end.  Among several branches, the branch whose end keeps VECTOR busy longest comes first (as for jobs on two machines in
sequence: Johnson 1954), so that products of the other branches overlap its end.

A search has one order and no mutators that reorder operators: genomes of different orders have no crossover and no common segmentation.
"""

from __future__ import annotations

from typing import Literal, get_args

from compiler.segment.reorder import permute
from compiler.target.target_graph import TargetGraph

Order = Literal["file", "depth"]
ORDERS: tuple[Order, ...] = get_args(Order)


def ordered(target_graph: TargetGraph, order: Order) -> TargetGraph:
    """Target graph, whatever its order is, with its operators in `order`."""
    if order == "file":
        order_of_operators = sorted(range(len(target_graph.operators)), key=lambda k: target_graph.operators[k].tag)
    else:
        order_of_operators = _depth_first(target_graph)
    return target_graph if order_of_operators == list(range(len(order_of_operators))) else permute(target_graph, tuple(order_of_operators))


def _depth_first(target_graph: TargetGraph) -> list[int]:
    """Depth-first order.  Among ready operators, the reader of the latest result comes first; then the longest tail, then the order in the
    file decide."""
    waits, tails = [len(target_graph.producers[k]) for k in range(len(target_graph.operators))], _tails(target_graph)
    made_at = [-1] * len(waits)
    ready = [k for k, count in enumerate(waits) if not count]
    order = list[int]()
    while ready:
        newest = {k: max((made_at[source] for source in target_graph.producers[k]), default=-1) for k in ready}
        k = min(ready, key=lambda k: (-newest[k], -tails[k], target_graph.operators[k].tag))
        ready.remove(k)
        made_at[k] = len(order)
        order.append(k)
        for reader in target_graph.consumers[k]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return order


def _tails(target_graph: TargetGraph) -> list[int]:
    """Per operator, the tail of the branch that begins with it: blocks of results that VECTOR computes behind the branch's last product.

    The tail of a branch without products is longer than any other tail, because the branch never delays CUBE.  The tail is 0 if VECTOR
    begins a branch with products, because VECTOR then starts at once at any position.
    A branch ends where its result has several readers, or where its reader has several sources.
    """
    tails, products = [0] * len(target_graph.operators), [False] * len(target_graph.operators)
    for k, spec in reversed([*enumerate(target_graph.operators)]):
        readers, storage = target_graph.consumers[k], target_graph.storages[spec.y.storage]
        if len(readers) == 1 and len(target_graph.producers[readers[0]]) == 1:
            tails[k], products[k] = tails[readers[0]], products[readers[0]]
        products[k] |= spec.runs_on == "CUBE"
        if not products[k]:
            tails[k] += spec.y.planes * storage.h * storage.row_blocks
    longest = sum(tails)
    ends = zip(tails, products, target_graph.operators, strict=True)
    return [longest + tail if not on_path else tail if spec.runs_on == "CUBE" else 0 for tail, on_path, spec in ends]
