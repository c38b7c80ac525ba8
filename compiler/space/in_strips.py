"""Runs in strips of columns by rule: where weights stay beside a row of a strip, and do not beside a whole row.

Then they come once, for any number of blocks.  What it takes are halos of columns, and short bursts at DDR.
"""

from __future__ import annotations

from functools import partial

from compiler.segment.passes import runs_of_products
from compiler.space.columns import most_strips
from compiler.space.decode import decode
from compiler.space.gene import Gene, block_counts
from compiler.space.least import least, streams
from compiler.space.structures import Structures
from compiler.unit.machine import room_blocks
from compiler.unit.unit import Unit
from simulator.npu.parts import Memory

_PART = 8  # of L1 that weights are at least: fewer are little beside what strips take


def genes_in_strips(unit: Unit, structures: Structures, like: Gene) -> list[Gene]:
    """Of every short run of products the fewest strips in which its weights stay, and of these the fewest blocks.

    like: the gene's other fields, its cores as far as there are blocks for them.
    """
    found, known = list[Gene](), dict[str, tuple[int, int, int] | None]()
    for start, stop in runs_of_products(unit):
        key = structures.structure(start, stop)
        gene = like._replace(start=start, stop=stop)
        if key not in known:
            known[key] = _division(unit, gene)
        if (division := known[key]) is not None:
            found.append(_divided(unit, gene, *division))
    return found


def _divided(unit: Unit, gene: Gene, columns: int, blocks: int, prefetch: int) -> Gene:
    cores = gene.cores[: blocks * unit.images]
    return gene._replace(columns=columns, blocks=blocks, cores=cores, prefetch=prefetch, cached=-1 if blocks > 1 else 0)


def _division(unit: Unit, gene: Gene) -> tuple[int, int, int] | None:
    """Strips, blocks and slots of loads; None where strips are of no use."""
    room = room_blocks(unit.machine, Memory.L1)
    weights = sum(spec.weight_blocks for spec in unit.operators[gene.start : gene.stop])
    if not room <= _PART * weights < _PART * room:
        return None
    counts, strips = block_counts(unit, gene.start, gene.stop), range(2, most_strips(unit, gene.start, gene.stop) + 1)

    def stay(blocks: int, prefetch: int, columns: int) -> bool:
        plan = decode(unit, _divided(unit, gene, columns, blocks, prefetch))
        return plan is not None and not streams(unit, plan, gene.start)

    slots = gene.prefetch, 1
    if any(stay(counts[-1], prefetch, 1) for prefetch in slots):
        return None
    for prefetch in slots:
        if (columns := least(strips, partial(stay, counts[-1], prefetch))) is not None:
            blocks = next(count for count in counts if stay(count, prefetch, columns))
            return columns, blocks, prefetch
    return None
