"""Persistent tensors of a genome: genes ask for tensors, and the genome gets as many as fit.

A gene asks for tensors that its operators compute.  All genes together decide which tensors fit: a persistent tensor takes room from every
segment of its life.  Tensors that save most DDR traffic per block of L1 and segment of their life come first.
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

Space = tuple[int, int]  # of a segment: persistent storages that it accesses, as bits; blocks of L1 that persistent tensors take
FREE: Space = (0, 0)


class CutTensor(NamedTuple):
    """Tensor that crosses borders of segments and may be persistent.  maker: operator that computes its first part.  blocks: its size.
    birth, death: first and last segment of its life.  saved: blocks of DDR traffic that it saves if it is persistent."""

    storage: int
    maker: int
    blocks: int
    birth: int
    death: int
    saved: int

    @property
    def rank(self) -> tuple[float, int, int]:
        """Sort key; the tensor that saves most per block and segment comes first."""
        return -self.saved / (self.blocks * (self.death - self.birth + 1)), self.birth, self.storage


@lru_cache(maxsize=1024)
def first_makers(target_graph: TargetGraph) -> dict[int, int]:
    """Storage -> operator that computes its first part."""
    return {spec.y.storage: spec.index for spec in reversed(target_graph.operators)}


def cut_tensors(target_graph: TargetGraph, genome: Genome) -> list[CutTensor]:
    """Tensors that may be persistent, by birth: all segments that access such a tensor run on the same single core, in full rows."""
    lives: dict[int, tuple[int, int]] = {}
    saved: dict[int, int] = {}
    refused, cores = set[int](), [working_cores(target_graph, gene) for gene in genome]
    for index, gene in enumerate(genome):
        gene_cores = cores[index]
        for storage, moved in _crossing(target_graph, gene.start, gene.stop):
            birth, _ = lives.get(storage, (index, index))
            if gene.columns > 1 or gene.images > 1 or len(gene_cores) > 1 or gene_cores != cores[birth]:
                refused.add(storage)
            lives[storage], saved[storage] = (birth, index), saved.get(storage, 0) + moved
    capacity, makers = room_blocks(target_graph.machine, Memory.L1), first_makers(target_graph)
    return [
        CutTensor(storage, makers[storage], blocks, birth, death, saved[storage])
        for storage, (birth, death) in lives.items()
        if storage not in refused and (blocks := held_blocks(target_graph, storage)) < capacity
    ]


@lru_cache(maxsize=1 << 14)
def _crossing(target_graph: TargetGraph, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """(storage, blocks that operators [start, stop) store and load, each block once) of every tensor that crosses their borders."""
    number, crossing, operators = storage_numbers(target_graph), [], target_graph.operators[start:stop]
    for name, stored, _ in border_tensors(target_graph, start, stop):
        storage = number[name]
        planes = {plane for spec in operators if spec.y.storage == storage for plane in range(spec.y.plane, spec.y.plane + spec.y.planes)}
        reads = (read for spec in operators for read in spec.reads if read.storage == storage)
        read = {plane for piece in reads for plane in range(piece.plane, piece.plane + piece.planes)}
        crossing.append((storage, (stored + len(read - planes)) * target_graph.storages[storage].plane_blocks * target_graph.images))
    return tuple(crossing)


def wanted(target_graph: TargetGraph, genome: Genome) -> list[CutTensor]:
    """Tensors that genes ask for, among `cut_tensors`."""
    starts = [gene.start for gene in genome]

    def asked(maker: int) -> bool:
        gene = genome[bisect_right(starts, maker) - 1]
        return bool(gene.held >> (maker - gene.start) & 1)

    return [tensor for tensor in cut_tensors(target_graph, genome) if asked(tensor.maker)]


def holding(genome: Genome, tensors: Sequence[CutTensor]) -> Genome:
    """Genome that asks for `tensors` only."""
    bits = [0] * len(genome)
    starts = [gene.start for gene in genome]
    for tensor in tensors:
        index = bisect_right(starts, tensor.maker) - 1
        bits[index] |= 1 << tensor.maker - starts[index]
    return tuple([gene if gene.held == held else gene._replace(held=held) for gene, held in zip(genome, bits, strict=True)])


class HeldLayout:
    """Tensors that may be persistent in a genome, and the spaces of its segments for any selection of these tensors."""

    def __init__(self, target_graph: TargetGraph, genome: Genome, tensors: Sequence[CutTensor]) -> None:
        cores = [working_cores(target_graph, gene) for gene in genome]
        crossing = [_crossing_storages(target_graph, gene.start, gene.stop) for gene in genome]
        self._room, self._segments = room_blocks(target_graph.machine, Memory.L1), len(genome)
        self._bits = [1 << tensor.storage for tensor in tensors]
        self._touching = [
            [index for index in range(tensor.birth, tensor.death + 1) if tensor.storage in crossing[index]] for tensor in tensors
        ]
        of_core: dict[int, dict[int, int]] = {}
        for index, tensor in enumerate(tensors):
            of_core.setdefault(cores[tensor.birth][0], {})[tensor.storage] = index
        self._cores = list[tuple[Ints, Ints, NDArray[np.bool_]]]()  # per core: tensors in order of allocation, spans, segments
        for core, tensor_of in of_core.items():
            order, spans = lives_in_order(target_graph, {index: (tensors[k].birth, tensors[k].death) for index, k in tensor_of.items()})
            self._cores.append(
                (np.array([tensor_of[index] for index in order]), spans, np.array([core in segment_cores for segment_cores in cores]))
            )

    def of(self, taken: Sequence[bool]) -> list[Space]:
        """Space of every segment if the `taken` tensors are persistent, whether they fit or not."""
        beside, blocks, some = np.zeros(self._segments, np.int64), np.empty(self._segments, np.int64), np.array(taken, np.bool_)
        for order, spans, on_core in self._cores:
            place_persistent(spans[some[order]], self._room, np.empty(len(order), np.int64), blocks)
            np.maximum(beside, blocks, out=beside, where=on_core)
        storages = [0] * self._segments
        for bit, touching in compress(zip(self._bits, self._touching, strict=True), taken):
            for segment in touching:
                storages[segment] |= bit
        return list(zip(storages, beside.tolist(), strict=True))


@lru_cache(maxsize=1 << 14)
def _crossing_storages(target_graph: TargetGraph, start: int, stop: int) -> frozenset[int]:
    """Storages that cross the borders of operators [start, stop)."""
    return frozenset(storage for storage, _ in _crossing(target_graph, start, stop))


def spaces(target_graph: TargetGraph, genome: Genome, fits: Callable[[Gene, Space], bool]) -> list[Space]:
    """Space of every segment with as many persistent tensors as fit, of all that genes ask for.  fits: test of a gene with its space."""
    asked = sorted(wanted(target_graph, genome), key=lambda each: each.rank)
    layout = HeldLayout(target_graph, genome, asked)
    fitting = layout.of([True] * len(asked))
    if all(space == FREE or fits(gene, space) for gene, space in zip(genome, fitting, strict=True)):
        return fitting
    taken, fitting = [False] * len(asked), [FREE] * len(genome)
    for index in range(len(asked)):
        taken[index] = True
        more = layout.of(taken)
        if all(fits(gene, new) for gene, new, old in zip(genome, more, fitting, strict=True) if new != old):
            fitting = more
        else:
            taken[index] = False
    return fitting
