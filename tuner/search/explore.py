"""Which segments to look at next: neighbours of the covers that are best now, single operators and their tilings, and random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, block_counts, on_all_cores, whole_or, widths
from compiler.derive.moves import Move, change_tiling, on_random_cores, thin_operators
from compiler.tile.channels import can_split
from compiler.tile.space import CHUNK_BUDGETS
from compiler.tile.spec import Unit
from tuner.search.table import SegmentTable

_OWN = (
    "change_blocks", "toggle_halo", "change_window", "change_prefetch", "change_weights", "change_tiling", "change_cores", "change_split",
)  # fmt: skip

RANDOM, SINGLES, MIXED = "random", "singles", "mixed"


def first_genes(unit: Unit, table: SegmentTable, caching: bool) -> list[Gene]:
    """Every operator alone in every block count, and short runs in a few: what every later choice is compared with.

    caching: with halos cached; of an operator alone that only saves loads and L1, so nothing else is looked at.  On several cores: in block
    counts that give each of them work, on all of them in as many as on one, and with channels split where they can be.
    """
    genes = []
    for length in (1, 2, 3):
        for start in range(len(unit.kernels) - length + 1):
            counts = block_counts(unit, start, start + length)
            for blocks in counts[:12] if length == 1 else sorted({1, *counts[3:8:4]}):
                genes += _with_halos(Gene(start, start + length, blocks), caching)
            for width in widths(unit)[1:]:
                wide = Gene(start, start + length, cores=tuple(range(width)))
                enough = [blocks for blocks in counts if blocks * unit.storages[0].n >= width]
                closely = width == unit.machine.cores
                singles, runs = (enough[:12], [*enough[:1], *enough[2:4], *enough[6:8]]) if closely else (enough[:4], enough[:3:2])
                for blocks in singles if length == 1 else runs:
                    genes += _with_halos(wide._replace(blocks=blocks), caching)
                if can_split(unit, start, start + length, width):
                    for blocks in counts[:4:2] if length == 1 else counts[:1]:
                        genes += _with_halos(wide._replace(blocks=blocks, split="channels"), caching)
    return unknown(table, genes)


def _with_halos(gene: Gene, caching: bool) -> list[Gene]:
    if not caching:
        return [gene]
    if gene.stop - gene.start == 1:
        return [gene._replace(cached=-1)]
    return [gene._replace(cached=cached) for cached in ((0, -1) if gene.blocks > 1 else (0,))]


class Found(NamedTuple):
    """A gene that is not measured yet, and the way in which it was come upon: a move's name, `RANDOM` or `SINGLES`."""

    gene: Gene
    way: str


def ways(moves: Mapping[str, Move]) -> list[str]:
    """Names of the ways to come upon genes."""
    return [RANDOM, SINGLES, MIXED, *(name for name in moves if name != "change_ahead")]  # which changes nothing of a segment alone


def propose(
    unit: Unit,
    table: SegmentTable,
    covers: list[Genome],
    count: int,
    rng: np.random.Generator,
    moves: Mapping[str, Move],
    shares: NDArray[np.float64] | None = None,
) -> list[Found]:
    """`count` genes (or fewer) that are not measured yet, mostly from the covers (one per level).

    shares: how often each of `ways(moves)` is drawn, float64; None: all equally often.  Half of the genes are on all cores: a search that
    may run segments side by side should know those that run one after the other as well as a search that knows nothing else.
    """
    out: dict[object, Found] = {}
    names = ways(moves)
    own = [moves[name] for name in _OWN if name in moves]
    every = [moves[name] for name in names[3:]]
    singles = table.singles()
    for drawn in rng.choice(len(names), count * 4, p=shares):
        if len(out) >= count:
            break
        way = names[drawn]
        if way == RANDOM:
            fresh = [_random(unit, rng, "toggle_halo" in moves)]
        elif way == SINGLES:
            fresh = [] if singles is None else _moved(unit, singles, own[int(rng.integers(len(own)))], own, rng)
        elif way == MIXED:
            at = int(rng.integers(len(covers)))
            fresh = _mixed(table, covers[at], min(at, table.levels-1), rng)
        else:
            fresh = _moved(unit, covers[int(rng.integers(len(covers)))], moves[way], every, rng)
        if unit.machine.cores > 1 and rng.random() < 0.5:
            fresh = [on_all_cores(unit, gene) or gene for gene in fresh]
        for gene in fresh:
            key = table.structures.key(gene)
            if key not in table.cycles and key not in out:
                out[key] = Found(gene, way)
    return list(out.values())


def _random(unit: Unit, rng: np.random.Generator, caching: bool) -> Gene:
    start = int(rng.integers(len(unit.kernels)))
    stop = min(len(unit.kernels), start + min(MAX_SEGMENT, int(rng.geometric(0.3))))
    counts = block_counts(unit, start, stop)
    gene = Gene(start, stop, counts[int(rng.integers(len(counts)))])
    if stop - start == 1:  # what the moves reach only step by step
        gene = gene._replace(chunk=int(rng.integers(len(CHUNK_BUDGETS))), resident=bool(rng.integers(2)))
    if caching and gene.blocks > 1 and rng.random() < 0.5:
        gene = gene._replace(cached=whole_or(gene, thin_operators(unit, gene, rng)))
    return on_random_cores(unit, gene, rng)


def _moved(unit: Unit, genome: Genome, move: Move, more: list[Move], rng: np.random.Generator) -> list[Gene]:
    """Genes that are new after a move, and sometimes one more."""
    changed = move(unit, genome, rng)
    while changed is not None and move is change_tiling and rng.random() < 0.6:
        changed = move(unit, changed, rng) or changed
    if more and rng.random() < 0.3:
        changed = more[int(rng.integers(len(more)))](unit, changed or genome, rng) or changed
    old = set(genome)
    return [gene for gene in changed or () if gene not in old]


def _mixed(table: SegmentTable, genome: Genome, level: int, rng: np.random.Generator) -> list[Gene]:
    """A gene of what two of the fastest over the same operators have, field by field, tilings operator by operator."""
    gene = genome[int(rng.integers(len(genome)))]
    variants = table.variants(gene, level)
    if len(variants) < 2:
        return []
    a, b = (variants[int(i)] for i in rng.choice(len(variants), 2, replace=False))
    zeros = (0,) * (gene.stop - gene.start)
    choices = tuple(x if rng.random() < 0.5 else y for x, y in zip(a.choices or zeros, b.choices or zeros, strict=True))
    takes = rng.random(6) < 0.5
    out = a._replace(choices=choices if any(choices) else ())
    for take, fields in zip(takes, (("blocks", "cached", "cores", "split"), ("prefetch",), ("window", "sliding"), ("chunk",), ("resident",), ("spread",)), strict=True):
        if take:
            out = out._replace(**{name: getattr(b, name) for name in fields})
    return [out]


def unknown(table: SegmentTable, genes: list[Gene]) -> list[Gene]:
    """Those not measured yet, one of each kind, in their order."""
    out: dict[object, Gene] = {}
    for gene in genes:
        key = table.structures.key(gene)
        if key not in table.cycles:
            out.setdefault(key, gene)
    return list(out.values())
