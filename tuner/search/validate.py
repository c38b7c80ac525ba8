"""Whether what is asked for is there at all: kernels look up what a gene names and check nothing, so nothing else may reach them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.space.gene import illegal
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import TilefarmError
from tuner.measure.request import Request


def check_requests(target_graph: TargetGraph, requests: Sequence[Request]) -> None:
    """Raises `TilefarmError`: a strategy that asks for something else is wrong, and no measurement."""
    for request in requests:
        why = fault(target_graph, request)
        if why is not None:
            raise TilefarmError(f"the strategy asked for a {request.kind} of genes {[list(gene) for gene in request.genome]!r:.200}: {why}")


def fault(target_graph: TargetGraph, request: Request) -> str | None:
    """Why a request cannot be measured, whatever fits; None where it can."""
    count, genome = len(target_graph.operators), request.genome
    if request.kind not in ("segment", "stage", "program"):
        return "expected a segment, a stage or a program"
    if not genome or (request.kind == "segment" and len(genome) != 1):
        return f"{len(genome)} genes; expected one for a segment, one at least for others"
    at = 0
    for gene in genome:
        found = illegal(target_graph, gene)
        if found is not None:
            return found
        if gene.start < at or (request.kind == "program" and gene.start > at):
            return f"a gene begins at operator {gene.start} behind operator {at - 1}; expected their order, and of a program each once"
        at = gene.stop
    return f"it ends at operator {at - 1}; the model has {count}" if request.kind == "program" and at != count else None
