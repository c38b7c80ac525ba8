"""Graphs of integers by hand, and what they mean by `ir.quantised`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.ir.graph import Graph
from compiler.ir.interpret import evaluate
from compiler.ir.operators import QuantisedConv
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import pack_unit
from simulator.npu.machine import Machine
from simulator.npu.parts import BYTES, DataType
from tests.compiled import Case

Array = NDArray[Any]


def quantisation(rng: np.random.Generator, dtype: DataType | None = None, scale: float | None = None) -> Quantisation:
    """Of any type of 8 bits, any zero point."""
    dtype = BYTES[rng.integers(2)] if dtype is None else dtype
    limits = np.iinfo(dtype.storage)
    zero = rng.integers(limits.min, limits.max + 1) if rng.integers(4) else 0
    return Quantisation.of(np.float32(rng.uniform(0.01, 0.1) if scale is None else scale), np.asarray(zero, dtype.storage), dtype.storage)


def conv(
    rng: np.random.Generator, y: str, x: str, channels: tuple[int, int], x_q: Quantisation, y_q: Quantisation, kernel: int = 3,
    stride: int = 1, groups: int = 1, dilation: int = 1, pad: int | None = None,
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
    return QuantisedConv(y, x, y, weights, bias, x_q, w_q, y_q, *window)


def feeds_of(made: Graph, rng: np.random.Generator, dtype: DataType) -> dict[str, Array]:
    """Every integer of the type of an input, or normal values that floats of a type hold."""
    found = {}
    for port in made.inputs:
        shape = made.shapes[port.tensor]
        if port.tensor in made.types:
            limits = np.iinfo(made.types[port.tensor].dtype.name)
            found[port.onnx_name] = rng.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
        else:
            found[port.onnx_name] = rng.standard_normal(shape).astype(dtype.storage).astype(np.float32)
    return found


def case_of(made: Graph, machine: Machine, dtype: DataType = DataType.float16, seed: int = 0) -> Case:
    """The graph compiled for a machine, its inputs, and what it means."""
    target_graph, constants = pack_unit(made, machine, dtype)
    feeds = feeds_of(made, np.random.default_rng(seed), dtype)
    return Case(ModelProto(), target_graph, constants, feeds, evaluate(made, feeds))
