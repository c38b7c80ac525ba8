"""Segments in input passes: right values, beside passes over hidden channels and over those of results too; no more in L1 than runs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import load_model, lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.planner.segmentation import SegmentationSearch, estimate_predictor
from compiler.planner.split_rules import genes_in_passes
from compiler.segment.channel_splits import input_counts, pass_counts, split_passes
from compiler.segment.segment import Segment
from compiler.space.decode import decode, decode_all
from compiler.space.gene import ALL, Gene
from compiler.space.mutators import change_passes
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from scripts.chains import CHAINS, mlp_block
from scripts.compare_bound import traffic_machines
from scripts.traffic import traffic
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory
from simulator.timing import simulate
from tests.compiled import Case, make_case
from tests.graphs import graph
from tests.in_passes import EDGE, MACHINES, fitting_ways
from tests.integer_graphs import case_of, quantisation
from tests.integer_graphs import conv as integer_conv
from tests.integers import with_integers
from tests.models import Builder
from tests.plans import resized
from tuner.zoo.builders.net import Net
from tuner.zoo.builders.transformer import attention, mlp

EVERY = MACHINES | {"little": resized(EDGE, L1=65536, UB=16384)}
WAYS = (
    {"blocks": 1},
    {"blocks": 1, "window": 2},
    {"blocks": 3, "weights": "streamed"},
    {"blocks": 3, "cached": -1, "prefetch": 1},
    {"blocks": 2, "columns": 3, "cached": 1},
    {"blocks": 4, "sliding": True, "window": 2},
    {"blocks": 2, "sliding": True, "window": ALL, "cached": -1, "chunk": 5},
)


def beside_each_other(seed: int = 0) -> ModelProto:
    """Two products of the same input, their sum, a convolution of it by windows, and the input once more; of two images."""
    b = Builder(np.random.default_rng(seed), (2, 96, 9, 7))
    one, two = (b.conv("x", 40, (1, 1), pads=(0, 0, 0, 0)) for _ in range(2))
    y = b.relu(b.conv(b.add(b.relu(one), two), 96))
    return b.model(b.add(y, "x"))


def windows(seed: int = 0) -> ModelProto:
    """An input that is read by windows, and a residual."""
    b = Builder(np.random.default_rng(seed), (1, 96, 9, 9))
    return b.model(b.relu(b.conv(b.relu(b.add(b.conv("x", 96), "x")), 40)))


def bodies(seed: int = 0) -> ModelProto:
    """Hidden channels of a product whose own input is loaded, behind another product."""
    b = Builder(np.random.default_rng(seed), (1, 24, 9, 7))
    x = b.relu(b.conv("x", 64, (1, 1), pads=(0, 0, 0, 0)))
    y = b.relu(b.conv(x, 96, (1, 1), pads=(0, 0, 0, 0)))
    return b.model(b.conv(y, 40))


@pytest.mark.parametrize("model", [beside_each_other, windows])
@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("name", list(EVERY))
def test_values_are_right_in_any_input_passes(name: str, dtype: DataType, model) -> None:  # type: ignore[no-untyped-def]
    case = make_case(model(), EVERY[name], dtype)
    assert every_way_is_right(case, 0, len(case.target_graph.operators)) >= (3 if name == "little" else len(WAYS))


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
def test_passes_over_hidden_channels_load_inputs_by_run(dtype: DataType) -> None:
    case = make_case(bodies(), EDGE, dtype)
    assert every_way_is_right(case, 1, len(case.target_graph.operators), passes=2) == len(WAYS)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, DataType.float16) for name in ("edge", "ascend310", "little")), ("edge-2-cores", DataType.float32)]
)
def test_values_are_right_in_passes_over_result_channels(name: str, dtype: DataType) -> None:
    """Of what leaves the segment every pass makes a run where it lies; the others are of their passes, as are runs that it loads."""
    net = Net("attention")
    case = make_case(net.model(attention(net, net.input("x", (1, 24, 64)), 4, None)), EVERY[name], dtype)
    words = [spec.word for spec in case.target_graph.operators]
    stop = 1 + max(k for k, word in enumerate(words) if word == "matmul")  # without the last product, which sums over heads
    for run in ((0, 2), (0, stop), (words.index("matmul"), stop)):
        assert pass_counts(case.target_graph, *run)[:2] == (2, 4)
        assert every_way_is_right(case, *run, passes=4) >= 2


def test_integers_are_those_of_one_pass() -> None:
    rng = np.random.default_rng(0)
    x, a, b = (quantisation(rng) for _ in range(3))
    operators = [integer_conv(rng, "a", "x", (192, 40), x, a), integer_conv(rng, "b", "a", (40, 24), a, b, kernel=1)]
    case = case_of(graph((1, 192, 9, 7), operators, x_q=x), with_integers(EDGE))
    assert every_way_is_right(case, 0, 2) == len(WAYS)


def every_way_is_right(case: Case, start: int, stop: int, passes: int = 1) -> int:
    """How many of the ways fit."""
    counts = input_counts(case.target_graph, start, stop) or (1,)
    assert max(*counts, passes) > 1
    others = [Gene(k, k + 1, 2) for k in range(len(case.target_graph.operators)) if not start <= k < stop]

    def divided(at: int) -> dict[str, int]:
        return {"passes": passes, "input_passes": counts[at % len(counts)]}

    return fitting_ways(case, Gene(start, stop), WAYS, divided, lambda gene: tuple(sorted([gene, *others])))


def placed_bytes(target_graph: TargetGraph, gene: Gene) -> dict[str, int]:
    """Storage -> bytes of its buffers in L1."""
    plan = decode(target_graph, gene)
    assert plan is not None
    segment = Segment.of(target_graph, plan, gene.start)
    assert not isinstance(segment, Infeasible)
    share = segment.share(0)
    places = segment.memory(share)
    assert not isinstance(places, Infeasible)
    names, found = [storage.name for storage in share.strips[0].target_graph.storages], dict[str, int]()
    for request in places.requests[Memory.L1]:
        if request.buffer.kind == "tensor":
            name = names[int(request.buffer.of)]
            found[name] = found.get(name, 0) + request.size * BLOCK_BYTES
    return found


def test_run_of_channels_is_all_of_an_input() -> None:
    target_graph = make_unit(lower(load_model(CHAINS["two products"].model(), random_weights=0)), EDGE, DataType.float32)
    found = placed_bytes(target_graph, Gene(0, 2, 28, input_passes=8))
    x, y = (
        target_graph.storages[target_graph.operators[0].reads[0].storage].name,
        target_graph.storages[target_graph.operators[0].y.storage].name,
    )
    rows = 3136 // 28
    assert found.pop(y) == rows * 256 * 4
    assert found == {f"{x}/run 0.{run}": rows * 256 * 4 // 8 for run in range(8)}


def test_two_products_move_near_the_least_bytes() -> None:
    """The least of AccelForge's mapper with 64 Ki values on the chip is 3,440,640."""
    graph = lower(load_model(CHAINS["two products"].model(), random_weights=0))
    target_graph = make_unit(graph, traffic_machines(64 * 1024, DataType.float32)[1], DataType.float32)
    found = SegmentationSearch(target_graph, ["none"], estimate_predictor(target_graph)).cheapest(0)
    assert found is not None
    assert [gene.input_passes > 1 for gene in found[0]] == [True]
    program = Compiler(target_graph).compile(decode_all(target_graph, found[0]))  # type: ignore[arg-type]
    assert not isinstance(program, Infeasible)
    assert traffic(target_graph, program).total <= 1.05 * 3_440_640 * 4


