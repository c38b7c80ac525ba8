"""Addresses: nothing that lives at the same time overlaps, and nothing more is used than needed for the requests on paper."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.segment.allocator import Buffer, BufferRequest, allocate, fits, place_buffers

REQUESTS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8), st.integers(0, 4)), max_size=14).map(
    lambda rows: [BufferRequest(Buffer("weights", i), size, birth, birth + length) for i, (size, birth, length) in enumerate(rows)]
)


def overlapping(a: BufferRequest, b: BufferRequest) -> bool:
    return a.birth <= b.death and b.birth <= a.death


def check(requests: list[BufferRequest], offsets: dict[Buffer, int], peak: int) -> None:
    assert set(offsets) == {w.buffer for w in requests}
    assert peak == max((offsets[w.buffer] + w.size for w in requests), default=0)
    for i, a in enumerate(requests):
        for b in requests[:i]:
            if overlapping(a, b):
                assert offsets[a.buffer] + a.size <= offsets[b.buffer] or offsets[b.buffer] + b.size <= offsets[a.buffer]


@settings(deadline=None)  # the first example compiles the kernel
@given(REQUESTS)
def test_what_lives_together_lies_apart(requests: list[BufferRequest]) -> None:
    offsets, peak = allocate(requests)
    check(requests, offsets, peak)
    steps = range(max((w.death for w in requests), default=0) + 1)
    assert peak >= max((sum(w.size for w in requests if w.birth <= step <= w.death) for step in steps), default=0)
    assert allocate(list(reversed(requests))) == (offsets, peak)  # a place depends on the requests, not on their order


@settings(deadline=None)  # the first example compiles the kernel
@given(REQUESTS, st.integers(1, 300))
def test_spread_buffers_lie_apart_wherever_others_fit(requests: list[BufferRequest], capacity: int) -> None:
    offsets, peak = place_buffers(requests, capacity, True)
    check(requests, offsets, peak)
    if allocate(requests)[1] <= capacity:
        assert peak <= capacity


@settings(deadline=None)
@given(REQUESTS, st.integers(1, 300))
def test_fits_agrees_with_the_addresses(requests: list[BufferRequest], capacity: int) -> None:
    assert fits(tuple(requests), capacity) == (allocate(requests)[1] <= capacity)


def test_reuse_on_paper() -> None:
    """b takes a's place when a is dead; c lives with both and lies behind them."""
    a, b, c = (Buffer("tensor", storage) for storage in range(3))
    requests = [BufferRequest(a, 10, 0, 0), BufferRequest(b, 8, 1, 2), BufferRequest(c, 5, 0, 2)]
    assert allocate(requests) == ({a: 0, b: 0, c: 10}, 15)


def test_spread_on_paper() -> None:
    """Weights take turns in the room beside the tensor: each comes where the longest nobody was."""
    tensor, *weights = Buffer("tensor", 0), *(Buffer("weights", k) for k in range(4))
    requests = [BufferRequest(tensor, 10, 0, 3), *(BufferRequest(each, 8, k, k) for k, each in enumerate(weights))]
    assert place_buffers(requests, 34, True) == (dict(zip((tensor, *weights), (0, 10, 18, 26, 10), strict=True)), 34)
    assert place_buffers(requests, 26, True) == (dict(zip((tensor, *weights), (0, 10, 18, 10, 18), strict=True)), 26)
    assert place_buffers(requests, 17, True)[1] == 18, "as little as possible, where that is more than there is"


def test_equal_requests_lie_by_kind_and_spelt_number() -> None:
    """As in plans that are there, whose addresses stay: ten comes before nine."""
    ordered = [
        Buffer("constants", 3),
        Buffer("out", 10),
        Buffer("out", 9),
        Buffer("out", 9, 10),
        Buffer("out", 9, 2),
        Buffer("residual", 1),
    ]
    offsets, _ = allocate([BufferRequest(buffer, 8, 0, 1) for buffer in reversed(ordered)])
    assert sorted(offsets, key=lambda buffer: offsets[buffer]) == ordered
