"""Segments in passes over the hidden channels of a product: right values, weights once, plans that come back as they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import load_model, lower
from compiler.ir.graph import Graph
from compiler.ir.operators import Operator
from compiler.ir.operators.quantised_products import Residual
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.planner.segmentation import SegmentationSearch, estimate_predictor
from compiler.segment.channel_splits import pass_counts, split_passes
from compiler.segment.segment import Segment
from compiler.space.decode import decode, decode_all
from compiler.space.gene import ALL, Gene
from compiler.target.target_graph import TargetGraph
from scripts.traffic import traffic
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from tests.compiled import Case, make_case
from tests.graphs import graph
from tests.in_passes import fitting_ways
from tests.integer_graphs import case_of, quantisation
from tests.integer_graphs import conv as integer_conv
from tests.integers import with_integers
from tests.lacking import without
from tests.models import Builder
from tests.plans import resized, with_cores
from tuner.zoo.builders.net import Net
from tuner.zoo.builders.transformer import mlp

EDGE = load_machine("edge")


def body(seed: int = 0) -> ModelProto:
    """Expansion, depthwise convolution, projection and their sum with what comes in, behind one convolution and before another."""
    b = Builder(np.random.default_rng(seed), (1, 20, 9, 7))
    x = b.relu(b.conv("x", 40, (1, 1), pads=(0, 0, 0, 0)))
    y = b.relu(b.conv(x, 192, (1, 1), pads=(0, 0, 0, 0)))
    y = b.relu(b.conv(y, 192, groups=192))
    y = b.relu(b.add(b.conv(y, 40, (1, 1), pads=(0, 0, 0, 0)), x))
    return b.model(b.conv(y, 24))


def wide_windows(seed: int = 0) -> ModelProto:
    """Two convolutions, of which the second one sums over windows, too."""
    b = Builder(np.random.default_rng(seed), (2, 20, 9, 9))
    return b.model(b.relu(b.conv(b.relu(b.conv("x", 96)), 40)))


def run_with_passes(target_graph: TargetGraph) -> tuple[int, int]:
    """The longest run that can be made in passes, with an operator behind its product where there is one."""
    count = len(target_graph.operators)
    return next((i, j) for i in range(count) for j in range(count, i, -1) if pass_counts(target_graph, i, j))


def around(case: Case, gene: Gene) -> tuple[Gene, ...]:
    """The gene, and every other operator alone."""
    others = [Gene(k, k + 1, 2) for k in range(len(case.target_graph.operators)) if not gene.start <= k < gene.stop]
    return tuple(sorted([gene, *others]))


WAYS = (
    {"blocks": 1},
    {"blocks": 3, "weights": "streamed"},
    {"blocks": 3, "cached": -1, "prefetch": 1},
    {"blocks": 2, "columns": 3, "cached": 1},
    {"blocks": 4, "sliding": True, "window": 2},
    {"blocks": 2, "sliding": True, "window": ALL, "cached": -1, "chunk": 5},
)
MACHINES = {
    "edge": EDGE,
    "ascend310": load_machine("ascend310"),  # results come to L1 through UB
    "edge-2-cores": with_cores(EDGE, 2),
    "bare": without(EDGE, "UB", "L0A", "L0B"),
    "little": resized(EDGE, L1=65536, UB=16384),
}


@pytest.mark.parametrize("model", [body, wide_windows])
@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("name", list(MACHINES))
def test_values_are_right_in_any_number_of_passes(name: str, dtype: DataType, model) -> None:  # type: ignore[no-untyped-def]
    assert every_way_is_right(make_case(model(), MACHINES[name], dtype)) >= (2 if name == "little" else len(WAYS))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["edge", "ascend310", "bare", "little"])
def test_integers_are_those_of_one_pass(name: str, seed: int) -> None:
    """Of any zero points and types, by a scale for every channel; of weights around any zero point."""
    machine = with_integers(MACHINES[name])
    made = integer_body(seed, left_over=seed > 0 and machine.has(Memory.L0B))
    assert every_way_is_right(case_of(made, machine, seed=seed)) >= (2 if name == "little" else len(WAYS))


def integer_body(seed: int, left_over: bool) -> Graph:
    """left_over: of weights whose zero point no 8 bits take, so that a product with the rest of it is beside theirs."""
    rng = np.random.default_rng(seed)
    x, a, b, c, d, e = (quantisation(rng) for _ in range(6))
    product = integer_conv(rng, "d", "c", (192, 40), c, d, kernel=1)
    if left_over:
        found = rng.integers(0, 256, product.weights.shape).astype(np.uint8)
        w_q = Quantisation.of(np.float32(product.w_q.scale.min() / 2), np.uint8(255), np.uint8)
        product = replace(product, weights=found, w_q=w_q)
    operators: list[Operator] = [
        integer_conv(rng, "a", "x", (20, 40), x, a, kernel=1),
        integer_conv(rng, "b", "a", (40, 192), a, b, kernel=1),
        integer_conv(rng, "c", "b", (192, 192), b, c, groups=192),
        product,
        integer_conv(rng, "e", "d", (40, 24), d, e),
    ]
    return graph((1, 20, 9, 7), operators, x_q=x)


def test_integer_sum_behind_its_product_has_no_passes() -> None:
    """It is added to what the product has become, so FIXPIPE, which adds one tensor, cannot add sums."""
    rng = np.random.default_rng(0)
    x, a, b, s = (quantisation(rng, DataType.int8) for _ in range(4))
    first, second = integer_conv(rng, "a", "x", (64, 192), x, a, kernel=1), integer_conv(rng, "b", "a", (192, 64), a, b, kernel=1)
    machine = with_integers(EDGE)
    plain = case_of(graph((1, 64, 5, 5), [first, second], x_q=x), machine).target_graph
    assert pass_counts(plain, 0, 2)
    summed = case_of(graph((1, 64, 5, 5), [first, replace(second, added=Residual("x", x, s, last=True))], x_q=x), machine).target_graph
    assert pass_counts(summed, 0, 2) == ()


def every_way_is_right(case: Case) -> int:
    """How many of the ways fit."""
    start, stop = run_with_passes(case.target_graph)
    counts = pass_counts(case.target_graph, start, stop)
    assert counts
    return fitting_ways(case, Gene(start, stop), WAYS, lambda at: {"passes": counts[at % len(counts)]}, lambda gene: around(case, gene))


def test_partial_sums_stay_on_chip_with_weights_once() -> None:
    """L1 holds the rows of all blocks in one, but neither the hidden tensor nor the weights."""
    machine = resized(EDGE, L1=32768 + 8192)
    case = make_case(body(), machine, DataType.float16)
    start, stop = run_with_passes(case.target_graph)
    counts = pass_counts(case.target_graph, start, stop)
    gene = Gene(start, stop)
    assert decode(case.target_graph, gene) is None
    plan = next(filter(None, (decode(case.target_graph, gene._replace(passes=count)) for count in counts)))
    program = Compiler(case.target_graph).compile(decode_all(case.target_graph, around(case, gene._replace(passes=plan.passes))))  # type: ignore[arg-type]
    assert not isinstance(program, Infeasible)
    moved = traffic(case.target_graph, program)
    segment = Segment.of(case.target_graph, plan, start)
    assert not isinstance(segment, Infeasible)
    sums = [storage.name for storage in segment.parts[0].storages if storage.name.endswith("/sums")]
    assert len(sums) == 1
    assert not any(buffer.name in sums for buffer in program.memory.buffers)
    hidden = 192 * 9 * 7 * 2
    assert moved.spills < hidden


def test_who_cannot_be_made_in_passes() -> None:
    target_graph = make_case(body(), EDGE, DataType.float16).target_graph
    start, stop = run_with_passes(target_graph)
    counts = pass_counts(target_graph, start, stop)
    assert counts == (2, 3, 4, 6, 12)
    refused = split_passes(target_graph, start, stop, 5)
    assert isinstance(refused, Infeasible)
    assert refused.reason == "5 passes over channels; accepted: 1, 2, 3, 4, 6, 12"


def test_mlp_with_large_hidden_tensor_is_in_passes() -> None:
    net = Net("mlp")
    model = net.model(mlp(net, net.input("x", (1, 64, 128))))
    target_graph = make_unit(lower(load_model(model, random_weights=0)), resized(EDGE, L1=65536), DataType.float16)
    found = SegmentationSearch(target_graph, ["severe"], estimate_predictor(target_graph)).cheapest(0)
    assert found is not None
    assert any(gene.passes > 1 and gene.blocks == 1 for gene in found[0])