def test_products_have_square_tiles_where_fewer_bytes_move() -> None:
    """128 x 128 results at a time with 32 Ki values on the chip: the first product's input comes eight times, the second one's twice."""
    graph = lower(load_model(mlp_block(128, 256).model(), random_weights=0))
    target_graph = make_unit(graph, traffic_machines(32 * 1024, DataType.float32)[-2], DataType.float32)
    found = genes_in_passes(target_graph, Structures(target_graph), Gene(0, 1))
    tiles = tuple(gene for gene in found if gene.passes > 1 and (gene.start, gene.stop) in {(0, 2), (2, 3)})
    assert [(gene.start, gene.stop, gene.blocks, gene.passes) for gene in tiles] == [(0, 2, 1, 8), (2, 3, 1, 2)]
    program = Compiler(target_graph).compile(decode_all(target_graph, tiles))  # type: ignore[arg-type]
    assert not isinstance(program, Infeasible)
    x, hidden, weights = 128 * 256, 128 * 1024, 256 * 1024
    least = (8 * x + weights + hidden) + (2 * hidden + weights + x)
    assert least * 4 <= traffic(target_graph, program).total <= 1.005 * least * 4


def test_softmax_of_passes_is_in_place_by_head() -> None:
    net = Net("attention")
    target_graph = make_case(net.model(attention(net, net.input("x", (1, 48, 64)), 4, None)), EDGE, DataType.float16).target_graph
    words = [spec.word for spec in target_graph.operators]
    found = placed_bytes(target_graph, Gene(words.index("matmul"), words.index("softmax") + 2, passes=4))
    names = [target_graph.storages[target_graph.operators[words.index("matmul")].reads[at].storage].name for at in (0, 1)]
    scores = target_graph.storages[target_graph.operators[words.index("matmul")].y.storage].name
    value = target_graph.storages[target_graph.operators[words.index("softmax") + 1].reads[1].storage].name
    runs = {f"{name}/run {plane}" for name in (*names, value) for plane in range(4)}
    assert set(found) == runs | {f"{scores}/pass {at}" for at in range(4)}
    assert {found[run] for run in runs} == {48 * 16 * 2}


