"""Whether what is asked for is there at all: kernels look up what a gene names and check nothing, so nothing else may reach them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.plan.plan import MAX_LOOKAHEAD
from compiler.space.gene import PINS, Gene, tiling_count
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
        found = _fault_of_gene(target_graph, gene)
        if found is not None:
            return found
        if gene.start < at or (request.kind == "program" and gene.start > at):
            return f"a gene begins at operator {gene.start} behind operator {at - 1}; expected their order, and of a program each once"
        at = gene.stop
    return f"it ends at operator {at - 1}; the model has {count}" if request.kind == "program" and at != count else None


def _fault_of_gene(target_graph: TargetGraph, gene: Gene) -> str | None:
    operators, cores, count = len(target_graph.operators), target_graph.machine.cores, gene.stop - gene.start
    if not 0 <= gene.start < gene.stop <= operators:
        return f"operators {gene.start}..{gene.stop - 1}; the model has 0..{operators - 1}"
    if min(gene.blocks, gene.columns, gene.passes, gene.input_passes) < 1:
        divided = f"{gene.blocks} blocks in {gene.columns} strips, {gene.passes} passes and {gene.input_passes} input passes"
        return f"{divided}; expected one at least"
    if gene.images < 1 or target_graph.images % gene.images:
        return f"{gene.images} images together; the model has {target_graph.images}, expected a divisor of that"
    if not 1 <= gene.lookahead <= MAX_LOOKAHEAD:
        return f"a lookahead of {gene.lookahead}; expected 1 to {MAX_LOOKAHEAD}"
    if not gene.cores or len(set(gene.cores)) < len(gene.cores) or min(gene.cores) < 0 or max(gene.cores) >= cores:
        return f"cores {gene.cores}; the machine has 0..{cores - 1}"
    if not 0 <= gene.held < 1 << count:
        return f"tensors of operators {gene.held:b} held; there are {count}"
    if len(gene.on_vector) not in (0, count) or min(gene.on_vector, default=0) < 0:
        return f"{gene.on_vector} planes on VECTOR of {count} operators"
    if len(gene.choices) not in (0, count) or len(gene.pinned) not in (0, tiling_count(gene) * PINS):
        return f"{len(gene.choices)} choices and {len(gene.pinned)} pins of {count} operators"
    return None
