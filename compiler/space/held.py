"""Which tensors a genome holds over cuts: those that genes ask for, as many as fit.

A gene says what is wanted of the tensors that its operators make.  What fits depends on all genes together: a held tensor takes room from
every segment of its life.  Those that save most bytes of DDR for the blocks that they hold, segment by segment, come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from compiler.segment.held import beside, held_blocks, tops
from compiler.segment.residence import border_tensors
from compiler.space.gene import Gene, Genome, working_cores
from compiler.unit.machine import room_blocks
from compiler.unit.unit import Unit
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
def _numbers(unit: Unit) -> dict[str, int]:
    return {storage.name: at for at, storage in enumerate(unit.storages)}


@lru_cache(maxsize=1024)
def first_makers(unit: Unit) -> dict[int, int]:
    """Storage -> the operator that makes its first part."""
    return {spec.y.storage: spec.index for spec in reversed(unit.operators)}


def cut_tensors(unit: Unit, genome: Genome) -> list[CutTensor]:
    """Those of segments that are on one core, the same for all that make or read one, and have whole rows; in the order of their births."""
    found: dict[int, CutTensor] = {}
    refused, cores = set[int](), [working_cores(unit, gene) for gene in genome]
    makers, images = first_makers(unit), unit.images
    for index, gene in enumerate(genome):
        for at, planes in _crossing(unit, gene.start, gene.stop):
            known = found.get(at) or CutTensor(at, makers[at], held_blocks(unit, at), index, index, 0)
            if gene.columns > 1 or len(cores[index]) > 1 or cores[index] != cores[known.birth]:
                refused.add(at)
            moved = planes * unit.storages[at].plane_blocks * images
            found[at] = known._replace(death=index, saved=known.saved + moved)
    have = room_blocks(unit.machine, Memory.L1)
    return [each for each in found.values() if each.storage not in refused and each.blocks < have]


@lru_cache(maxsize=1 << 14)
def _crossing(unit: Unit, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """(storage, planes that operators [start, stop) store, and those that they load, each once) of what crosses their borders."""
    number, found = _numbers(unit), []
    for name, stored, _ in border_tensors(unit, start, stop):
        at = number[name]
        operators = unit.operators[start:stop]
        made = {plane for spec in operators if spec.y.storage == at for plane in range(spec.y.plane, spec.y.plane + spec.y.planes)}
        reads = (read for spec in operators for read in spec.reads if read.storage == at)
        read = {plane for piece in reads for plane in range(piece.plane, piece.plane + piece.planes)}
        found.append((at, stored + len(read - made)))
    return tuple(found)


def wanted(unit: Unit, genome: Genome) -> list[CutTensor]:
    """Those that its genes ask for."""
    starts = [gene.start for gene in genome]

    def asked(maker: int) -> bool:
        gene = genome[bisect_right(starts, maker) - 1]
        return bool(gene.held >> (maker - gene.start) & 1)

    return [each for each in cut_tensors(unit, genome) if asked(each.maker)]


def holding(genome: Genome, tensors: Sequence[CutTensor]) -> Genome:
    """The genome that asks for these, and for no others."""
    bits = [0] * len(genome)
    starts = [gene.start for gene in genome]
    for each in tensors:
        at = bisect_right(starts, each.maker) - 1
        bits[at] |= 1 << each.maker - starts[at]
    return tuple([gene if gene.held == held else gene._replace(held=held) for gene, held in zip(genome, bits, strict=True)])


def laid_out(unit: Unit, genome: Genome, tensors: Sequence[CutTensor]) -> list[Space]:
    """What every segment has of tensors that are held, whether it fits or not."""
    out = [FREE] * len(genome)
    cores = [working_cores(unit, gene) for gene in genome]
    for core in dict.fromkeys(cores[each.birth] for each in tensors):
        mine = [each for each in tensors if cores[each.birth] == core]
        ends = tops(unit, {each.storage: (each.birth, each.death) for each in mine})
        for index, gene in enumerate(genome):
            alive = [each.storage for each in mine if each.birth <= index <= each.death]
            if alive and core[0] in cores[index]:
                touched = _touched(unit, gene.start, gene.stop)
                out[index] = sum(1 << at for at in alive if at in touched), beside(unit, [ends[at] for at in alive])
    return out


@lru_cache(maxsize=1 << 14)
def _touched(unit: Unit, start: int, stop: int) -> frozenset[int]:
    """What operators [start, stop) make and read beyond them."""
    return frozenset(at for at, _ in _crossing(unit, start, stop))


def spaces(unit: Unit, genome: Genome, fits: Callable[[Gene, Space], bool]) -> list[Space]:
    """What every segment has of the tensors that genes ask for, as many as fit.  fits: whether a gene does, with its space."""
    asked = sorted(wanted(unit, genome), key=lambda each: each.rank)
    found = laid_out(unit, genome, asked)
    if all(space == FREE or fits(gene, space) for gene, space in zip(genome, found, strict=True)):
        return found
    taken, found = list[CutTensor](), [FREE] * len(genome)
    for each in asked:
        more = laid_out(unit, genome, [*taken, each])
        changed = (fits(gene, new) for gene, new, old in zip(genome, more, found, strict=True) if new != old)
        if all(changed):
            taken, found = [*taken, each], more
    return found
