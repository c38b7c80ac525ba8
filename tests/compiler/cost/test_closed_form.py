"""Ranking, features and the operator space say the same of an operator and a tiling, and it is what the emitted records say.

A quantity that one of them spelt for itself would part from the others here.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.cost import closed_form
from compiler.cost.ddr_traffic import ddr_rates, load_row_blocks, loaded_blocks
from compiler.cost.features import FEATURES, raw_features
from compiler.cost.operator_space import operator_space
from compiler.cost.tiling_space import chunk_work, cycles_out, estimate, fill_cycles, k_side, m_side, n_side, shape_of
from compiler.ops.conv import product_of
from compiler.ops.tile_counts import l0_slot_counts
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.schedule.sliding_window import load_cycles
from compiler.segment.blocks import cut_blocks
from compiler.space.gene import block_counts
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from tests.compiler.cost.test_counted import Counted, counted
from tests.everywhere import MACHINES
from tests.graphs import conv, target_graph


@st.composite
def points(draw: st.DrawFn) -> tuple[TargetGraph, int, SegmentPlan, dict[str, list[int]]]:
    """One convolution alone, with a residual or without one, and a point of its operator space: its plan, engines, bytes and estimate."""
    machine = MACHINES[draw(st.sampled_from(list(MACHINES)))]
    c, out, size = draw(st.integers(1, 90)), draw(st.integers(1, 90)), draw(st.integers(3, 24))
    adds, operators = draw(st.sampled_from([None, "a", "x"])), st.sampled_from([1, 3])
    first = conv("a", "x", (c, c if adds == "x" else out), draw(operators), 1 if adds == "x" else draw(st.sampled_from([1, 2])))
    second = conv("y", "a", (first.weights.shape[0], c if adds == "x" else out), draw(operators), residual=adds)
    u = target_graph(machine, (draw(st.integers(1, 2)), c, size, size), first, second, dtype=draw(st.sampled_from(["float16", "float32"])))
    k = draw(st.integers(0, 1))
    space = operator_space(u, k, [draw(st.sampled_from(block_counts(u, k, k + 1)))])
    assume(len(space.points))
    i = draw(st.integers(0, len(space.points) - 1))
    names = ("engines", "moved", "points")
    return u, k, space.plan(i), {name: getattr(space, name)[i].tolist() for name in names} | {"estimate": [int(space.estimate[i])]}


@settings(max_examples=150, deadline=None)
@given(points())
def test_all_say_what_the_records_say(drawn: tuple[TargetGraph, int, SegmentPlan, dict[str, list[int]]]) -> None:
    u, k, plan, space = drawn
    parts = Compiler(u).alone(plan, k)
    assert isinstance(parts, list), parts
    found = counted(parts[0].lowered.code, u.machine)
    raw = dict(zip(FEATURES, raw_features(u, plan, k).tolist(), strict=True))
    cube, mte1, fixpipe = space["engines"]

    # the operator space and features, of all blocks
    assert cube == raw["cube_cycles"] == found.cube_cycles
    rounded = _blocks(u, k, plan) * 2 * u.operators[k].y.planes  # two operands of every group, in every block
    to_l0 = raw["mte1_cycles"] - _residual(u, k, found)
    assert to_l0 - rounded <= mte1 <= to_l0 + 1e-6
    assert raw["mte1_cycles"] <= found.mte1_cycles
    assert raw["fixpipe_cycles"] - rounded <= fixpipe <= raw["fixpipe_cycles"] <= found.fixpipe_cycles
    read = raw["load_bytes"] + raw["weight_bytes"] + raw["residual_bytes"]
    assert space["moved"] == [read, raw["store_bytes"]] == [found.read_bytes, found.store_bytes]
    _ranked_alike(u, k, plan, space, found)


def _residual(u: TargetGraph, k: int, found: Counted) -> float:
    """Cycles of MTE1 for a residual that is the main input too, and so in L1, which the operator space leaves out."""
    spec = u.operators[k]
    if len(spec.reads) == 1 or spec.reads[0] != spec.reads[1]:
        return 0.0
    c, size = closed_form.cost_of(u.machine, int(u.dtype), False), spec.out_h * spec.out_w * spec.y.planes * u.images * 32
    return float(closed_form.path_cycles(size, c.in_rate, found.rounded_fixpipe, c.in_startup))


def _blocks(u: TargetGraph, k: int, plan: SegmentPlan) -> int:
    return sum(cut_blocks(u, k, k + 1, plan.blocks).heights[0].values()) * u.images


def _ranked_alike(u: TargetGraph, k: int, plan: SegmentPlan, space: dict[str, list[int]], found: Counted) -> None:
    """The ranking's parts of an estimate, where chunks are equally large, which it takes all of them to be."""
    spec, tiling = product_of(u.operators[k]), plan.tilings[0]
    assert spec is not None
    assert isinstance(tiling, ConvTiling)
    c, heights = closed_form.cost_of(u.machine, int(u.dtype), False), cut_blocks(u, k, k + 1, plan.blocks).heights[0]
    n1, k1 = tiling.chunk_n1, tiling.chunk_k1
    point = np.array([space["points"][-4:]], np.int64)
    engines, guess, products, moved = np.zeros(3, np.int64), 0, 0, 0
    for rows, count in heights.items():
        # room in UB is the highest block's: it only bounds what is legal
        s = shape_of(u.machine, u.dtype, spec, rows, False, (n1, k1))
        along_m, along_n, along_k = m_side(s, c, tiling.tile_m), n_side(s, c, tiling.tile_n1), k_side(s, c, tiling.tile_k1)
        right = int(closed_form.b_cycles(c, s.n1 * s.k1))
        room = l0_slot_counts(s.l0, c.weight_blocks, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
        one = chunk_work(c, along_m, along_n, along_k, right, int(tiling.order == "n"), room)
        fix, drain = cycles_out(s, c, along_m[0], along_m[3], along_n[0], tiling.tile_n1)
        chunks, times = s.chunks_n * s.chunks_k, s.groups * count * u.images
        engines += np.array([one[0] * chunks, one[1] * chunks, fix * chunks], np.int64) * times
        products += along_m[0] * along_n[0] * along_k[0] * chunks * times
        moved += (along_m[0] * along_n[0] + 1) * chunks * times * 2 * max(along_m[0], along_n[0])
        guess += int(estimate(u.machine, s, point)[0]) * count * u.images
        # the estimate is never below its busiest engine, nor below what fills and drains
        busiest = max(*one, fix) * s.groups * chunks + fill_cycles(c, along_m[3], tiling.tile_n1, tiling.tile_k1) + drain
        assert estimate(u.machine, s, point)[0] >= busiest
    assert space["estimate"] == [guess]
    if spec.n1 % n1 or spec.k1 % k1:
        assert engines[0] >= found.cube_cycles  # the last chunk is taken to be a whole one
        return
    cube, mte1, fixpipe = space["engines"]
    assert products == found.products
    assert engines[0] == cube
    assert abs(engines[1] - mte1) <= moved
    assert abs(engines[2] - fixpipe) <= moved


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_ddr_serves_cores_at_port_and_dma_rate(cores: int) -> None:
    """Features divide what is read by it, windows do so load by load: rows of every load add up to its blocks."""
    machine = load_machine("ascend310")
    read, write = ddr_rates(machine, cores)
    assert (read, write) == (67, min(67, cores * 64))
    edge = load_machine("edge")
    assert ddr_rates(edge, cores, 0.5) == (float(edge.ddr.deliverable / 2),) * 2
    u = target_graph(machine, (1, 40, 19, 17), conv("y", "x", (40, 24)))
    blocks = cut_blocks(u, 0, 1, 5)
    (load,) = blocks.loads
    assert loaded_blocks(u, blocks, load) == blocks.allocations[load.storage].loaded * load_row_blocks(u, load)
    alone, _ = ddr_rates(machine, 1)
    cycles = loaded_blocks(u, blocks, load) * 32 / alone
    assert cycles - 5 <= load_cycles(u, blocks, range(5)).sum() <= cycles
