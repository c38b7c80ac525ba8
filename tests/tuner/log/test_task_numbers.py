"""Numbers are their tasks' for good, wherever gaps are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tuner.log.task_numbers import Ranges, TaskNumbers, add, count


def numbers(published: dict[int, str], levels: int = 3) -> TaskNumbers:
    rows = [(seq, name) for seq, name in published.items() for _ in range(levels)]
    seqs = pa.chunked_array([pa.array([seq for seq, _ in rows], pa.int64())])
    return TaskNumbers(seqs, pa.chunked_array([pa.array([name for _, name in rows], pa.string())]))


def test_published_tasks_keep_numbers_and_others_fill_gaps() -> None:
    found = numbers({0: "a", 1: "b", 4: "e", 7: "h"})
    assert found.assign(["x", "e", "y", "a"]).tolist() == [2, 4, 3, 0]
    assert found.assign(["h"]).tolist() == [7]
    assert found.assign(["p", "q", "r", "s"]).tolist() == [5, 6, 8, 9]
    assert found.assign([]).tolist() == []


def test_what_is_counted_and_what_is_beyond() -> None:
    found = numbers({0: "a", 1: "b", 4: "e", 7: "h"})
    assert (found.missing([[0, 2], [4, 5]]), found.missing([[0, 6]]), found.missing([])) == (0, 3, 0)
    assert found.names([[4, 5], [0, 1]]) == {"a", "e"}
    assert found.beyond([[4, 5], [0, 1]]) == {"b": 1, "h": 7}
    assert numbers({}).beyond([]) == {}


@given(st.lists(st.lists(st.integers(0, 40), max_size=12, unique=True), max_size=6))
def test_ranges_are_the_numbers_in_their_order(parts: list[list[int]]) -> None:
    ranges: Ranges = []
    for part in parts:
        add(ranges, np.array(part, np.int64))
    assert [number for first, stop in ranges for number in range(first, stop)] == [number for part in parts for number in part]
    assert count(ranges) == sum(map(len, parts))


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 40), unique=True))
def test_no_two_tasks_have_one_number(published: set[int], asked: list[int]) -> None:
    found = numbers({seq: f"t{seq}" for seq in sorted(published)}, levels=1)
    mine = found.assign([f"t{seq}" for seq in asked]).tolist()
    assert len({*mine, *published}) == len({*asked, *published})
    assert all(number == seq for seq, number in zip(asked, mine, strict=True) if seq in published)
