"""Simulated annealing of a cut and its placement on the estimate of `compiler.placement.port_model` (Kirkpatrick, Gelatt and Vecchi, 1983).

From all cores to one core each is a step that pays only where several pieces take it together: one branch on one core alone lets the others
idle.  A walk that never goes up does not find it, so this one may, by less and less.

| array          | shape                           | meaning                                                                  |
|----------------|---------------------------------|--------------------------------------------------------------------------|
| first          | int64 [operators × longest + 1] | where in option those of the run [start, start + n) begin: start × longest + n - 1 |
| option         | int64 [..]                      | their numbers, which equal runs share                                    |
| cycles, moved  | float64 [options]               | of each option alone, and what it loads and stores                       |
| cores          | uint64 [options]                | the set that it runs on                                                  |
| source, target | int64 [edges]                   | operators, the second reads what the first makes; ascending by the second |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.placement.port_model import Floats, Ints, Masks, _replay

DRAWS = 8  # random numbers of a step
HOT, COLD = 0.5, 0.005  # shares of a piece's mean time that a step may go up by, at the beginning and at the end, once in e times


class Choices(NamedTuple):
    """What the pieces of a cut may be; see the table above.  longest: operators of a piece."""

    longest: int
    first: Ints
    option: Ints
    cycles: Floats
    moved: Floats
    cores: Masks
    source: Ints
    target: Ints


def annealed(choices: Choices, starts: Ints, chosen: Ints, draws: Floats, port: float, delay: float) -> tuple[float, Ints, Ints]:
    """The fastest that was met, in cycles, and it: where its pieces start, int64 [pieces], and the option of each.

    starts, chosen: where the walk begins.  draws: float64 [steps, DRAWS] in [0, 1).  port: per cycle.  delay: cycles of a flag.
    """
    time, count, where, which = _anneal(*choices, starts, chosen, draws, float(port), float(delay))
    return float(time), where[:count], which[:count]


@njit(cache=True)
def _anneal(
    longest: int,
    first: Ints,
    option: Ints,
    cycles: Floats,
    moved: Floats,
    cores: Masks,
    source: Ints,
    target: Ints,
    starts: Ints,
    chosen: Ints,
    draws: Floats,
    port: float,
    delay: float,
) -> tuple[float, int, Ints, Ints]:
    operators, count = (first.shape[0] - 1) // longest, starts.shape[0]
    piece, wires, before = np.empty(operators, np.int64), np.empty(operators + 1, np.int64), np.empty(source.shape[0], np.int64)
    cut, kind = np.full(operators + 1, operators), np.zeros(operators, np.int64)
    cut[:count], kind[:count] = starts, chosen
    new_cut, new_kind = cut.copy(), kind.copy()
    _wire(cut, count, source, target, piece, wires, before)
    picked = kind[:count]
    time = _replay(cycles[picked], moved[picked], wires[: count + 1], before, cores[picked], port, delay)
    best, best_count, best_cut, best_kind = time, count, cut.copy(), kind.copy()
    steps = draws.shape[0]
    for step in range(steps):
        draw = draws[step]
        at = int(draw[0] * count)
        taken, made = _recut(cut, count, at, draw, new_cut)
        new_count = count + made - taken
        new_kind[:at], new_kind[at + made : new_count] = kind[:at], kind[at + taken : count]
        if not made or not _chosen(longest, first, option, new_cut, at, made, draw, new_kind):
            continue
        rewired = taken != made or taken == 2
        if rewired:
            _wire(new_cut, new_count, source, target, piece, wires, before)
        picked = new_kind[:new_count]
        found = _replay(cycles[picked], moved[picked], wires[: new_count + 1], before, cores[picked], port, delay)
        if found <= time * (1.0 - HOT * (COLD / HOT) ** (step / steps) * np.log(1.0 - draw[3]) / count):
            cut, new_cut, kind, new_kind, count, time = new_cut, cut, new_kind, kind, new_count, found
            if found < best:
                best, best_count = found, count
                best_cut[:], best_kind[:] = cut, kind
        elif rewired:
            _wire(cut, count, source, target, piece, wires, before)
    return best, best_count, best_cut, best_kind


@njit(cache=True)
def _recut(cut: Ints, count: int, at: int, draw: Floats, new: Ints) -> tuple[int, int]:
    """So many pieces from `at` on become so many others, whose borders are put into `new`; (0, 0): nothing to be done there."""
    taken = made = 1
    if draw[1] < 0.2:
        taken = made = min(count - at, 3 + int(2 * draw[2]))
    elif draw[1] >= 0.5:
        taken, made = (2, 1) if draw[1] < 0.65 else (2, 2) if draw[1] < 0.85 else (1, 2)
    width = cut[min(at + taken, count)] - cut[at]
    if at + taken > count or width < made:
        return 0, 0
    new[: at + 1] = cut[: at + 1]
    if taken == made and made != 2:
        new[at + 1 : at + made] = cut[at + 1 : at + made]
    elif made == 2:
        new[at + 1] = cut[at] + 1 + int(draw[2] * (width - 1))
    new[at + made : count + made - taken + 1] = cut[at + taken : count + 1]
    return taken, made


@njit(cache=True)
def _chosen(longest: int, first: Ints, option: Ints, cut: Ints, at: int, made: int, draw: Floats, kind: Ints) -> bool:
    """Options for `made` pieces from `at` on are put into `kind`; False where one has none."""
    for k in range(made):
        length = cut[at + k + 1] - cut[at + k]
        run = cut[at + k] * longest + length - 1
        if length > longest or first[run] == first[run + 1]:
            return False
        kind[at + k] = option[first[run] + int(draw[4 + k] * (first[run + 1] - first[run]))]
    return True


@njit(cache=True)
def _wire(cut: Ints, count: int, source: Ints, target: Ints, piece: Ints, wires: Ints, before: Ints) -> None:
    """The wiring of the pieces of a cut, with an edge between two as often as operators have it."""
    for k in range(count):
        piece[cut[k] : cut[k + 1]] = k
    wires[0] = at = edges = 0
    for e in range(source.shape[0]):
        a, b = piece[source[e]], piece[target[e]]
        if a != b:
            while at < b:
                at += 1
                wires[at] = edges
            before[edges] = a
            edges += 1
    wires[at + 1 : count + 1] = edges
