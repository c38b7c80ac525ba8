"""The order of a sliding window: topological, within its slots, at the width that was asked for; and what may share addresses in it."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler, LoweredShare
from compiler.plan.plan import LOOKAHEAD, Infeasible, SegmentPlan
from compiler.schedule.sliding_window import SLOT, Timetable, load_readers, node_sequence, schedule_nodes, window_edges
from compiler.segment.allocator import Buffer, BufferRequest, place_buffers
from compiler.segment.blocks import cut_blocks
from compiler.segment.engine_lanes import MATRIX, VECTOR, lanes
from compiler.segment.memory_plan import find_conflicts, slot_counts, tensor_requests
from compiler.segment.segment import StripBlocks
from compiler.space.decode import decode, formula_window
from compiler.space.gene import ALL, FORMULA, Gene
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.timing import simulate_levels
from tests.graphs import conv, max_pool, target_graph
from tests.models import SMALL_MODELS, small_graph

EDGE = load_machine("edge")


@lru_cache(maxsize=32)
def small(name: str) -> TargetGraph:
    return make_unit(small_graph(name), EDGE, DataType.float16)


@st.composite
def schedules(draw: st.DrawFn, windows: tuple[int | str, ...] = (1, 2, 3, 5, "all")):
    """A segment of a small model with random times: (unit, blocks, edges, readers of loads, window, timetable)."""
    u = small(draw(st.sampled_from(sorted(SMALL_MODELS))))
    start = draw(st.integers(0, len(u.operators) - 1))
    stop = draw(st.integers(start + 1, min(len(u.operators), start + 6)))
    blocks = cut_blocks(u, start, stop, draw(st.integers(1, 6)), draw(st.integers(0, (1 << stop - start) - 1)))
    window = draw(st.sampled_from(windows))
    slots = slot_counts(u, blocks, draw(st.integers(1, 4)), window)
    count = blocks.count * u.storages[0].n
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cycles = rng.integers(0, 50, (stop - start, count, 6)) * rng.integers(0, 2, (stop - start, count, 1))
    loads = rng.integers(0, 80, (len(blocks.loads), count))
    edge, readers = window_edges(u, blocks, slots), load_readers(u, blocks)
    table = schedule_nodes(cycles, edge, lanes(u, blocks.start, blocks.stop), None if window == "all" else window, loads, readers)
    return u, blocks, edge, readers, window, table


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_order_keeps_every_edge_window_and_lane(case) -> None:
    u, blocks, edge, readers, window, table = case
    operators, count = blocks.stop - blocks.start, blocks.count * u.storages[0].n
    place = {(k, t): n for n, (k, t) in enumerate(table.nodes.tolist())}
    assert len(place) == len(table.nodes) == operators * count, "every node once"
    assert (table.end >= table.begin).all()
    for before, after, distance, _ in edge.tolist():
        for t in range(count - distance):
            a, b = place[before, t], place[after, t + distance]
            assert a < b
            assert table.end[a] <= table.begin[b]
    lane_of = lanes(u, blocks.start, blocks.stop)[table.nodes[:, 0]]
    for lane in (MATRIX, VECTOR):
        mine = np.flatnonzero(lane_of == lane)
        assert (table.end[mine][:-1] <= table.begin[mine][1:]).all(), "one node of a lane at a time"
    if window != "all":
        finished = [max(int(table.end[place[k, t]]) for k in range(operators)) for t in range(count)]
        for (_, t), begin in zip(table.nodes.tolist(), table.begin.tolist(), strict=True):
            assert t < window or begin >= finished[t - window]
    for load in readers:
        for t in range(count):
            first, *others = sorted(place[k, t] for k in np.flatnonzero(load).tolist())
            assert all(table.begin[first] <= table.begin[n] for n in others), "what is loaded is loaded before any other reader begins"


@settings(max_examples=60, deadline=None)
@given(schedules(("all",)))
def test_without_a_limit_the_order_is_breadth_first(case) -> None:
    u, blocks, _, _, _, table = case
    count = blocks.count * u.storages[0].n
    assert table.nodes.tolist() == [[k, t] for k in range(blocks.stop - blocks.start) for t in range(count)]


def test_a_window_on_paper() -> None:
    """A convolution of 10 cycles and a pooling of 10, four blocks: in a window of two they take turns; heavier nodes are earlier blocks."""
    cycles = np.zeros((2, 4, 6), np.int64)
    cycles[0, :, 2] = cycles[1, :, 4] = 10
    edge = np.array([(0, 0, 1, 0), (1, 1, 1, 0), (0, 1, 0, 1), (1, 0, 2, SLOT)], np.int64)
    none = np.zeros((0, 4), np.int64), np.zeros((0, 2), np.bool_)
    lane_of = np.array([MATRIX, VECTOR], np.int64)

    def ends(window: int | None) -> Timetable:
        return schedule_nodes(cycles, edge, lane_of, window, *none)

    assert ends(1).nodes.tolist() == node_sequence(2, range(4)).tolist()
    assert int(ends(1).end.max()) == 80
    assert int(ends(2).end.max()) == 50
    assert ends(2).begin.tolist() == [0, 10, 10, 20, 20, 30, 30, 40]


def test_single_lane_takes_the_heavier_of_both_nodes() -> None:
    """Both are convolutions: of block 0's second operator and block 1's first, both ready, the earlier block is heavier."""
    cycles = np.zeros((2, 3, 6), np.int64)
    cycles[:, :, 2] = 10
    edge = np.array([(0, 0, 1, 0), (1, 1, 1, 0), (0, 1, 0, 1)], np.int64)
    table = schedule_nodes(cycles, edge, np.zeros(2, np.int64), 3, np.zeros((0, 3), np.int64), np.zeros((0, 2), np.bool_))
    assert table.nodes.tolist() == node_sequence(2, range(3)).tolist()


# in segments


@pytest.fixture(scope="module")
def pooled() -> TargetGraph:
    """A convolution and a pooling of about the same time."""
    return target_graph(EDGE, (1, 64, 56, 56), conv("a", "x", (64, 64), 3), max_pool("y", "a", 3, 1, 1))


def lowered(u: TargetGraph, plan: SegmentPlan) -> LoweredShare:
    part = Compiler(u).segment(plan, 0)
    assert isinstance(part, LoweredShare), part
    return part


def cycles_of(u: TargetGraph, plan: SegmentPlan) -> int:
    compiler = Compiler(u)
    parts = compiler.alone(plan, 0)
    assert not isinstance(parts, Infeasible)
    return simulate_levels(compiler.link(parts), u.machine, ("none",))["none"].cycles


def planned(u: TargetGraph, **gene: object) -> SegmentPlan:
    plan = decode(u, Gene(0, len(u.operators))._replace(**gene))
    assert plan is not None
    return plan


def test_window_of_two_pools_beside_the_next_block(pooled: TargetGraph) -> None:
    sequence_, slots, one, two = (
        cycles_of(pooled, planned(pooled, blocks=4, window=window, sliding=sliding, lookahead=lookahead))
        for window, sliding, lookahead in ((1, False, 1), (2, False, 1), (1, True, 1), (2, True, LOOKAHEAD))
    )
    assert one == sequence_
    assert slots >= 0.99 * sequence_, "slots alone do not help: queues are in order"
    assert two < 0.9 * sequence_


def test_more_blocks_under_way_take_more_of_l1(pooled: TargetGraph) -> None:
    peaks = [lowered(pooled, planned(pooled, blocks=8, window=w, sliding=True)).peak_bytes["L1"] for w in (1, 2, 4, ALL)]
    assert peaks == sorted(set(peaks))


def test_single_lane_in_window_of_one_is_sequence() -> None:
    chain = target_graph(EDGE, (1, 64, 56, 56), conv("a", "x", (64, 64), 3), conv("b", "a", (64, 64), 1), conv("y", "b", (64, 64), 3))
    for blocks in (1, 3):
        sliding, plain = (lowered(chain, planned(chain, blocks=blocks, sliding=value)).code for value in (True, False))
        assert np.array_equal(sliding[:, [isa.OP, isa.ENGINE, isa.TAG, isa.BLOCK]], plain[:, [isa.OP, isa.ENGINE, isa.TAG, isa.BLOCK]])


def test_the_formula_is_a_number_in_the_plan(pooled: TargetGraph) -> None:
    plan = planned(pooled, blocks=8, window=FORMULA, sliding=True)
    whole = StripBlocks(pooled, cut_blocks(pooled, 0, 2, 8))
    assert plan.window == formula_window(whole, plan.prefetch, plan.tilings, room_blocks(EDGE, Memory.L1)) == 2, (
        "two lanes, about the same work in each"
    )
    assert SegmentPlan.model_validate(plan.model_dump()) == plan
    plan = planned(
        target_graph(EDGE, (1, 64, 56, 56), conv("a", "x", (64, 64), 3), conv("y", "a", (64, 64), 3)),
        blocks=8,
        window=FORMULA,
        sliding=True,
    )
    assert plan.window == 1, "one lane has nothing to wait for"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SMALL_MODELS)), st.integers(0, 30), st.integers(2, 6), st.integers(1, 3))
def test_what_may_be_alive_together_lies_apart(name: str, start: int, length: int, count: int) -> None:
    u = small(name)
    start = min(start, len(u.operators) - 1)
    blocks = cut_blocks(u, start, min(len(u.operators), start + length), count)
    requests = tensor_requests(u, blocks, 1, 1)
    found, _ = place_buffers(requests, 1 << 30, 0, lambda ordered: find_conflicts(u, blocks, ordered, True))
    apart_ = find_conflicts(u, blocks, requests, True)
    for i, a in enumerate(requests):
        for j, b in enumerate(requests):
            if i != j and apart_[i, j]:
                assert found[a.buffer] + a.size <= found[b.buffer] or found[b.buffer] + b.size <= found[a.buffer]
    for i, a in enumerate(requests):
        for j, b in enumerate(requests[:i]):
            if not apart_[i, j]:
                assert a.death < b.birth or b.death < a.birth, "what the order of the graph keeps apart, the sequence does too"


def test_window_that_does_not_fit_names_the_shortage(pooled: TargetGraph) -> None:
    plan = planned(pooled, blocks=56, sliding=True)
    assert decode(pooled, Gene(0, 2, 56, window=ALL, sliding=True)) is None
    found = Compiler(pooled).segment(plan.model_copy(update={"window": "all"}), 0)
    assert isinstance(found, Infeasible)
    assert " B of L1" in found.reason


@pytest.mark.parametrize("count", [1, 63, 64, 65, 66])
def test_chain_of_any_length_shares_along_ordered_edges(count: int) -> None:
    """More operators than an integer has bits, too: plans by hand may be that long."""
    names = ["x", *(f"p{k}" for k in range(count))]
    u = target_graph(EDGE, (1, 16, 8, 8), *(max_pool(y, x, 3, 1, 1) for x, y in pairwise(names)))
    requests = [BufferRequest(Buffer("tensor", k), 8, k, k, 1 << k) for k in range(count)]
    blocks = cut_blocks(u, 0, count, 2)
    assert (find_conflicts(u, blocks, requests, True) == np.eye(count, dtype=bool)).all()
    plan = decode(u, Gene(0, count, 2, sliding=True))
    assert plan is not None
    assert isinstance(Compiler(u).alone(plan, 0), list)
