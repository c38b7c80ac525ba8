"""Table of measured segments: cycles by structure and gene, and the best segmentation of the model by measured segments.

Segments of equal structure, anywhere in the network, share an entry.  The segmentation is the exact shortest path over the topological
order for additive costs; real costs are not quite additive (neighbours overlap), so it proposes programs and never judges them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.planner.shortest_path import shortest_cover
from compiler.space.gene import EVERY_LENGTH, Gene, Genome, Key, Tail
from compiler.space.structural_hash import Structures
from tuner.measure.grants import NEVER

_CORES = Gene._fields.index("cores") - 2  # index in a tail
_ABSENT = object()
Way = tuple[float, bytes, NDArray[np.int64]]
WAYS = 3  # kept for each structure, to correct its predictions
_Kind = tuple[str, int | None]  # a structure, and its number of cores; None: any number


def cost_after_border(cycles: float, border: float) -> float:
    """Cost of a segment that overlaps its neighbour at the border, by at most half of the segment."""
    return max(cycles - border, 0.5 * cycles)


class SegmentTable:
    """Measured segments.  cycles: key -> int64 [levels], `NEVER` at levels that it does not fit, or None where it does not fit the machine.

    moved_bytes: key -> to and from DDR.  plan_keys: (structure, features), float32, scaled, as bytes.
    fastest: structure -> up to `WAYS` fastest forms with different features that fit every level: (mean logarithm of the cycles, features,
    cycles); of equal features the first counts.
    groups: indices of levels with equal grants (`tuner.measure.grants`); None: all equal.
    """

    def __init__(self, structures: Structures, levels: int, groups: Sequence[Sequence[int]] | None = None) -> None:
        self.structures, self.levels = structures, levels
        self.groups = [list(group) for group in groups or (range(levels),)]
        self.operators = len(structures.target_graph.operators)
        self.cycles: dict[Key, NDArray[np.int64] | None] = {}
        self.moved_bytes: dict[Key, int] = {}
        self.plan_keys: dict[tuple[str, bytes], None] = {}
        self.fastest: dict[str, tuple[Way, ...]] = {}
        self._best: list[dict[_Kind, tuple[int, Tail]]] = [{} for _ in range(levels)]
        self._lean: list[dict[_Kind, tuple[int, int, Tail]]] = [{} for _ in range(levels)]
        self._singles: list[dict[str, tuple[float, Tail]]] = [{} for _ in self.groups]
        self._operators = [structures.structure(k, k + 1) for k in range(self.operators)]
        self._undo: list[tuple[dict[Any, Any], Any, Any]] | None = None
        self._port_bytes = float(structures.target_graph.machine.ddr.deliverable)
        pairs = [(i, j) for j in range(1, self.operators + 1) for i in range(max(0, j - EVERY_LENGTH), j)]
        self._pairs = [(i, j, structures.structure(i, j)) for i, j in pairs]
        self._long: dict[tuple[int, int], str] = {}

    def known(self, gene: Gene) -> bool:
        return self.structures.key(gene) in self.cycles

    def find_cycles(self, gene: Gene) -> NDArray[np.int64] | None:
        """Measured cycles per level; None if not measured or not feasible."""
        return self.cycles.get(self.structures.key(gene))

    def moved(self, gene: Gene) -> int:
        """Bytes to and from DDR; 0 if not measured or not feasible."""
        return self.moved_bytes.get(self.structures.key(gene), 0)

    def add(self, gene: Gene, cycles: NDArray[np.int64] | None, moved_bytes: int = 0, features: bytes = b"") -> bool:
        """Add a measurement of a gene, with its features (see `plan_keys`); returns False without a change for a known gene."""
        key = self.structures.key(gene)
        if key in self.cycles:
            return False
        self._set(self.cycles, key, cycles)
        if gene.stop - gene.start > EVERY_LENGTH:
            self._set(self._long, (gene.start, gene.stop), key[0])
        if features and (key[0], features) not in self.plan_keys:
            self._set(self.plan_keys, (key[0], features), None)
            if cycles is not None and (cycles < NEVER).all():
                new_way: Way = float(np.log(cycles).mean()), features, cycles
                ways = sorted((*self.fastest.get(key[0], ()), new_way), key=lambda way: way[:2])
                self._set(self.fastest, key[0], tuple(ways[:WAYS]))
        if cycles is None:
            return True
        self._set(self.moved_bytes, key, moved_bytes)
        structure, tail = key
        if gene.stop - gene.start == 1:
            for group, single_best in zip(self.groups, self._singles, strict=True):
                merit = (float(np.log(np.maximum(cycles[group], 1)).mean()), tail)
                if (cycles[group] < NEVER).all() and (structure not in single_best or merit < single_best[structure]):
                    self._set(single_best, structure, merit)
        # fastest and leanest genes of the structure, on any and on this number of cores
        width = len(tail[_CORES])
        for level, (best, leanest) in enumerate(zip(self._best, self._lean, strict=True)):
            if cycles[level] >= NEVER:
                continue
            new = (int(cycles[level]), tail)
            for kind in ((structure, None), (structure, width)):
                if kind not in best or new < best[kind]:
                    self._set(best, kind, new)
            lean = (int(cycles[level] + moved_bytes / self._port_bytes), *new)
            if (structure, width) not in leanest or lean < leanest[structure, width]:
                self._set(leanest, (structure, width), lean)
        return True

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        if self._undo is not None:
            self._undo.append((mapping, key, mapping.get(key, _ABSENT)))
        mapping[key] = value

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Remove at the end everything added inside.  Must not be nested."""
        self._undo = []
        try:
            yield
        finally:
            for mapping, key, previous in reversed(self._undo):
                if previous is _ABSENT:
                    del mapping[key]
                else:
                    mapping[key] = previous
            self._undo = None

    def best(self, start: int, stop: int, level: int, width: int | None = None) -> tuple[int, Gene] | None:
        """Fastest measured segment over operators [start, stop) at a level, on `width` cores or any number of them."""
        entry = self._best[level].get((self.structures.structure(start, stop), width))
        return None if entry is None else (entry[0], Gene(start, stop, *entry[1]))

    def lean(self, start: int, stop: int, level: int, width: int) -> tuple[int, Gene] | None:
        """Leanest segment: as `best`, but by the sum of cycles and port time of its bytes, so fast even while others use the port."""
        entry = self._lean[level].get((self.structures.structure(start, stop), width))
        return None if entry is None else (entry[1], Gene(start, stop, *entry[2]))

    def segmentation(
        self,
        level: int,
        border: float = 0.0,
        noise: float = 0.0,
        rng: np.random.Generator | None = None,
        longest: int | None = None,
        width: int | None = None,
    ) -> tuple[Genome, NDArray[np.float64]] | None:
        """Cheapest segmentation of all operators by measured segments, and the cost of covering the first j, float64 [operators + 1].

        border: cycles that a segment saves by overlapping its neighbour.  noise: every cost times exp(N(0, noise)).
        width: number of cores of all segments, except operators that cannot.  None where some operator has no measured segment.
        """
        cost, tails = self.costs(level, border, width, longest)
        if noise and rng is not None:
            runs = self._runs()
            for (i, j, _), factor in zip(runs, np.exp(rng.normal(0.0, noise, len(runs))).tolist(), strict=True):
                cost[j - 1, j - i - 1] *= factor
        path = shortest_cover(cost)
        if path is None:
            return None
        return tuple(Gene(i, j, *tails[i, j]) for i, j in path[0]), path[1]

    def costs(
        self, level: int, border: float = 0.0, width: int | None = None, longest: int | None = None, room: int = 0
    ) -> tuple[NDArray[np.float64], dict[tuple[int, int], Tail]]:
        """Costs of measured runs (`planner.shortest_path`), less savings at borders, and the tails of their genes.

        room: least length of runs that the array has space for.
        """
        best, runs = self._best[level], self._runs()
        cost = np.full((self.operators, max([room, EVERY_LENGTH, *(j - i for i, j in self._long)])), np.inf)
        tails: dict[tuple[int, int], Tail] = {}
        for i, j, structure in runs:
            entry = best.get((structure, width))
            if entry is None and j - i == 1:
                entry = best.get((structure, None))
            if entry is None or (longest is not None and j - i > longest):
                continue
            cost[j - 1, j - i - 1] = cost_after_border(entry[0], border)
            tails[i, j] = entry[1]
        return cost, tails

    def runs_of(self, structures: Mapping[str, int]) -> list[tuple[int, int, int]]:
        """Runs (start, stop, number) with a structure in `structures`."""
        return [(i, j, structures[structure]) for i, j, structure in self._runs() if structure in structures]

    def _runs(self) -> list[tuple[int, int, str]]:
        """Runs of regular length, and longer ones that were measured."""
        return [*self._pairs, *((*run, structure) for run, structure in sorted(self._long.items()))] if self._long else self._pairs

    def sum_cycles(self, genome: Genome) -> NDArray[np.float64] | None:
        """Sum of the segments' own cycles per level, `NEVER` or more if one does not fit; None for an unmeasured segment."""
        total = np.zeros(self.levels)
        for gene in genome:
            cycles = self.find_cycles(gene)
            if cycles is None:
                return None
            total += cycles
        return total

    def singles(self, group: int = 0) -> Genome | None:
        """Genome of single operators, each with the best gene over the levels of a group with equal grants (geometric mean): the tuned
        layer-by-layer genome."""
        single_times = self._singles[group]
        if any(structure not in single_times for structure in self._operators):
            return None
        return tuple(Gene(k, k + 1, *single_times[structure][1]) for k, structure in enumerate(self._operators))
