"""Operators of a graph as kernels of a unit: shapes in blocks, packed weights, steps of VECTOR."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Conv, Kernel, LayerNorm, MatMul, Pool, Reflow, Resample, Softmax, Vector
from compiler.ir.im2col import beyond
from compiler.ir.layout import Layout, Placement
from compiler.kinds.chain import VectorSpec
from compiler.kinds.conv import ConvSpec
from compiler.kinds.matmul import MatMulSpec
from compiler.kinds.norm import LayerNormSpec
from compiler.kinds.padding_lanes import GUARD, Values, guarded
from compiler.kinds.pool import PoolSpec
from compiler.kinds.reflow import ReflowSpec
from compiler.kinds.resample import ResampleSpec
from compiler.kinds.softmax import SoftmaxSpec
from compiler.unit import weights
from compiler.unit.constants import Constants
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import Piece
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.machine import DataType

ITSELF = -2  # the operand of a square
_STEP_OPS = {
    "relu": Op.VRELU, "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "reciprocal": Op.VRECIPROCAL, "square": Op.VMUL,
    "adds": Op.VADDS, "muls": Op.VMULS, "maxs": Op.VMAXS, "mins": Op.VMINS, "scale_shift": Op.VMADD,
    "add": Op.VADD, "sub": Op.VSUB, "mul": Op.VMUL, "div": Op.VDIV, "max": Op.VMAX, "min": Op.VMIN,
    "rsub": Op.VSUB, "rdiv": Op.VDIV, "keep": Op.VCOPY, "take": Op.VCOPY,
}  # fmt: skip
_SWAPPED = ("rsub", "rdiv", "keep")


_Base = tuple[int, str, Kernel, tuple[Piece, ...], Piece, int, int, int, int]  # the fields of KernelSpec, in order


def kernel_spec(
    index: int,
    op: Kernel,
    layout: Layout,
    piece: Callable[[str], Piece],
    constants: Constants,
    dtype: DataType,
    gap_values: dict[str, Values],
) -> KernelSpec:
    """piece: where a tensor lies.  gap_values: what lanes without a channel of every tensor may hold."""
    shapes = layout.graph.shapes
    x, y = layout.placements[op.inputs[0]], layout.placements[op.y]
    _, _, in_h, in_w = shapes[op.inputs[0]]
    _, _, out_h, out_w = shapes[op.y]
    base: _Base = (index, op.name, op, tuple(piece(name) for name in op.inputs), piece(op.y), in_h, in_w, out_h, out_w)
    if isinstance(op, Conv):
        if why := beyond(op):
            raise UnsupportedError(f"operator {op.name!r}: {why}")
        return _conv_spec(base, op, x, y, layout, constants, dtype)
    if isinstance(op, Pool):
        counts = -1
        if op.mode == "average" and any(op.pads) and not op.count_include_pad:
            counts = constants.add(f"{op.name}/counts", weights.pack_pixels(_inverse_counts(op, in_h, in_w, out_h, out_w), dtype))
        return PoolSpec(*base, counts_at=counts, counts_pitch=out_w)
    if isinstance(op, MatMul):
        return _matmul_spec(base, op, layout, dtype)
    if isinstance(op, Reflow):
        return ReflowSpec(*base, before=op.before)
    gaps = tuple(p for p in range(y.planes) if not _full(y, p, dtype.lanes)) if isinstance(op, Softmax | LayerNorm) else ()
    if isinstance(op, Softmax):
        mask = weights.pack_lanes(np.zeros(len(y.lanes), np.float32), y, dtype, gap=float(np.finfo(weights.numpy_type(dtype)).min))
        return SoftmaxSpec(*base, groups=op.groups, masks_at=constants.add(f"{op.name}/mask", mask), gaps=gaps)
    if isinstance(op, LayerNorm):
        parts = [weights.pack_lanes(values, y, dtype) for values in (op.scale, op.shift, np.ones_like(op.scale))]
        at = constants.add(f"{op.name}/constants", np.concatenate(parts))
        return LayerNormSpec(*base, channels=len(op.scale), epsilon=op.epsilon, constants_at=at, gaps=gaps)
    if isinstance(op, Resample):
        columns, rows = (np.zeros((0, 7), np.int64) if t.is_identity(size) else t.runs for t, size in ((op.columns, in_w), (op.rows, in_h)))
        return ResampleSpec(*base, columns=columns, rows=rows, bounds=op.rows.bounds)
    assert isinstance(op, Vector)
    steps = _steps(op, y, constants, dtype, [gap_values[name] for name in op.inputs])
    return VectorSpec(*base, steps=steps, pixels=tuple(shapes[name] != shapes[op.y] for name in op.inputs))


def _full(placement: Placement, plane: int, c0: int) -> bool:
    return sum(1 for lane in placement.lanes if lane // c0 == plane) == c0


def add_family(family: tuple[Conv, ...], layout: Layout, constants: Constants, dtype: DataType) -> None:
    """Weights of sibling convolutions one after the other, then their biases: those of one convolution that makes all of them."""
    places = [(op, layout.placements[op.x], layout.placements[op.y]) for op in family]
    constants.add_joined([(f"{op.name}/weights", weights.pack_conv(op, x, y, 1, dtype, _lanes(x, layout, dtype))) for op, x, y in places])
    constants.add_joined([(f"{op.name}/bias", weights.pack_bias(op.bias, y, dtype)) for op, _, y in places])


def _lanes(x: Placement, layout: Layout, dtype: DataType) -> int:
    return 4 if layout.storages[x.storage].pixel_lanes == 4 else dtype.lanes


def _conv_spec(base: _Base, op: Conv, x: Placement, y: Placement, layout: Layout, constants: Constants, dtype: DataType) -> ConvSpec:
    c0 = dtype.lanes
    lanes = _lanes(x, layout, dtype)
    groups = 1 if lanes == 4 else weights.effective_groups(op, x, y, c0)
    taps = op.weights.shape[2] * op.weights.shape[3]
    c1 = x.planes // groups
    k1 = -(-taps * 4 // c0) if lanes == 4 else c1 * taps
    packed = weights.pack_conv(op, x, y, groups, dtype, lanes)
    return ConvSpec(
        *base,
        groups=groups,
        c1=c1,
        k1=k1,
        n1=y.planes * c0 // 16 // groups,
        lanes=lanes,
        weights_at=constants.add(f"{op.name}/weights", packed),
        bias_at=constants.add(f"{op.name}/bias", weights.pack_bias(op.bias, y, dtype)),
    )


def _matmul_spec(base: _Base, op: MatMul, layout: Layout, dtype: DataType) -> MatMulSpec:
    a, y = layout.placements[op.a], layout.placements[op.y]
    _, channels, h, w = layout.graph.shapes[op.b]
    pixels, heads = h * w, op.heads
    return MatMulSpec(
        *base,
        groups=heads,
        c1=a.planes // heads,
        k1=a.planes // heads if op.transposed else -(-pixels // dtype.lanes),
        n1=y.planes * dtype.lanes // 16 // heads,
        lanes=dtype.lanes,
        weights_at=-1,
        bias_at=-1,
        pixels=pixels,
        transposed=op.transposed,
        per_pixel=channels * pixels,
    )


def _steps(op: Vector, y: Placement, constants: Constants, dtype: DataType, gaps: list[Values]) -> NDArray[np.int64]:
    steps, guard = guarded(op, gaps, weights.numpy_type(dtype))
    aside = len(op.inputs) + any(step.operand == 0 for step in steps)
    rows = []
    if guard:
        one = np.ones(len(y.lanes), np.float32)
        scale = constants.add(f"{op.name}/guard_scale", weights.pack_lanes(one, y, dtype))
        shift = constants.add(f"{op.name}/guard_shift", weights.pack_lanes(0 * one, y, dtype, gap=GUARD))
        rows.append((int(Op.VMADD), 0, -1, scale, shift, 0))
    for i, step in enumerate(steps):
        scale = shift = -1
        if step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            scale = constants.add(f"{op.name}/scale{i}", weights.pack_lanes(step.scale, y, dtype))
            shift = constants.add(f"{op.name}/shift{i}", weights.pack_lanes(step.shift, y, dtype))
        other = ITSELF if step.op == "square" else step.operand if step.kept < 0 else aside + step.kept
        rows.append((int(_STEP_OPS[step.op]), float_bits(step.value), other, scale, shift, int(step.op in _SWAPPED)))
    return np.array(rows, np.int64).reshape(len(rows), 6)


def _inverse_counts(op: Pool, in_h: int, in_w: int, out_h: int, out_w: int) -> NDArray[np.float32]:
    """1 / number of elements inside the image, per output pixel."""

    def inside(size: int, out: int, kernel: int, stride: int, pad: int) -> NDArray[np.int64]:
        start = np.arange(out) * stride - pad
        return np.minimum(start + kernel, size) - np.maximum(start, 0)

    rows = inside(in_h, out_h, op.kernel[0], op.stride[0], op.pads[0])
    columns = inside(in_w, out_w, op.kernel[1], op.stride[1], op.pads[1])
    return (1.0 / np.maximum(1, rows[:, None] * columns[None, :])).astype(np.float32)
