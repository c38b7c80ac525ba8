"""Windows cut into what one IM2COL can name: where parts end, how many there are, which windows take fours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.cost.features import FEATURES, raw_features
from compiler.cost.tiling_space import engine_cycles, legal_points, shape_of
from compiler.ir.im2col import WHOLE, Cut, Parts, count_instructions, split_kernel
from compiler.ir.operators import Conv
from compiler.ops.conv import ConvSpec
from compiler.pipeline import Compiler
from compiler.plan.plan import ConvTiling, SegmentPlan
from compiler.space.decode import plan_of
from simulator.npu import isa
from simulator.npu.cycles import price
from simulator.npu.isa import Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType, Engine
from simulator.npu.program import Program
from tests.graphs import target_graph

EDGE = load_machine("edge")


@pytest.mark.parametrize(
    ("kernel", "dilation", "per_block", "expected"),
    [
        ((255, 255), (255, 255), 1, Parts(255, 255, WHOLE)),
        ((256, 3), (1, 1), 1, Parts(255, 3, (768, 765))),
        ((2, 256), (1, 1), 1, Parts(1, 255, (256, 255))),
        ((2, 3), (256, 1), 1, Parts(1, 3, (6, 3))),
        ((2, 3), (1, 256), 1, Parts(1, 1, (3, 1))),
        ((1, 3), (256, 1), 1, Parts(1, 3, WHOLE)),
        ((300, 300), (1, 300), 1, Parts(1, 1, (300, 1))),
        ((256, 3), (1, 1), 4, Parts(252, 3, (192, 189))),
        ((1, 511), (1, 1), 4, Parts(1, 252, (128, 63))),
        ((1, 255), (1, 1), 4, Parts(1, 255, WHOLE)),
        ((256, 3), (1, 1), 8, Parts(248, 3, (96, 93))),
    ],
)  # fmt: skip
def test_parts(kernel: Sequence[int], dilation: Sequence[int], per_block: int, expected: Parts) -> None:
    assert split_kernel(kernel, dilation, per_block) == expected


def counted(cut: Cut, start: int, stop: int, chunk: int, tile: int) -> int:
    """Block by block."""
    period, length = cut
    ends = {at for first in range(0, stop + period, period) for at in range(first, min(first + period, stop + period), length)}
    found = 0
    for begin in range(start, stop, chunk):
        end = min(begin + chunk, stop)
        found += sum(1 for k in range(begin, end) if (k - begin) % tile == 0 or k in ends)
    return found


def test_instructions_are_counted_without_looking() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        period = int(rng.integers(1, 40))
        cut = period, int(rng.integers(1, period + 1))
        start = int(rng.integers(50))
        stop, chunk, tile = start + int(rng.integers(1, 90)), int(rng.integers(1, 60)), int(rng.integers(1, 30))
        assert count_instructions(cut, start, stop, chunk, tile) == counted(cut, start, stop, chunk, tile)
        assert count_instructions(WHOLE, start, stop, chunk, tile) == counted((200, 200), start, stop, chunk, tile)


def window(kernel: tuple[int, int], dilation: tuple[int, int] = (1, 1), top: int = 0, channels: int = 20) -> Conv:
    weights = np.ones((20, channels, *kernel), np.float32)
    return Conv("y", "x", "y", weights, np.zeros(20, np.float32), (1, 1), dilation, (top, 0, 0, 0))


@pytest.mark.parametrize(
    ("kernel", "dilation", "top", "fours"),
    [
        ((256, 3), (1, 1), 0, True), ((1, 256), (1, 1), 0, True), ((3, 3), (255, 255), 255, True),
        ((2, 256), (1, 1), 0, False), ((2, 2), (256, 1), 0, False), ((2, 2), (1, 256), 0, False), ((2, 2), (1, 1), 256, False),
    ],
)  # fmt: skip
def test_which_windows_take_fours(kernel: tuple[int, int], dilation: tuple[int, int], top: int, fours: bool) -> None:
    """An image of three channels whose reader could not name its blocks has a block for every pixel."""
    conv = window(kernel, dilation, top, 3)
    assert conv.takes_fours == fours
    (spec,) = target_graph(EDGE, (1, 3, 780, 780), conv).operators
    assert isinstance(spec, ConvSpec)
    assert spec.lanes == (4 if fours else 16)


@pytest.mark.parametrize(
    ("shape", "conv"),
    [
        ((1, 20, 300, 2), window((256, 2))),
        ((1, 20, 2, 300), window((2, 257))),
        ((1, 20, 320, 3), window((2, 3), (300, 1))),
        ((1, 20, 3, 320), window((3, 2), (1, 300))),
        ((1, 3, 260, 8), window((256, 3), channels=3)),
        ((1, 20, 20, 20), window((3, 3))),
    ],
)  # fmt: skip
def test_closed_forms_count_what_is_written(shape: tuple[int, int, int, int], conv: Conv) -> None:
    """Instructions and MTE1's cycles of a convolution in one block, by features, by the estimate and in the program."""
    u = target_graph(EDGE, shape, conv)
    spec, compiler, rng = u.operators[0], Compiler(u), np.random.default_rng(0)
    assert isinstance(spec, ConvSpec)
    seen = 0
    for resident, n1, k1 in ((True, spec.n1, spec.k1), (False, 1, spec.k1), (False, 1, spec.k1 // 3)):
        block = shape_of(EDGE, DataType.float16, spec, spec.out_h, False, (n1, k1))
        points = legal_points(EDGE, block)
        for point in points[rng.choice(len(points), min(len(points), 12), replace=False)] if len(points) else ():
            m, n, k, n_outer = (int(v) for v in point)
            sizes = {"chunk_n1": n1, "chunk_k1": k1, "tile_m": m, "tile_n1": n, "tile_k1": k, "order": "mn"[n_outer]}
            tiling = ConvTiling.model_validate({"weights": "resident" if resident else "streamed", **sizes})
            segment = SegmentPlan(operators=("y",), blocks=1, tilings=(tiling,))
            program = compiler.compile(plan_of(u, [segment]))
            if not isinstance(program, Program):
                continue
            code = program.streams[0]
            raw = raw_features(u, segment, 0)
            assert raw[FEATURES.index("to_l0a_emit_num")] == (code[:, isa.OP] == Op.IM2COL).sum()
            busy = int(price(code, EDGE).busy[code[:, isa.ENGINE] == Engine.MTE1].sum())
            _, moves, _ = engine_cycles(EDGE, block, spec.n1, spec.k1, point[None])[0]
            assert moves <= busy <= moves + len(code)  # cycles of every instruction are rounded up
            seen += 1
    assert seen >= 12
