"""Cached halos: any network in any blocks with any of its halos cached computes the same, and makes and loads nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.codegen.lower_segment import Records
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import cut_blocks
from compiler.space.decode import plan_of
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Memory
from tests.compiled import check_program, make_case
from tests.graphs import conv, target_graph
from tests.lowered import lower_segment
from tests.models import Builder
from tests.plans import random_tiling, resized

EDGE = load_machine("edge")
MACHINES = {
    "edge": EDGE,  # FIXPIPE writes L1
    "ascend310": load_machine("ascend310"),  # results go to L1 by way of UB
    "edge-odd-sizes": resized(EDGE, L1=131072 + 32 * 5, UB=65536 + 32 * 3, L0A=8192 + 32, L0B=16384 + 32, L0C=16384 + 32 * 7),
}


def windows(seed: int) -> ModelProto:
    """Convolutions and pools with any strides, dilations and pads on an odd image, a residual, a Concat; one or two images."""
    rng = np.random.default_rng(seed)
    b = Builder(rng, (int(rng.integers(1, 3)), int(rng.integers(3, 24)), int(rng.integers(14, 27)), int(rng.integers(5, 13))))
    x = "x"
    for _ in range(int(rng.integers(2, 5))):
        _, channels, h, w = b.shape[x]
        kind = int(rng.integers(6))
        if kind == 0 and min(h, w) > 4:
            pool = b.max_pool if rng.integers(2) else b.average_pool
            x = pool(x, 3, int(rng.integers(1, 3)), (1, 1, 1, 1))
        elif kind == 1:
            x = b.add(x, b.conv(x, channels, (3, 3), pads=(1, 1, 1, 1)))
        elif kind == 2:
            x = b.concat(b.conv(x, 16, (3, 3), pads=(1, 1, 1, 1)), b.conv(x, 7, (1, 1), pads=(0, 0, 0, 0)), x)
        else:
            dilation = (int(rng.integers(1, 4)), 1)
            kernel = (int(rng.integers(1, max(2, min(5, (h - 1) // dilation[0])))), int(rng.integers(1, min(4, w + 1))))
            pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
            stride = (int(rng.integers(1, 4)), int(rng.integers(1, 3)))
            x = b.conv(x, int(rng.integers(1, 33)), kernel, stride, pads, dilation=dilation)
    return b.model(b.conv(x, 5, (1, 1), pads=(0, 0, 0, 0)))


def cached_plan(u: TargetGraph, rng: np.random.Generator) -> Plan | None:
    """The whole network one segment, in a random number of blocks on some cores, with most halos cached."""
    count = int(rng.integers(2, 1 + max(spec.out_h for spec in u.operators)))
    halo = tuple("cache" if rng.random() < 0.8 else "recompute" for _ in u.operators)
    cores = tuple(range(1 + int(rng.integers(u.machine.cores))))
    layout = cut_blocks(u, 0, len(u.operators), count, sum(1 << k for k, h in enumerate(halo) if h == "cache"), len(cores))
    tilings = [random_tiling(u, layout, k, rng) for k in range(len(u.operators))]
    if any(tiling is None for tiling in tilings):
        return None
    names = tuple(spec.name for spec in u.operators)
    slots = {"prefetch": int(rng.integers(1, 3)), "window": int(rng.integers(1, 3)), "cores": cores}
    return plan_of(u, [SegmentPlan.model_validate({"operators": names, "blocks": count, "tilings": tilings, "halo": halo, **slots})])


def wrapped(code: np.ndarray) -> int:
    """Windows that lie partly behind their ring's end."""
    rows = np.zeros((MAX_RANGES, 8), np.int64)
    return sum(accesses(code, int(i), rows) == 3 for i in np.flatnonzero(code[:, isa.OP] == Op.IM2COL))


def hold(seeds: range) -> None:
    fitted = rings = across = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        machine = list(MACHINES.values())[seed % len(MACHINES)]
        case = make_case(windows(seed), machine, DataType(int(rng.integers(2))), seed)
        for _ in range(2):
            plan = cached_plan(case.target_graph, rng)
            program = Infeasible("", "") if plan is None else Compiler(case.target_graph).compile(plan)
            if isinstance(program, Infeasible):
                continue
            check_program(case, program)
            fitted += 1
            rings += any((code[code[:, isa.OP] == Op.IM2COL, isa.I_RING] > 0).any() for code in program.streams)
            across += sum(wrapped(code) for code in program.streams)
    assert fitted >= len(seeds)
    assert rings >= len(seeds) // 2
    assert across >= len(seeds)


def test_random_networks() -> None:
    hold(range(24))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(24, 424, 40))
def test_more_random_networks(start: int) -> None:
    hold(range(start, start + 40))


