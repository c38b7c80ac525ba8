"""Choice of persistent tensors: the cut tensors of a genome that are held in L1, by predicted or measured cycles of its segments.

Tensors that save most bytes of DDR per block of L1 come first.  With less free L1, a segment may need more blocks or fewer slots; the
way with the fewest predicted cycles is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import compress, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import raw_features
from compiler.planner.split_rules import reloads_weights, shrink_by_passes
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome, block_counts, has_halos, recut, working_cores
from compiler.space.persistent import FREE, CutTensor, HeldLayout, Space, cut_tensors, holding
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph

Cycles = Callable[[Sequence[NDArray[np.float64]]], Sequence[float]]  # raw features of segments -> their cycles
Measure = Callable[[Genome], NDArray[np.int64] | None]  # genome -> cycles of each segment of the program; None if it does not fit
_COUNTS = 2  # number of larger block counts to try


def choose_by_prediction(target_graph: TargetGraph, genome: Genome, cycles: Cycles, passes: bool = True) -> Genome:
    """Genome that holds cut tensors where that makes the segments of their lifetime faster by prediction.

    passes: whether segments with streamed weights may be split into passes.
    """
    trials = _Trials(target_graph, genome, cycles, passes)
    choice = trials.nothing
    for number in range(len(trials.tensors)):
        candidate = trials.holding(choice, number)
        if candidate is not None and trials.expected(candidate, choice) < trials.expected(choice, candidate):
            choice = candidate
    return trials.genome(choice)


def choose_by_measure(target_graph: TargetGraph, genome: Genome, cycles: Cycles, measure: Measure) -> Genome:
    """Genome that holds cut tensors where that makes the segments of their lifetime, and the next one, faster as measured.

    One program tries several tensors without common segments: each tensor is judged by its own segments.  The choice by prediction is
    measured too, and so is the one that holds as many tensors as fit; the fastest program wins.  No segment is in passes (see
    `choose_by_prediction`).
    """
    trials = _Trials(target_graph, genome, cycles, passes=False)
    choice, fastest = trials.nothing, measure(trials.genome(trials.nothing))
    remaining = list(range(len(trials.tensors)))
    while remaining and fastest is not None:
        batch = _disjoint_tensors(remaining, trials.tensors)
        remaining = [number for number in remaining if number not in batch]
        while batch:
            candidate, batch = _with_all(trials, choice, batch)
            times = measure(trials.genome(candidate)) if batch else None
            faster = (
                [] if times is None else [k for k in batch if _of_life(times, trials.tensors[k]) < _of_life(fastest, trials.tensors[k])]
            )
            if times is not None and len(faster) == len(batch):
                if times.sum() < fastest.sum():
                    choice, fastest = candidate, times
                break
            batch = faster
    best = trials.genome(choice)
    for alternative in dict.fromkeys((choose_by_prediction(target_graph, genome, cycles, passes=False), holding(genome, trials.tensors))):
        alternative_times = measure(alternative)
        if fastest is not None and alternative_times is not None and alternative_times.sum() < fastest.sum():
            best, fastest = alternative, alternative_times
    return best


class _Choice(NamedTuple):
    """Genes without held tensors, the space of each in L1, and which tensors are held."""

    genes: Genome
    spaces: tuple[Space, ...]
    taken: tuple[bool, ...]


class _Trials:
    """Cut tensors of a genome, and predicted cycles of genes in the L1 space beside held tensors; None if a gene does not fit."""

    def __init__(self, target_graph: TargetGraph, genome: Genome, cycles: Cycles, passes: bool) -> None:
        self.target_graph, self.cycles, self.passes = target_graph, cycles, passes
        self.tensors = sorted(cut_tensors(target_graph, genome), key=lambda tensor: tensor.rank)
        self.nothing = _Choice(holding(genome, ()), (FREE,) * len(genome), (False,) * len(self.tensors))
        self._layout, self._structures = HeldLayout(target_graph, genome, self.tensors), Structures(target_graph)
        self._alike: dict[Hashable, tuple[Gene, Space]] = {}
        self._known: dict[tuple[Gene, Space], float | None] = {}
        self._ways: dict[tuple[Gene, Space], tuple[Gene, ...]] = {}

    def genome(self, choice: _Choice) -> Genome:
        """Genome that holds the chosen tensors."""
        return holding(choice.genes, list(compress(self.tensors, choice.taken)))

    def holding(self, choice: _Choice, number: int) -> _Choice | None:
        """Choice with one more tensor; None if that does not fit."""
        taken = (*choice.taken[:number], True, *choice.taken[number + 1 :])
        spaces, genes = tuple(self._layout.of(taken)), list(choice.genes)
        changed = [index for index, (new, old) in enumerate(zip(spaces, choice.spaces, strict=True)) if new != old]
        pairs = {index: self._first(genes[index], spaces[index]) for index in changed}
        for pair in pairs.values():
            if pair not in self._ways:
                self._ways[pair] = tuple(_ways(self.target_graph, *pair, self.passes))
            if not self._ways[pair]:
                return None
        self._ask([(way, pair[1]) for pair in pairs.values() for way in self._ways[pair]])
        for index, pair in pairs.items():
            options = [(cycles, way) for way in self._ways[pair] if (cycles := self._known[self._first(way, pair[1])]) is not None]
            genes[index] = min(options, key=lambda option: option[0])[1]._replace(start=genes[index].start, stop=genes[index].stop)
        return _Choice(tuple(genes), spaces, taken)

    def expected(self, choice: _Choice, reference: _Choice) -> float:
        """Predicted cycles of the segments that differ from the segments of `reference`."""
        choice_pairs, reference_pairs = (list(zip(option.genes, option.spaces, strict=True)) for option in (choice, reference))
        pairs = [self._first(*pair) for pair, reference_pair in zip(choice_pairs, reference_pairs, strict=True) if pair != reference_pair]
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
        """First pair of all pairs that differ only in position: equal layers have equal ways."""
        storages, beside = space
        run = self.target_graph.operators[gene.start : gene.stop] if storages else ()
        touched = dict.fromkeys(tensor_slice.storage for spec in run for tensor_slice in (*spec.reads, spec.y))
        persistent_positions = tuple([position for position, storage in enumerate(touched) if storages >> storage & 1])
        key = self._structures.structure(gene.start, gene.stop), gene[2:], persistent_positions, beside
        return self._alike.setdefault(key, (gene, space))


def _disjoint_tensors(numbers: Sequence[int], tensors: Sequence[CutTensor]) -> list[int]:
    """The first of the given tensors, and each later one that shares no segment with those before it."""
    batch, busy = list[int](), set[int]()
    for number in numbers:
        segments = range(tensors[number].birth, tensors[number].death + 2)
        if busy.isdisjoint(segments):
            batch.append(number)
            busy.update(segments)
    return batch


def _with_all(trials: _Trials, choice: _Choice, numbers: Sequence[int]) -> tuple[_Choice, list[int]]:
    """Choice with as many of these tensors as fit, and their numbers."""
    fitting = []
    for number in numbers:
        if (candidate := trials.holding(choice, number)) is not None:
            choice = candidate
            fitting.append(number)
    return choice, fitting


def _of_life(cycles: NDArray[np.int64], tensor: CutTensor) -> int:
    return int(cycles[tensor.birth : tensor.death + 2].sum())


def _ways(target_graph: TargetGraph, gene: Gene, space: Space, passes: bool) -> list[Gene]:
    """Ways to fit the gene: the gene itself, the fewest larger block counts, and passes if weights are streamed."""
    plan = decode(target_graph, gene, *space)
    more = passes and (plan is None or reloads_weights(target_graph, plan, gene.start))
    return [*_in_more_blocks(target_graph, gene, space), *(shrink_by_passes(target_graph, gene, space) if more else ())]


def _in_more_blocks(target_graph: TargetGraph, gene: Gene, space: Space) -> Iterator[Gene]:

    def fitting(genes: Iterator[Gene]) -> Iterator[Gene]:
        return (candidate for candidate in genes if decode(target_graph, candidate, *space) is not None)

    def in_blocks(blocks: int) -> Gene:
        halos = gene.blocks == 1 and has_halos(target_graph, gene.start, gene.stop)
        changed = recut(gene, blocks=blocks, cached=-1 if halos else gene.cached)
        return recut(changed, cores=working_cores(target_graph, changed))

    yield from fitting(iter([gene]))
    if gene.prefetch > 1 and gene.blocks > 1:
        yield from fitting(iter([gene._replace(prefetch=1)]))
    more = (in_blocks(count) for count in block_counts(target_graph, gene.start, gene.stop) if count > gene.blocks)
    yield from islice(fitting(more), _COUNTS)
