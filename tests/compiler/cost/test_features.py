"""Features of stages are those of `segment.dataflow`, summed over operators and blocks."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.cost.features import FEATURES, raw_features, scale_features
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.segment.dataflow import nest_of, stages_of
from compiler.space.decode import decode
from compiler.space.gene import Gene
from simulator.npu.machine_file import load_machine
from simulator.timing import simulate_levels
from tests.graphs import conv, max_pool, target_graph
from tests.stage_features import features_of

EDGE = load_machine("edge")


def test_a_convolution_on_paper() -> None:
    """20 rows of 20 in two blocks: each is the block of the stage's example, half as high."""
    u = target_graph(EDGE, (1, 64, 20, 20), conv("y", "x", (64, 64), 1))
    t = ConvTiling(weights="resident", chunk_n1=4, chunk_k1=4, tile_m=112, tile_n1=2, tile_k1=4, order="m")
    raw = dict(zip(FEATURES, raw_features(u, SegmentPlan(operators=("y",), blocks=2, tilings=(t,)), 0).tolist(), strict=True))
    # tiles of 112 and 88 pixels (96 with padding) by 2 x 16 channels, in each of two blocks
    assert raw["to_l0a_emit_num"] == 2 * 2
    assert raw["to_l0a_compute_bits"] == 2 * (112 + 96) * 64 * 16
    assert raw["to_l0a_store_bits"] == 2 * 112 * 64 * 16
    assert raw["to_l0a_emit_bits"] == 112 * 64 * 16
    assert raw["cube_emit_num"] == raw["out_emit_num"] == raw["store_emit_num"] == 2 * 2 * 2
    assert raw["to_l0b_emit_num"] == 2 * 2  # both tiles of the weights have a slot, and stay for the second tile of pixels
    assert raw["cube_compute_bits"] == 2 * (112 + 96) * 64 * 64 * 32
    assert raw["out_store_bits"] == 2 * 112 * 32 * 16
    assert raw["vector_emit_num"] == 0
    assert raw["to_ub_compute_bits"] == 2 * 64 * 32  # the bias; counted in every block


@pytest.mark.parametrize("operators", [1, 3])
def test_sums_over_operators(operators: int) -> None:
    u = target_graph(EDGE, (1, 32, 24, 24), conv("a", "x", (32, 48)), max_pool("p", "a", 3, 2, 1), conv("b", "p", (48, 32)))
    plan = decode(u, Gene(0, operators))
    assert plan is not None
    raw = raw_features(u, plan, 0)
    expected = 0
    for k, tiling in enumerate(plan.tilings):
        inside = k < operators - 1
        nest = nest_of(u, u.operators[k], in_l1=frozenset({0} if k else ()), inside=inside)
        expected += sum(f.emit_num for f in features_of(nest, stages_of(EDGE, nest), tiling))
    found = sum(value for name, value in zip(FEATURES, raw.tolist(), strict=True) if name.endswith("_emit_num"))
    assert found == expected


def test_scaling_sums_and_means() -> None:
    u = target_graph(EDGE, (1, 32, 24, 24), conv("a", "x", (32, 48)), max_pool("p", "a", 3, 2, 1))
    plans = [decode(u, Gene(k, k + 1)) for k in (0, 1)]
    raw = np.sum([raw_features(u, plan, k) for k, plan in enumerate(plans) if plan is not None], 0)
    out = dict(zip(FEATURES, scale_features(raw).tolist(), strict=True))
    total = dict(zip(FEATURES, raw.tolist(), strict=True))
    assert out["store_emit_num"] == pytest.approx(np.log2(1 + total["store_emit_num"]))
    assert out["store_emit_bits"] == pytest.approx(np.log2(1 + total["store_emit_bits"] / 2))


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(13, 1, 0), (3, 1, 0), (2, 2, 0), (3, 2, 0), (3, 3, 0), (3, 1, 1)])
def test_a_pooling_alone_loads_what_its_windows_cover(kernel: int, stride: int, pad: int) -> None:
    """A whole image has one window, however small its stride: its estimate is of the bytes that the simulator sees."""
    u = target_graph(EDGE, (1, 64, 13, 13), max_pool("p", "x", kernel, stride, pad))
    plan, compiler = decode(u, Gene(0, 1)), Compiler(u)
    assert plan is not None
    parts = compiler.alone(plan, 0)
    assert isinstance(parts, list)
    read = simulate_levels(compiler.link(parts), EDGE, ("none",))["none"].ddr_read_bytes
    assert raw_features(u, plan, 0)[FEATURES.index("load_bytes")] == pytest.approx(read, rel=0.0 if pad == 0 else 0.2)
