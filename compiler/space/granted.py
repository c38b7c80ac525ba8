"""Genes and what levels grant: at which levels a gene's segment fits, and the gene that fits one."""

from __future__ import annotations

from functools import lru_cache

from compiler.plan.plan import Infeasible
from compiler.segment.granted import least_grant
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome
from compiler.space.starts import single_operators
from compiler.unit.granted import at_level, grant_of
from compiler.unit.unit import Unit


@lru_cache(maxsize=1 << 14)
def fits_grant(unit: Unit, gene: Gene) -> int | None:
    """The place in `l1_grants` of the smallest L1 in which the gene's segment fits; None where it fits nowhere."""
    plan = decode(unit, gene)
    return None if plan is None else least_grant(unit, plan, gene.start)


def within_level(unit: Unit, gene: Gene, level: str) -> Gene:
    """The gene where its segment fits the L1 that a level leaves, else the one that is decoded within that; cores as they are."""
    wanted, fits = grant_of(unit.machine, level), fits_grant(unit, gene)
    return gene if gene.grant >= wanted or (fits is not None and fits >= wanted) else gene._replace(grant=wanted)


def single_operators_at(unit: Unit, level: str) -> Genome | Infeasible:
    """`single_operators` within what a level leaves."""
    genome, grant = single_operators(at_level(unit, level)), grant_of(unit.machine, level)
    return genome if isinstance(genome, Infeasible) else tuple(gene._replace(grant=grant) for gene in genome)
