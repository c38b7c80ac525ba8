"""Depthwise convolutions of which VECTOR makes some channels compute what they are meant to, in tiles of every shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto

from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, Operator
from compiler.kinds.build import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, VectorShare, VectorTiling
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program
from tests.graphs import conv, graph

EDGE = load_machine("edge")


def random_depthwise(rng: np.random.Generator, channels: int, h: int, w: int) -> Conv:
    """Windows smaller and larger than their strides, far apart, with any padding, and any activation."""
    kernel = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    dilation = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    sizes = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = [int(rng.integers(0, size + 1)) for size in (*sizes, *sizes)]
    for axis, length in enumerate((h, w)):  # at least one window
        pads[2 + axis] = max(pads[2 + axis], sizes[axis] - length - pads[axis])
    weights = rng.standard_normal((channels, 1, *kernel)).astype(np.float16).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32) * int(rng.integers(2))
    act, stride = ("none", "relu", "clip")[int(rng.integers(3))], (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    return Conv("d", "a", "d", weights, bias, stride, dilation, tuple(pads), channels, act, limit=2.0 if act == "clip" else 0.0)  # type: ignore[arg-type]


def random_tiling(rng: np.random.Generator, planes: int, rows: int, columns: int) -> VectorTiling:
    """Some planes by some rows, or one row's columns."""
    if columns > 1 and rng.integers(3) == 0:
        return VectorTiling(tile_planes=int(rng.integers(1, planes + 1)), tile_rows=1, tile_columns=int(rng.integers(1, columns)))
    return VectorTiling(tile_planes=int(rng.integers(1, planes + 1)), tile_rows=int(rng.integers(1, rows + 1)))


def test_random_shares() -> None:
    """Of the first operator, one in the middle and the last one of a segment, in blocks that keep their halo or do not, in strips too."""
    rng = np.random.default_rng(0)
    made = 0
    while made < 60:
        planes, h, w = int(rng.integers(2, 7)), int(rng.integers(1, 24)), int(rng.integers(1, 24))
        channels = 16 * planes - int(rng.integers(0, 16))
        op = random_depthwise(rng, channels, h, w)
        before, behind = bool(rng.integers(2)), bool(rng.integers(2))
        inner: list[Operator] = [conv("a", "x", (16, channels), 1), op] if before else [replace(op, x="x")]
        chain = [*inner, conv("y", "d", (channels, 16), 1)] if behind else inner
        shape = int(rng.integers(1, 3)), 16 if before else channels, h, w
        g = graph(shape, chain)
        u, constants = pack_unit(g, EDGE, DataType.float16)
        out = u.operators[-1]
        gene = Gene(0, len(chain), blocks=int(rng.integers(1, out.out_h + 1)), cached=-int(rng.integers(2)), sliding=bool(rng.integers(2)))
        at = int(before)
        share, spec = int(rng.integers(1, planes)), u.operators[at]
        plan = decode(u, gene._replace(on_vector=tuple(share * (k == at) for k in range(len(chain)))))
        if plan is None:
            continue
        tiling = random_tiling(rng, share, spec.out_h, spec.out_w)
        columns = int(rng.integers(1, 4))
        plan = plan.model_copy(
            update={"on_vector": (VectorShare(operator="d", planes=share, tiling=tiling),), "columns": min(columns, out.out_w)}
        )
        program = Compiler(u).compile(plan_of(u, [plan]))
        if isinstance(program, Infeasible):
            assert columns > 1 or "UB" in str(program), program
            continue
        x = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        check_program(Case(ModelProto(), u, constants, {"x": x}, evaluate(g, {"x": x})), program, 8e-3)
        made += 1
