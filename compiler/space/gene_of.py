"""From a plan back to a gene: what `realise` makes the plan of, where there is one.

Plans come from logs and from people.  A plan that the rules of `realise` would not make has no gene: tilings beyond those that a gene can
name, weights that stay although smaller ones do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.cost.ranking import CHUNK_BUDGETS, LAST_BUDGETS, conv_place
from compiler.kinds.conv import product_of
from compiler.kinds.vector_tiling import vector_tiling
from compiler.plan.plan import ConvTiling, Infeasible, Plan, SegmentPlan, Tiling
from compiler.segment.segment import largest_strip
from compiler.space.decode import realise
from compiler.space.gene import ALL, UB_SLOTS, Gene, Genome, keeps_weights, outline, whole_or, with_weights
from compiler.unit.unit import Unit


def genome_of(unit: Unit, plan: Plan) -> Genome | None:
    """A genome that `realise_all` makes this plan of; None where a segment has no gene, or the plan is not of these operators."""
    genes: list[Gene] = []
    for segment in plan.segments:
        gene = gene_of(unit, segment, genes[-1].stop if genes else 0)
        if gene is None:
            return None
        genes.append(gene)
    return tuple(genes) if genes and genes[-1].stop == len(unit.kernels) else None


def gene_of(unit: Unit, plan: SegmentPlan, start: int) -> Gene | None:
    """A gene of operators from `start` on that `realise` makes this plan of: of several the one with the largest chunks; or None."""
    stop = start + len(plan.operators)
    if plan.operators != tuple(spec.name for spec in unit.kernels[start:stop]) or max(plan.cores) >= unit.machine.cores:
        return None
    bare = Gene(
        start,
        stop,
        plan.blocks,
        plan.prefetch,
        ALL if plan.window == "all" else plan.window,
        cores=plan.cores,
        sliding=plan.sliding,
        spread=plan.spread,
        ahead_kib=plan.ahead_kib,
        split=plan.split,
        columns=plan.columns,
    )
    bare = bare._replace(cached=whole_or(bare, plan.caching))
    for chunk, places in _places(unit, plan, bare):
        named = bare._replace(chunk=chunk, choices=places if any(places) else ())
        for gene in (named, with_weights(unit, named, not keeps_weights(unit, named))):
            if realise(unit, gene) == plan:
                return gene
    return None


def _places(unit: Unit, plan: SegmentPlan, gene: Gene) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Budgets of chunks, with a place for every tiling of the plan: those for which it has one, then the first, which `fit_ub` changes."""
    strip = largest_strip(unit, outline(unit, gene))
    if isinstance(strip, Infeasible):
        return
    mine, layout = strip
    every = [
        [_place(mine, gene.start + k, layout.rows(k), layout.inside[k], tiling, budget) for k, tiling in enumerate(plan.tilings)]
        for budget in (*CHUNK_BUDGETS, *LAST_BUDGETS)
    ]
    for chunk, places in enumerate(every):
        found = tuple(place for place in places if place is not None)
        if len(found) == len(places):
            yield min(chunk, len(CHUNK_BUDGETS) - 1), found
    for chunk in range(len(CHUNK_BUDGETS)):
        yield chunk, ()


def _place(unit: Unit, k: int, rows: int, inside: bool, tiling: Tiling, budget: int) -> int | None:
    spec = unit.kernels[k]
    product = product_of(spec)
    if product is not None:
        return conv_place(unit, product, rows, inside, tiling, budget) if isinstance(tiling, ConvTiling) else None
    return next((i for i, slot in enumerate(UB_SLOTS) if vector_tiling(unit, spec, rows, slot) == tiling), None)