def chain(h: int = 32, blocks: int = 8, halo: tuple[str, ...] = ("cache", "cache", "cache")) -> tuple[TargetGraph, Records]:
    u = target_graph(EDGE, (1, 16, h, 16), conv("a", "x", (16, 16)), conv("b", "a", (16, 16), 5), conv("c", "b", (16, 16)))
    tiling = {"kind": "conv", "weights": "resident", "chunk_n1": 1, "chunk_k1": 25, "tile_m": 64, "tile_n1": 1, "tile_k1": 9, "order": "m"}
    plan = {"operators": ("a", "b", "c"), "blocks": blocks, "tilings": [tiling] * 3, "halo": halo}
    lowered = lower_segment(u, SegmentPlan.model_validate(plan), 0)
    assert isinstance(lowered, Records)
    return u, lowered


def loaded_blocks(u: TargetGraph, lowered: Records) -> int:
    """Blocks of x that are read from DDR."""
    code = lowered.code
    x = u.storages[u.operators[0].reads[0].storage]
    mine = (code[:, isa.OP] == Op.COPY) & (code[:, isa.SRC] == Memory.DDR)
    mine &= (code[:, isa.S0] >= x.address) & (code[:, isa.S0] < x.address + x.image_blocks)
    return int((code[mine, isa.C_LENGTH] * code[mine, isa.C_COUNT]).sum())


def pixels(lowered: Records) -> int:
    """Pixels that FIXPIPE hands out."""
    code = lowered.code
    return int(code[code[:, isa.OP] == Op.FIXPIPE, isa.F_M].sum())


def test_nothing_is_made_or_loaded_twice() -> None:
    u, cached = chain()
    assert loaded_blocks(u, cached) == 32 * 16
    assert pixels(cached) == 3 * 32 * 16
    u, recomputed = chain(halo=())
    # 8 blocks of 4 rows: c's halo is 1 row on either side, b's 2 more, a's 1 more; but not over the image's border
    assert pixels(recomputed) == 16 * (32 + (32 + 14) + (32 + 14 * 3))
    assert loaded_blocks(u, recomputed) == 16 * (32 + 14 * 4)


def test_ring_is_no_higher_than_live_rows() -> None:
    """c reads 6 rows of b at a time, b 8 of a; the first block needs 8 of x, which has a second slot, for the 4 of the next block."""
    _, cached = chain()
    rings = {int(spec): set() for spec in range(3)}
    code = cached.code
    for row in code[code[:, isa.OP] == Op.IM2COL]:
        rings[int(row[isa.TAG])].add(int(row[isa.I_RING]))
    assert rings == {0: {12}, 1: {8}, 2: {6}}
    assert cached.peak_bytes["L1"] >= (12 + 8 + 6) * 16 * 32


def test_first_block_of_a_run_has_no_cache() -> None:
    """Blocks dealt to several cores: each core makes its first block's halo itself."""
    u, _ = chain()
    one, two = cut_blocks(u, 0, 3, 8, -1), cut_blocks(u, 0, 3, 8, -1, 2)
    assert one.computed[1, 4].tolist() == [17, 21]
    assert two.computed[1, 4].tolist() == [15, 21]
    assert [(two.computed[1, t] == one.computed[1, t]).all() for t in range(8)] == [True] * 4 + [False] + [True] * 3
    assert two.carried == (True, True, False)
    x = u.operators[0].reads[0].storage
    assert one.allocations[x].fresh[4, 0] == one.allocations[x].fresh[3, 1]
    assert two.allocations[x].fresh[4].tolist() == two.allocations[x].rows[4].tolist()


def test_one_operator_alone_may_cache() -> None:
    """b keeps a's rows, so that a makes none twice; c does not keep b's."""
    u, some = chain(halo=("recompute", "cache", "recompute"))
    layout = cut_blocks(u, 0, 3, 8, 0b010)
    assert [layout.allocations[k.reads[0].storage].cached for k in u.operators] == [False, True, False]
    assert [sum(rows * blocks for rows, blocks in layout.heights[k].items()) for k in (0, 1)] == [32, 32 + 14]
    assert pixels(some) == 16 * (32 + (32 + 14) + 32)


def test_blocks_without_a_halo_need_no_ring() -> None:
    u = target_graph(EDGE, (1, 16, 16, 8), conv("a", "x", (16, 16), 1), conv("b", "a", (16, 16), 2, stride=2, pad=0))
    cached, plain = cut_blocks(u, 0, 2, 4, -1), cut_blocks(u, 0, 2, 4)
    assert not any(staged.cached for staged in cached.allocations.values())
    assert (cached.computed == plain.computed).all()
    assert all((staged.fresh == plain.allocations[storage].fresh).all() for storage, staged in cached.allocations.items())
