"""What emission and search need of a model on a machine, as numbers: storages, kernels, addresses of constants.

`Unit` is made once per (graph, machine, data type) and shared by every plan, candidate and variant: its DDR addresses never depend on
a plan, so variants can be switched by their start address alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.emit import weights
from compiler.ir.graph import Concat, Conv, Graph, Kernel, LayerNorm, MatMul, Pool, Reflow, Resample, Shuffle, Softmax, Vector
from compiler.ir.layout import Layout, Placement, assign
from compiler.ir.taps import input_rows
from compiler.tile.curves import with_curves
from compiler.tile.gaps import GUARD, Values, guarded, output_gaps
from compiler.tile.machine import check_machine
from simulator.npu.isa import Op, float_bits
from simulator.npu.machine import BLOCK_BYTES, DataType, Machine
from simulator.npu.program import DdrBuffer, MemoryMap

ITSELF = -2  # the operand of a square
_ALIGN_BLOCKS = 4  # 128 bytes: a DRAM burst of any preset


@dataclass(frozen=True)
class _Shaped:
    """Stands for weights whose values do not matter."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Piece(NamedTuple):
    """Planes [plane, plane + planes) of a storage."""

    storage: int
    plane: int
    planes: int

    def overlaps(self, other: Piece) -> bool:
        return self.storage == other.storage and self.plane < other.plane + other.planes and other.plane < self.plane + self.planes


@dataclass(frozen=True)
class StorageSpec:
    """A storage: [n][planes][h] rows of `row_blocks` blocks at DDR block `address`."""

    name: str
    n: int
    planes: int
    h: int
    w: int
    row_blocks: int
    address: int

    @property
    def plane_blocks(self) -> int:
        return self.h * self.row_blocks

    @property
    def image_blocks(self) -> int:
        return self.planes * self.plane_blocks

    def image_at(self, image: int) -> int:
        """Block of an image; a constant of one image serves all."""
        return self.address + (image * self.image_blocks if self.n > 1 else 0)


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """What every kernel has.  reads[0] is the main input; `signature` says what its cost depends on."""

    index: int
    name: str
    kernel: Kernel
    reads: tuple[Piece, ...]
    y: Piece
    in_h: int
    in_w: int
    out_h: int
    out_w: int

    @property
    def macs(self) -> int:
        return 0


class Window(NamedTuple):
    """A convolution's window: kernel, stride, dilation, padding."""

    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, eq=False)
