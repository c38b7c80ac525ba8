"""Which tensors a genome holds over cuts: those that genes ask for, as many as fit.

A gene says what is wanted of the tensors that its operators make.  What fits depends on all genes together: a held tensor takes room from
every segment of its life.  Those that save most bytes of DDR for the blocks that they hold, segment by segment, come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.segment.border_tensors import border_tensors
from compiler.segment.persistent import Ints, held_blocks, lives_in_order, place_persistent, storage_numbers
from compiler.space.gene import Gene, Genome, working_cores
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import Memory

Space = tuple[int, int]  # of a segment: storages, as bits, that it makes or reads where they are held; blocks of L1 that are not its own
FREE: Space = (0, 0)


class CutTensor(NamedTuple):
    """A tensor that cuts of a genome go through and that may be held, in segments birth .. death.

    maker: the operator that makes its first part.  saved: blocks that DDR does not move then.
    """

    storage: int
    maker: int
    blocks: int
    birth: int
    death: int
    saved: int

    @property
    def rank(self) -> tuple[float, int, int]:
        """The first is the one that is worth most."""
        return -self.saved / (self.blocks * (self.death - self.birth + 1)), self.birth, self.storage


@lru_cache(maxsize=1024)
def first_makers(target_graph: TargetGraph) -> dict[int, int]:
    """Storage -> the operator that makes its first part."""
    return {spec.y.storage: spec.index for spec in reversed(target_graph.operators)}


def cut_tensors(target_graph: TargetGraph, genome: Genome) -> list[CutTensor]:
    """Those of segments that are on one core, the same for all that make or read one, and have whole rows; in the order of their births."""
    lives: dict[int, tuple[int, int]] = {}
    saved: dict[int, int] = {}
    refused, cores = set[int](), [working_cores(target_graph, gene) for gene in genome]
    for index, gene in enumerate(genome):
        mine = cores[index]
        for at, moved in _crossing(target_graph, gene.start, gene.stop):
            birth, _ = lives.get(at, (index, index))
            if gene.columns > 1 or gene.images > 1 or len(mine) > 1 or mine != cores[birth]:
                refused.add(at)
            lives[at], saved[at] = (birth, index), saved.get(at, 0) + moved
    have, makers = room_blocks(target_graph.machine, Memory.L1), first_makers(target_graph)
    return [
        CutTensor(at, makers[at], blocks, birth, death, saved[at])
        for at, (birth, death) in lives.items()
        if at not in refused and (blocks := held_blocks(target_graph, at)) < have
    ]


@lru_cache(maxsize=1 << 14)
def _crossing(target_graph: TargetGraph, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """(storage, blocks that operators [start, stop) store of it, and that they load, each once) of what crosses their borders."""
    number, found, operators = storage_numbers(target_graph), [], target_graph.operators[start:stop]
    for name, stored, _ in border_tensors(target_graph, start, stop):
        at = number[name]
        made = {plane for spec in operators if spec.y.storage == at for plane in range(spec.y.plane, spec.y.plane + spec.y.planes)}
        reads = (read for spec in operators for read in spec.reads if read.storage == at)
        read = {plane for piece in reads for plane in range(piece.plane, piece.plane + piece.planes)}
        found.append((at, (stored + len(read - made)) * target_graph.storages[at].plane_blocks * target_graph.images))
    return tuple(found)


def wanted(target_graph: TargetGraph, genome: Genome) -> list[CutTensor]:
    """Those that its genes ask for."""
    starts = [gene.start for gene in genome]

    def asked(maker: int) -> bool:
        gene = genome[bisect_right(starts, maker) - 1]
        return bool(gene.held >> (maker - gene.start) & 1)

    return [each for each in cut_tensors(target_graph, genome) if asked(each.maker)]


def holding(genome: Genome, tensors: Sequence[CutTensor]) -> Genome:
    """The genome that asks for these, and for no others."""
    bits = [0] * len(genome)
    starts = [gene.start for gene in genome]
    for each in tensors:
        at = bisect_right(starts, each.maker) - 1
        bits[at] |= 1 << each.maker - starts[at]
    return tuple([gene if gene.held == held else gene._replace(held=held) for gene, held in zip(genome, bits, strict=True)])


class HeldLayout:
    """Tensors that may be held in a genome, and what its segments have of those that are."""

    def __init__(self, target_graph: TargetGraph, genome: Genome, tensors: Sequence[CutTensor]) -> None:
        cores = [working_cores(target_graph, gene) for gene in genome]
        crossing = [_crossing_storages(target_graph, gene.start, gene.stop) for gene in genome]
        self._room, self._segments = room_blocks(target_graph.machine, Memory.L1), len(genome)
        self._bits = [1 << each.storage for each in tensors]
        self._touching = [[at for at in range(each.birth, each.death + 1) if each.storage in crossing[at]] for each in tensors]
        of_core: dict[int, dict[int, int]] = {}
        for at, each in enumerate(tensors):
            of_core.setdefault(cores[each.birth][0], {})[each.storage] = at
        self._cores = list[tuple[Ints, Ints, NDArray[np.bool_]]]()  # tensors of each as they take places, their lives, segments on it
        for core, mine in of_core.items():
            order, spans = lives_in_order(target_graph, {at: (tensors[k].birth, tensors[k].death) for at, k in mine.items()})
            self._cores.append((np.array([mine[at] for at in order]), spans, np.array([core in others for others in cores])))

    def of(self, taken: Sequence[bool]) -> list[Space]:
        """What every segment has of the tensors that are taken, whether it fits or not."""
        beside, blocks, some = np.zeros(self._segments, np.int64), np.empty(self._segments, np.int64), np.array(taken, np.bool_)
        for order, spans, there in self._cores:
            place_persistent(spans, some[order], self._room, np.empty(len(order), np.int64), blocks)
            np.maximum(beside, blocks, out=beside, where=there)
        storages = [0] * self._segments
        for bit, touching in compress(zip(self._bits, self._touching, strict=True), taken):
            for at in touching:
                storages[at] |= bit
        return list(zip(storages, beside.tolist(), strict=True))


@lru_cache(maxsize=1 << 14)
def _crossing_storages(target_graph: TargetGraph, start: int, stop: int) -> frozenset[int]:
    """What operators [start, stop) make and read beyond them."""
    return frozenset(at for at, _ in _crossing(target_graph, start, stop))


def spaces(target_graph: TargetGraph, genome: Genome, fits: Callable[[Gene, Space], bool]) -> list[Space]:
    """What every segment has of the tensors that genes ask for, as many as fit.  fits: whether a gene does, with its space."""
    asked = sorted(wanted(target_graph, genome), key=lambda each: each.rank)
    layout = HeldLayout(target_graph, genome, asked)
    found = layout.of([True] * len(asked))
    if all(space == FREE or fits(gene, space) for gene, space in zip(genome, found, strict=True)):
        return found
    taken, found = [False] * len(asked), [FREE] * len(genome)
    for at in range(len(asked)):
        taken[at] = True
        more = layout.of(taken)
        if all(fits(gene, new) for gene, new, old in zip(genome, more, found, strict=True) if new != old):
            found = more
        else:
            taken[at] = False
    return found
