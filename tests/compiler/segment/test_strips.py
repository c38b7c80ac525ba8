"""Segments in strips of columns: which columns, worked out on paper; right values of every operator; nothing loaded twice but the halo."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from onnx import ModelProto

from compiler.codegen.lower_segment import Records
from compiler.cost.features import FEATURES, raw_features
from compiler.ir.operators import Conv, Pool
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.strips import strips, widest
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene, block_counts
from compiler.space.initial import layer_by_layer, single_operators
from compiler.space.strips import fewest_strips, nearest_strips
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import Strip, TargetOp
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from simulator.npu.program import Program
from simulator.timing import simulate_levels
from tests.compiled import Case, check_program, make_case
from tests.compiler.codegen.test_transformer import encoder
from tests.graphs import concat, conv, max_pool, target_graph
from tests.lowered import lower_segment
from tests.models import Builder, small_model
from tests.plans import resized, with_cores

EDGE = load_machine("edge")
LITTLE = resized(EDGE, L1=16384)


def cut(u: TargetGraph, start: int, stop: int, count: int) -> tuple[TargetGraph, ...]:
    found = strips(u, start, stop, count)
    assert isinstance(found, tuple), found
    return found


def pads(spec: TargetOp) -> tuple[int, ...]:
    assert isinstance(spec.operator, Conv | Pool)
    return spec.operator.pads


def columns(u: TargetGraph, storage: int) -> tuple[int, int]:
    s = u.storages[storage]
    return s.first, s.first + s.row_blocks


# columns on paper -----------------------------------------------------------------------------------------------------


def test_halo_of_two_convolutions() -> None:
    """b makes columns [0, 4) and [4, 8), a one more on the inner side, of two more of x; what is padded is so on the outer side only."""
    u = target_graph(EDGE, (1, 16, 8, 8), conv("a", "x", (16, 16)), conv("b", "a", (16, 16)))
    left, right = cut(u, 0, 2, 2)
    x, a = u.operators[0].reads[0].storage, u.operators[0].y.storage
    assert [columns(strip, x) for strip in (left, right)] == [(0, 6), (2, 8)]
    assert [columns(strip, a) for strip in (left, right)] == [(0, 5), (3, 8)]
    assert [strip.operators[0].strip for strip in (left, right)] == [Strip(0, 0, 0, 0), Strip(2, 3, 0, 0)]
    assert [strip.operators[1].strip for strip in (left, right)] == [Strip(0, 0, 0, 4), Strip(3, 4, 4, 4)]
    assert [pads(strip.operators[0]) for strip in (left, right)] == [(1, 1, 1, 0), (1, 0, 1, 1)]
    assert [(spec.in_w, spec.out_w) for spec in right.operators] == [(6, 5), (5, 4)]
    assert {(s.pitch, s.address) for s in right.storages} == {(8, s.address) for s in u.storages}
    assert cut(u, 0, 2, 1) == (u,)


def test_stride_and_pool() -> None:
    """Pool columns [2, 4) of 4 need convolution columns [4, 8), and these input columns [2*4-1, 2*7-1+3) = [7, 16)."""
    u = target_graph(EDGE, (1, 16, 16, 16), conv("a", "x", (16, 16), stride=2), max_pool("p", "a", 2, 2))
    left, right = cut(u, 0, 2, 2)
    x = u.operators[0].reads[0].storage
    assert [columns(strip, x) for strip in (left, right)] == [(0, 8), (7, 16)]
    assert [pads(strip.operators[0]) for strip in (left, right)] == [(1, 1, 1, 0), (1, 0, 1, 0)]


def test_what_leaves_is_stored_without_halo() -> None:
    u = target_graph(EDGE, (1, 16, 8, 8), conv("a", "x", (16, 16)), conv("b", "a", (16, 16)), outputs=["a", "b"])
    assert [strip.operators[0].strip for strip in cut(u, 0, 2, 2)] == [Strip(0, 0, 0, 4), Strip(2, 3, 4, 4)]


def test_one_width_for_what_lies_together() -> None:
    """b is read with a halo and c without; both lie in one storage, which is as wide as the wider of them needs."""
    operators = [
        conv("b", "x", (16, 16)),
        conv("c", "x", (16, 16)),
        concat("j", "b", "c"),
        conv("d", "b", (16, 32)),
        conv("y", "j", (32, 32), 1, residual="d"),
    ]
    u = target_graph(EDGE, (1, 16, 8, 8), *operators)
    _, right = cut(u, 0, 4, 2)
    assert columns(right, u.operators[0].y.storage) == (3, 8)
    assert [(spec.strip.first_made, spec.out_w) for spec in right.operators[:2] if spec.strip] == [(3, 5), (4, 4)]


def test_four_pixels_in_a_block() -> None:
    """Column 6 of the result begins at pixel 2*6 - 1 = 11 of the image, the last one of its block."""
    u = target_graph(EDGE, (1, 3, 24, 24), conv("a", "x", (3, 16), stride=2))
    assert isinstance(u.operators[0], ConvSpec)
    assert u.operators[0].lanes == 4
    _, right = cut(u, 0, 1, 2)
    assert columns(right, 0) == (2, 6)
    assert (right.operators[0].strip, right.operators[0].in_w, pads(right.operators[0])[1]) == (Strip(2, 6, 6, 6), 16, -3)


def test_a_strip_in_the_padding() -> None:
    """Columns [3, 6) see pixel 2 at most, and that is padding too: any pixel of the image will do to name."""
    wide = Conv("a", "x", "a", np.ones((16, 16, 1, 1), np.float32), np.ones(16, np.float32), pads=(0, 1, 0, 3))
    u = target_graph(EDGE, (1, 16, 2, 2), wide)
    _, right = cut(u, 0, 1, 2)
    assert (columns(right, 0), pads(right.operators[0])[1]) == ((1, 2), 3)


def test_refusals() -> None:
    u = target_graph(EDGE, (1, 16, 8, 8), conv("a", "x", (16, 16)))
    assert strips(u, 0, 1, 9) == Infeasible("a", "9 strips of 8 columns: expected as many columns as strips, or more")
    attention = make_case(encoder(1, 12, 4, 64), EDGE, DataType.float16).target_graph
    refused = [strips(attention, k, k + 1, 2) for k in range(len(attention.operators))]
    assert any("product of two tensors" in str(why) for why in refused)
    plan = decode(u, Gene(0, 1))
    assert plan is not None
    lowered = lower_segment(u, plan.model_copy(update={"columns": 9}), 0)
    assert str(lowered) == "segment a: a: 9 strips of 8 columns: expected as many columns as strips, or more"


# values ---------------------------------------------------------------------------------------------------------------


def everything(seed: int = 0) -> ModelProto:
    """Every operator that can be cut into strips."""
    b = Builder(np.random.default_rng(seed), (1, 3, 10, 40))
    x = b.relu(b.conv("x", 20, (5, 5), (2, 1), (2, 2, 1, 3)))
    wide = b.concat(b.conv(x, 12), b.conv(x, 20, (1, 1), pads=(0, 0, 0, 0)))
    y = b.add(b.conv(wide, 32, groups=32), wide)
    y = b.node("Mul", [y, b.node("Sigmoid", [b.conv(b.node("GlobalAveragePool", [y]), 32, (1, 1), pads=(0, 0, 0, 0))])])
    y = b.average_pool(b.max_pool(y, 3, 1, (1, 1, 1, 1)), 3, 2, (1, 1, 1, 1), ceil_mode=0)
    y = b.node("Resize", [y, "", b.constant(np.array([1, 1, 2, 2], np.float32))], mode="linear")
    y = b.node("Softmax", [b.node("LeakyRelu", [y], alpha=0.1)], axis=1)
    return b.model(b.conv(y, 24, (3, 7), (1, 3), (1, 0, 1, 2)))


def in_strips(case: Case, count: int, longest: int, **wanted: int | bool | tuple[int, ...]) -> tuple[Program, list[SegmentPlan]]:
    """As long segments as fit in `count` strips, one by one where they do not."""
    u, segments = case.target_graph, list[SegmentPlan]()
    singles = single_operators(u)
    assert not isinstance(singles, Infeasible)
    start = 0
    while start < len(u.operators):
        stops = range(min(len(u.operators), start + longest), start, -1)
        genes = (Gene(start, stop, min(3, block_counts(u, start, stop)[-1]), columns=count)._replace(**wanted) for stop in stops)
        plan = next((plan for gene in genes if (plan := decode(u, gene)) is not None), None) or decode(u, singles[start])
        assert plan is not None
        segments.append(plan)
        start += len(plan.operators)
    program = Compiler(u).compile(plan_of(u, segments))
    assert isinstance(program, Program), program
    return program, segments


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize(("longest", "wanted"), [(1, {}), (4, {"cached": -1}), (12, {"sliding": True, "window": 2})])
def test_values_are_right(dtype: DataType, count: int, longest: int, wanted: dict[str, int | bool]) -> None:
    case = make_case(everything(), EDGE, dtype)
    program, segments = in_strips(case, count, longest, **wanted)
    assert sum(len(segment.operators) for segment in segments if segment.columns == count) > len(case.target_graph.operators) // 2
    check_program(case, program)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("wanted", [{"window": 2, "sliding": True}, {"window": 0, "sliding": True}, {"prefetch": 3}])
def test_images_whose_blocks_cores_share(count: int, wanted: dict[str, int | bool]) -> None:
    """Of 9 blocks core 0 has the first of image 1, and makes rows of its ring again in the block with which core 1 begins."""
    b = Builder(np.random.default_rng(0), (3, 3, 12, 32))
    x = b.relu(b.conv("x", 20, (5, 5), (2, 1), (2, 2, 1, 3)))
    y = b.concat(b.conv(x, 12), b.max_pool(x, 3, 1, (1, 1, 1, 1)))
    y = b.add(b.conv(y, 32), y)
    model = b.model(b.average_pool(b.conv(y, 24, (3, 7), (1, 3), (1, 0, 1, 2)), 3, 2, (1, 1, 1, 1)))
    case = make_case(model, with_cores(EDGE, 2), DataType.float16)
    program, segments = in_strips(case, count, len(case.target_graph.operators), cached=-1, cores=(0, 1), **wanted)
    assert [(segment.columns, segment.blocks, segment.cores) for segment in segments] == [(count, 3, (0, 1))]
    check_program(case, program)


def test_blocks_are_numbered_through_all_strips() -> None:
    case = make_case(small_model("residual_block"), EDGE, DataType.float32)
    plan = decode(case.target_graph, Gene(0, 2, 3, columns=2))
    assert plan is not None
    lowered = lower_segment(case.target_graph, plan, 0)
    assert isinstance(lowered, Records)
    assert sorted(set(lowered.code[:, isa.BLOCK].tolist())) == list(range(plan.blocks_of_strips))


# what it costs --------------------------------------------------------------------------------------------------------


def loaded(code: np.ndarray, constant_blocks: int) -> tuple[int, int]:
    """Blocks of constants, and of everything, that come from DDR."""
    loads = code[(code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR)]
    blocks = loads[:, isa.C_LENGTH] * loads[:, isa.C_COUNT] * loads[:, isa.C_COUNT2]
    return int(blocks[loads[:, isa.S0] < constant_blocks].sum()), int(blocks.sum())


def test_only_the_halo_is_loaded_twice() -> None:
    """Weights that stay come once.  Four strips of 32 columns load 2 columns more on every inner side of the three borders."""
    u = target_graph(EDGE, (1, 32, 16, 32), conv("a", "x", (32, 32)), conv("b", "a", (32, 32)))
    found = []
    for count in (1, 4):
        plan = decode(u, Gene(0, 2, 2, cached=-1, weights="resident", columns=count))
        assert plan is not None
        lowered = lower_segment(u, plan, 0)
        assert isinstance(lowered, Records)
        found.append(loaded(lowered.code, u.memory.constant_blocks))
    (weights, whole), (again, cut_up) = found
    assert weights == again
    assert cut_up - whole == 3 * 2 * 2 * 16 * 2  # borders, sides, columns, rows, planes


@pytest.mark.parametrize("name", ["residual_block", "inception_block", "dense_block"])
@pytest.mark.parametrize("count", [1, 3])
def test_features_say_what_is_moved(name: str, count: int) -> None:
    u = make_case(small_model(name), EDGE, DataType.float16).target_graph
    at = {feature: i for i, feature in enumerate(FEATURES)}
    for start in range(len(u.operators) - 1):
        plan = decode(u, Gene(start, start + 2, 2, columns=count))
        if plan is None:
            continue
        raw = raw_features(u, plan, start)
        parts = Compiler(u).alone(plan, start)
        assert not isinstance(parts, Infeasible)
        program = Compiler(u).link(parts)
        timing = simulate_levels(program, u.machine, ("none",))["none"]
        assert raw[at["store_bytes"]] == timing.ddr_write_bytes
        read = sum(raw[at[feature]] for feature in ("load_bytes", "weight_bytes", "residual_bytes"))
        assert read == pytest.approx(timing.ddr_read_bytes, rel=0.03)
        assert raw[at["iterations"]] == plan.blocks_of_strips
        assert raw[at["ideal_cube_cycles"]] <= raw[at["cube_cycles"]]
        assert raw[at["read_cycles"]] <= timing.cycles


# the rule -------------------------------------------------------------------------------------------------------------


def test_as_few_strips_as_fit() -> None:
    """3 rows of 64 channels and 400 columns are 150 KiB: L1 of 100 KiB wants two strips, of 16 KiB ten and their halo."""

    def wide(l1: int) -> TargetGraph:
        return target_graph(
            resized(EDGE, L1=l1), (1, 64, 6, 400), conv("a", "x", (64, 64)), max_pool("p", "a", 2, 2), conv("b", "p", (64, 64))
        )

    assert [fewest_strips(wide(l1), 0, 1) for l1 in (1 << 20, 160 << 10, 100 << 10, 16 << 10)] == [1, 1, 2, 11]
    u = wide(16 << 10)
    assert [fewest_strips(u, 1, 2), nearest_strips(u, 1, 2, 3)] == [1, 1]  # a pooling keeps nothing in L1
    assert [nearest_strips(u, 0, 1, wanted) for wanted in (2, 12, 4000)] == [11, 12, 256]
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    assert [gene.columns for gene in genome] == [11, 1, 6]


def test_a_strip_fits_where_the_widest_does() -> None:
    u = make_case(small_model("inception_block"), LITTLE, DataType.float16).target_graph
    for count in (2, 3, 5):
        top = widest(u, 0, len(u.operators), count)
        assert isinstance(top, TargetGraph)
        for strip in cut(u, 0, len(u.operators), count):
            assert all(a.row_blocks >= b.row_blocks for a, b in zip(top.storages, strip.storages, strict=True))
            assert all(a.out_w >= b.out_w and a.in_w >= b.in_w for a, b in zip(top.operators, strip.operators, strict=True))


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
def test_an_image_too_wide_for_l1(dtype: DataType) -> None:
    """3x3 over 64 channels and 4,096 columns: three rows are 1.5 MiB in float16, and L1 has 1 MiB."""
    b = Builder(np.random.default_rng(0), (1, 64, 3, 4096))
    x = b.max_pool(b.relu(b.conv("x", 64)), 3, 1, (1, 1, 1, 1))
    case = make_case(b.model(b.add(b.conv(x, 64), x)), EDGE, dtype)
    plan = layer_by_layer(case.target_graph)
    assert not isinstance(plan, Infeasible)
    assert [segment.columns > 1 for segment in plan.segments] == [True, False, True]
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program)
    check_program(case, program)


def test_strips_are_a_partition() -> None:
    u = target_graph(EDGE, (1, 16, 4, 23), conv("a", "x", (16, 16)), conv("b", "a", (16, 16)))
    for count in (2, 7, 23):
        own = [strip.operators[1].strip for strip in cut(u, 0, 2, count)]
        assert all(a and b and a.first_owned + a.owned == b.first_owned for a, b in pairwise(own))
        assert sum(strip.owned for strip in own if strip) == 23