class ConvSpec(KernelSpec):
    """groups products of [pixels x k1 blocks] by [k1 x n1 * 16 channels]; c1 input planes per group.  A Conv, or a MatMul (below).

    lanes: C0, or 4 for a four-lane image.  weights_at, bias_at: DDR blocks.
    """

    groups: int
    c1: int
    k1: int
    n1: int
    lanes: int
    weights_at: int
    bias_at: int

    @property
    def weight_blocks(self) -> int:
        return self.groups * self.n1 * self.k1 * 16

    @property
    def bias_blocks(self) -> int:
        return self.groups * self.n1 * 2

    @property
    def residual(self) -> Piece | None:
        return self.reads[1] if len(self.reads) > 1 else None

    @property
    def window(self) -> Window:
        conv = self.kernel
        assert isinstance(conv, Conv)
        kh, kw = conv.weights.shape[2:]
        return Window(kh, kw, *conv.stride, *conv.dilation, *conv.pads)

    @property
    def activation(self) -> str:
        return self.kernel.activation if isinstance(self.kernel, Conv) else "none"

    @property
    def limit(self) -> float:
        """Of the activation `clip`."""
        return self.kernel.limit if isinstance(self.kernel, Conv) else 0.0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the model, without any padding."""
        assert isinstance(self.kernel, Conv)
        return self.out_h * self.out_w * int(self.kernel.weights.size)


@dataclass(frozen=True, eq=False)
class MatMulSpec(ConvSpec):
    """A product whose right operand is reads[1], all of whose `pixels` lie in L1: a 1x1 convolution without bias, weights always resident.

    per_pixel: multiply-accumulates of one pixel.
    """

    pixels: int
    transposed: bool
    per_pixel: int

    @property
    def weight_blocks(self) -> int:
        return 0

    @property
    def bias_blocks(self) -> int:
        return 0

    @property
    def residual(self) -> Piece | None:
        return None

    @property
    def window(self) -> Window:
        return Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)

    @property
    def macs(self) -> int:
        return self.out_h * self.out_w * self.per_pixel


@dataclass(frozen=True, eq=False)
class PoolSpec(KernelSpec):
    """counts_at: DDR blocks [out_h][out_w] of 1 / number of elements, or -1 where one factor serves every pixel."""

    counts_at: int


@dataclass(frozen=True, eq=False)
class VectorSpec(KernelSpec):
    """steps: int64 [s, 6] of (opcode, immediate bits, buffer of the other operand (-1: none, -2: v itself), scale blocks or -1, shift
    blocks or -1, 1 where v and the other change places).  VCOPY with a buffer takes v from there; with places changed it keeps v there.

    pixels: which inputs are one pixel of every channel.
    Buffers of a tile: the inputs, v where `keeps_input` (else it is the first input), and what is put aside.
    """

    steps: NDArray[np.int64]
    pixels: tuple[bool, ...]

    @property
    def keeps_input(self) -> bool:
        """Whether a later step reads the first input again, so that v needs a buffer of its own."""
        return bool((self.steps[:, 2] == 0).any())

    @property
    def buffers(self) -> int:
        """Tiles in UB that the chain works on."""
        return max(len(self.reads) + self.keeps_input, int(self.steps[:, 2].max(initial=-1)) + 1)


@dataclass(frozen=True, eq=False)
class SoftmaxSpec(KernelSpec):
    """masks_at: DDR blocks [planes], 0 in lanes that are channels and very negative in gaps; gaps: planes that have any."""

    groups: int
    masks_at: int
    gaps: tuple[int, ...]

    @property
    def group_planes(self) -> int:
        return self.y.planes // self.groups


@dataclass(frozen=True, eq=False)
class LayerNormSpec(KernelSpec):
    """constants_at: DDR blocks [3][planes] of scale, shift, and 1 in lanes that are channels; gaps: planes that have lanes that are not."""

    channels: int
    epsilon: float
    constants_at: int
    gaps: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ReflowSpec(KernelSpec):
    """before: pixels of zeros in front of the first one."""

    before: int


@dataclass(frozen=True, eq=False)
class ResampleSpec(KernelSpec):
    """Columns first, then rows.

    columns, rows: `Taps.runs`, empty where every place stays; bounds: int64 [out_h, 2], `Taps.bounds` of the rows.
    """

    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def weighted(self) -> bool:
        """Whether a place is the sum of several, so that products need a place of their own."""
        return bool(self.columns[:, 6].any() or self.rows[:, 6].any())

    @lru_cache(maxsize=256)  # noqa: B019  a spec lives as long as its unit
    def input_rows(self, rows: int) -> int:
        """The most rows of input that `rows` neighbouring rows of output come from."""
        return int(input_rows(self.bounds, rows))

    def slot_blocks(self, planes: int, rows: int) -> int:
        """Blocks of UB for a tile: input, columns done, rows done, products."""
        middle = self.input_rows(rows) * self.out_w if len(self.columns) else 0
        last = rows * self.out_w if len(self.rows) or not len(self.columns) else 0
        return planes * (self.input_rows(rows) * self.in_w + middle + last + (max(middle, last) if self.weighted else 0))


AnySpec = ConvSpec | PoolSpec | VectorSpec | SoftmaxSpec | LayerNormSpec | ReflowSpec | ResampleSpec


@dataclass(frozen=True, eq=False)
class Unit:
    """A model on a machine in a data type."""

    graph: Graph
    layout: Layout
    machine: Machine
    dtype: DataType
    storages: tuple[StorageSpec, ...]
    kernels: tuple[AnySpec, ...]
    memory: MemoryMap
    constants: NDArray[np.uint8]
    producers: dict[int, tuple[int, ...]]  # kernel -> kernels whose output it reads
    consumers: dict[int, tuple[int, ...]]  # kernel -> kernels that read its output
    escapes: frozenset[int]  # kernels whose output the host reads

    @property
    def images(self) -> int:
        """n of every tensor."""
        return self.storages[0].n

    @property
    def macs(self) -> int:
        return sum(spec.macs for spec in self.kernels) * self.images

    def without_values(self) -> Unit:
        """The same unit without weights: all that planning, emission and timing need, small enough to send to every worker."""
        convs = [op for op in self.graph.operators if isinstance(op, Conv)]
        light = {id(op): replace(op, weights=_Shaped(op.weights.shape)) for op in convs}  # type: ignore[arg-type]

        def stripped(op: Any) -> Any:
            return light.get(id(op), op)

        graph = replace(self.graph, operators=tuple(stripped(op) for op in self.graph.operators), constants={})
        kernels = tuple(replace(spec, kernel=stripped(spec.kernel)) for spec in self.kernels)
        layout = replace(self.layout, graph=graph)
        return replace(self, graph=graph, layout=layout, kernels=kernels, constants=np.zeros(0, np.uint8))

    @property
    def digest(self) -> str:
        """32 hex: the computation without its weights' values, the machine and the data type."""
        parts = [self.machine.digest, self.dtype.name]
        parts += [json.dumps(signature(self, spec), sort_keys=True) for spec in self.kernels]
        parts += [f"{s.name}:{s.n}:{s.planes}:{s.h}:{s.w}:{s.address}" for s in self.storages]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def signature(unit: Unit, spec: AnySpec) -> dict[str, object]:
    """What an operator's cost depends on, apart from its block and its tiling: the key under which tasks are shared."""
    out: dict[str, object] = {
        "type": type(spec).__name__,
        "in": [spec.in_h, spec.in_w],
        "out": [spec.out_h, spec.out_w],
        "planes": [[piece.planes, unit.storages[piece.storage].planes] for piece in (*spec.reads, spec.y)],
    }
    kernel = spec.kernel
    if isinstance(spec, ConvSpec):
        out |= {"groups": spec.groups, "c1": spec.c1, "k1": spec.k1, "n1": spec.n1, "lanes": spec.lanes}
        out |= {"window": [*spec.window], "act": spec.activation}
        if isinstance(spec, MatMulSpec):
            out |= {"pixels": spec.pixels, "transposed": spec.transposed}
    elif isinstance(kernel, Pool):
        out |= {"window": [*kernel.kernel, *kernel.stride, *kernel.pads], "mode": kernel.mode}
    elif isinstance(spec, ResampleSpec):
        assert isinstance(kernel, Resample)
        out |= {"columns": spec.columns.tolist(), "rows": spec.rows.tolist(), "fill": kernel.fill}
    elif isinstance(spec, VectorSpec):
        out |= {"steps": [[int(s[0]), int(s[2]), int(s[5])] for s in spec.steps], "pixels": spec.pixels}
    elif isinstance(spec, SoftmaxSpec):
        out |= {"groups": spec.groups, "gaps": list(spec.gaps)}
    elif isinstance(spec, LayerNormSpec):
        out |= {"channels": spec.channels, "gaps": list(spec.gaps)}
    elif isinstance(spec, ReflowSpec):
        out |= {"before": spec.before}
    return out


