"""Stages follow from the machine's paths, their features are right on paper, and agree with the records that are emitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.cost.tiling_space import legal_points, shape_of
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler, LoweredShare
from compiler.plan.plan import ConvTiling, SegmentPlan, VectorTiling
from compiler.segment.dataflow import group_stages, nest_of, route, stages_of
from compiler.target.capabilities import SINGLE_TILE
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from tests.graphs import conv, max_pool, target_graph
from tests.messages import naming
from tests.plans import resized
from tests.stage_features import StageFeatures, features_of, footprints

EDGE, TINY, ASCEND = (load_machine(name) for name in ("edge", "tiny", "ascend310"))
DDR, L1, UB, L0A, L0B, L0C = Memory.DDR, Memory.L1, Memory.UB, Memory.L0A, Memory.L0B, Memory.L0C


def names(machine: Machine, u: TargetGraph, k: int = 0, inside: bool = False) -> list[str]:
    return [stage.type for stage in stages_of(machine, nest_of(u, u.operators[k], inside=inside))]


def test_tile_path_is_the_shortest_of_the_machine() -> None:
    assert route(EDGE, DDR, L0A) == ((DDR, L1, "MTE2"), (L1, L0A, "MTE1"))
    assert route(EDGE, L0C, DDR) == ((L0C, UB, "FIXPIPE"), (UB, DDR, "MTE3"))  # over L1 is as short, and listed later
    assert route(EDGE, L0C, L1) == ((L0C, L1, "FIXPIPE"),)
    assert route(ASCEND, L0C, L1) == ((L0C, UB, "VECTOR"), (UB, L1, "MTE3"))
    assert route(EDGE, L1, L1) == ()
    with pytest.raises(ValueError, match=naming("machine edge", "L0A to DDR")):
        route(EDGE, L0A, DDR)


def test_moves_of_a_convolution() -> None:
    u = target_graph(EDGE, (1, 64, 16, 16), conv("a", "x", (64, 64), 1), conv("y", "a", (64, 64), 1, residual="x"))
    feed = ["MTE2 DDR->L1", "MTE1 L1->L0A", "MTE2 DDR->L1", "MTE1 L1->L0B", "MTE2 DDR->UB"]
    assert names(EDGE, u, 0) == [*feed, "CUBE", "FIXPIPE L0C->UB", "MTE3 UB->DDR"]
    assert names(EDGE, u, 1, inside=True) == [*feed, "MTE2 DDR->UB", "CUBE", "FIXPIPE L0C->L1"]
    assert names(ASCEND, u, 0, inside=True)[-3:] == ["CUBE", "VECTOR L0C->UB", "MTE3 UB->L1"]


def test_features_on_paper() -> None:
    """1x1, 64 -> 64 channels on 20 x 20: 400 pixels, n 4, k 4; tiles of 128 x 2 x 4 make 4 x 2 x 1 products."""
    u = target_graph(EDGE, (1, 64, 20, 20), conv("y", "x", (64, 64), 1))
    nest = nest_of(u, u.operators[0])
    assert nest.loops == {"g": 1, "m": 400, "n": 4, "k": 4}
    t = ConvTiling(weights="resident", chunk_n1=4, chunk_k1=4, tile_m=128, tile_n1=2, tile_k1=4, order="m")
    assert features_of(nest, stages_of(EDGE, nest), t) == (
        StageFeatures("MTE2 DDR->L1", 16, 25600, 16, 25600, 25600 * 16, 2),  # a plane is 400 blocks: two of them in a piece
        StageFeatures("MTE1 L1->L0A", 16, 2 * 8192, 16, 25600, 8192 * 16, 4),  # k is whole: a tile of pixels comes once
        StageFeatures("MTE2 DDR->L1", 16, 4096, 16, 4096, 4096 * 16, 1),
        StageFeatures("MTE1 L1->L0B", 16, 2 * 2048, 16, 4096, 2048 * 16, 2),  # both tiles of the weights have a slot, and stay
        StageFeatures("MTE2 DDR->UB", 32, 64, 32, 64, 64 * 32, 1),
        StageFeatures("CUBE", 32, 2 * 4096, 32, 400 * 64 * 64, 4096 * 32, 8),
        StageFeatures("FIXPIPE L0C->UB", 16, 2 * 4096, 16, 25600, 4096 * 16, 8),
        StageFeatures("MTE3 UB->DDR", 16, 25600, 16, 25600, 4096 * 16, 8),
    )
    assert footprints(nest, stages_of(EDGE, nest), t) == {
        L1: 2 * (25600 + 4096),
        L0A: 2 * 2 * 8192,
        L0B: 2 * 2 * 2048,
        L0C: 2 * 4 * 4096,
        UB: 4 * 64 + 2 * 2 * 4096,
    }
    n_outer = features_of(nest, stages_of(EDGE, nest), t.model_copy(update={"order": "n"}))
    assert [f.emit_num for f in n_outer][1:4:2] == [4, 2]  # so have all four of the pixels
    halves = {"tile_k1": 2, "tile_n1": 1}
    assert [f.emit_num for f in features_of(nest, stages_of(EDGE, nest), t.model_copy(update=halves))][1:4:2] == [8, 8]
    alone = replace(nest, l0=SINGLE_TILE)  # beside what takes slots as well
    assert [f.emit_num for f in features_of(alone, stages_of(EDGE, nest), t)][1:4:2] == [4, 8]
    assert [f.emit_num for f in features_of(alone, stages_of(EDGE, nest), t.model_copy(update=halves))][1:4:2] == [32, 32]


def test_partial_sums_of_a_chunk_are_live_together() -> None:
    """Two chunks along k: all 4 x 128 pixels of 32 channels wait in L0C for the second one."""
    u = target_graph(EDGE, (1, 64, 20, 20), conv("y", "x", (64, 64), 1))
    nest = nest_of(u, u.operators[0])
    t = ConvTiling(weights="streamed", chunk_n1=2, chunk_k1=2, tile_m=128, tile_n1=2, tile_k1=2, order="m")
    stages = stages_of(EDGE, nest)
    found = dict(zip([stage.name for stage in stages], features_of(nest, stages, t), strict=True))
    assert found["y.L0C"].store_num == 4 * 128 * 32
    assert found["y.L0C"].emit_num == 4 * 2 * 2
    assert found["w.L1"] == StageFeatures("MTE2 DDR->L1", 16, 2 * 1024, 16, 4096, 1024 * 16, 4)


def test_features_of_pooling_on_paper() -> None:
    """2x2 by 2 of 32 channels on 8 x 8, one plane and two output rows at a time: a tile of 4 x 8 in, 2 x 4 out."""
    u = target_graph(EDGE, (1, 32, 8, 8), max_pool("y", "x", 2, 2))
    nest = nest_of(u, u.operators[0])
    stages = stages_of(EDGE, nest)
    load, *steps, store = features_of(nest, stages, VectorTiling(tile_planes=1, tile_rows=2))
    assert load == StageFeatures("MTE2 DDR->UB", 16, 2 * 4 * 8 * 16, 16, 2 * 8 * 8 * 16, 4 * 8 * 16 * 16, 4)
    assert steps == [StageFeatures("VECTOR", 16, 2 * 2 * 4 * 16, 16, 2 * 16 * 16, 2 * 4 * 16 * 16, 4)] * 2
    assert store == StageFeatures("MTE3 UB->DDR", 16, 2 * 16 * 16, 16, 2 * 16 * 16, 2 * 4 * 16 * 16, 4)
    assert [len(group) for group in group_stages(stages).values()] == [1, 2, 1]


@pytest.mark.parametrize("machine", [TINY, resized(EDGE, L1=8 << 20), ASCEND], ids=lambda machine: machine.name)
def test_stages_agree_with_the_records(machine: Machine) -> None:
    """Random tilings: instructions and bytes of every move, and MACs, as emitted; footprints of L0 as the compiler's own."""
    rng = np.random.default_rng(0)
    tried = 0
    for channels, kernel, stride, groups_of in (((24, 40), 3, 1, 1), ((64, 48), 1, 1, 2), ((32, 100), 3, 2, 3)):
        u = target_graph(machine, (1, channels[0], 13, 12), conv("y", "x", channels, kernel, stride))
        spec = u.operators[0]
        assert isinstance(spec, ConvSpec)
        compiler, nest = Compiler(u), nest_of(u, spec)
        stages = stages_of(machine, nest)
        for resident, n1, k1 in ((True, spec.n1, spec.k1), (False, groups_of, spec.k1), (False, 2, -(-spec.k1 // 2)), (False, 1, 1)):
            points = legal_points(machine, shape_of(machine, DataType.float16, spec, spec.out_h, False, (n1, k1)))
            for m, n, k, n_outer in points[rng.permutation(len(points))[:25]].tolist():
                sizes = {"chunk_n1": n1, "chunk_k1": k1, "tile_m": m, "tile_n1": n, "tile_k1": k}
                t = ConvTiling.model_validate({"weights": "resident" if resident else "streamed", "order": "mn"[n_outer], **sizes})
                part = compiler.segment(SegmentPlan(operators=("y",), tilings=(t,)), 0)
                if not isinstance(part, LoweredShare):
                    continue
                tried += 1
                assert emitted(part) == {
                    stage_type: counts for stage_type, counts in summed(features_of(nest, stages, t)).items() if stage_type != "CUBE"
                }, t
                products = part.code[part.code[:, isa.OP] == Op.MMAD].astype(np.int64)
                cube = next(f for f in features_of(nest, stages, t) if f.type == "CUBE")
                macs = products[:, isa.M_MPAD] * products[:, isa.M_K] * 16 * products[:, isa.M_N1] * 16
                assert (cube.emit_num, cube.compute_num) == (len(products), macs.sum())
                kept = footprints(nest, stages, t)
                assert {m: kept[m] for m in (L0A, L0B)} == {m: part.peak_bytes[m.name] for m in (L0A, L0B)}
    assert tried > 100


def emitted(part: LoweredShare) -> dict[str, tuple[int, int]]:
    """Type -> (instructions, elements moved) of the moves in a segment's records; constants in float32 count their own elements."""
    out: dict[str, tuple[int, int]] = {}
    for row in part.code.astype(np.int64):
        op, source, target = int(row[isa.OP]), int(row[isa.SRC]), int(row[isa.DST])
        if op == Op.COPY:
            blocks = int(row[isa.C_LENGTH] * row[isa.C_COUNT] * row[isa.C_COUNT2])
            size = 4 if (source, target) == (DDR, UB) else 2
            elements = blocks * BLOCK_BYTES // size
        elif op == Op.IM2COL:
            elements = int(row[isa.I_MPAD] * row[isa.I_K]) * 16
        elif op == Op.FIXPIPE:
            elements = int(row[isa.F_M] * row[isa.F_N1]) * 16
        else:
            continue
        name = f"{Engine(row[isa.ENGINE]).name} {Memory(source).name}->{Memory(target).name}"
        count, total = out.get(name, (0, 0))
        out[name] = (count + 1, total + elements)
    return out


def summed(features: tuple[StageFeatures, ...]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for f in features:
        count, total = out.get(f.type, (0, 0))
        out[f.type] = (count + f.emit_num, total + f.compute_num)
    return out
