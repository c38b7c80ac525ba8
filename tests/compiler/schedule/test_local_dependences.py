"""What a segment waits for inside itself, against clocks over every cell."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE, find_dependences
from compiler.schedule.scratch import Scratch

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


def over(engines: list[int], known: list[set[int]], i: int) -> set[int]:
    """What a flag behind record i tells: all of its queue so far, and what that had been told."""
    return known[i] | {k for k in range(i + 1) if engines[k] == engines[i]}


def queued(engines: list[int], overlaps: list[bool], known: list[set[int]], j: int) -> set[int]:
    """What is over for record j by its queue alone: not what the queue has in flight, where j may overlap it."""
    own = [i for i in range(j) if engines[i] == engines[j]][-1:]
    return set().union(*(known[i] if overlaps[i] and overlaps[j] else over(engines, known, i) for i in own))


def before(engines: list[int], overlaps: list[bool], accesses: list[list[Access]]) -> list[set[int]]:
    """Of every record, all those that must be over: conflicting ones, those that its queue has finished, and what those follow."""
    found: list[set[int]] = []
    for j, mine in enumerate(accesses):
        behind = queued(engines, overlaps, found, j)
        for i in range(j):
            if any(a < d and c < b and (w or v) for a, b, w in accesses[i] for c, d, v in mine) and i not in behind:
                behind |= over(engines, found, i)
        found.append(behind)
    return found


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(15))
def test_waits_imply_every_conflict_and_none_implies_another(seed: int, share: float) -> None:
    """share: of the records of two engines, those that may overlap others of their queue."""
    engines, accesses = records(seed)
    overlaps = [e < 2 and r < share for e, r in zip(engines, np.random.default_rng(seed).random(len(engines)), strict=True)]
    start = np.cumsum([0, *map(len, accesses)], dtype=np.int32)
    span = np.array([(a << 1 | w, b) for mine in accesses for a, b, w in mine], np.int32)
    made = find_dependences(np.array(engines, np.uint8), span, start, 0, np.array(overlaps, np.uint8), np.empty(CELLS, np.uint8), Scratch())
    wanted, told = before(engines, overlaps, accesses), list[set[int]]()
    for j in range(len(engines)):
        behind = queued(engines, overlaps, told, j)
        waits = made.need[made.start[j] : made.start[j + 1]].tolist()
        assert waits == sorted(waits, reverse=True)
        for i in waits:
            assert i not in behind
            behind |= over(engines, told, i)
        assert behind == wanted[j]
        told.append(behind)


@pytest.mark.parametrize("seed", range(5))
def test_past_meets_first_touch_and_last_accesses_remain(seed: int) -> None:
    engines, accesses = records(seed, count=12)
    start = np.cumsum([0, *map(len, accesses)], dtype=np.int32)
    span = np.array([(a << 1 | w, b) for mine in accesses for a, b, w in mine], np.int32)
    touched = np.empty(CELLS, np.uint8)
    made = find_dependences(np.array(engines, np.uint8), span, start, 0, np.zeros(len(engines), np.uint8), touched, Scratch())
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
    assert touched.tolist() == [max(readers[c]) >= 0 or writer[c] >= 0 for c in range(CELLS)]
