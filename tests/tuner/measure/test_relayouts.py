"""Cost of relayouts: bytes and cycles of one by hand, their share of a run, and none where nothing moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from compiler.build import default_by_level, measure
from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Engine
from tests.models import Builder
from tuner.measure.relayouts import RelayoutCost, relayout_cost

EDGE = load_machine("edge")


def cost(path: Path, perm: list[int]) -> RelayoutCost | None:
    """Cost of a tensor [1, 32, 8, 16] that is permuted between two products, layer by layer."""
    builder = Builder(np.random.default_rng(0), (1, 32, 8, 16))
    turned = builder.node("Transpose", [builder.conv("x", 32, (1, 1), pads=(0, 0, 0, 0))], perm=perm)
    y = builder.conv(turned, 16, (1, 1), pads=(0, 0, 0, 0))
    onnx.save(builder.model(y), path)
    lowered = lower_model(ModelSpec(path, EDGE))
    level, plan = next(iter(default_by_level(lowered).items()))
    return relayout_cost(lowered, measure(lowered, {level: plan})[level], level)


def test_pixels_and_lanes_by_hand(tmp_path: Path) -> None:
    assert cost(tmp_path / "same.onnx", [0, 1, 2, 3]) is None
    rows = cost(tmp_path / "rows.onnx", [0, 1, 3, 2])
    assert rows is not None
    (row,) = rows.rows
    # 16 bits of 4096 values, from DDR to UB and back; DDR has the lower rate
    assert row.bytes == 2 * 32 * 8 * 16
    assert row.least_cycles == row.bytes / EDGE.path_bytes_per_cycle(Engine.MTE2) <= row.cycles
    assert 0 < rows.chain_cycles < rows.cycles
    assert rows.share == rows.chain_cycles / rows.cycles
    assert f"{row.ratio:.2f} times" in str(rows)
    lanes = cost(tmp_path / "lanes.onnx", [0, 2, 1, 3])
    assert lanes is not None
    assert len(lanes.rows) > 1, "moves, and a product that exchanges channels and pixels"
    assert lanes.row()["share"] == lanes.share > rows.share
