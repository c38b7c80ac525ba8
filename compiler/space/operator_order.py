"""Order of the operators in a search.  Segments are runs of that order, so it decides which operators can be fused.

Exporters write branches in any order, often one layer of all branches after the other; then no run of operators is a branch.  `depth`
follows a branch to its end.  Among several branches, the one whose end keeps VECTOR busy longest comes first (as for jobs on two machines
in sequence: Johnson 1954), so that products of the other branches overlap it.

Moves that reorder operators, or several orders in one search, were not chosen: genomes of different orders have no crossover and no common
segmentation.
"""

from __future__ import annotations

from typing import Literal, get_args

from compiler.segment.reorder import permute
from compiler.target.target_graph import TargetGraph

Order = Literal["file", "depth"]
ORDERS: tuple[Order, ...] = get_args(Order)


def ordered(target_graph: TargetGraph, order: Order) -> TargetGraph:
    """Target graph with its operators in the given order, from any order."""
    if order == "file":
        order_of_operators = sorted(range(len(target_graph.operators)), key=lambda k: target_graph.operators[k].tag)
    else:
        order_of_operators = _depth_first(target_graph)
    return target_graph if order_of_operators == list(range(len(order_of_operators))) else permute(target_graph, tuple(order_of_operators))


def _depth_first(target_graph: TargetGraph) -> list[int]:
    """Of the ready operators, the one that reads the latest result; among equals the one with the longest tail, then the first in the
    file."""
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
    """Per operator, the blocks of results that VECTOR computes behind the last product of the branch that it begins.

    Without a product the tail is longer than any other, because the branch never delays CUBE.  It is 0 if VECTOR begins the branch with
    products, because VECTOR then starts at once at any position.
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
