"""The graph after the frontend and the rewrites: few operators, logical shapes, float32 constants.

Every tensor is (n, c, h, w): a vector [n, c] is (n, c, 1, 1).  Where values lie (planes, lanes, concatenation as addresses) is the
layout's business (`compiler.ir.layout`); in which data type they are computed is chosen later still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from compiler.ir.taps import Taps

Shape = tuple[int, int, int, int]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Conv:
    """y = activation(conv(x, weights) + bias + residual).  Also Gemm and MatMul (a kernel as large as the image)."""

    name: str
    x: str
    y: str
    weights: Floats  # [c_out, c_in / groups, kh, kw]
    bias: Floats  # [c_out]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    groups: int = 1
    activation: Literal["none", "relu", "clip"] = "none"
    residual: str | None = None
    limit: float = 0.0  # clip: min(relu, limit)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)


@dataclass(frozen=True, eq=False)
class Pool:
    """Max or average over a window.  Global pooling is a kernel as large as the image."""

    name: str
    x: str
    y: str
    mode: Literal["max", "average"]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    count_include_pad: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


StepOp = Literal[
    "scale_shift", "relu", "exp", "ln", "sqrt", "reciprocal", "square", "adds", "muls", "maxs", "mins",
    "add", "sub", "mul", "div", "max", "min", "rsub", "rdiv", "keep", "take",
    "gelu", "erf",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an element-wise chain on the running value v.

    scale_shift: v * scale[c] + shift[c].  adds, muls, maxs, mins: with `value`.  add, sub, mul, div, max, min: v op other.
    rsub, rdiv: other op v.  take: v becomes other.  other: inputs[operand], or what `keep` put aside last under the number `kept`.
    gelu: v * (1 + erf(v / sqrt 2)) / 2.
    """

    op: StepOp
    value: float = 0.0
    operand: int = -1
    kept: int = -1
    scale: Floats | None = None  # [c]
    shift: Floats | None = None  # [c]


@dataclass(frozen=True, eq=False)
class Vector:
    """An element-wise chain: v starts as inputs[0], every step changes it, y is the last v.

    inputs[0] and y have one shape; each other input has it as well, or is one pixel (n, c, 1, 1) that goes with all of them.
    """

    name: str
    inputs: tuple[str, ...]
    y: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Over the channels, or over each of `groups` equal runs of them, at every pixel."""

    name: str
    x: str
    y: str
    groups: int = 1

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, mean and variance over the channels, at every pixel."""

    name: str
    x: str
    y: str
    scale: Floats  # [c]
    shift: Floats  # [c]
    epsilon: float

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class MatMul:
    """Product of two computed tensors, whose channels are `heads` equal runs, in every head g at every pixel p of a.

    transposed: y[g][j, p] = sum over channels i of a[g][i, p] * b[g][i, pixel j]: as many channels a head as b has pixels.
    Else y[g][j, p] = sum over pixels s of b of a[g][s, p] * b[g][j, pixel s]: a has as many channels a head as b has pixels.
    """

    name: str
    a: str
    b: str
    y: str
    heads: int
    transposed: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, eq=False)
class Reflow:
    """The pixels of x, row after row, as an image of other height and width: zero in `before` pixels first and in what is left;
    what has no place any more is left out.

    of, size: height and width of x and of y.
    """

    name: str
    x: str
    y: str
    of: tuple[int, int]
    size: tuple[int, int]
    before: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Resample:
    """Rows and columns taken anew: y[i, j] = sum of weights * x[source row, source column] over rows.taps[i] and columns.taps[j].

    A row or a column without taps is `fill`.  Slices, padding of every kind, resizing and inserted zeros are this.
    """

    name: str
    x: str
    y: str
    rows: Taps
    columns: Taps
    fill: float = 0.0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Concat:
    """Along the channels.  No instructions: the layout gives the inputs places side by side."""

    name: str
    inputs: tuple[str, ...]
    y: str


