"""Annealing on graphs small enough to know the best."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.placement.annealing import DRAWS, Choices, anneal
from compiler.placement.port_model import core_masks, replay_cycles, wire_segments

LONGEST, PORT, DELAY = 3, 100.0, 5.0
Rows = list[tuple[int, int, float, tuple[int, ...]]]  # start, stop, cycles, cores


def choices(operators: int, rows: Rows, edges: list[tuple[int, int]]) -> Choices:
    """Options that move nothing."""
    first, option = [0], list[int]()
    for start in range(operators):
        for stop in range(start + 1, start + LONGEST + 1):
            option += [i for i, row in enumerate(rows) if row[:2] == (start, stop)]
            first.append(len(option))
    before, after = (np.array([edge[end] for edge in sorted(edges, key=lambda edge: edge[1])], np.int64) for end in (0, 1))
    cycles = np.array([row[2] for row in rows])
    return Choices(LONGEST, np.array(first), np.array(option), cycles, np.zeros(len(rows)), core_masks([r[3] for r in rows]), before, after)


def again(c: Choices, starts: np.ndarray, chosen: np.ndarray) -> float:
    """What the replay says of a result."""
    before, after = (np.searchsorted(starts, ends, "right") - 1 for ends in (c.source, c.target))
    apart = before != after
    wiring = wire_segments(len(starts), before[apart], after[apart])
    return replay_cycles(c.cycles[chosen], c.moved[chosen], wiring, c.cores[chosen], PORT, DELAY)


def walk(c: Choices, starts: list[int], chosen: list[int], steps: int, seed: int = 0) -> tuple[float, np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed).random((steps, DRAWS))
    found = anneal(c, np.array(starts), np.array(chosen), draws, PORT, DELAY)
    assert found[0] == again(c, *found[1:])
    return found


def branches(operators: int) -> Choices:
    """Operators that wait for nothing: 100 cycles on one core, 75 on both."""
    rows: Rows = [(k, k + 1, 100.0, (0,)) for k in range(operators)] + [(k, k + 1, 100.0, (1,)) for k in range(operators)]
    return choices(operators, [*rows, *((k, k + 1, 75.0, (0, 1)) for k in range(operators))], [])


def test_from_all_cores_to_one_each() -> None:
    c = branches(6)
    time, starts, _ = walk(c, list(range(6)), [12 + k for k in range(6)], 3000)
    assert time == 300.0, "no single change of six times 75 leads there"
    assert starts.tolist() == list(range(6))


def test_no_steps_lead_nowhere() -> None:
    c = branches(3)
    time, starts, chosen = walk(c, [0, 1, 2], [6, 7, 8], 0)
    assert (time, starts.tolist(), chosen.tolist()) == (225.0, [0, 1, 2], [6, 7, 8])


def test_runs_are_merged_shifted_and_cut() -> None:
    """The best cut of six operators of a chain is [0, 2) [2, 5) [5, 6)."""
    best = {(0, 2): 10.0, (2, 5): 10.0, (5, 6): 10.0}
    runs = [(start, stop) for start in range(6) for stop in range(start + 1, min(start + LONGEST, 6) + 1)]
    rows: Rows = [(*run, best.get(run, 20.0 * (run[1] - run[0])), (0,)) for run in runs]
    c = choices(6, rows, [(k, k + 1) for k in range(5)])
    for cut in ([(0, 3), (3, 6)], [(k, k + 1) for k in range(6)]):
        time, starts, _ = walk(c, [start for start, _ in cut], [runs.index(run) for run in cut], 2000)
        assert (time, starts.tolist()) == (30.0, [0, 2, 5])


@pytest.mark.parametrize("seed", range(3))
def test_what_is_found_is_what_the_replay_says(seed: int) -> None:
    """On random graphs, where runs of some lengths are not known; never slower than the start."""
    rng = np.random.default_rng(seed)
    operators = 12
    sets = [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)]
    runs = [(k, k + n) for k in range(operators) for n in (1, 2, 3) if k + n <= operators and (n == 1 or rng.random() < 0.5)]
    rows: Rows = [(*run, float(rng.integers(10, 99)) * (run[1] - run[0]) / len(cores) ** 0.5, cores) for run in runs for cores in sets]
    edges = [(int(rng.integers(k)), k) for k in range(1, operators) for _ in range(2)]
    c = choices(operators, rows, edges)._replace(moved=rng.random(len(rows)) * 5000)
    chosen = [next(i for i, row in enumerate(rows) if row[:2] == (k, k + 1)) for k in range(operators)]
    start = again(c, np.arange(operators), np.array(chosen))
    time, starts, chosen_after = walk(c, list(range(operators)), chosen, 1500, seed)
    assert time < start
    stops = [*starts[1:].tolist(), operators]
    assert [rows[i][:2] for i in chosen_after] == list(zip(starts.tolist(), stops, strict=True))
    assert walk(c, list(range(operators)), chosen, 1500, seed)[0] == time
