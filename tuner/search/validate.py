"""Validation of requests: kernels look up fields of a gene without checks, so malformed genes must not reach them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.space.gene import find_fault
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import TilefarmError
from tuner.measure.request import Request


def check_requests(target_graph: TargetGraph, requests: Sequence[Request]) -> None:
    """Raise `TilefarmError` for malformed requests: an error of the strategy, not a failed measurement."""
    for request in requests:
        reason = fault(target_graph, request)
        if reason is not None:
            raise TilefarmError(
                f"the strategy asked for a {request.kind} of genes {[list(gene) for gene in request.genome]!r:.200}: {reason}"
            )


def fault(target_graph: TargetGraph, request: Request) -> str | None:
    """Reason why a request is malformed, apart from limits of memory; None if it is well-formed."""
    genes = len(request.genome)
    if request.kind not in ("segment", "stage", "program"):
        return "expected a segment, a stage or a program"
    if not genes or (request.kind == "segment" and genes != 1):
        return f"{genes} genes; expected one for a segment, one at least for others"
    return find_fault(target_graph, request.genome, request.kind == "program")
