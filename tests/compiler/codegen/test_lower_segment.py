"""How many instructions of each kind a segment needs, counted on paper, and why plans are refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from compiler.codegen.lower_segment import Records
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan, Tiling, VectorTiling
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import Memory
from tests.graphs import conv, max_pool, target_graph
from tests.lowered import lower_segment
from tests.messages import mentions

EDGE = load_machine("edge")


def tiling(**changes: object) -> ConvTiling:
    base = {"weights": "resident", "chunk_n1": 2, "chunk_k1": 4, "tile_m": 32, "tile_n1": 1, "tile_k1": 4, "order": "m"}
    return ConvTiling.model_validate({**base, **changes})


def lowered(u: TargetGraph, *tilings: Tiling, blocks: int = 1) -> Records | Infeasible:
    names = tuple(spec.name for spec in u.operators[: len(tilings)])
    return lower_segment(u, SegmentPlan(operators=names, blocks=blocks, tilings=tilings), 0)


def counted(part: Records | Infeasible) -> tuple[int, int, int, int, int]:
    """(MMAD, FIXPIPE, IM2COL, loads of L0B, loads of L1)"""
    assert isinstance(part, Records)
    code = part.code
    ops = Counter(code[:, isa.OP].tolist())
    copies = code[:, isa.OP] == Op.COPY
    to = {memory: int((copies & (code[:, isa.DST] == memory)).sum()) for memory in (Memory.L0B, Memory.L1)}
    return ops[Op.MMAD], ops[Op.FIXPIPE], ops[Op.IM2COL], to[Memory.L0B], to[Memory.L1]


@pytest.fixture
def product() -> TargetGraph:
    """1x1, 64 -> 32 channels on 8x8 pixels: 64 x 4 blocks by 4 x 2 blocks of 16 channels."""
    return target_graph(EDGE, (1, 64, 8, 8), conv("y", "x", (64, 32), 1))


def test_tiles_still_in_place_are_not_reloaded(product: TargetGraph) -> None:
    # 2 tiles of m, 2 of n, all of k at once, which all have a slot; one load of x and one of the weights
    assert counted(lowered(product, tiling(order="m"))) == (4, 4, 2, 2, 2)
    assert counted(lowered(product, tiling(order="n"))) == (4, 4, 2, 2, 2)
    # k in two halves, of which each has a slot
    assert counted(lowered(product, tiling(tile_k1=2))) == (8, 4, 4, 4, 2)
    # 48 + 16 pixels; the one tile of n stays
    assert counted(lowered(product, tiling(tile_m=48, tile_n1=2))) == (2, 2, 2, 1, 2)


def test_tiles_without_slots_of_their_own_are_reloaded() -> None:
    """Four tiles of 64 pixels by 256 channels, of which L0A has two; both of the weights have a slot."""
    u = target_graph(EDGE, (1, 256, 16, 16), conv("y", "x", (256, 32), 1))
    assert counted(lowered(u, tiling(order="m", tile_m=64, tile_k1=16, chunk_k1=16)))[:4] == (8, 8, 4, 2)
    assert counted(lowered(u, tiling(order="n", tile_m=64, tile_k1=16, chunk_k1=16)))[:4] == (8, 8, 8, 2)


def test_streamed_weights(product: TargetGraph) -> None:
    # a chunk of each n: tiles of A are loaded for either, the one of B in a chunk stays
    assert counted(lowered(product, tiling(weights="streamed", chunk_n1=1))) == (4, 4, 4, 2, 3)
    # chunks of k: partial sums stay in L0C, results leave once
    assert counted(lowered(product, tiling(weights="streamed", chunk_k1=1, tile_k1=1))) == (16, 4, 8, 8, 5)


def test_blocks_load_resident_weights_once(product: TargetGraph) -> None:
    part = lowered(product, tiling(tile_m=16, tile_n1=2), blocks=4)
    # 16 pixels a block; x four times, the weights once
    assert counted(part) == (4, 4, 4, 4, 5)
    streamed = lowered(product, tiling(tile_m=16, tile_n1=2, weights="streamed"), blocks=4)
    assert counted(streamed) == (4, 4, 4, 4, 8)


@pytest.mark.parametrize("images", [1, 2])
def test_records_say_their_block(images: int) -> None:
    u = target_graph(EDGE, (images, 64, 8, 8), conv("y", "x", (64, 32), 1))
    part = lowered(u, tiling(tile_m=16, tile_n1=2), blocks=4)
    assert isinstance(part, Records)
    block = part.code[:, isa.BLOCK]
    assert (np.diff(block) >= 0).all()
    # a product and a tile of x each; the weights come with the first one
    every = list(range(4 * images))
    assert block[part.code[:, isa.OP] == Op.MMAD].tolist() == every
    loads = part.code[(part.code[:, isa.OP] == Op.COPY) & (part.code[:, isa.DST] == Memory.L1)]
    assert loads[:, isa.BLOCK].tolist() == [0, *every]


def test_accumulation_starts_once(product: TargetGraph) -> None:
    part = lowered(product, tiling(tile_k1=1))
    assert isinstance(part, Records)
    mmads = part.code[part.code[:, isa.OP] == Op.MMAD]
    assert mmads[:, isa.M_ACC].reshape(4, 4).tolist() == [[0, 1, 1, 1]] * 4


def test_max_pool() -> None:
    """2x2 by 2 on one plane of 8x8: one VMAX over 4 rows of 8 columns, then one over 4 of 4, which lie side by side."""
    u = target_graph(EDGE, (1, 16, 8, 8), max_pool("y", "x", 2, 2))
    part = lowered(u, VectorTiling(tile_planes=1, tile_rows=4))
    assert isinstance(part, Records)
    ops = part.code[:, isa.OP].tolist()
    assert [Op(op).name for op in ops] == ["COPY", "VMAX", "VMAX", "COPY"]
    assert part.code[1:3, [isa.V_BLOCKS, isa.V_REPEATS]].tolist() == [[8, 4], [8, 2]]


def test_peaks(product: TargetGraph) -> None:
    part = lowered(product, tiling())
    assert isinstance(part, Records)
    # two tiles each: 32 x 4, 4 x 16, 32 x 2 blocks of 32 bytes
    assert {name: part.peak_bytes[name] for name in ("L0A", "L0B", "L0C")} == {"L0A": 8192, "L0B": 4096, "L0C": 4096}
    # x: 4 planes of 64; weights: 2 x 4 x 16
    assert part.peak_bytes["L1"] == (256 + 128) * 32


def test_flip_changes_addresses_only(product: TargetGraph) -> None:
    plan = SegmentPlan(operators=("y",), tilings=(tiling(),))
    low, high = lower_segment(product, plan, 0), lower_segment(product, plan, 0, flip=True)
    assert isinstance(low, Records)
    assert isinstance(high, Records)
    same = [w for w in range(isa.WORDS) if w not in (isa.D, isa.S0, isa.S1, isa.S2)]
    assert (low.code[:, same] == high.code[:, same]).all()
    assert not np.array_equal(low.code, high.code)


@pytest.mark.parametrize(
    ("tilings", "reason"),
    [
        ((VectorTiling(tile_planes=1, tile_rows=1),), "y needs a conv tiling"),
        ((tiling(tile_m=1024, tile_k1=2),), "a tile needs 65,536 B of L0A (tile_m 1,024 x tile_k1 2), half of it is 32,768"),
        ((tiling(tile_m=16, tile_n1=64, tile_k1=2),), "a tile needs 65,536 B of L0B (tile_n1 64 x tile_k1 2), half of it is 32,768"),
        ((tiling(tile_m=1024, tile_n1=3, tile_k1=1),), "a tile needs 196,608 B of L0C (tile_m 1,024 x tile_n1 3), half of it is 131,072"),
    ],
)
def test_refusals(product: TargetGraph, tilings: tuple[Tiling, ...], reason: str) -> None:
    found = lowered(product, *tilings)
    assert isinstance(found, Infeasible)
    assert found.where == "segment y"
    assert reason in found.reason


def test_too_much_l1() -> None:
    """x alone: 64 channels of 128x128 in float16 are 2 MiB."""
    u = target_graph(EDGE, (1, 64, 128, 128), conv("y", "x", (64, 16), 1))
    found = lowered(u, tiling(chunk_n1=1))
    assert mentions(found, "segment y", "2,099,200 B of L1", "1,048,576", "1,050,624 missing", "x 2,097,152 B", "weights of y 2,048 B")


def test_too_much_ub() -> None:
    """A whole image as one tile: two slots of 4 planes in and out."""
    u = target_graph(EDGE, (1, 64, 64, 64), max_pool("y", "x", 1, 1))
    found = lowered(u, VectorTiling(tile_planes=4, tile_rows=64))
    assert mentions(found, "segment y", "2,097,152 B of UB", "262,144", "1,835,008 missing", "y 2 x 1,048,576 B")


def test_partial_sums_that_do_not_fit() -> None:
    """64 x 64 pixels of 32 channels in float32 are 512 KiB."""
    u = target_graph(EDGE, (1, 64, 64, 64), conv("y", "x", (64, 32), 1))
    found = lowered(u, tiling(weights="streamed", chunk_k1=2, tile_k1=2))
    assert isinstance(found, Infeasible)
    assert mentions(found.reason, "y", "k", "524,288 B", "L0C has 262,144")


def test_too_many_instructions() -> None:
    """16 x 16 x 16 tiles of a 3x3 product on 224x224 pixels: 3136 * 4 * 36 MMADs, each with its loads."""
    u = target_graph(EDGE, (1, 64, 224, 224), conv("y", "x", (64, 64)))
    found = lowered(u, tiling(chunk_n1=4, chunk_k1=36, tile_m=16, tile_k1=1), blocks=56)
    assert mentions(found, "segment y", "524,288 instructions")
