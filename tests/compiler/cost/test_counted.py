"""What features claim of a segment, held against the instructions of the program that the compiler makes of it.

Of convolutions on one core, and where channels are split:

| claim                                                | beside the counted instructions                                             |
|------------------------------------------------------|-----------------------------------------------------------------------------|
| products, cube_cycles, vector_cycles, all bytes      | the same                                                                    |
| instructions (of all engines but MTE2)               | the same, or less where a ring or a strip cuts moves in two                 |
| mte1, fixpipe, mte3_on_chip_cycles                   | less by under a cycle for each instruction, which round up one by one; and, |
|                                                      | where moves are cut in two, by start-ups                                    |
| emit_num of stages to L0A and L0B, and of CUBE       | of the highest block for all: the same where blocks are equally high        |

Of element-wise chains, and of element-wise work on integers, vector_cycles and instructions are the same; of other work of VECTOR they
are estimates, within a factor of 3.5.

Where cores share rows, claims are of the mean block times the iterations of the busiest core: the same where all blocks are alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.cost.features import FEATURES, raw_features
from compiler.frontend import load_model, lower
from compiler.ops.conv import ConvSpec
from compiler.ops.elementwise import VectorSpec
from compiler.ops.integer_elementwise import TypedSpec
from compiler.ops.lower_graph import make_unit, pack_unit
from compiler.pipeline import Compiler, ScheduledShare
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.segment.blocks import cut_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine, Memory
from tests.compiler.frontend.handlers.test_quantised import HOW, is_whole, quantised_model
from tests.corner_models import corner_model
from tests.everywhere import MACHINES
from tests.graphs import conv, target_graph
from tests.integers import with_integers
from tests.models import SMALL_MODELS, random_model, small_model
from tests.plans import random_segment

EDGE = load_machine("edge")


class Counted(NamedTuple):
    """Of one core's records, what features claim by the same names; rounded: instructions of each engine that moves on chip."""

    products: int
    instructions: int
    cube_cycles: int
    mte1_cycles: int
    fixpipe_cycles: int
    mte3_on_chip_cycles: int
    vector_cycles: int
    read_bytes: int
    store_bytes: int
    rounded_mte1: int
    rounded_fixpipe: int
    rounded_mte3_on_chip: int
    loads_a: int
    loads_b: int


def counted(code: NDArray[np.int32], machine: Machine) -> Counted:
    (busy, _, useful), op, engine = price(code, machine), code[:, isa.OP], code[:, isa.ENGINE]
    ways = engine == Engine.MTE1, op == Op.FIXPIPE, (engine == Engine.MTE3) & (useful == 0)
    cycles, rounded = [busy[way].sum() for way in ways], [way.sum() for way in ways]
    to_l0a = op == Op.IM2COL
    to_l0b = (engine == Engine.MTE1) & (code[:, isa.DST] == Memory.L0B)
    found = (
        (op == Op.MMAD).sum(), (engine != Engine.MTE2).sum(), busy[engine == Engine.CUBE].sum(), *cycles,
        busy[op >= isa.FIRST_VECTOR_OP].sum(),
        useful[useful > 0].sum(), -useful[useful < 0].sum(), *rounded, to_l0a.sum(), to_l0b.sum(),
    )  # fmt: skip
    return Counted(*map(int, found))


@pytest.mark.parametrize("order", ["m", "n"])
@pytest.mark.parametrize(("size", "tile_m", "tile_n1"), [(56, 256, 4), (56, 256, 1), (14, 208, 1), (14, 64, 1), (14, 208, 4)])
def test_tile_still_in_place_is_not_reloaded(size: int, tile_m: int, tile_n1: int, order: str) -> None:
    """64 to 64 channels, 1x1: where all weights are one tile, it stays in L0B while 13 tiles of pixels come and go, in either order."""
    u = target_graph(EDGE, (1, 64, size, size), conv("y", "x", (64, 64), 1))
    sizes = {"chunk_n1": 4, "chunk_k1": 4, "tile_m": tile_m, "tile_n1": tile_n1, "tile_k1": 4}
    plan = SegmentPlan(operators=("y",), tilings=(ConvTiling.model_validate({"weights": "resident", "order": order, **sizes}),))
    parts = Compiler(u).alone(plan, 0)
    assert isinstance(parts, list)
    assert raw_features(u, plan, 0)[FEATURES.index("mte1_cycles")] == counted(parts[0].lowered.code, EDGE).mte1_cycles


