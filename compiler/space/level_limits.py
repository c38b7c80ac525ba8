"""Limits of levels for genes: the L1 that a gene's segment needs, and the gene that fits the grant of a level."""

from __future__ import annotations

from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.segment.l1_limits import least_l1
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome
from compiler.space.initial import single_operators
from compiler.target.level_limits import at_level, memory_grants
from compiler.target.target_graph import TargetGraph


@lru_cache(maxsize=1 << 14)
def l1_of(target_graph: TargetGraph, gene: Gene) -> int | None:
    """Smallest of `l1_grants` into which the gene's segment fits; None if the gene has no plan."""
    plan = decode(target_graph, gene)
    return None if plan is None else least_l1(target_graph, plan, gene.start)


def within_level(target_graph: TargetGraph, gene: Gene, level: str) -> Gene:
    """Gene itself if it fits the grant of a level, else the gene with that grant; its cores do not change.

    All segments of a program divide the shared memory, so a gene for another size of shared memory gets the level's grant.
    """
    grants, wanted = memory_grants(target_graph.machine), grant_of(target_graph, level)
    gene_grant, level_grant = grants[gene.grant], grants[wanted]
    if gene_grant.shared_bytes == level_grant.shared_bytes:
        if gene_grant.l1_bytes <= level_grant.l1_bytes:
            return gene
        needs = l1_of(target_graph, gene)
        if needs is not None and needs <= level_grant.l1_bytes:
            return gene
    return gene._replace(grant=wanted)


def grant_of(target_graph: TargetGraph, level: str) -> int:
    """Index of a level's grant in `memory_grants`."""
    return memory_grants(target_graph.machine).index(target_graph.machine.granted(level)._replace(cores=target_graph.machine.cores))


def single_operators_at(target_graph: TargetGraph, level: str) -> Genome | Infeasible:
    """`single_operators` within the grant of a level."""
    genome, grant = single_operators(at_level(target_graph, level)), grant_of(target_graph, level)
    return genome if isinstance(genome, Infeasible) else tuple(gene._replace(grant=grant) for gene in genome)
