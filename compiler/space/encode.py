"""Encoder: from a plan back to its gene, without a search.  Every legal plan has a gene.

Plans come from logs and from people.  If the rules of `decode` can make the plan without pins, the gene has no pins: it is then the gene
that a search itself would try.  The gene of any other plan has pinned tilings.
"""

from __future__ import annotations

from itertools import accumulate

from compiler.cost.ranking import CHUNK_BUDGETS, tiling_rank
from compiler.ops.conv import product_of
from compiler.plan.plan import ConvTiling, Infeasible, Plan, SegmentPlan, Tiling, VectorTiling
from compiler.segment.persistent import NO_TENSORS, PersistentLayout, place_program
from compiler.segment.segment import largest_strip
from compiler.space.decode import decode, expand
from compiler.space.gene import ALL, UB_SLOTS, Gene, Genome, choice_count, copied, outline, pins_of, vector_choice, whole_or, with_weights
from compiler.space.persistent import cut_tensors, holding
from compiler.space.shared_memory import without_shared
from compiler.target.target_graph import TargetGraph


def genome_of(target_graph: TargetGraph, plan: Plan) -> Genome | None:
    """Genome that `decode_all` decodes to `plan`; None if the plan has other operators or another order, or does not fit."""
    genes: list[Gene] = []
    starts = accumulate((len(segment.operators) for segment in plan.segments), initial=0)
    segments = list(zip(plan.segments, starts, strict=False))
    if any(
        set(segment.operators) != {spec.name for spec in target_graph.operators[first : first + len(segment.operators)]}
        for segment, first in segments
    ):
        return None
    held = place_program(target_graph, segments)
    if isinstance(held, Infeasible):
        return None
    for (segment, start), tensors in zip(segments, held, strict=True):
        gene = encode(target_graph, segment, start, tensors or NO_TENSORS)
        if gene is None:
            return None
        genes.append(gene)
    if not genes or genes[-1].stop != len(target_graph.operators):
        return None
    genome, names = tuple(genes), {name for segment in plan.segments for name in segment.held}
    return (
        holding(genome, [tensor for tensor in cut_tensors(target_graph, genome) if target_graph.storages[tensor.storage].name in names])
        if names
        else genome
    )


def encode(target_graph: TargetGraph, plan: SegmentPlan, start: int, held: PersistentLayout = NO_TENSORS) -> Gene | None:
    """Gene of operators from `start` on that `decode` decodes to `plan`; None if the plan has other operators, or does not fit.

    held: layout of persistent tensors; the gene itself asks for none.
    """
    stop = start + len(plan.operators)
    if plan.operators != tuple(spec.name for spec in target_graph.operators[start:stop]) or max(plan.cores) >= target_graph.machine.cores:
        return None
    window = ALL if plan.window == "all" else plan.window
    usual = Gene(start, stop, window=window, on_vector=plan.planes, **copied(plan))
    usual = usual._replace(cached=whole_or(usual, plan.caching))
    named = _named(target_graph, plan, usual)
    pins = pins_of([*plan.tilings, *(share.tiling for share in plan.on_vector)])
    plan, space = without_shared(plan), (sum(1 << storage for storage, _ in held.places), held.blocks)
    return next((g for g in (usual, named, named._replace(pinned=pins)) if decode(target_graph, g, *space) == plan), None)


def _named(target_graph: TargetGraph, plan: SegmentPlan, gene: Gene) -> Gene:
    """Gene with the weights, chunk and choices of a plan's tilings; choice 0 for a tiling without a rank."""
    expansion = expand(target_graph, gene)
    if expansion is None:
        return gene
    expanded_graph, expanded, segments = expansion
    strip = largest_strip(expanded_graph, outline(expanded_graph, expanded))
    if isinstance(strip, Infeasible):
        return gene
    operators = [*range(len(plan.tilings))]
    for segment in segments:
        operators = [segment.last[k] for k in operators]
    divided, layout = strip
    products = [tiling for tiling in plan.tilings if isinstance(tiling, ConvTiling)]
    chunks = [
        product.fractal.weight_blocks * tiling.chunk_n1 * tiling.chunk_k1
        for product, tiling in zip((product_of(divided.operators[gene.start + k]) for k in operators), plan.tilings, strict=True)
        if product is not None and isinstance(tiling, ConvTiling) and tiling.weights == "streamed"
    ]
    largest = max(chunks, default=CHUNK_BUDGETS[0])
    chunk = max((place for place, budget in enumerate(CHUNK_BUDGETS) if budget >= largest), default=0)
    places = tuple(
        _place(divided, gene.start + k, layout.rows(k), layout.inside[k], tiling, CHUNK_BUDGETS[chunk])
        for k, tiling in zip(operators, plan.tilings, strict=True)
    )
    resident = any(tiling.weights == "resident" for tiling in products)
    return with_weights(target_graph, gene._replace(chunk=chunk, choices=places if any(places) else ()), resident)


def _place(target_graph: TargetGraph, index: int, rows: int, inside: bool, tiling: Tiling, budget: int) -> int:
    spec = target_graph.operators[index]
    product = product_of(spec)
    if product is not None:
        return tiling_rank(target_graph, product, rows, inside, tiling, budget) if isinstance(tiling, ConvTiling) else 0
    fed = isinstance(tiling, VectorTiling) and tiling.fed
    choices = range(len(UB_SLOTS), choice_count(target_graph, index)) if fed else range(len(UB_SLOTS))
    return next((i for i in choices if vector_choice(target_graph, spec, rows, i, fed) == tiling), 0)