@dataclass(frozen=True, eq=False)
class Shuffle:
    """Channel i of y is channel order[i] of x, each at most once.  No instructions: the layout relabels lanes.

    A run of channels out of x is a part of x, with planes of its own; other selections become a Conv (`select-by-conv`).
    """

    name: str
    x: str
    y: str
    order: tuple[int, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


Kernel = Conv | Pool | Vector | Softmax | LayerNorm | MatMul | Reflow | Resample  # those that become instructions
Operator = Kernel | Concat | Shuffle


@dataclass(frozen=True)
class Port:
    """An input or output of the model: the tensor, and the name and shape that the ONNX file gives it.

    order: the permutation of (n, c, h, w) in which ONNX has the values, row-major.
    """

    tensor: str
    onnx_name: str
    onnx_shape: tuple[int, ...]
    order: tuple[int, int, int, int] = (0, 1, 2, 3)

    def from_onnx(self, array: NDArray[np.float32], shape: Shape) -> Floats:
        """The model's values as (n, c, h, w)."""
        inverse = np.argsort(self.order)
        return array.reshape([shape[axis] for axis in self.order]).transpose(inverse)

    def to_onnx(self, values: Floats) -> Floats:
        """(n, c, h, w) as the model's values."""
        return values.transpose(self.order).reshape(self.onnx_shape)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operators in a topological order; `shapes` has every tensor.

    constants: values [1 | n, c, h, w] of tensors that nobody computes; element-wise operators and residuals read them.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[Operator, ...]
    shapes: dict[str, Shape] = field(repr=False)
    digest: str = ""  # 32 hex digits over the model file's bytes (and the given shapes)
    constants: dict[str, Floats] = field(default_factory=dict, repr=False)

    def producers(self) -> dict[str, Operator]:
        return {op.y: op for op in self.operators}

    def consumers(self) -> dict[str, list[Operator]]:
        out: dict[str, list[Operator]] = {name: [] for name in self.shapes}
        for op in self.operators:
            for name in op.inputs:
                out[name].append(op)
        return out

    def verify(self) -> None:
        """Raise ValueError where an input is not produced before its use, a shape is missing or does not follow from its inputs'."""
        known = {port.tensor for port in self.inputs} | set(self.constants)
        for op in self.operators:
            for name in op.inputs:
                if name not in known:
                    raise ValueError(f"{op.name}: input {name!r} is not produced before it")
            if op.y in known:
                raise ValueError(f"{op.name}: output {op.y!r} is produced twice")
            if isinstance(op, Vector):
                n, c, h, w = self.shapes[op.inputs[0]]
                for name in op.inputs[1:]:
                    if self.shapes[name] not in ((n, c, h, w), (n, c, 1, 1)):
                        raise ValueError(f"{op.name}: input {name!r} of shape {self.shapes[name]} beside {(n, c, h, w)}")
            expected = output_shape(op, [self.shapes[name] for name in op.inputs])
            if self.shapes.get(op.y) != expected:
                raise ValueError(f"{op.name}: output {op.y!r} has shape {self.shapes.get(op.y)}, expected {expected}")
            known.add(op.y)
        for port in self.outputs:
            if port.tensor not in known:
                raise ValueError(f"output {port.onnx_name!r}: tensor {port.tensor!r} is never produced")


def with_inputs(op: Operator, names: Sequence[str]) -> Operator:
    """The operator reading other tensors, in the order of `op.inputs`."""
    if tuple(names) == op.inputs:
        return op
    if isinstance(op, Conv):
        return replace(op, x=names[0], residual=names[1] if len(names) > 1 else None)
    if isinstance(op, Vector | Concat):
        return replace(op, inputs=tuple(names))
    if isinstance(op, MatMul):
        return replace(op, a=names[0], b=names[1])
    return replace(op, x=names[0])


def window_size(size: int, kernel: int, stride: int, dilation: int, pad_before: int, pad_after: int) -> int:
    """Output size of a sliding window along one axis (floor; a ceil-mode pool has larger `pad_after`)."""
    return (size + pad_before + pad_after - (kernel - 1) * dilation - 1) // stride + 1


def output_shape(op: Operator, inputs: list[Shape]) -> Shape:
    """Logical shape of an operator's output."""
    n, c, h, w = inputs[0]
    if isinstance(op, Conv | Pool):
        kernel = op.weights.shape[2:] if isinstance(op, Conv) else op.kernel
        dilation = op.dilation if isinstance(op, Conv) else (1, 1)
        top, left, bottom, right = op.pads
        channels = op.weights.shape[0] if isinstance(op, Conv) else c
        return (
            n,
            channels,
            window_size(h, kernel[0], op.stride[0], dilation[0], top, bottom),
            window_size(w, kernel[1], op.stride[1], dilation[1], left, right),
        )
    if isinstance(op, Shuffle):
        return (n, len(op.order), h, w)
    if isinstance(op, Reflow):
        return (n, c, *op.size)
    if isinstance(op, MatMul):
        _, channels, rows, columns = inputs[1]
        return (n, op.heads * rows * columns if op.transposed else channels, h, w)
    if isinstance(op, Resample):
        return (n, c, len(op.rows), len(op.columns))
    if isinstance(op, Concat):
        return (n, sum(shape[1] for shape in inputs), h, w)
    return inputs[0]
