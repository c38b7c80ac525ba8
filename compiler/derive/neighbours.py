"""All that one move could make of a genome: the steps of a descent, in a fixed order.

A move (`compiler.derive.moves`) draws one of these; here each is spelt out, by the name of its move, so that the same switches hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from compiler.derive.gene import WINDOWS, Gene, Genome, bits, block_counts, choice_count, whole_or, working_cores
from compiler.derive.moves import resized
from compiler.derive.plan import MAX_PREFETCH
from compiler.tile.space import CHUNK_BUDGETS
from compiler.tile.spec import Unit

NEAR = (-2, -1, 1, 2)


class Step(NamedTuple):
    """Genes `first` .. `first + width - 1` of a genome give way to others over the same operators."""

    first: int
    width: int
    genes: Genome

    def taken(self, genome: Genome) -> Genome:
        """The genome after the step."""
        return (*genome[: self.first], *self.genes, *genome[self.first + self.width :])


def steps(unit: Unit, genome: Genome, moves: Callable[[str], bool], longest: int) -> Iterator[Step]:
    """Steps of the moves that are allowed, none of which leaves the genome as it is.  longest: operators of a segment."""
    for i, gene in enumerate(genome):
        for name, others in _ALONE.items():
            if moves(name):
                for other in others(unit, gene):
                    if other != gene:
                        yield Step(i, 1, (other,))
        if moves("split_segment"):
            for at in range(gene.start + 1, gene.stop):
                yield Step(i, 1, (resized(unit, gene, gene.start, at), resized(unit, gene, at, gene.stop)))
        if i + 1 < len(genome):
            yield from _borders(unit, genome, i, moves, longest)


def _borders(unit: Unit, genome: Genome, i: int, moves: Callable[[str], bool], longest: int) -> Iterator[Step]:
    a, b = genome[i], genome[i + 1]
    if moves("merge_segments") and b.stop - a.start <= longest:
        for merged in dict.fromkeys(resized(unit, base, a.start, b.stop) for base in (a, b)):
            yield Step(i, 2, (merged,))
    if moves("shift_border"):
        for at in (a.stop + by for by in NEAR):
            if a.start < at < b.stop and max(at - a.start, b.stop - at) <= longest:
                yield Step(i, 2, (resized(unit, a, a.start, at), resized(unit, b, at, b.stop)))


def _blocks(unit: Unit, gene: Gene) -> Iterator[Gene]:
    counts = block_counts(unit, gene.start, gene.stop)
    at = counts.index(gene.blocks) if gene.blocks in counts else 0
    for to in (at + by for by in NEAR):
        if 0 <= to < len(counts):
            changed = gene._replace(blocks=counts[to])
            yield changed._replace(cores=working_cores(unit, changed))


def _halos(unit: Unit, gene: Gene) -> Iterator[Gene]:
    if gene.blocks == 1:
        return
    single = (bits(gene) ^ 1 << k for k in range(gene.stop - gene.start))
    for cached in dict.fromkeys(whole_or(gene, mask) for mask in (0, -1, *single)):
        yield gene._replace(cached=cached)


def _windows(unit: Unit, gene: Gene) -> Iterator[Gene]:
    if gene.stop - gene.start > 1:
        once = gene.blocks == 1 and unit.storages[0].n == 1
        for window, sliding in ((1, False), *((w, True) for w in ((1,) if once else WINDOWS))):
            yield gene._replace(window=window, sliding=sliding)


def _prefetch(unit: Unit, gene: Gene) -> Iterator[Gene]:
    if gene.stop - gene.start > 1:
        yield gene._replace(spread=not gene.spread)
    if gene.blocks > 1:
        for slots in (gene.prefetch - 1, gene.prefetch + 1):
            if 1 <= slots <= MAX_PREFETCH:
                yield gene._replace(prefetch=slots)


def _weights(unit: Unit, gene: Gene) -> Iterator[Gene]:
    if gene.blocks > 1:
        yield gene._replace(resident=not gene.resident)
    for chunk in range(len(CHUNK_BUDGETS)):
        yield gene._replace(chunk=chunk)


def _tilings(unit: Unit, gene: Gene) -> Iterator[Gene]:
    now = gene.choices or (0,) * (gene.stop - gene.start)
    for k, choice in enumerate(now):
        for to in dict.fromkeys((0, *(choice + by for by in NEAR))):
            if 0 <= to < choice_count(unit, gene.start + k):
                choices = (*now[:k], to, *now[k + 1 :])
                yield gene._replace(choices=choices if any(choices) else ())


_ALONE: dict[str, Callable[[Unit, Gene], Iterator[Gene]]] = {
    "change_blocks": _blocks,
    "toggle_halo": _halos,
    "change_window": _windows,
    "change_prefetch": _prefetch,
    "change_weights": _weights,
    "change_tiling": _tilings,
}
