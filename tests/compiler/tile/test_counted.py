"""What features claim of a segment, held against the instructions of the program that the compiler makes of it."""

from __future__ import annotations

import pytest

from compiler.derive.plan import ConvTiling, SegmentPlan
from compiler.pipeline import Compiler
from compiler.tile.features import FEATURES, raw_features
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.machine import Engine, Machine, load_machine
from tests.graphs import conv, unit

EDGE = load_machine("edge")


def without_startups(machine: Machine) -> Machine:
    return machine.model_copy(update={"paths": tuple(path.model_copy(update={"startup_cycles": 0}) for path in machine.paths)})


@pytest.mark.parametrize("order", ["m", "n"])
@pytest.mark.parametrize(("size", "tile_m", "tile_n1"), [(56, 256, 4), (56, 256, 1), (14, 208, 1), (14, 64, 1), (14, 208, 4)])
def test_a_tile_that_is_still_in_place_is_not_loaded_again(size: int, tile_m: int, tile_n1: int, order: str) -> None:
    """64 to 64 channels, 1x1: where all weights are one tile, it stays in L0B while 13 tiles of pixels come and go, in either order."""
    machine = without_startups(EDGE)
    u = unit(machine, (1, 64, size, size), conv("y", "x", (64, 64), 1))
    sizes = {"chunk_n1": 4, "chunk_k1": 4, "tile_m": tile_m, "tile_n1": tile_n1, "tile_k1": 4}
    plan = SegmentPlan(operators=("y",), tilings=(ConvTiling.model_validate({"weights": "resident", "order": order, **sizes}),))
    parts = Compiler(u).alone(plan, 0)
    assert isinstance(parts, list)
    code = parts[0].lowered.code
    claimed = raw_features(u, plan, 0)[FEATURES.index("mte1_cycles")]
    assert claimed == price(code, machine).busy[code[:, isa.ENGINE] == Engine.MTE1].sum()
