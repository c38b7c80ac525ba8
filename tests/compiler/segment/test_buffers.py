"""Addresses: nothing that lives at the same time overlaps, and nothing more is used than needed for the wishes on paper."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.segment.buffers import Wish, allocate, fit, fits

WISHES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8), st.integers(0, 4)), max_size=14).map(
    lambda rows: [Wish(f"w{i}", size, birth, birth + length) for i, (size, birth, length) in enumerate(rows)]
)


def overlapping(a: Wish, b: Wish) -> bool:
    return a.birth <= b.death and b.birth <= a.death


def check(wishes: list[Wish], offsets: dict[str, int], peak: int) -> None:
    assert set(offsets) == {w.name for w in wishes}
    assert peak == max((offsets[w.name] + w.size for w in wishes), default=0)
    for i, a in enumerate(wishes):
        for b in wishes[:i]:
            if overlapping(a, b):
                assert offsets[a.name] + a.size <= offsets[b.name] or offsets[b.name] + b.size <= offsets[a.name]


@settings(deadline=None)  # the first example compiles the kernel
@given(WISHES)
def test_what_lives_together_lies_apart(wishes: list[Wish]) -> None:
    offsets, peak = allocate(wishes)
    check(wishes, offsets, peak)
    steps = range(max((w.death for w in wishes), default=0) + 1)
    assert peak >= max((sum(w.size for w in wishes if w.birth <= step <= w.death) for step in steps), default=0)
    assert allocate(list(reversed(wishes))) == (offsets, peak)  # a place depends on the wishes, not on their order


@settings(deadline=None)  # the first example compiles the kernel
@given(WISHES, st.integers(1, 300))
def test_fit_stretches_lifetimes_only_where_there_is_room(wishes: list[Wish], capacity: int) -> None:
    offsets, peak = fit(wishes, capacity, 1)
    check(wishes, offsets, peak)
    if allocate(wishes)[1] <= capacity:
        assert peak <= capacity


@settings(deadline=None)
@given(WISHES, st.integers(1, 300))
def test_fits_agrees_with_the_addresses(wishes: list[Wish], capacity: int) -> None:
    assert fits(tuple(wishes), capacity) == (allocate(wishes)[1] <= capacity)


def test_reuse_on_paper() -> None:
    """b takes a's place when a is dead; c lives with both and lies behind them."""
    wishes = [Wish("a", 10, 0, 0), Wish("b", 8, 1, 2), Wish("c", 5, 0, 2)]
    assert allocate(wishes) == ({"a": 0, "b": 0, "c": 10}, 15)
    # with room for 23, neighbours in time lie apart so that they can overlap
    assert fit(wishes, 23, 1) == ({"a": 0, "b": 10, "c": 18}, 23)
    assert fit(wishes, 22, 1)[1] == 15
