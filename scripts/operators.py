"""Convolutions and matrix products of networks as separate models, each with all legal tilings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.cost.features import raw_features
from compiler.cost.operator_space import OperatorSpace, operator_space
from compiler.ir.operators import Conv, MatMul
from compiler.ops.conv import ConvSpec
from compiler.ops.matmul import MatMulSpec
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from scripts.studies import network
from tuner.cost_model.tiling_model import shortlist, single_block_counts
from tuner.log.digests import canonical_json
from tuner.measure.evaluator import Evaluator
from tuner.measure.npu_target import Npu

PROVEN = 0.002  # ways whose bound is not further below the best than this are not measured
BATCH = 16  # ways measured at once for each level
NEVER = 1 << 60  # cycles of what does not fit


@dataclass(frozen=True)
class Shape:
    """One convolution or matrix product [1, c_in, h, w] -> c_out."""

    c_in: int
    c_out: int
    height: int
    width: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    residual: bool = False

    def __str__(self) -> str:
        window = f" {self.kernel[0]}x{self.kernel[1]}/{self.stride[0]}" if self.kernel != (1, 1) or self.stride != (1, 1) else ""
        extra = (f" g{self.groups}" if self.groups > 1 else "") + (" +res" if self.residual else "")
        return f"{self.c_in}->{self.c_out} {self.height}x{self.width}{window}{extra}"

    @property
    def out(self) -> tuple[int, int]:
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.dilation, self.pads[:2], self.pads[2:], strict=True)
        high, wide = ((size + a + b - (k - 1) * d - 1) // s + 1 for size, k, s, d, a, b in sizes)
        return high, wide

    def save(self, path: Path) -> None:
        """A model of this operator alone, weights from a fixed seed."""
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((self.c_out, self.c_in // self.groups, *self.kernel)).astype(np.float32)
        weights /= np.float32(math.sqrt(weights[0].size))
        image, result = (1, self.c_in, self.height, self.width), (1, self.c_out, *self.out)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
        nodes = [
            helper.make_node(
                "Conv", ["x", "w"], ["c" if self.residual else "y"], name="operator", strides=self.stride, pads=self.pads,
                dilations=self.dilation, group=self.groups, kernel_shape=self.kernel,
            )
        ]  # fmt: skip
        if self.residual:
            inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, result))
            nodes.append(helper.make_node("Add", ["c", "r"], ["y"], name="sum"))
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)]
        graph = helper.make_graph(nodes, "operator", inputs, outputs, [numpy_helper.from_array(weights, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@dataclass(frozen=True)
class Product:
    """Products of two tensors, one for each head: [rows, inner] by [inner, columns]; transposed: the right one holds [columns, inner].

    Of one image; a head is a run of channels, rows are pixels.
    """

    heads: int
    rows: int
    inner: int
    columns: int
    transposed: bool

    def __str__(self) -> str:
        return f"{self.heads} x {self.rows}x{self.inner}x{self.columns}{' T' if self.transposed else ''}"

    def save(self, path: Path) -> None:
        """A model of this operator alone: heads are taken apart and put together by addresses, as in attention."""
        nodes, shapes = [], []

        def set_input(name: str, shape: Sequence[int]) -> str:
            shapes.append(numpy_helper.from_array(np.array(shape, np.int64), name))
            return name

        def split_heads(x: str, pixels: int, channels: int, order: Sequence[int]) -> str:
            nodes.append(helper.make_node("Reshape", [x, set_input(f"{x}_shape", (1, pixels, self.heads, channels))], [f"{x}_heads"]))
            nodes.append(helper.make_node("Transpose", [f"{x}_heads"], [f"{x}_apart"], perm=order))
            return f"{x}_apart"

        left_operand = split_heads("a", self.rows, self.inner, (0, 2, 1, 3))
        sizes = (self.columns, self.inner) if self.transposed else (self.inner, self.columns)
        right = split_heads("b", *sizes, (0, 2, 3, 1) if self.transposed else (0, 2, 1, 3))
        nodes.append(helper.make_node("MatMul", [left_operand, right], ["products"], name="operator"))
        nodes.append(helper.make_node("Transpose", ["products"], ["joined"], perm=(0, 2, 1, 3)))
        merged_shape = (1, self.rows, self.heads * self.columns)
        nodes.append(helper.make_node("Reshape", ["joined", set_input("shape", merged_shape)], ["y"]))
        input_shapes = {"a": (1, self.rows, self.heads * self.inner), "b": (1, sizes[0], self.heads * sizes[1])}
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in input_shapes.items()]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, merged_shape)]
        graph = helper.make_graph(nodes, "operator", inputs, outputs, shapes)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Operator:
    """Target graph of one operator with all legal tilings; measurements are cached."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph, self.levels = target_graph, tuple(target_graph.machine.contention)
        self.space: OperatorSpace = operator_space(target_graph, 0, single_block_counts(target_graph, 0))
        self.bounds = np.stack([self.space.bound(target_graph, level) for level in self.levels], 1)
        self._evaluator: Evaluator | None = None
        self._cycles: dict[int, NDArray[np.int64]] = {}

    def measure(self, i: int) -> NDArray[np.int64]:
        """Cycles per level of tiling i; `NEVER` if it does not fit UB."""
        if i not in self._cycles:
            if self._evaluator is None:
                self._evaluator = Evaluator(
                    self.target_graph, self.levels, Npu(self.target_graph, self.levels, cache_bytes=1)
                )  # no way is measured twice
            cycles = self._evaluator.cycles_alone(self.space.plan(i), 0)
            self._cycles[i] = np.full(len(self.levels), NEVER) if cycles is None else cycles
        return self._cycles[i]

    def release(self) -> None:
        """Free the memory used for measuring: tens of megabytes."""
        self._evaluator = None

    def features(self, indices: Sequence[int]) -> NDArray[np.float64]:
        return np.stack([raw_features(self.target_graph, self.space.plan(i), 0) for i in indices])

    def shortlist(self) -> list[int]:
        indices: list[int] = shortlist(self.target_graph, self.space, self.levels).tolist()
        return indices


