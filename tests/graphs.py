"""Graphs by hand, for tests whose numbers are worked out on paper."""

from __future__ import annotations

import numpy as np

from compiler.ir.graph import Graph, Port
from compiler.ir.operators import Concat, Conv, Operator, Pool, Relayout, Shape, Step, Vector
from compiler.ir.operators.relayout import merge_digits, whole_digit
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import make_unit
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType


def conv(
    y: str, x: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1, pad: int | None = None, residual: str | None = None,
    groups: int = 1,
) -> Conv:  # fmt: skip
    """channels: (in, out); the padding keeps the size unless it is given.  The operator is named after its output."""
    p = (kernel - 1) // 2 if pad is None else pad
    rng = np.random.default_rng(len(y))
    inner = channels[0] // groups
    weights = rng.standard_normal((channels[1], inner, kernel, kernel)).astype(np.float32) / np.float32(kernel * inner**0.5)
    return Conv(y, x, y, weights, np.zeros(channels[1], np.float32), (stride, stride), (1, 1), (p, p, p, p), groups, residual=residual)


def max_pool(y: str, x: str, kernel: int, stride: int, pad: int = 0) -> Pool:
    return Pool(y, x, y, "max", (kernel, kernel), (stride, stride), (pad, pad, pad, pad))


def concat(y: str, *inputs: str) -> Concat:
    return Concat(y, inputs, y)


def graph(shape: Shape, operators: list[Operator], outputs: list[str] | None = None, x_q: Quantisation | None = None) -> Graph:
    """One input "x", of integers where a scale and a zero point are given; the last operator's output where none is named."""
    shapes: dict[str, Shape] = {"x": shape}
    types = {} if x_q is None else {"x": x_q}
    for op in operators:
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
        made_of = op.output_type([types.get(name) for name in op.inputs])
        types |= {} if made_of is None else {op.y: made_of}
    ports = tuple(Port(name, name, shapes[name]) for name in outputs or [operators[-1].y])
    made = Graph("by hand", (Port("x", "x", shape),), ports, tuple(operators), shapes, digest="0" * 32, types=types)
    made.verify()
    return made


def target_graph(
    machine: Machine, shape: Shape, *operators: Operator, outputs: list[str] | None = None, dtype: str = "float16"
) -> TargetGraph:
    return make_unit(graph(shape, list(operators), outputs), machine, DataType[dtype])


def gated(pixels: int, *, wide: int = 64) -> tuple[Operator, ...]:
    """A convolution, SiLU, and a gate on its channels that a mean over all pixels makes, then another convolution and SiLU."""
    silu = (Step("keep", register=0), Step("muls", -1.0), Step("exp"), Step("adds", 1.0), Step("rdiv", register=0))
    return (
        conv("a", "x", (16, wide), kernel=1),
        Vector("s", ("a",), "s", silu),
        Pool("m", "s", "m", "average", (pixels, pixels)),
        conv("f", "m", (wide, 16), kernel=1),
        conv("g", "f", (16, wide), kernel=1),
        Vector("p", ("s", "g"), "p", (Step("mul", operand=1),)),
        conv("c", "p", (wide, 256)),
        conv("d", "c", (256, 256)),
    )


def depth_to_space(name: str, x: str, y: str, shape: tuple[int, int, int, int], block: int) -> Relayout:
    """y[c, i * block + di, j * block + dj] = x[(di * block + dj) * channels of y + c, i, j].  shape: of x."""
    _, channels, h, w = shape
    pixels = whole_digit(h, 0, w), whole_digit(block, block), whole_digit(w, 0, 1), whole_digit(block, 1)
    return Relayout(name, x, y, channels // block**2, (), merge_digits(pixels), (block**2, h, w), width=w * block)
