"""Tensors that a genome had better hold over cuts, by what its segments are expected to take with them and without, or by what they take.

Those that save most bytes of DDR for the blocks that they hold come first.  Where less of L1 is left, a segment may have more blocks, or
fewer slots: of these ways it has the one that is expected to be fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features
from compiler.planner.split_rules import reloads_weights, smaller_in_passes
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome, block_counts, has_halos, recut, working_cores
from compiler.space.persistent import FREE, CutTensor, HeldLayout, Space, cut_tensors, holding
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph

Cycles = Callable[[Sequence[NDArray[np.float64]]], Sequence[float]]  # of segments by their raw features
Measure = Callable[[Genome], NDArray[np.int64] | None]  # cycles of each of a program's segments; None where it does not fit
_COUNTS = 2  # of blocks that are tried where fewer do not fit


def held_by_prediction(target_graph: TargetGraph, genome: Genome, cycles: Cycles, passes: bool = True) -> Genome:
    """The genome that holds those of its cut tensors with which the segments of their lives are expected to be faster.

    passes: whether segments whose weights do not stay beside them may be in passes.
    """
    tried = _Tried(target_graph, genome, cycles, passes)
    found = tried.nothing
    for number in range(len(tried.tensors)):
        more = tried.holding(found, number)
        if more is not None and tried.expected(more, found) < tried.expected(found, more):
            found = more
    return tried.genome(found)


def held_by_measure(target_graph: TargetGraph, genome: Genome, cycles: Cycles, measure: Measure) -> Genome:
    """The genome that holds those of its cut tensors with which the segments of their lives, and the one behind, are faster.

    Tensors that have no segment in common are tried in one program: each is judged by its own.  Where those that prediction would hold,
    or as many as fit, are better as a whole, it holds these.  No segment is in passes for that: see `held_by_prediction`.
    """
    tried = _Tried(target_graph, genome, cycles, passes=False)
    found, took = tried.nothing, measure(tried.genome(tried.nothing))
    left = list(range(len(tried.tensors)))
    while left and took is not None:
        batch = _apart(left, tried.tensors)
        left = [number for number in left if number not in batch]
        while batch:
            more, batch = _with_all(tried, found, batch)
            now = measure(tried.genome(more)) if batch else None
            faster = [] if now is None else [k for k in batch if _of_life(now, tried.tensors[k]) < _of_life(took, tried.tensors[k])]
            if now is not None and len(faster) == len(batch):
                if now.sum() < took.sum():
                    found, took = more, now
                break
            batch = faster
    best = tried.genome(found)
    for other in dict.fromkeys((held_by_prediction(target_graph, genome, cycles, passes=False), holding(genome, tried.tensors))):
        then = measure(other)
        if took is not None and then is not None and then.sum() < took.sum():
            best, took = other, then
    return best


class _Held(NamedTuple):
    """Genes, which ask for nothing, what each has of tensors that are held, and which of them are."""

    genes: Genome
    spaces: tuple[Space, ...]
    taken: tuple[bool, ...]


class _Tried:
    """The cut tensors of a genome, and what is expected of genes in what is left of L1 to them; None where they do not fit."""

    def __init__(self, target_graph: TargetGraph, genome: Genome, cycles: Cycles, passes: bool) -> None:
        self.target_graph, self.cycles, self.passes = target_graph, cycles, passes
        self.tensors = sorted(cut_tensors(target_graph, genome), key=lambda each: each.rank)
        self.nothing = _Held(holding(genome, ()), (FREE,) * len(genome), (False,) * len(self.tensors))
        self._layout, self._structures = HeldLayout(target_graph, genome, self.tensors), Structures(target_graph)
        self._alike: dict[Hashable, tuple[Gene, Space]] = {}
        self._known: dict[tuple[Gene, Space], float | None] = {}
        self._ways: dict[tuple[Gene, Space], tuple[Gene, ...]] = {}

    def genome(self, found: _Held) -> Genome:
        """The one that asks for what is held."""
        return holding(found.genes, list(compress(self.tensors, found.taken)))

    def holding(self, found: _Held, number: int) -> _Held | None:
        """With one more tensor; None where that does not fit."""
        taken = (*found.taken[:number], True, *found.taken[number + 1 :])
        spaces, genes = tuple(self._layout.of(taken)), list(found.genes)
        changed = [at for at, (new, old) in enumerate(zip(spaces, found.spaces, strict=True)) if new != old]
        pairs = {at: self._first(genes[at], spaces[at]) for at in changed}
        for pair in pairs.values():
            if pair not in self._ways:
                self._ways[pair] = tuple(_ways(self.target_graph, *pair, self.passes))
            if not self._ways[pair]:
                return None
        self._ask([(way, pair[1]) for pair in pairs.values() for way in self._ways[pair]])
        for at, pair in pairs.items():
            mine = [(took, way) for way in self._ways[pair] if (took := self._known[self._first(way, pair[1])]) is not None]
            genes[at] = min(mine, key=lambda each: each[0])[1]._replace(start=genes[at].start, stop=genes[at].stop)
        return _Held(tuple(genes), spaces, taken)

    def expected(self, found: _Held, other: _Held) -> float:
        """Cycles of the segments that are others than those of `other`."""
        mine, theirs = (list(zip(each.genes, each.spaces, strict=True)) for each in (found, other))
        pairs = [self._first(*pair) for pair, their in zip(mine, theirs, strict=True) if pair != their]
        self._ask(pairs)
        return sum([self._known[pair] or 0.0 for pair in pairs])

    def _ask(self, pairs: Sequence[tuple[Gene, Space]]) -> None:
        raws = {}
        for gene, space in [self._first(*pair) for pair in pairs]:
            if (gene, space) not in self._known and (plan := decode(self.target_graph, gene, *space)) is not None:
                raws[gene, space] = raw_features(self.target_graph, plan, gene.start)
            self._known.setdefault((gene, space))
        if raws:
            self._known.update(zip(raws, self.cycles(list(raws.values())), strict=True))

    def _first(self, gene: Gene, space: Space) -> tuple[Gene, Space]:
        """The first that was asked for of those that are equal but for their places: equal layers have equal ways."""
        storages, beside = space
        run = self.target_graph.operators[gene.start : gene.stop] if storages else ()
        touched = dict.fromkeys(piece.storage for spec in run for piece in (*spec.reads, spec.y))
        held = tuple([at for at, storage in enumerate(touched) if storages >> storage & 1])
        key = self._structures.structure(gene.start, gene.stop), gene[2:], held, beside
        return self._alike.setdefault(key, (gene, space))


def _apart(numbers: Sequence[int], tensors: Sequence[CutTensor]) -> list[int]:
    """The first of these, and of those behind it the ones that share no segment with any before them."""
    found, busy = list[int](), set[int]()
    for number in numbers:
        mine = range(tensors[number].birth, tensors[number].death + 2)
        if busy.isdisjoint(mine):
            found.append(number)
            busy.update(mine)
    return found


def _with_all(tried: _Tried, found: _Held, numbers: Sequence[int]) -> tuple[_Held, list[int]]:
    """With as many of these tensors as fit, and which they are."""
    fitting = []
    for number in numbers:
        if (more := tried.holding(found, number)) is not None:
            found = more
            fitting.append(number)
    return found, fitting


def _of_life(took: NDArray[np.int64], tensor: CutTensor) -> int:
    return int(took[tensor.birth : tensor.death + 2].sum())


def _ways(target_graph: TargetGraph, gene: Gene, space: Space, passes: bool) -> list[Gene]:
    """The gene, and what needs less of L1, as far as they fit: of more blocks the fewest; where weights do not stay, passes."""
    plan = decode(target_graph, gene, *space)
    more = passes and (plan is None or reloads_weights(target_graph, plan, gene.start))
    return [*_in_more_blocks(target_graph, gene, space), *(smaller_in_passes(target_graph, gene, space) if more else ())]


def _in_more_blocks(target_graph: TargetGraph, gene: Gene, space: Space) -> Iterator[Gene]:

    def fitting(genes: Iterator[Gene]) -> Iterator[Gene]:
        return (each for each in genes if decode(target_graph, each, *space) is not None)

    def in_blocks(blocks: int) -> Gene:
        halos = gene.blocks == 1 and has_halos(target_graph, gene.start, gene.stop)
        changed = recut(gene, blocks=blocks, cached=-1 if halos else gene.cached)
        return recut(changed, cores=working_cores(target_graph, changed))

    yield from fitting(iter([gene]))
    if gene.prefetch > 1 and gene.blocks > 1:
        yield from fitting(iter([gene._replace(prefetch=1)]))
    more = (in_blocks(count) for count in block_counts(target_graph, gene.start, gene.stop) if count > gene.blocks)
    yield from islice(fitting(more), _COUNTS)
