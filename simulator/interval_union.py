"""Compute cycles of a core: the union of its matrix unit's and its vector unit's work."""

from __future__ import annotations

from numba import njit

from simulator.pointer import Pointer, pointer
from simulator.timing_state import CUBE, ENGINES, FIXED, KIND_BITS, KIND_MASK, VECTOR, Ints


@njit(cache=True)
def compute_union(time_array: Ints, word_array: Ints, queue_start: Ints, cores: int) -> int:
    """Cycles in which CUBE or VECTOR of a core works, summed over cores: the union of two ordered lists of intervals each."""
    time, word = pointer(time_array), pointer(word_array)
    total = 0
    for core in range(cores):
        a, a_end = queue_start[core * ENGINES + CUBE], queue_start[core * ENGINES + CUBE + 1]
        b, b_end = queue_start[core * ENGINES + VECTOR], queue_start[core * ENGINES + VECTOR + 1]
        a, b, covered = _work(word, a, a_end), _work(word, b, b_end), 0
        while a < a_end or b < b_end:
            if a < a_end and (b == b_end or time[a] <= time[b]):
                i, a = a, _work(word, a + 1, a_end)
            else:
                i, b = b, _work(word, b + 1, b_end)
            end = time[i] + (word[i] >> KIND_BITS)
            total += max(0, end - max(covered, time[i]))
            covered = max(covered, end)
    return total


@njit(cache=True)
def _work(word: Pointer, entry: int, end: int) -> int:
    """The first entry from `entry` on that occupies its engine, or `end`."""
    while entry < end and (word[entry] & KIND_MASK) != FIXED:
        entry += 1
    return entry
