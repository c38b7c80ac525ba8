"""Searches of a model with several subgraphs: which subgraphs are searched, their shares of the budget, and their marks in the log.

Subgraphs meet on the host only, so their programs are independent, and the best programs of a model are the best programs of its
subgraphs.  One search per subgraph is therefore exact; a single search over all would find the same in a larger space.  Subgraphs with the
same computation (the blocks of a transformer around an unsupported operator) share one search.

The budget is divided in proportion to the layer-by-layer cycles: each program goes to the search that is furthest behind its share
(Sainte-Laguë).  Each search gets at least one program per group of equal grants, its baselines.  So a larger budget never reduces a share,
and a run resumed with more ends as if it had begun with more.

Times of subgraphs add up, because they meet on the host with empty engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.build import default_plan, measure_plans
from compiler.model import LoweredModel
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from tuner.platform.files import AnyPath
from tuner.runs.folder import write_json
from tuner.runs.subgraph_runs import FILE


@dataclass(frozen=True)
class SearchedSubgraph:
    """A search of a run.  run: its id in the log.  pieces: numbers of the pieces that it serves; the first one is measured."""

    run: str
    pieces: tuple[int, ...]


def searches(lowered: LoweredModel, run: str) -> tuple[SearchedSubgraph, ...]:
    """Searches, one per distinct subgraph.  run: id of the whole run, also of the search if the model is one subgraph."""
    if len(lowered.target_graphs) == 1:
        return (SearchedSubgraph(run, (0,)),)
    groups: dict[str, list[int]] = {}
    for k, target_graph in enumerate(lowered.target_graphs):
        groups.setdefault(_structure(target_graph), []).append(k)
    return tuple(SearchedSubgraph(f"{run}.{lowered.names[members[0]]}", tuple(members)) for members in groups.values())


def _structure(target_graph: TargetGraph) -> str:
    return Structures(target_graph).structure(0, len(target_graph.operators))


def search_weights(lowered: LoweredModel, searches: Sequence[SearchedSubgraph]) -> list[int]:
    """Cycles of each search's pieces layer by layer, summed over the levels.  Raises `InfeasibleError`."""
    machine, weights = lowered.machine, []
    levels = {machine.granted(level): level for level in machine.contention}  # one level per grant
    for search in searches:
        k = search.pieces[0]
        target_graph = lowered.target_graphs[k]
        plans = {granted: default_plan(target_graph, level) for granted, level in levels.items()}
        measured = measure_plans(lowered.compilers[k], {level: plans[machine.granted(level)] for level in machine.contention})
        weights.append(sum(measured_plan.timings[level].cycles for level, measured_plan in measured.items()) * len(search.pieces))
    return weights


def share_budget(count: int, weights: Sequence[int], minimum: int = 1) -> list[int]:
    """Shares of `count` programs by weight, each at least `minimum`."""
    shares = [minimum] * len(weights)
    for _ in range(count - sum(shares)):
        neediest = max(range(len(weights)), key=lambda i: (weights[i] / (2 * shares[i] + 1), -i))
        shares[neediest] += 1
    return shares


def write_searches(folder: AnyPath, lowered: LoweredModel, searches: Sequence[SearchedSubgraph]) -> None:
    """Write RUN/pieces.json, if there are several subgraphs: search in the log -> subgraphs that use its result."""
    if len(lowered.names) > 1:
        rows = [{"run": search.run, "pieces": [lowered.names[k] for k in search.pieces]} for search in searches]
        write_json(folder / FILE, {"version": 1, "searches": rows})