@dataclass(frozen=True)
class Optimum:
    """cycles, unproven: per level the best way, and by how much another one could be faster at most."""

    cycles: NDArray[np.int64]
    measured: int
    unproven: NDArray[np.float64]


def exhaustive(operator: Operator, cap: int) -> Optimum:
    """Measure tilings, best first by bound and estimate, until no remaining bound is below the best of a level, or `cap` are measured."""
    bounds, estimate = operator.bounds, operator.space.estimate
    expected = np.maximum(bounds, estimate[:, None])
    order = [np.lexsort((estimate, expected[:, level])) for level in range(bounds.shape[1])]
    best, remaining_rows, measured = np.full(bounds.shape[1], NEVER), np.ones(len(bounds), np.bool_), 0
    while measured < cap:
        for level in range(len(order)):
            order[level] = order[level][remaining_rows[order[level]] & (bounds[order[level], level] < best[level] * (1 - PROVEN))]
        batch = dict.fromkeys(i for rows in order for i in rows[:BATCH].tolist())
        if not batch:
            break
        for i in batch:
            best = np.minimum(best, operator.measure(i))
            remaining_rows[i] = False
        measured += len(batch)
    slack = [
        max(PROVEN, 1 - float(bounds[rows[remaining_rows[rows]], level].min(initial=best[level])) / best[level])
        for level, rows in enumerate(order)
    ]
    return Optimum(best, measured, np.array(slack))


def operator_shape(target_graph: TargetGraph, spec: TargetOp) -> Shape | Product | None:
    """The shape of a convolution or matrix product of one image; None for other operators."""
    kernel = spec.operator
    if isinstance(spec, MatMulSpec) and isinstance(kernel, MatMul) and target_graph.images == 1:
        left_operand, right = target_graph.graph.shapes[kernel.a][1] // spec.groups, target_graph.graph.shapes[kernel.b][1] // spec.groups
        columns = spec.pixels if spec.transposed else right
        return Product(spec.groups, spec.out_h * spec.out_w, left_operand, columns, spec.transposed)
    if not isinstance(spec, ConvSpec) or not isinstance(kernel, Conv) or target_graph.storages[0].n > 1:
        return None
    c_out, c_in = kernel.weights.shape[:2]
    window = (kernel.weights.shape[2], kernel.weights.shape[3])
    # negative padding, rows and columns that are not read, is no padding that ONNX knows
    top, left_operand, bottom, right = (min(0, pad) for pad in kernel.pads)
    pads = (kernel.pads[0] - top, kernel.pads[1] - left_operand, kernel.pads[2] - bottom, kernel.pads[3] - right)
    high, wide = spec.in_h + top + bottom, spec.in_w + left_operand + right
    return Shape(
        c_in * kernel.groups, c_out, high, wide, window, kernel.stride, kernel.dilation, pads, kernel.groups, spec.residual is not None
    )  # fmt: skip


def save_model(shape: Shape | Product, folder: Path) -> Path:
    """The file of an operator alone."""
    path = folder / f"{str(shape).replace('/', 's').replace(' ', '_')}.onnx"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shape.save(path)
    return path


def count_operators(networks: Sequence[str], machine: str) -> dict[Shape | Product, Counter[str]]:
    """Distinct convolutions and matrix products of networks -> number of occurrences by network."""
    counts: dict[Shape | Product, Counter[str]] = {}
    shape_by_structure: dict[str, Shape | Product] = {}
    for name in networks:
        target_graph = network(name, machine)
        for spec in target_graph.operators:
            shape = operator_shape(target_graph, spec)
            if shape is not None:
                structure = canonical_json(spec.signature(target_graph.storages))
                first_shape = shape_by_structure.setdefault(structure, shape)
                counts.setdefault(first_shape, Counter())[name] += 1
    return counts