class _Constants:
    """Collects constant sections; addresses in blocks."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, NDArray[np.uint8]]] = []
        self.offsets: list[int] = []
        self.end = 0

    def add(self, name: str, data: NDArray[np.uint8]) -> int:
        at = self.end
        self.parts.append((name, data))
        self.offsets.append(at)
        blocks = -(-len(data) // BLOCK_BYTES)
        self.end = -(-(at + blocks) // _ALIGN_BLOCKS) * _ALIGN_BLOCKS
        return at

    def buffers(self) -> list[DdrBuffer]:
        return [
            DdrBuffer(name, "constant", at, -(-len(data) // BLOCK_BYTES)) for (name, data), at in zip(self.parts, self.offsets, strict=True)
        ]

    def bytes(self) -> NDArray[np.uint8]:
        out = np.zeros(self.end * BLOCK_BYTES, np.uint8)
        for (_, data), at in zip(self.parts, self.offsets, strict=True):
            out[at * BLOCK_BYTES : at * BLOCK_BYTES + len(data)] = data
        return out


_STEP_OPS = {
    "relu": Op.VRELU, "exp": Op.VEXP, "ln": Op.VLN, "sqrt": Op.VSQRT, "reciprocal": Op.VRECIPROCAL, "square": Op.VMUL,
    "adds": Op.VADDS, "muls": Op.VMULS, "maxs": Op.VMAXS, "mins": Op.VMINS, "scale_shift": Op.VMADD,
    "add": Op.VADD, "sub": Op.VSUB, "mul": Op.VMUL, "div": Op.VDIV, "max": Op.VMAX, "min": Op.VMIN,
    "rsub": Op.VSUB, "rdiv": Op.VDIV, "keep": Op.VCOPY, "take": Op.VCOPY,
}  # fmt: skip
_SWAPPED = ("rsub", "rdiv", "keep")


def make_unit(graph: Graph, machine: Machine, dtype: DataType) -> Unit:
    """Layout, constants and DDR addresses of a graph: everything that does not depend on a plan.

    Raises `UnsupportedError` for a machine that lacks a path that every program uses.
    """
    check_machine(machine, dtype)
    layout = assign(with_curves(graph, dtype), dtype)
    layout.verify()
    names = sorted(layout.storages, key=lambda name: name in graph.constants)  # the first one is the model's input
    at = {name: i for i, name in enumerate(names)}
    constants = _Constants()
    operators = [op for op in layout.graph.operators if not isinstance(op, Concat | Shuffle)]

    def piece(tensor: str) -> Piece:
        p = layout.placements[tensor]
        return Piece(at[p.storage], p.plane, p.planes)

    gaps = _gaps(layout, dtype)
    pending = [_kernel_spec(i, op, layout, piece, constants, dtype, gaps) for i, op in enumerate(operators)]
    known = {
        name: constants.add(name, weights.pack_tensor(values, layout.placements[name], dtype)) for name, values in graph.constants.items()
    }
    storages, buffers, end = _place_storages(layout, names, known, constants.end, dtype)
    producers = {
        spec.index: tuple(p.index for p in pending[: spec.index] if any(p.y.overlaps(read) for read in spec.reads)) for spec in pending
    }
    consumers: dict[int, list[int]] = {spec.index: [] for spec in pending}
    for index, sources in producers.items():
        for source in sources:
            consumers[source].append(index)
    outputs = [piece(port.tensor) for port in layout.graph.outputs]
    escapes = frozenset(spec.index for spec in pending if any(spec.y.overlaps(out) for out in outputs))
    memory = MemoryMap(dtype, (*constants.buffers(), *buffers), end)
    memory.verify()
    return Unit(
        layout.graph,
        layout,
        machine,
        dtype,
        storages,
        tuple(pending),
        memory,
        constants.bytes(),
        producers,
        {index: tuple(rest) for index, rest in consumers.items()},
        escapes,
    )


def _place_storages(
    layout: Layout, names: list[str], known: dict[str, int], address: int, dtype: DataType
) -> tuple[tuple[StorageSpec, ...], list[DdrBuffer], int]:
    """known: addresses of those that are constants."""
    ports = [(port, "input") for port in layout.graph.inputs] + [(port, "output") for port in layout.graph.outputs]
    storages, buffers = [], []
    for name in names:
        s = layout.storages[name]
        row = s.w // 4 if s.pixel_lanes == 4 else s.w
        if name in known:
            storages.append(StorageSpec(name, len(layout.graph.constants[name]), s.planes, s.h, s.w, row, known[name]))
            continue
        storages.append(StorageSpec(name, s.n, s.planes, s.h, s.w, row, address))
        size = s.n * s.planes * s.h * row
        exposed = [(port, kind) for port, kind in ports if layout.placements[port.tensor].storage == name]
        if not exposed:
            buffers.append(DdrBuffer(name, "scratch", address, size))
        for port, kind in exposed[:1]:
            p = layout.placements[port.tensor]
            lanes = tuple(p.plane * dtype.lanes + lane for lane in p.lanes)
            shape = layout.graph.shapes[port.tensor]
            buffers.append(
                DdrBuffer(port.onnx_name, kind, address, size, shape, port.onnx_shape, lanes, s.pixel_lanes, s.planes, port.order)  # type: ignore[arg-type]
            )
        address = -(-(address + size) // _ALIGN_BLOCKS) * _ALIGN_BLOCKS
    return tuple(storages), buffers, address


def _gaps(layout: Layout, dtype: DataType) -> dict[str, Values]:
    """Tensor -> what lanes without a channel may hold; nothing where every lane has one."""
    gaps: dict[str, Values] = {port.tensor: frozenset({0.0}) for port in layout.graph.inputs}
    gaps |= {name: frozenset({0.0}) for name in layout.graph.constants}
    for op in layout.graph.operators:
        full = len(layout.placements[op.y].lanes) == layout.placements[op.y].planes * dtype.lanes
        gaps[op.y] = frozenset() if full else output_gaps(op, [gaps[name] for name in op.inputs], weights.numpy_type(dtype))
    return gaps


_Base = tuple[int, str, Kernel, tuple[Piece, ...], Piece, int, int, int, int]  # the fields of KernelSpec, in order


def _kernel_spec(
    index: int,
    op: Kernel,
    layout: Layout,
    piece: Callable[[str], Piece],
    constants: _Constants,
    dtype: DataType,
    gap_values: dict[str, Values],
) -> AnySpec:
    shapes = layout.graph.shapes
    x, y = layout.placements[op.inputs[0]], layout.placements[op.y]
    _, _, in_h, in_w = shapes[op.inputs[0]]
    _, _, out_h, out_w = shapes[op.y]
    base: _Base = (index, op.name, op, tuple(piece(name) for name in op.inputs), piece(op.y), in_h, in_w, out_h, out_w)
    if isinstance(op, Conv):
        return _conv_spec(base, op, x, y, layout, constants, dtype)
    if isinstance(op, Pool):
        counts = -1
        if op.mode == "average" and any(op.pads) and not op.count_include_pad:
            counts = constants.add(f"{op.name}/counts", weights.pack_pixels(_inverse_counts(op, in_h, in_w, out_h, out_w), dtype))
        return PoolSpec(*base, counts_at=counts)
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


def _conv_spec(base: _Base, op: Conv, x: Placement, y: Placement, layout: Layout, constants: _Constants, dtype: DataType) -> ConvSpec:
    c0 = dtype.lanes
    lanes = 4 if layout.storages[x.storage].pixel_lanes == 4 else c0
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


def _steps(op: Vector, y: Placement, constants: _Constants, dtype: DataType, gaps: list[Values]) -> NDArray[np.int64]:
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