def test_products_of_next_pass_overlap_a_softmax() -> None:
    """By rule, with all of the input in L1; so CUBE works beside VECTOR."""
    net = Net("attention")
    compiler = Compiler(make_case(net.model(attention(net, net.input("x", (1, 96, 256)), 4, None)), EDGE, DataType.float16).target_graph)
    target_graph = compiler.target_graph
    last = max(k for k, spec in enumerate(target_graph.operators) if spec.word == "matmul")
    run = ["conv", "conv", "conv", "matmul", "softmax", "matmul"]
    found = split_passes(target_graph, 0, last + 1, 4, 1, beside=True)
    assert not isinstance(found, Infeasible)
    assert [spec.word for spec in found.target_graph.operators[: 4 * len(run)]] == run[:5] + (run[:5] + run[5:]) * 3 + run[5:]
    took = []
    for window in (1, 2):
        plan = decode_all(target_graph, (Gene(0, last + 1, passes=4, window=window), Gene(last + 1, len(target_graph.operators))))
        assert not isinstance(plan, Infeasible)
        program = compiler.compile(plan)
        assert not isinstance(program, Infeasible)
        took.append(simulate(program, EDGE, EDGE.contention["none"]).cycles)
    assert took[1] < 0.9 * took[0]


def test_passes_over_results_read_inputs_once_by_rule() -> None:
    """Where L1 has room for that, of a block of ViT on half of it."""
    net = Net("attention")
    target_graph = make_case(
        net.model(attention(net, net.input("x", (1, 197, 384)), 6, None)), resized(EDGE, L1=1 << 19), DataType.float16
    ).target_graph
    last = max(k for k, spec in enumerate(target_graph.operators) if spec.word == "matmul")
    found = [
        gene for gene in genes_in_passes(target_graph, Structures(target_graph), Gene(0, 1)) if (gene.start, gene.stop) == (0, last + 1)
    ]
    assert [(gene.blocks, gene.passes, gene.input_passes, gene.window) for gene in found] == [(1, 6, 1, 2)]


def test_who_cannot_be_made_in_input_passes() -> None:
    target_graph = make_case(bodies(), EDGE, DataType.float16).target_graph
    assert input_counts(target_graph, 1, 3) == (2, 4)
    refused = split_passes(target_graph, 1, 3, 1, 3)
    assert isinstance(refused, Infeasible)
    assert refused.reason == "3 passes over channels of inputs; accepted: 1, 2, 4"


def test_held_input_is_not_loaded_run_by_run() -> None:
    """Nor where another operator of the segment reads it in place."""
    b = Builder(np.random.default_rng(0), (1, 24, 9, 7))
    x = b.relu(b.conv("x", 64, (1, 1), pads=(0, 0, 0, 0)))
    case = make_case(b.model(b.relu(b.add(b.conv(b.relu(b.conv(x, 64)), 64), x))), EDGE, DataType.float16)
    held = case.target_graph.operators[0].y.storage
    assert decode(case.target_graph, Gene(1, 3), 1 << held, 64) is not None
    assert decode(case.target_graph, Gene(1, 3, input_passes=2), 1 << held, 64) is None
    plan = decode(case.target_graph, Gene(1, 3, input_passes=2))
    assert plan is not None
    name = case.target_graph.storages[held].name
    wrong = Segment.of(case.target_graph, plan.model_copy(update={"held": (name,)}), 1)
    assert isinstance(wrong, Infeasible)
    assert wrong.reason == f"{name!r} held, and loaded in 2 input passes: one of the two is accepted"


def test_right_operands_of_passes_share_their_chunking() -> None:
    """Where L1 holds those of some passes and not of all, the plan is one that its memory has room for."""
    graph = lower(load_model(CHAINS["attention"].model(), random_weights=0))
    target_graph = make_unit(graph, traffic_machines(256 * 1024, DataType.float32)[1], DataType.float32)
    gene = Gene(4, 7, passes=8)
    plan = decode(target_graph, gene)
    assert plan is not None
    segment = Segment.of(target_graph, plan, 4)
    assert not isinstance(segment, Infeasible)
    places = segment.memory(segment.share(0))
    assert not isinstance(places, Infeasible), places


def test_a_move_finds_input_passes() -> None:
    net = Net("mlp")
    target_graph = make_unit(lower(load_model(net.model(mlp(net, net.input("x", (1, 64, 128)))), random_weights=0)), EDGE, DataType.float16)
    rng = np.random.default_rng(0)
    found = [change_passes(target_graph, (Gene(0, 1), Gene(1, 3)), rng) for _ in range(20)]
    assert {gene.input_passes for genome in found if genome for gene in genome} >= {1, 2, 8}
