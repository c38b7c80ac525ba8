"""Graphs of integers by hand: compiled, run by the simulator, and held to `ir.quantised` integer by integer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Operator, QuantisedConv, Shape
from compiler.ir.quantised.parameters import Quantisation
from compiler.kinds.build import Packed
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType
from simulator.npu.program import Program
from simulator.sanitizer import check
from tests.compiled import check_times

Array = NDArray[Any]


def quantisation(rng: np.random.Generator, dtype: DataType | None = None, scale: float | None = None) -> Quantisation:
    """Of any type of 8 bits, any zero point."""
    dtype = BYTES[rng.integers(2)] if dtype is None else dtype
    limits = np.iinfo(dtype.storage)
    zero = rng.integers(limits.min, limits.max + 1) if rng.integers(4) else 0
    return Quantisation.of(np.float32(rng.uniform(0.01, 0.1) if scale is None else scale), np.asarray(zero, dtype.storage), dtype.storage)


def conv(
    rng: np.random.Generator, y: str, x: str, channels: tuple[int, int], x_q: Quantisation, y_q: Quantisation, kernel: int = 3,
    stride: int = 1, groups: int = 1, dilation: int = 1, pad: int | None = None, **limits: int,
) -> QuantisedConv:  # fmt: skip
    """channels: (in, out); named after its output.  Scales of weights are such that few results saturate."""
    p = (kernel - 1) // 2 * dilation if pad is None else pad
    inside, out = channels[0] // groups, channels[1]
    dtype, zero = (np.uint8, 128) if rng.integers(3) == 0 else (np.int8, 0)  # 128 around it: what int8 holds
    found = np.iinfo(dtype)
    weights = rng.integers(found.min, found.max + 1, (out, inside, kernel, kernel)).astype(dtype)
    scales = rng.uniform(0.3, 1.0, out) * 0.05 / np.sqrt(inside * kernel * kernel) * float(y_q.scale[0] / x_q.scale[0])
    w_q = Quantisation.of(scales.astype(np.float32), np.full(out, zero, dtype), dtype, weights.shape, 0)
    bias = rng.integers(-5000, 5000, out).astype(np.int32)
    window = (stride, stride), (dilation, dilation), (p, p, p, p), groups
    return QuantisedConv(y, x, y, weights, bias, *window, x_q=x_q, w_q=w_q, y_q=y_q, **limits)  # type: ignore[arg-type]


def graph(shape: Shape, dtype: DataType | None, operators: Sequence[Operator], outputs: Sequence[str] | None = None) -> Graph:
    """One input "x"; the last operator's output where none is named."""
    shapes, types = {"x": shape}, {} if dtype is None else {"x": dtype}
    for op in operators:
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
        made = op.result_type([types.get(name) for name in op.inputs])
        types |= {} if made is None else {op.y: made}
    ports = tuple(Port(name, name, shapes[name]) for name in outputs or [operators[-1].y])
    found = Graph("integers", (Port("x", "x", shape),), ports, tuple(operators), shapes, "0" * 32, {}, types)
    found.verify()
    return found


def feeds_of(made: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Every integer of the type of an input, or normal values."""
    found = {}
    for port in made.inputs:
        shape = made.shapes[port.tensor]
        if port.tensor in made.types:
            limits = np.iinfo(made.types[port.tensor].storage)
            found[port.onnx_name] = rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
        else:
            found[port.onnx_name] = rng.standard_normal(shape).astype(np.float32)
    return found


def outputs_of(packed: Packed, program: Program, feeds: dict[str, Array]) -> dict[str, Array]:
    """As the NPU computes them; asserts that the program is legal, free of races, and within its bounds."""
    unit = packed.unit
    program.verify(unit.machine)
    findings = check(program, unit.machine)
    assert not findings, "; ".join(str(f) for f in findings[:3])
    check_times(program, unit.machine)
    ddr: NDArray[np.uint8] = np.full(unit.memory.size_blocks * BLOCK_BYTES, 0xFF, np.uint8)
    ddr[: len(packed.constants)] = packed.constants
    for buffer in unit.memory.of_kind("input"):
        load_input(ddr, buffer, feeds[buffer.name], unit.memory.type_of(buffer))
    execute(program, unit.machine, ddr, verify=False)
    return {b.name: read_output(ddr, b, unit.memory.type_of(b)) for b in unit.memory.of_kind("output")}


def check_integers(made: Graph, packed: Packed, program: Program, seed: int = 0) -> dict[str, Array]:
    """Assert that every output is that of the formulas, in its type; returns them."""
    feeds = feeds_of(made, np.random.default_rng(seed))
    found, expected = outputs_of(packed, program, feeds), evaluate(made, feeds)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name].reshape(values.shape), values)
    return expected
