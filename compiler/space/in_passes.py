"""Runs in passes by rule: where fewer blocks fit so than without, which reads weights less often."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.segment.passes import pass_counts, runs_with_passes
from compiler.space.decode import decode
from compiler.space.gene import Gene, block_counts
from compiler.space.structures import Structures
from compiler.unit.unit import Unit

_MOST = 4  # blocks: with more of them little is left to gain


def genes_in_passes(unit: Unit, structures: Structures, like: Gene) -> list[Gene]:
    """Of every run that may be in passes, in every number of blocks in which it does not fit as a whole, the fewest passes that do.

    like: the gene's other fields, its cores as far as there are blocks for them.
    """
    found, known = list[Gene](), dict[str, list[tuple[int, int]]]()
    for start, stop in runs_with_passes(unit):
        structure = structures.structure(start, stop)
        if structure not in known:
            known[structure] = _divisions(unit, like._replace(start=start, stop=stop))
        found += [_divided(unit, like._replace(start=start, stop=stop), *division) for division in known[structure]]
    return found


def _divided(unit: Unit, gene: Gene, blocks: int, passes: int) -> Gene:
    cores = gene.cores[: blocks * unit.images]
    return gene._replace(blocks=blocks, passes=passes, cores=cores, cached=-1 if blocks > 1 else 0)


def _divisions(unit: Unit, gene: Gene) -> list[tuple[int, int]]:
    """(blocks, passes)"""
    found = []
    for blocks in _few(block_counts(unit, gene.start, gene.stop)):
        if decode(unit, _divided(unit, gene, blocks, 1)) is not None:
            break
        fits = (
            count for count in pass_counts(unit, gene.start, gene.stop) if decode(unit, _divided(unit, gene, blocks, count)) is not None
        )
        if (passes := next(fits, 0)) > 0:
            found.append((blocks, passes))
    return found


def _few(counts: Sequence[int]) -> list[int]:
    return [count for count in counts if count <= _MOST]
