"""Simulated annealing of a cut and its placement on the estimate of `compiler.placement.port_model` (Kirkpatrick, Gelatt and Vecchi, 1983).

A step from all cores to one core each pays only if several segments take it together: one branch on one core alone lets the other cores
idle.  A descent does not find it, so this walk also accepts slower placements, less and less.

| array          | shape                           | meaning                                                                  |
|----------------|---------------------------------|--------------------------------------------------------------------------|
| first          | int64 [operators × longest + 1] | index of the first option of run [start, start + n): at start × longest + n - 1 |
| option         | int64 [..]                      | numbers of the options of all runs; equal runs share options             |
| cycles, moved  | float64 [options]               | cycles of the option alone on its cores, and its loads and stores        |
| cores          | uint64 [options]                | its set of cores                                                          |
| source, target | int64 [edges]                   | operators, the second reads a result of the first; ascending by the second |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.placement.port_model import Floats, Ints, Masks, _replay

DRAWS = 8  # random numbers per step
HOT, COLD = 0.5, 0.005  # at the start and at the end: an increase by this share of a segment's mean time is accepted with probability 1 / e


class Choices(NamedTuple):
    """Options for the segments of a cut; see the table above.  longest: operators of a segment."""

    longest: int
    first: Ints
    option: Ints
    cycles: Floats
    moved: Floats
    cores: Masks
    source: Ints
    target: Ints


def anneal(choices: Choices, starts: Ints, chosen: Ints, draws: Floats, port: float, delay: float) -> tuple[float, Ints, Ints]:
    """Fastest placement of the walk: cycles, the starts of its segments, int64 [segments], and the option of each.

    starts, chosen: first cut and options.  draws: float64 [steps, DRAWS] in [0, 1): segment, kind of step, border, acceptance, options.
    port: loads and stores per cycle, in the unit of `moved`.  delay: cycles of a flag.
    """
    time, count, where, which = _anneal(*choices, starts, chosen, draws, float(port), float(delay))
    return float(time), where[:count], which[:count]


@njit(cache=True)
def _anneal(
    longest: int, first: Ints, option: Ints, cycles: Floats, moved: Floats, cores: Masks, source: Ints, target: Ints, starts: Ints,
    start_options: Ints, draws: Floats, port: float, delay: float,
) -> tuple[float, int, Ints, Ints]:  # fmt: skip
    operators, count = (first.shape[0] - 1) // longest, starts.shape[0]
    piece, wires, before = np.empty(operators, np.int64), np.empty(operators + 1, np.int64), np.empty(source.shape[0], np.int64)
    cut, kind = np.full(operators + 1, operators), np.zeros(operators, np.int64)
    cut[:count], kind[:count] = starts, start_options
    new_cut, new_kind = cut.copy(), kind.copy()
    _wire(cut, count, source, target, piece, wires, before)
    options = kind[:count]
    time = _replay(cycles[options], moved[options], wires[: count + 1], before, cores[options], port, delay)
    best, best_count, best_cut, best_kind = time, count, cut.copy(), kind.copy()
    steps = draws.shape[0]
    for step in range(steps):
        draw = draws[step]
        index = int(draw[0] * count)
        # a step: new borders or options of a few neighbours; both cuts are kept, so that it can be undone
        removed, added = _recut(cut, count, index, draw, new_cut)
        new_count = count + added - removed
        new_kind[:index], new_kind[index + added : new_count] = kind[:index], kind[index + removed : count]
        if not added or not _choose_options(longest, first, option, new_cut, index, added, draw, new_kind):
            continue
        rewired = removed != added or removed == 2
        if rewired:
            _wire(new_cut, new_count, source, target, piece, wires, before)
        options = new_kind[:new_count]
        new_time = _replay(cycles[options], moved[options], wires[: new_count + 1], before, cores[options], port, delay)
        if new_time <= time * (1.0 - HOT * (COLD / HOT) ** (step / steps) * np.log(1.0 - draw[3]) / count):
            cut, new_cut, kind, new_kind, count, time = new_cut, cut, new_kind, kind, new_count, new_time
            if new_time < best:
                best, best_count = new_time, count
                best_cut[:], best_kind[:] = cut, kind
        elif rewired:
            _wire(cut, count, source, target, piece, wires, before)
    return best, best_count, best_cut, best_kind


@njit(cache=True)
def _recut(cut: Ints, count: int, index: int, draw: Floats, new_cut: Ints) -> tuple[int, int]:
    """Replace some segments from `index` on by others, with borders in `new_cut`; returns (old count, new count), (0, 0) if impossible."""
    removed = added = 1
    if draw[1] < 0.2:
        removed = added = min(count - index, 3 + int(2 * draw[2]))
    elif draw[1] >= 0.5:
        removed, added = (2, 1) if draw[1] < 0.65 else (2, 2) if draw[1] < 0.85 else (1, 2)
    width = cut[min(index + removed, count)] - cut[index]
    if index + removed > count or width < added:
        return 0, 0
    new_cut[: index + 1] = cut[: index + 1]
    if removed == added and added != 2:
        new_cut[index + 1 : index + added] = cut[index + 1 : index + added]
    elif added == 2:
        new_cut[index + 1] = cut[index] + 1 + int(draw[2] * (width - 1))
    new_cut[index + added : count + added - removed + 1] = cut[index + removed : count + 1]
    return removed, added


@njit(cache=True)
def _choose_options(longest: int, first: Ints, option: Ints, cut: Ints, index: int, added: int, draw: Floats, kind: Ints) -> bool:
    """Choose options for `added` segments from `index` on into `kind`; False if one has none."""
    for k in range(added):
        length = cut[index + k + 1] - cut[index + k]
        run = cut[index + k] * longest + length - 1
        if length > longest or first[run] == first[run + 1]:
            return False
        kind[index + k] = option[first[run] + int(draw[4 + k] * (first[run + 1] - first[run]))]
    return True


@njit(cache=True)
def _wire(cut: Ints, count: int, source: Ints, target: Ints, piece: Ints, wires: Ints, before: Ints) -> None:
    """Edges between the segments of a cut, one for every edge between operators of two segments.

    piece [operators]: segment of each.  before[wires[k] : wires[k + 1]]: segments whose results segment k reads."""
    for k in range(count):
        piece[cut[k] : cut[k + 1]] = k
    wires[0] = node = edges = 0
    for e in range(source.shape[0]):
        a, b = piece[source[e]], piece[target[e]]
        if a != b:
            while node < b:
                node += 1
                wires[node] = edges
            before[edges] = a
            edges += 1
    wires[node + 1 : count + 1] = edges
