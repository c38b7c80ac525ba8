"""Segmentations from prediction: they cover, they fit, they are what the predictor prefers; and the guess behind them is near."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from compiler.cost.features import FEATURES, expected_cycles, raw_features
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.planner.run_costs import guess_run_cycles, operator_table, single_operator_cycles
from compiler.planner.segmentation import BLOCKS, Floats, Predict, SegmentationSearch, cheapest_segmentations, estimate_predictor
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome
from compiler.space.operator_order import ordered
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import Builder
from tuner.zoo.load import load_network

OPERATORS = FEATURES.index("operators")


@cache
def target_graph(machine: str = "edge") -> TargetGraph:
    return ordered(make_unit(lower(load_network("made:mobilenet_v2-small")), load_machine(machine), DataType.float16), "depth")


def cost(target_graph: TargetGraph, genome: Genome, level: str, predict: Predict) -> float:
    total = 0.0
    for gene in genome:
        plan = decode(target_graph, gene)
        assert plan is not None
        total += float(predict(raw_features(target_graph, plan, gene.start)[None], [level])[0, 0])
    return total


@pytest.mark.parametrize("machine", ["edge", "ascend310-l2:contention.severe.cores=1,contention.severe.l1_bytes=262144", "tiny"])
def test_they_cover_all_operators_with_what_fits(machine: str) -> None:
    u = target_graph(machine)
    for level in u.machine.contention:
        (genome,) = cheapest_segmentations(u, [level], estimate_predictor(u))
        assert [gene.start for gene in genome] == [0, *(gene.stop for gene in genome)][:-1]
        assert genome[-1].stop == len(u.operators)
        plans = [decode(u, gene) for gene in genome]
        assert None not in plans
        assert max(core for plan in plans if plan is not None for core in plan.cores) < u.machine.granted(level).cores


def test_segmentation_is_cheaper_than_operators_and_deterministic() -> None:
    u, levels = target_graph(), ("severe",)
    predict = estimate_predictor(u)
    found = cheapest_segmentations(u, levels, predict)
    assert found == cheapest_segmentations(u, levels, predict)
    singles = cheapest_segmentations(u, levels, lambda raw, at: predict(raw, at) * np.where(raw[:, OPERATORS, None] > 1, 1e6, 1.0))
    for level, genome, alone_ in zip(levels, found, singles, strict=True):
        assert len(alone_) == len(u.operators)  # a predictor of one's own decides
        assert cost(u, genome, level, predict) < cost(u, alone_, level, predict)


def test_what_others_predict_is_what_they_follow() -> None:
    """Of a predictor that only counts segments, as long ones as fit; the estimate has no say."""
    u = target_graph()
    (few,) = cheapest_segmentations(u, ["none"], lambda raw, at: np.full((len(raw), len(at)), 1e-3))
    (best,) = cheapest_segmentations(u, ["none"], estimate_predictor(u))
    assert len(few) <= len(best)


def test_measurement_replaces_a_prediction() -> None:
    """Who measures what lies on the cheapest segmentation ends with one that is measured, and dearer than none that was measured before."""
    u = target_graph()
    covers = SegmentationSearch(u, ["none"], estimate_predictor(u))
    first, promised = covers.cheapest(0)
    took: dict[Gene, float] = {}
    for _ in range(200):
        genome, total = covers.cheapest(0)
        new = [gene for gene in genome if gene not in took]
        if not new:
            break
        for gene in new:  # some take much longer than predicted, as runs do in which engines wait for each other
            took[gene] = cost(u, (gene,), "none", estimate_predictor(u)) * (1.0 + 0.1 * ((gene.start * 7 + gene.stop * 3) % 5))
            covers.tell(gene, np.array([took[gene]]))
    assert sum(took[gene] for gene in genome) == pytest.approx(total)
    assert covers.cheapest_measured(0) == (genome, pytest.approx(total))
    assert promised < total < sum(took[gene] for gene in first)
    assert len(took) < 0.2 * len(u.operators) ** 2, "few of all runs are measured"


def test_informative_predictor_is_asked_about_few_runs() -> None:
    u = target_graph()
    asked = []

    def dear(raw: Floats, level: str) -> Floats:
        asked.append(len(raw))
        return 1.4 * estimate_predictor(u)(raw, level)

    (genome,) = cheapest_segmentations(u, ["none"], dear)
    (same,) = cheapest_segmentations(u, ["none"], estimate_predictor(u))
    every = SegmentationSearch(u, ["none"], estimate_predictor(u)).guess
    assert sum(asked) < 0.15 * np.isfinite(every).sum()
    assert cost(u, genome, "none", estimate_predictor(u)) < 1.05 * cost(u, same, "none", estimate_predictor(u))


def test_the_guess_is_near_the_estimate() -> None:
    """Of runs in ways that fit, in half of all cases within a tenth; without that the search for a path would look at most of them."""
    u = target_graph()
    level = u.machine.contention["slight"]
    ways = [Gene(0, 1, blocks, cached=-1 if blocks > 1 else 0) for blocks in BLOCKS]
    guess = guess_run_cycles(u, operator_table(u), ways, single_operator_cycles(u, Structures(u), ways), [level])[0]
    ratios = []
    for w, way in enumerate(ways):
        for j in range(2, len(u.operators) + 1, 3):
            for length in (2, 3, 5, 8):
                if length <= j and np.isfinite(guess[w, j - 1, length - 1]):
                    plan = decode(u, way._replace(start=j - length, stop=j))
                    if plan is not None:
                        exact = float(expected_cycles(raw_features(u, plan, j - length), level))
                        ratios.append(exact / guess[w, j - 1, length - 1])
    assert len(ratios) > 50
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    assert 0.9 < low <= middle <= high < 1.2, (low, middle, high)


def test_guess_has_runs_ending_with_whole_pools() -> None:
    """In more blocks than that has rows: else what it sums up would be stored, and loaded again, where it is large."""
    b = Builder(np.random.default_rng(0), (1, 3, 96, 96))
    made = b.model(b.node("GlobalAveragePool", [b.relu(b.conv("x", 96))]))
    u = ordered(make_unit(lower(made), load_machine("edge"), DataType.float16), "depth")
    pool = next(k for k, spec in enumerate(u.operators) if spec.out_h < 96)
    ways = [Gene(0, 1, blocks, cached=-1 if blocks > 1 else 0) for blocks in BLOCKS]
    guess = guess_run_cycles(u, operator_table(u), ways, single_operator_cycles(u, Structures(u), ways), [u.machine.contention["severe"]])[
        0
    ]
    many = [w for w, way in enumerate(ways) if way.blocks > u.operators[pool].out_h]
    assert many
    assert np.isfinite(guess[many, pool, pool]).all(), "of the run that ends with the pool"
    (genome,) = cheapest_segmentations(u, ["severe"], estimate_predictor(u))
    assert genome[0].stop > pool, "what the pool reads is never stored"


def test_what_fits_nowhere_is_said() -> None:
    u = target_graph("edge:buffers_bytes.L1=2048")
    with pytest.raises(InfeasibleError, match=r"no plan fits level none: .*no tiling fits"):
        cheapest_segmentations(u, ["none"], estimate_predictor(u))
