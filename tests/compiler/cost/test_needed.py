"""Blocks of weights that are zeros alone: nothing of them is multiplied, loaded or made, and all who count products know."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compiler.cost.features import FEATURES, raw_features
from compiler.cost.operator_space import operator_space
from compiler.ir.operators import Shuffle
from compiler.ops.conv import product_of
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan
from compiler.segment.blocks import cut_blocks
from compiler.segment.channel_splits import pass_counts, split_passes
from compiler.space.gene import block_counts
from compiler.target.target_graph import TargetGraph
from compiler.target.zero_blocks import Ints, begins_sum, find_panel, mark_multiplied, pack_panels
from tests.compiler.cost.test_counted import counted
from tests.everywhere import MACHINES
from tests.graphs import conv, target_graph


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 1)), st.integers(1, 12), st.integers(1, 5)
)
def test_panels_are_what_is_multiplied(drawn: Ints, chunk_k1: int, tile_k1: int) -> None:
    """Each block once; nothing outside what an n1 needs of a tile; a sum begins once."""
    drawn[~drawn.any(1), 0] = 1
    found, seen, begun = mark_multiplied(drawn, chunk_k1, tile_k1), np.zeros_like(drawn), np.zeros(len(drawn), int)
    assert (found >= drawn).all()
    for chunk in range(0, drawn.shape[1], chunk_k1):
        for k in range(chunk, min(chunk + chunk_k1, drawn.shape[1]), tile_k1):
            stop, n = min(k + tile_k1, chunk + chunk_k1, drawn.shape[1]), 0
            assert (drawn[:, k:stop].any(1) == found[:, k:stop].any(1)).all()
            while n < len(drawn):
                wide, first, size = find_panel(found, n, len(drawn), k, stop)
                seen[n : n + wide, first : first + size] += 1
                begun[n : n + wide] += size > 0 and begins_sum(found, n, first)
                n += wide
    assert (seen == found).all()
    assert (begun == 1).all()


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 12)), elements=st.integers(0, 1)), st.integers(1, 7), st.integers(1, 13)
)
def test_packed_panels_lie_one_after_the_other(drawn: Ints, tile_n1: int, tile_k1: int) -> None:
    """Each block that is multiplied has a place of its own, others have none, and a panel is one run of places."""
    (n1, k1), needed = drawn.shape, mark_multiplied(drawn, drawn.shape[1], tile_k1)
    places, used = pack_panels(needed, tile_n1, tile_k1), 0
    assert ((places >= 0) == (needed > 0)).all()
    for n_start in range(0, n1, tile_n1):
        for k in range(0, k1, tile_k1):
            n, n_stop = n_start, min(n_start + tile_n1, n1)
            while n < n_stop:
                wide, first, size = find_panel(needed, n, n_stop, k, min(k + tile_k1, k1))
                run = places[n : n + wide, first : first + size].reshape(-1)
                assert run.tolist() == list(range(used, used + len(run)))
                n, used = n + wide, used + len(run)
    assert used == needed.sum()


def test_expanded_weights_that_stay_take_what_is_multiplied() -> None:
    """Four groups of 34 channels are 9 planes by 9: of 81 blocks 33 are multiplied; in chunks, which are whole, all of them lie there."""
    u = target_graph(MACHINES["edge"], (1, 136, 8, 8), conv("y", "x", (136, 136), 1, groups=4))
    spec = product_of(u.operators[0])
    assert spec is not None
    whole = {"weights": "resident", "chunk_n1": 9, "chunk_k1": 9, "tile_m": 64, "tile_n1": 2, "tile_k1": 9, "order": "m"}
    resident = ConvTiling.model_validate(whole)
    assert spec.weight_slots(resident) == (1, 33 * spec.fractal.weight_blocks)
    assert spec.weight_slots(resident.model_copy(update={"weights": "streamed"})) == (2, 81 * spec.fractal.weight_blocks)


@st.composite
def grouped_points(draw: st.DrawFn) -> tuple[TargetGraph, int, SegmentPlan, dict[str, list[int]]]:
    """A convolution in groups, alone or behind a shuffle, and a point of its operator space."""
    machine = MACHINES[draw(st.sampled_from(list(MACHINES)))]
    groups, inside, out, size = draw(st.integers(2, 5)), draw(st.integers(9, 40)), draw(st.integers(9, 40)), draw(st.integers(3, 16))
    c, kernel, dtype = groups * inside, draw(st.sampled_from([1, 3])), draw(st.sampled_from(["float16", "float32"]))
    operators = [conv("a", "x", (c, c), 1, groups=groups), conv("y", "a", (c, groups * out), kernel, groups=groups)]
    if draw(st.booleans()):
        order = np.arange(c).reshape(groups, -1).T.reshape(-1).tolist()
        operators = [operators[0], Shuffle("s", "a", "s", tuple(order)), conv("y", "s", (c, groups * out), kernel, groups=groups)]
    u = target_graph(machine, (1, c, size, size), *operators, dtype=dtype)
    spec = product_of(u.operators[1])
    assert spec is not None
    assume(spec.needed.size)
    space = operator_space(u, 1, [draw(st.sampled_from(block_counts(u, 1, 2)))])
    assume(len(space.points))
    i = draw(st.integers(0, len(space.points) - 1))
    return u, 1, space.plan(i), {name: getattr(space, name)[i].tolist() for name in ("engines", "points")}


@settings(max_examples=60, deadline=None)
@given(grouped_points())
def test_parts_need_their_own(drawn: tuple[TargetGraph, int, SegmentPlan, dict[str, list[int]]]) -> None:
    """What is made of some channels, or in passes, multiplies its own blocks of weights."""
    u, k, _, _ = drawn
    spec = product_of(u.operators[k])
    assert spec is not None
    planes, dtype = spec.y.planes, u.type_of(spec.y)
    step = spec.channel_step(2, dtype)
    assert isinstance(step, int)
    for first in range(0, planes, step):
        for last in range(first + step, planes + 1, step):
            part = spec.channel_part(first, last, dtype)
            if part is not None:
                assert part.needed.shape == (part.n1, part.k1)
                at = first * dtype.lanes // spec.fractal.columns % spec.n1
                assert (part.needed == spec.needed[at : at + part.n1]).all()
    for count in pass_counts(u, 0, k + 1):
        found = split_passes(u, 0, k + 1, count)
        assert not isinstance(found, Infeasible)
        parts = [product for product in map(product_of, found.target_graph.operators) if product is not None and product.needed.size]
        assert all(part.needed.shape == (part.n1, part.k1) for part in parts)


@settings(max_examples=60, deadline=None)
@given(grouped_points())
def test_all_say_what_the_records_of_groups_say(drawn: tuple[TargetGraph, int, SegmentPlan, dict[str, list[int]]]) -> None:
    u, k, plan, space = drawn
    parts = Compiler(u).alone(plan, k)
    assume(isinstance(parts, list))  # weights on their way may be more than UB has
    assert isinstance(parts, list)
    code = parts[0].lowered.code
    found, raw = counted(code, u.machine), dict(zip(FEATURES, raw_features(u, plan, k).tolist(), strict=True))
    cube, mte1, fixpipe = space["engines"]
    assert cube == raw["cube_cycles"] == found.cube_cycles
    assert raw["products"] == found.products
    assert abs(mte1 - raw["mte1_cycles"]) <= found.products * 2
    assert raw["mte1_cycles"] <= found.mte1_cycles
    assert fixpipe <= raw["fixpipe_cycles"] <= found.fixpipe_cycles
    sizes = cut_blocks(u, k, k + 1, plan.blocks).heights[0]
    if len(sizes) == 1:  # stages take all blocks to be as high as the highest
        assert [raw[f"{stage}_emit_num"] for stage in ("cube", "to_l0a", "to_l0b")] == [found.products, found.loads_a, found.loads_b]