@st.composite
def segments(draw: st.DrawFn) -> tuple[TargetGraph, int, SegmentPlan]:
    """One or two convolutions, the second of which adds the input or nothing; any plan of them that the machine has legal tilings for."""
    machine = MACHINES[draw(st.sampled_from(list(MACHINES)))]
    (c, middle, out), size = draw(st.tuples(*[st.integers(1, 90)] * 3)), draw(st.integers(3, 24))
    kernel, stride = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 1, 2]))
    groups = draw(st.sampled_from([1, 1, 4, 16]))
    if groups > 1:
        c, middle = -(-c // groups) * groups, -(-draw(st.sampled_from([c, middle])) // groups) * groups
    groups = c if groups > 1 and middle % c == 0 and draw(st.booleans()) else groups
    first = conv("a", "x", (c, middle), kernel, stride, groups=groups)
    adds = stride == 1 and draw(st.booleans())
    second = conv("y", "a", (middle, c if adds else out), draw(st.sampled_from([1, 3])), residual="x" if adds else None)
    u = target_graph(machine, (draw(st.integers(1, 2)), c, size, size), first, second, dtype=draw(st.sampled_from(["float16", "float32"])))
    start, stop = draw(st.sampled_from([(0, 1), (1, 2), (0, 2)]))
    plan = random_segment(u, start, stop, np.random.default_rng(draw(st.integers(0, 1 << 30))), strips=True)
    assume(plan is not None)
    assert plan is not None
    return u, start, plan


def alike(u: TargetGraph, start: int, plan: SegmentPlan) -> bool:
    """Whether every core makes as many blocks, all of them equally high."""
    blocks = cut_blocks(u, start, start + len(plan.operators), plan.blocks, plan.caching, plan.dealt)
    even = all(len(heights) == 1 and sum(heights.values()) == plan.blocks for heights in blocks.heights)
    return even and plan.blocks * u.images % plan.dealt == 0


@settings(max_examples=200, deadline=None)
@given(segments())
def test_claims_of_random_segments(drawn: tuple[TargetGraph, int, SegmentPlan]) -> None:
    u, start, plan = drawn
    parts = Compiler(u).alone(plan, start)
    assume(isinstance(parts, list))
    assert isinstance(parts, list)
    hold(u, start, plan, parts)


def test_claims_of_integers() -> None:
    """Products of int8 and uint8, and what is looked up, added and converted on VECTOR, of quantised random models."""
    machine, rng, products, vectors = with_integers(EDGE), np.random.default_rng(0), 0, set[str]()
    for seed in range(8):
        model, _ = quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed)
        graph = lower(model)
        if not is_whole(graph):
            continue
        try:
            u, _ = pack_unit(graph, machine, DataType.float16)
        except UnsupportedError:
            continue
        for k, spec in enumerate(u.operators):
            plan = random_segment(u, k, k + 1, rng, strips=False)
            parts = None if plan is None else Compiler(u).alone(plan, k)
            if plan is None or not isinstance(parts, list):
                continue
            if isinstance(spec, ConvSpec):
                hold(u, k, plan, parts)
                products += 1
            elif isinstance(spec, TypedSpec):
                code, claimed = parts[0].lowered.code, dict(zip(FEATURES, raw_features(u, plan, k).tolist(), strict=True))
                assert claimed["vector_cycles"] == price(code, machine).busy[code[:, isa.ENGINE] == Engine.VECTOR].sum(), (spec, plan)
                found = counted(code, machine)
                assert claimed["instructions"] == found.instructions, (spec, plan)
                assert claimed["store_bytes"] == found.store_bytes, (spec, plan)
                vectors.add(type(spec.operator).__name__)
    assert products > 10
    assert len(vectors) > 2, vectors


