"""A gene becomes a plan that does what the gene says; equal structures are the same work wherever they lie."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np
import pytest

from compiler.build import check_plan
from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.ops.conv import ConvSpec
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import MAX_PREFETCH, ConvTiling, Infeasible, Plan, SegmentPlan, parse_plan
from compiler.segment.blocks import cut_blocks
from compiler.segment.memory_plan import place_segment
from compiler.space.decode import _Fitting, decode, decode_all, plan_of
from compiler.space.gene import ALL, BLOCK_COUNTS, FORMULA, WEIGHTS, WINDOWS, Gene, block_counts, choice_count, find_fault
from compiler.space.initial import layer_by_layer, single_operators, spread
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from tests.compiled import check_program, make_case
from tests.corner_models import corner_model
from tests.models import SMALL_MODELS, Builder, light_graph, small_graph
from tests.plans import resized
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Request


@lru_cache(maxsize=32)
def target_graph(name: str, machine: str = "edge") -> TargetGraph:
    return make_unit(small_graph(name), load_machine(machine), DataType.float16)


def random_gene(u: TargetGraph, rng: np.random.Generator, start: int, stop: int) -> Gene:
    """Any gene over these operators."""
    counts = block_counts(u, start, stop)
    choices = tuple(int(rng.integers(min(8, choice_count(u, k)))) for k in range(start, stop))
    return Gene(
        start, stop, int(rng.choice(counts)), int(rng.integers(1, MAX_PREFETCH + 1)), int(rng.choice(WINDOWS)),
        int(rng.integers(len(CHUNK_BUDGETS))), WEIGHTS[int(rng.integers(3))], choices, (0,), -int(rng.integers(2)), bool(rng.integers(2)),
    )  # fmt: skip


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("machine", ["edge", "tiny"])
def test_a_plan_does_what_its_gene_says(name: str, machine: str) -> None:
    u = target_graph(name, machine)
    rng = np.random.default_rng(3)
    compiler, realised = Compiler(u), 0
    for _ in range(40):
        start = int(rng.integers(len(u.operators)))
        gene = random_gene(u, rng, start, int(rng.integers(start + 1, min(len(u.operators), start + 4) + 1)))
        plan = decode(u, gene)
        if plan is None:
            continue
        realised += 1
        assert plan.operators == tuple(spec.name for spec in u.operators[gene.start : gene.stop])
        assert (plan.blocks, plan.prefetch, plan.sliding) == (gene.blocks, gene.prefetch, gene.sliding)
        if gene.window != FORMULA:
            assert plan.window == (gene.window if gene.window != ALL else "all")
        assert type(plan).model_validate(plan.model_dump()) == plan, "made without validation, and valid"
        placed = place_segment([(u, cut_blocks(u, gene.start, gene.stop, gene.blocks, plan.caching))], plan)
        if isinstance(placed, Infeasible):
            assert " of UB" in placed.reason, "L1 was what realising looked at"
        else:
            assert placed.peak_bytes["L1"] <= u.machine.buffers_bytes.L1
        if gene.weights == "streamed":
            # two slots of the smallest chunk may need more than all of the weights: then they stay, whatever is wanted
            kept = {t.weights for t in plan.tilings if isinstance(t, ConvTiling)}
            assert len(kept) <= 1
        for tiling in plan.tilings:
            if isinstance(tiling, ConvTiling) and tiling.weights == "streamed":
                assert tiling.chunk_n1 * tiling.chunk_k1 * 16 <= CHUNK_BUDGETS[gene.chunk]
        lowered = compiler.segment(plan, gene.start)
        assert isinstance(lowered, Infeasible) or lowered.peak_bytes["L1"] <= u.machine.buffers_bytes.L1
    assert realised >= 10


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_clearly_resident_weights_stay_by_the_long_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    u, rng = target_graph(name, "edge"), np.random.default_rng(5)
    starts = [int(rng.integers(len(u.operators))) for _ in range(60)]
    genes = [
        random_gene(u, rng, k, int(rng.integers(k + 1, min(len(u.operators), k + 5) + 1)))._replace(weights="resident") for k in starts
    ]
    clear = []

    def found(fitting: _Fitting) -> bool:
        clear.append(looked(fitting))
        return clear[-1]

    looked = _Fitting._all_stay
    monkeypatch.setattr(_Fitting, "_all_stay", found)
    plans = [decode.__wrapped__(u, gene) for gene in genes]
    monkeypatch.setattr(_Fitting, "_all_stay", lambda fitting: False)
    assert plans == [decode.__wrapped__(u, gene) for gene in genes]
    assert any(clear) or not clear


def test_choices_name_different_tilings() -> None:
    u = target_graph("conv_chain")
    conv = next(k for k, spec in enumerate(u.operators) if isinstance(spec, ConvSpec))
    plans = {decode(u, Gene(conv, conv + 1, choices=(choice,))) for choice in range(choice_count(u, conv))}
    assert None not in plans
    assert len(plans) == choice_count(u, conv)
    assert decode(u, Gene(conv, conv + 1)) == decode(u, Gene(conv, conv + 1, choices=(0,)))


def test_block_counts_stop_at_the_lowest_output() -> None:
    u = target_graph("residual_block")
    for start in range(len(u.operators)):
        for stop in range(start + 1, len(u.operators) + 1):
            lowest = min(spec.out_h for spec in u.operators[start:stop])
            assert block_counts(u, start, stop) == tuple(count for count in BLOCK_COUNTS if count <= lowest)


def test_whole_pool_ends_runs_of_any_blocks() -> None:
    """It makes its row in one of the blocks, and nobody in the run reads it; where somebody does, the run has no more blocks than rows."""
    b = Builder(np.random.default_rng(5), (1, 16, 32, 8))
    pooled = b.node("GlobalAveragePool", [b.relu(b.conv("x", 16))])
    case = make_case(b.model(b.conv(pooled, 16, (1, 1), pads=(0, 0, 0, 0))), load_machine("tiny"), DataType.float16)
    u = case.target_graph
    pool = next(k for k, spec in enumerate(u.operators) if spec.out_h == 1)
    assert pool > 0
    assert block_counts(u, 0, pool + 1) == block_counts(u, 0, pool)
    assert block_counts(u, 0, pool)[-1] == 32
    assert block_counts(u, pool, pool + 1) == block_counts(u, 0, pool + 2) == (1,)
    for blocks in (4, 32):
        genes = Gene(0, pool + 1, blocks, cached=-1), Gene(pool + 1, len(u.operators))
        plan = decode_all(u, genes)
        assert isinstance(plan, Plan), plan
        program = Compiler(u).compile(plan)
        assert isinstance(program, Program), program
        check_program(case, program)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_single_operators_take_as_few_blocks_as_fit(name: str) -> None:
    u = target_graph(name, "tiny")
    genome = single_operators(u)
    assert not isinstance(genome, Infeasible)
    assert find_fault(u, genome, True) is None
    for gene in genome:
        assert gene.stop == gene.start + 1
        assert decode(u, gene) is not None
        fewer = [count for count in block_counts(u, gene.start, gene.stop) if count < gene.blocks]
        assert all(decode(u, gene._replace(blocks=count)) is None for count in fewer)
    plan = layer_by_layer(u)
    assert isinstance(plan, Plan)
    wide = decode_all(u, spread(u, genome))
    assert isinstance(wide, Plan)
    one = decode_all(u, genome)
    assert isinstance(one, Plan)
    apart = decode_all(u, spread(u, tuple(gene._replace(split="channels") for gene in genome)))
    assert isinstance(apart, Plan)
    for mine, *either in zip(plan.segments, one.segments, wide.segments, apart.segments, strict=True):
        assert mine in either, "one of two cores, or both, with some rows or some channels each"
    assert parse_plan(plan.to_json()) == plan
    assert not isinstance(Compiler(u).compile(plan), Infeasible)


def test_unfit_is_a_value_that_names_it() -> None:
    small = make_unit(small_graph("conv_chain"), resized(load_machine("tiny"), L1=1024), DataType.float16)
    found = single_operators(small)
    assert isinstance(found, Infeasible)
    assert "1,024 B of L1" in str(found)
    assert found.where in {spec.name for spec in small.operators}
    whole = decode_all(small, (Gene(0, len(small.operators)),))
    assert isinstance(whole, Infeasible)
    assert "segment 0" in whole.where
    assert "in 1 blocks" in whole.reason
    assert layer_by_layer(small) == found


def test_a_plan_carries_what_it_was_made_for() -> None:
    u = target_graph("conv_chain")
    plan = plan_of(u, [])
    assert (plan.model, plan.machine, plan.dtype) == (u.graph.digest, u.machine_digest, "float16")


def test_integer_rates_do_not_change_float_networks() -> None:
    mine = make_unit(small_graph("conv_chain"), load_machine("edge"), DataType.float16)
    raw = mine.machine.model_dump(mode="json")
    del raw["matrix"]["cycles_per_fractal"]["int8"], raw["vector"]["lookup_cycles"], raw["vector"]["ordered_cycles"]
    graph = small_graph("conv_chain")
    before = make_unit(graph, Machine.model_validate(raw), DataType.float16)
    assert before.machine.digest == before.machine.floats_digest == mine.machine.floats_digest != mine.machine.digest
    assert before.digest == mine.digest
    assert [Structures(u).structure(0, 1) for u in (before, mine)] == [Structures(mine).structure(0, 1)] * 2
    check_plan(mine, plan_of(before, [SegmentPlan.model_construct(operators=tuple(spec.name for spec in mine.operators))]), "plan")


# structures


def test_equal_structures_cost_the_same_wherever_they_lie() -> None:
    u = make_unit(light_graph("resnet50"), load_machine("edge"), DataType.float16)
    structures, places = Structures(u), defaultdict(list)
    for start in range(len(u.operators)):
        for stop in range(start + 1, min(len(u.operators), start + 6) + 1):
            places[structures.structure(start, stop)].append((start, stop))
    repeated = [found for found in places.values() if len(found) > 1]
    assert len(repeated) >= 40, "ResNet-50 repeats its blocks"
    assert max(found[0][1] - found[0][0] for found in repeated) >= 4
    evaluator, rng, measured = Evaluator(u, tuple(u.machine.contention)), np.random.default_rng(0), 0
    for found in repeated:
        first, last = found[0], found[-1]
        gene = random_gene(u, rng, *first)
        twin = gene._replace(start=last[0], stop=last[1])
        assert structures.key(gene) == structures.key(twin)
        one, two = (evaluator.measure(Request("segment", (g,))) for g in (gene, twin))
        assert (one.status, one.payload) == (two.status, two.payload)
        assert (one.features is None) == (two.features is None)
        if one.features is not None and two.features is not None:
            assert np.array_equal(one.features, two.features)
        if one.values is not None and two.values is not None:
            assert np.array_equal(one.values, two.values)
            measured += 1
    assert measured >= 30


def test_structures_tell_apart_what_costs_differently() -> None:
    u = target_graph("inception_block")
    structures = Structures(u)
    assert Structures(target_graph("inception_block", "tiny")).structure(0, 1) != structures.structure(0, 1)
    wide = make_unit(small_graph("inception_block"), u.machine, DataType.float32)
    assert Structures(wide).structure(0, 1) != structures.structure(0, 1)
    other = make_unit(small_graph("inception_block", 5), u.machine, DataType.float16)
    assert Structures(other).structure(0, len(u.operators)) == structures.structure(0, len(u.operators)), "weights' values cost nothing"
    gene = Gene(0, 2, 2)
    changed = [gene._replace(**{name: value}) for name, value in
               (("blocks", 4), ("prefetch", 1), ("window", 2), ("chunk", 1), ("weights", "streamed"), ("choices", (1, 0)),
                ("sliding", True))]  # fmt: skip
    assert len({structures.key(g) for g in (gene, *changed)}) == 8
    once = Gene(0, 2, 1)
    same = [once._replace(prefetch=1), once._replace(window=2), once._replace(weights="streamed")]
    assert len({structures.key(g) for g in (once, *same)}) == 1, "in one block nothing is loaded or made twice"
    assert structures.key(once) != structures.key(once._replace(weights="resident")), "all weights before the first tile, or in chunks"
    assert structures.key(gene) == structures.key(gene._replace(weights="resident")), "in two blocks they are read again"
    pooling = next(k for k, spec in enumerate(u.operators) if not isinstance(spec, ConvSpec))
    assert len({structures.key(Gene(pooling, pooling + 1, weights=weights)) for weights in WEIGHTS}) == 1, "there are none"
    assert structures.key(once) != structures.key(once._replace(sliding=True)), "branches may run side by side"
    single = Gene(0, 1, 2)
    same = [single._replace(window=2), single._replace(sliding=True)]
    assert len({structures.key(g) for g in (single, *same)}) == 1, "there is nothing between operators"


def test_operator_in_strips_only_has_its_own_program() -> None:
    """A kernel of 255 columns: L1 holds whole rows, and no tiling of them fits L0A."""
    target_graph = make_case(corner_model("wide_kernels"), load_machine("tiny"), DataType.float16).target_graph
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    assert max(gene.columns for gene in genome) > 1
