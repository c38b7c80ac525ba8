"""Covers in which some runs of operators are dealt to the cores, segment by segment, while all others run on every core.

On all cores is what a chain has nothing better than, and what a descent leaves only by two changes at once: one branch on one core alone
lets the others idle.  So whole sections are looked at, from one place where little is handed on to another.  What placing a section takes,
from its first to its last segment, stands beside the segments on all cores, and the cheapest cover by both is a shortest path again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from compiler.derive.gene import MAX_SEGMENT, Gene, Genome, widths
from compiler.place.replay import Floats
from compiler.tile.spec import Unit
from tuner.search.table import SegmentTable

Cut = Sequence[tuple[int, int]]
Place = Callable[[Cut], tuple[float, Genome] | None]  # cycles and genes of segments that are dealt to the cores; None: not known
_LONGEST = 48  # operators of a section: a cell of NASNet has about 40
_CUTS = (MAX_SEGMENT, 2, 1)  # operators of its segments, at most: long ones move less, short ones wait for less
_PROMISING = 0.98  # what a section may be thought to take of what it takes on all cores


def sectioned(table: SegmentTable, level: int, border: float, place: Place) -> Genome | None:
    """The cheapest cover by segments on all cores and by sections; None where operators are not known on all cores, or no section is in it.

    border: cycles that a segment saves by overlapping its neighbour.
    """
    wide = table.cover(level, border, width=table.structures.unit.machine.cores)
    if wide is None:
        return None
    into: dict[int, list[tuple[int, float, Genome]]] = {}
    for gene in _segments(table, level):
        price = max(gene[0] - border, 0.5 * gene[0])
        into.setdefault(gene[1].stop, []).append((gene[1].start, price, (gene[1],)))
    found = False
    for start, stop, cuts in _promising(table, level, border, wide[1]):
        placed = [each for cut in cuts if (each := place(cut)) is not None]
        if placed:
            cycles, genes = min(placed)
            into[stop].append((start, cycles, genes))
            found |= cycles < wide[1][stop] - wide[1][start]
    return _cheapest(table.operators, into) if found else None


def _segments(table: SegmentTable, level: int) -> Iterator[tuple[int, Gene]]:
    """The best known on all cores of every run of operators; of an operator that cannot, on any number."""
    cores = table.structures.unit.machine.cores
    for stop in range(1, table.operators + 1):
        for start in range(max(0, stop - MAX_SEGMENT), stop):
            known = table.best(start, stop, level, cores) or (table.best(start, stop, level) if stop - start == 1 else None)
            if known is not None:
                yield known


def _cheapest(operators: int, into: dict[int, list[tuple[int, float, Genome]]]) -> Genome:
    """The shortest path from 0 to the last operator's end; into[j]: (i, cycles, genes) of operators [i, j)."""
    cost = [0.0] + [np.inf] * operators
    back: list[tuple[int, Genome]] = [(0, ())] * (operators + 1)
    for stop in range(1, operators + 1):
        for start, cycles, genes in into[stop]:
            if cost[start] + cycles < cost[stop]:
                cost[stop], back[stop] = cost[start] + cycles, (start, genes)
    parts, at = list[Genome](), operators
    while at:
        at, genes = back[at]
        parts.append(genes)
    return tuple(gene for genes in reversed(parts) for gene in genes)


def _promising(table: SegmentTable, level: int, border: float, wide: Floats) -> Iterator[tuple[int, int, list[Cut]]]:
    """Sections whose work on fewer cores, as far as branches let it be shared, is less than what they take on all: of those with the same
    end the one that saves most, and the one that saves the largest share.

    wide: cycles of the first j operators on all cores.
    """
    unit = table.structures.unit
    ends, cores = _ends(unit), unit.machine.cores
    for width in widths(unit)[:-1]:
        price: list[list[float]] = []  # of operators [stop - n, stop)
        for stop in range(table.operators + 1):
            known = [table.best(stop - n, stop, level, width) for n in range(1, min(MAX_SEGMENT, stop) + 1)]
            known[:1] = [known[0] or table.best(stop - 1, stop, level)] if known else []
            price.append([np.inf, *(np.inf if each is None else max(each[0] - border, 0.5 * each[0]) for each in known)])
        best: dict[int, list[tuple[float, float, int]]] = {}
        for start in sorted(ends):
            work, _ = _covered(price, start, min(table.operators, start + _LONGEST), MAX_SEGMENT)
            path: dict[int, float] = {}
            longest = total = 0.0
            for at in range(start, start + len(work) - 1):
                path[at] = price[at + 1][1] + max((path[p] for p in unit.producers[at] if p >= start), default=0.0)
                longest, total = max(longest, path[at]), total + price[at + 1][1]
                now, stop = wide[at + 1] - wide[start], at + 1
                guess = work[stop - start] / min(cores / width, total / longest)
                if at > start and stop in ends and guess < _PROMISING * now:
                    best.setdefault(stop, []).append((now - guess, guess / now, start))
        for stop, found in sorted(best.items()):
            for start in dict.fromkeys((max(found)[2], min((share, start) for _, share, start in found)[1])):
                yield start, stop, list(dict.fromkeys(_covered(price, start, stop, most)[1] for most in _CUTS))


def _ends(unit: Unit) -> set[int]:
    """Places in the order of the operators where no more of what was made is read behind than on either side."""
    count = len(unit.kernels)
    behind = np.zeros(count + 2, np.int64)  # grows where something is made that is still read, shrinks behind its last reader
    for k in range(count):
        last = max(unit.consumers[k], default=k)
        behind[k + 1] += 1
        behind[last + 1] -= 1
    crossing = np.cumsum(behind)[: count + 1]
    lowest = (crossing[1:-1] <= crossing[:-2]) & (crossing[1:-1] <= crossing[2:])
    return {0, count, *(np.flatnonzero(lowest) + 1).tolist()}


def _covered(price: Sequence[Sequence[float]], start: int, stop: int, longest: int) -> tuple[list[float], tuple[tuple[int, int], ...]]:
    """Cycles of operators [start, start + n) for every n by segments of at most so many, and the cut of all; () where there is none."""
    cost, length = [0.0], [0]
    for at in range(start + 1, stop + 1):
        mine, most = price[at], min(longest, at - start)
        n = min(range(1, most + 1), key=lambda n: cost[at - start - n] + mine[n])
        cost.append(cost[at - start - n] + mine[n])
        length.append(n)
    cut, at = list[tuple[int, int]](), stop
    while at > start and np.isfinite(cost[-1]):
        cut.append((at - length[at - start], at))
        at -= length[at - start]
    return cost, tuple(reversed(cut))
