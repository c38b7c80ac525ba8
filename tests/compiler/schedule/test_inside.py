"""What a segment waits for inside itself, against clocks over every cell."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE, inside

CELLS = 9
Access = tuple[int, int, int]  # first cell, one behind the last, 1 for a write


def records(seed: int, count: int = 60) -> tuple[list[int], list[list[Access]]]:
    """Engines and accesses, reads first."""
    rng = np.random.default_rng(seed)
    engines = [int(e) for e in rng.integers(ENGINES, size=count)]
    accesses = []
    for _ in engines:
        bounds = [sorted(int(c) for c in rng.choice(CELLS + 1, 2, replace=False)) for _ in range(int(rng.integers(1, 4)))]
        accesses.append(sorted(((a, b, int(rng.random() < 0.4)) for a, b in bounds), key=lambda access: access[2]))
    return engines, accesses


def before(engines: list[int], accesses: list[list[Access]]) -> list[set[int]]:
    """Of every record, all those that must be over: conflicting ones, earlier ones of its queue, and what those follow."""
    found: list[set[int]] = []
    for j, mine in enumerate(accesses):
        behind = set()
        for i in range(j):
            conflict = any(a < d and c < b and (w or v) for a, b, w in accesses[i] for c, d, v in mine)
            if conflict or engines[i] == engines[j]:
                behind |= found[i] | {i}
        found.append(behind)
    return found


@pytest.mark.parametrize("seed", range(15))
def test_waits_imply_every_conflict_and_none_implies_another(seed: int) -> None:
    engines, accesses = records(seed)
    start = np.cumsum([0, *map(len, accesses)], dtype=np.int32)
    span = np.array([(a << 1 | w, b) for mine in accesses for a, b, w in mine], np.int32)
    made = inside(np.array(engines, np.uint8), span, start, CELLS, 0, np.zeros(len(engines), np.uint8))
    wanted, told = before(engines, accesses), list[set[int]]()
    for j, engine in enumerate(engines):
        own = [i for i in range(j) if engines[i] == engine][-1:]
        behind = set().union(*(told[i] | {i} for i in own))
        waits = made.need[made.start[j] : made.start[j + 1]].tolist()
        assert waits == sorted(waits, reverse=True)
        for i in waits:
            assert i not in behind
            behind |= told[i] | {i}
        assert behind == wanted[j]
        told.append(behind)


@pytest.mark.parametrize("seed", range(5))
def test_the_past_is_met_at_the_first_touch_and_the_last_accesses_are_left(seed: int) -> None:
    engines, accesses = records(seed, count=12)
    start = np.cumsum([0, *map(len, accesses)], dtype=np.int32)
    span = np.array([(a << 1 | w, b) for mine in accesses for a, b, w in mine], np.int32)
    made = inside(np.array(engines, np.uint8), span, start, CELLS, 0, np.zeros(len(engines), np.uint8))
    met = {(j, c, a & 1) for j, a, b in made.outer.tolist() for c in range(a >> 1, b)}
    writer, readers = dict.fromkeys(range(CELLS), -1), {c: [-1] * ENGINES for c in range(CELLS)}
    expected = set()
    for j, (engine, mine) in enumerate(zip(engines, accesses, strict=True)):
        for a, b, write in mine:
            for c in range(a, b):
                if writer[c] < 0 and (write or readers[c][engine] < 0):
                    expected.add((j, c, write))
                if write:
                    writer[c], readers[c] = j, [-1] * ENGINES
                else:
                    readers[c][engine] = j
    assert met == expected
    assert made.last[:, :ENGINES].tolist() == list(readers.values())
    assert made.last[:, WRITER].tolist() == list(writer.values())
    assert made.last[:, WRITER_ENGINE].tolist() == [engines[j] if j >= 0 else -1 for j in writer.values()]
