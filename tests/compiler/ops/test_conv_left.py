"""Tiles of the left operand, part by part: what L0A holds is what one IM2COL without limits would have put there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.instructions.builders import im2col
from compiler.ir.im2col import MAX_PADDED_STRIDE, count_instructions, split_kernel, unencodable_window
from compiler.ir.operators import Conv
from compiler.ops.conv_job import ConvBlock, ConvEpilogue, ConvGeometry, ConvJob, ConvOperands, ConvTiles
from compiler.ops.left_tile_emitter import load_left
from simulator import instruction_effects
from simulator.kernel_addresses import record_dtype
from simulator.npu import isa
from simulator.npu.legality import check_parameters
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, FRACTALS, DataType, Memory
from tests.plans import multiplying

Ints = dict[str, int]
_JOB = record_dtype(ConvJob)
SIZES = (1, 2, 3, 5, 254, 255, 256, 300, 511)
BASE, AT, ROOM = 7, 16, 64  # blocks of L1 and of L0A in front of what is read and written, and behind


def of_zeros(fields: Any) -> Any:
    return fields(*[0] * len(fields._fields))


def drawn(rng: np.random.Generator, fractal_rows: int = 16) -> tuple[ConvJob, int, int, int, int, int]:
    """A job, and (first pixel, pixels, padded, k_start, k) of a tile of it; windows that the frontend hands on."""
    while True:
        dtype = DataType.uint8 if rng.integers(3) == 0 else DataType.float16
        four = bool(rng.integers(4) == 0)
        per_block = dtype.lanes // 4 if four else 1
        kernel = [int(rng.choice(SIZES)) if rng.integers(2) else int(rng.integers(1, 8)) for _ in range(2)]
        dilation = [int(rng.choice((1, 2, 255, 256, 300))) if size > 1 and rng.integers(3) == 0 else 1 for size in kernel]
        stride = [int(rng.choice((1, 2, 3, MAX_PADDED_STRIDE, MAX_PADDED_STRIDE + 1, 255))) for _ in range(2)]
        top, left = (int(rng.choice((0, 1, 9, 254, 255, 256, 257, 511, 700))) for _ in range(2))
        window = Conv("y", "x", "y", np.zeros((1, 1, *kernel), np.float32), np.zeros(1, np.float32), (stride[0], stride[1]),
                      (dilation[0], dilation[1]), (top, left, 0, 0))  # fmt: skip
        if kernel[0] * kernel[1] < 20_000 and not unencodable_window(window) and (not four or window.takes_fours):
            break
    height, width, planes = int(rng.integers(1, 520)), per_block * int(rng.integers(1, 80)), 1 if four else int(rng.integers(1, 4))
    pitch = width // per_block + int(rng.integers(3))
    ring = height + int(rng.integers(9)) if rng.integers(3) == 0 else 0
    out_w, parts = int(rng.choice((1, 1, 2, 5, 40))), split_kernel(kernel, dilation, per_block)
    plane_k = -(-kernel[0] * kernel[1] // per_block)
    m = int(rng.choice((1, 16, 40, 300, 600)))
    k_start = int(rng.integers(planes * plane_k))
    k = min(planes * plane_k - k_start, int(rng.choice((1, 40, 700, 2000))), max(1, 60_000 // m))
    fractal = FRACTALS[dtype]._replace(rows=fractal_rows)
    operands: Ints = {"dtype": int(dtype), "pad": int(rng.integers(256)) if dtype == DataType.uint8 else -1}
    geometry: Ints = {
        "in_w": width, "in_pitch": pitch, "kh": kernel[0], "kw": kernel[1], "sh": stride[0], "sw": stride[1], "dh": dilation[0],
        "dw": dilation[1], "pad_left": -int(rng.integers(per_block)) if four and rng.integers(3) == 0 else left,
        "part_rows": parts.rows, "part_columns": parts.columns, "lanes": 4 if four else dtype.lanes, "out_w": out_w,
        "fractal_rows": fractal.rows, "fractal_lanes": fractal.lanes, "fractal_columns": fractal.columns,
    }  # fmt: skip
    ring_first = int(rng.integers(ring)) if ring else 0
    block = ConvBlock(in_rows=height, in_plane=(ring or height) * pitch, in_ring=ring, in_first=ring_first, pad_top=top)
    job = ConvJob(
        int(dtype), 0, of_zeros(ConvGeometry)._replace(**geometry), of_zeros(ConvOperands)._replace(**operands), of_zeros(ConvEpilogue),
        of_zeros(ConvTiles), block=block,
    )  # fmt: skip
    return job, 16 * int(rng.integers(40)) * int(rng.integers(2)), m, -(-m // fractal_rows) * fractal_rows, k_start, k


def executed(code: NDArray[np.int32], l1: NDArray[np.uint8], blocks: int) -> NDArray[np.uint8]:
    memories = [np.zeros(0, np.uint8)] * len(Memory)
    memories[Memory.L1], memories[Memory.L0A] = l1, np.full(blocks * BLOCK_BYTES, 0xAB, np.uint8)
    for record in code.tolist():
        instruction_effects.im2col(memories, record)
    return memories[Memory.L0A]


@pytest.mark.parametrize("fractal_rows", [16, 4, 1])
def test_the_parts_are_the_whole(fractal_rows: int) -> None:
    machine = multiplying(load_machine("tiny"), float16=(fractal_rows, 16, 16, 1), int8=(fractal_rows, 32, 16, 1))
    rng = np.random.default_rng(0)
    several = cut_along_m = 0
    for _ in range(300):
        j, first, m, mpad, k_start, k = drawn(rng, fractal_rows)
        geometry, block = j.geometry, j.block
        l1 = rng.integers(0, 256, (BASE + 3 * block.in_plane + ROOM) * BLOCK_BYTES, np.uint8)
        out, one = np.zeros((4096, isa.WORDS), np.int32), np.zeros((1, isa.WORDS), np.int32)
        used = load_left(out, 0, np.array([j], _JOB)[0], BASE, AT, first, m, mpad, k_start, k)
        assert used > 0
        im2col(
            one, 0, j.dtype, 0, BASE, AT, block.in_rows, geometry.in_w, geometry.in_pitch, block.in_plane, geometry.kh, geometry.kw,
            geometry.sh, geometry.sw, geometry.dh, geometry.dw, block.pad_top, geometry.pad_left, geometry.out_w, first, m, mpad, k_start,
            k, geometry.lanes, block.in_ring, block.in_first, j.operands.pad,
        )  # fmt: skip
        blocks = AT + k * mpad + ROOM
        assert np.array_equal(executed(out[:used], l1, blocks), executed(one, l1, blocks)), j
        check_parameters(out[:used], 0, machine)
        parts = split_kernel((geometry.kh, geometry.kw), (geometry.dh, geometry.dw), geometry.fractal_lanes // geometry.lanes)
        counted = count_instructions(parts.cut, k_start, k_start + k, k, k)
        if block.pad_top <= isa.MAX_WINDOW:
            assert used == counted
        several += used > 1
        cut_along_m += bool((out[:used, isa.I_MPAD] < mpad).any())
    assert several > 50
    assert cut_along_m > 3


def test_without_room_it_says_so() -> None:
    rng = np.random.default_rng(0)
    while True:
        j, first, m, mpad, k_start, k = drawn(rng)
        if j.geometry.part_rows < j.geometry.kh:
            break
    assert load_left(np.zeros((13, isa.WORDS), np.int32), 0, np.array([j], _JOB)[0], BASE, AT, first, m, mpad, k_start, k) == -1