def hold(u: TargetGraph, start: int, plan: SegmentPlan, parts: list[ScheduledShare]) -> None:
    """Of a segment, claims against what its parts are."""
    # a third of what stays, for each of three strips: sums of floats
    claimed = dict(zip(FEATURES, raw_features(u, plan, start).round(6).tolist(), strict=True))
    cores = [counted(part.lowered.code, u.machine) for part in parts]
    total, most = Counted(*np.sum(cores, 0).tolist()), Counted(*np.max(cores, 0).tolist())
    even = alike(u, start, plan)

    assert claimed["store_bytes"] == total.store_bytes
    assert claimed["ideal_cube_cycles"] <= claimed["cube_cycles"]
    read = claimed["load_bytes"] + claimed["weight_bytes"] + claimed["residual_bytes"]
    # a core whose blocks make no row of an operator does not load what stays; claims count the cores that have blocks
    assert read == total.read_bytes if even or plan.dealt == 1 else read >= total.read_bytes
    if plan.dealt > 1 and not even:
        for name in ("products", "cube_cycles"):
            assert getattr(total, name) / (plan.dealt * plan.channels) <= claimed[name] + 1e-6
            assert claimed[name] <= getattr(total, name) + 1e-6
        return
    assert claimed["products"] == most.products
    assert claimed["cube_cycles"] == most.cube_cycles
    assert claimed["vector_cycles"] == most.vector_cycles  # weights that are expanded
    whole = plan.columns == 1 and "cache" not in plan.halo  # nothing cuts a move in two
    assert claimed["instructions"] == most.instructions if whole else claimed["instructions"] <= most.instructions
    for name in ("mte1", "fixpipe", "mte3_on_chip"):
        rounded, found = getattr(most, f"rounded_{name}"), getattr(most, f"{name}_cycles")
        assert claimed[f"{name}_cycles"] <= found
        assert not whole or found <= claimed[f"{name}_cycles"] + rounded
    if plan.columns == 1 and plan.channels == 1:
        claims = [claimed[f"{stage}_emit_num"] for stage in ("cube", "to_l0a", "to_l0b")]
        emitted = [total.products, total.loads_a, total.loads_b]
        assert claims == emitted if even else all(claim >= found for claim, found in zip(claims, emitted, strict=True))


ON_VECTOR = (
    "vector_chain", "lrn_chain", "undefined_at_zero", "normalised", "pools", "global_pools", "softmax_of_images", "wide_windows", "signals",
)  # fmt: skip


@pytest.mark.parametrize("name", ON_VECTOR)
def test_claims_of_vector_operators(name: str) -> None:
    """Of element-wise chains what VECTOR does, and in how many instructions, is exact; of the others it is within a factor of 3.5."""
    model = small_model(name) if name in SMALL_MODELS else corner_model(name)
    u, rng, looked_at = make_unit(lower(model), EDGE, DataType.float16), np.random.default_rng(0), 0
    for k, spec in enumerate(u.operators):
        for _ in range(0 if isinstance(spec, ConvSpec) else 12):
            plan = random_segment(u, k, k + 1, rng, strips=True)
            assert plan is not None
            parts = Compiler(u).alone(plan, k)
            if not isinstance(parts, list):
                continue
            code = parts[0].lowered.code
            found = int(price(code, EDGE).busy[code[:, isa.ENGINE] == Engine.VECTOR].sum())
            claimed = dict(zip(FEATURES, raw_features(u, plan, k).tolist(), strict=True))
            if isinstance(spec, VectorSpec):
                assert claimed["vector_cycles"] == found, (spec, plan)
                assert plan.columns > 1 or claimed["instructions"] == counted(code, EDGE).instructions, (spec, plan)
            else:
                assert found / 3.5 <= claimed["vector_cycles"] <= found * 3.5, (spec, plan)
            looked_at += 1
    assert looked_at >= 10
