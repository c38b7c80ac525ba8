"""What emission and search need of a model on a machine, as numbers: storages, kernels, addresses of constants.

A `Unit` is made once per (graph, machine, data type), by `tile.unit`, and shared by every plan, candidate and variant: its DDR addresses
never depend on a plan, so variants can be switched by their start address alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Conv, Graph, Kernel, Pool, Resample
from compiler.ir.im2col import Parts, parts_of
from compiler.ir.layout import Layout
from compiler.ir.taps import input_columns, input_rows
from simulator.npu.machine import DataType, Machine
from simulator.npu.program import MemoryMap

ROWS, COLUMNS, BOTH = 1, 2, 3  # of `PoolSpec.passes`


@dataclass(frozen=True)
class Shaped:
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
    """A storage: [n][planes][h] rows of `row_blocks` blocks at DDR block `address`.

    In a unit of strips (`tile.strips`) row_blocks and w are those of the strip: blocks [first, first + row_blocks) of rows that have
    `pitch` blocks in DDR, 0 where they have no others.
    """

    name: str
    n: int
    planes: int
    h: int
    w: int
    row_blocks: int
    address: int
    first: int = 0
    pitch: int = 0

    @property
    def ddr_row_blocks(self) -> int:
        """Blocks from row to row in DDR."""
        return self.pitch or self.row_blocks

    @property
    def plane_blocks(self) -> int:
        return self.h * self.ddr_row_blocks

    @property
    def image_blocks(self) -> int:
        return self.planes * self.plane_blocks


class Strip(NamedTuple):
    """Where an operator of a strip stands in the whole tensors, in blocks of a row: the first one of its main input that it reads, the
    first one of its result that it makes, and [own, own + owned) of those that go to DDR."""

    read: int
    made: int
    own: int
    owned: int


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """What every kernel has.  reads[0] is the main input; `signature` says what its cost depends on.

    index: its place in the unit.  named: its place in the unit that names the operators, where that is another (`tile.siblings`), or -1.
    strip: None where it has whole rows; else in_w and out_w are what the strip has of them.
    """

    index: int
    name: str
    kernel: Kernel
    reads: tuple[Piece, ...]
    y: Piece
    in_h: int
    in_w: int
    out_h: int
    out_w: int
    named: int = field(default=-1, kw_only=True)
    strip: Strip | None = field(default=None, kw_only=True)

    @property
    def tag(self) -> int:
        """The operator's number in records."""
        return self.index if self.named < 0 else self.named

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

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.window[:2], self.window[4:6], self.lanes == 4)

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
    """A product whose right operand is reads[1] of `pixels` pixels: a 1x1 convolution without bias.

    Resident weights: all of the right operand lies in L1; streamed: it comes in chunks.  per_pixel: multiply-accumulates of one pixel.
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
    """counts_at: DDR blocks [out_h][out_w] of 1 / number of elements, or -1 where one factor serves every pixel.

    counts_pitch: blocks from row to row of them, which a strip has only a part of.
    """

    counts_at: int
    counts_pitch: int

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every window is whole rows of the image, one beside the other."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        return self.out_w == 1 and kernel.kernel[1] - kernel.pads[1] >= self.in_w and (self.out_h == 1 or self.in_w > 1)

    @cached_property
    def passes(self) -> int:
        """What the windows slide along, each in a pass over a tile: ROWS, COLUMNS or BOTH."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        still = [(kernel.kernel[i], kernel.stride[i], kernel.pads[i], kernel.pads[i + 2]) == (1, 1, 0, 0) for i in range(2)]
        return COLUMNS if still[0] and not still[1] else ROWS if still[1] else BOTH

    @property
    def operations(self) -> tuple[int, int]:
        """Of the pass over rows and of that over columns, where windows slide."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        high, wide = kernel.kernel
        return max(1, high - 1) * bool(self.passes & ROWS), max(1, wide - 1) * bool(self.passes & COLUMNS)

    @cached_property
    def inside(self) -> tuple[float, float]:
        """Which part of what windows cover, along rows and along columns, lies inside the image."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        found = []
        for axis, (results, length) in enumerate(((self.out_h, self.in_h), (self.out_w, self.in_w))):
            at = np.arange(results)[:, None] * kernel.stride[axis] + np.arange(kernel.kernel[axis]) - kernel.pads[axis]
            found.append(float(((at >= 0) & (at < length)).mean()))
        return found[0], found[1]

    def wide(self, columns: int) -> int:
        """Columns of the image that the windows of a tile cover: of all columns, whole rows."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        return self.in_w if columns >= self.out_w else min(self.in_w, (columns - 1) * kernel.stride[1] + kernel.kernel[1])

    def slot_blocks(self, rows: int, columns: int) -> int:
        """Blocks of UB for a tile of one plane: what its windows cover and the results; or, with two passes, what the first one makes."""
        kernel = self.kernel
        assert isinstance(kernel, Pool)
        high = (rows - 1) * kernel.stride[0] + kernel.kernel[0]
        wide = self.wide(columns)
        if self.passes != BOTH or self.whole_rows:
            return high * wide + rows * columns
        return (high + rows) * max(wide, columns)


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

    @lru_cache(maxsize=256)  # noqa: B019
    def input_columns(self, columns: int) -> int:
        """The most columns of input that a tile of so many columns of output comes from."""
        if columns >= self.out_w:
            return self.in_w
        return int(input_columns(self.columns, columns, self.out_w)) if len(self.columns) else columns

    def slot_blocks(self, planes: int, rows: int, columns: int) -> int:
        """Blocks of UB for a tile: input, columns done, rows done, products."""
        middle = self.input_rows(rows) * columns if len(self.columns) else 0
        last = rows * columns if len(self.rows) or not len(self.columns) else 0
        return planes * (self.input_rows(rows) * self.input_columns(columns) + middle + last + (max(middle, last) if self.weighted else 0))


AnySpec = ConvSpec | PoolSpec | VectorSpec | SoftmaxSpec | LayerNormSpec | ReflowSpec | ResampleSpec


@dataclass(frozen=True, eq=False)
class Unit:
    """A model on a machine in a data type, without its weights' values: all that planning, emission and timing need.

    So it is small: every worker is sent one, and what is remembered of units does not keep their models.  The values are packed beside
    it (`tile.unit.Packed`).  strips: of how many strips (`tile.strips`) this is one.
    """

    graph: Graph
    layout: Layout
    machine: Machine
    dtype: DataType
    storages: tuple[StorageSpec, ...]
    kernels: tuple[AnySpec, ...]
    memory: MemoryMap
    producers: dict[int, tuple[int, ...]]  # kernel -> kernels whose output it reads
    consumers: dict[int, tuple[int, ...]]  # kernel -> kernels that read its output
    escapes: frozenset[int]  # kernels whose output the host reads
    families: tuple[tuple[int, ...], ...] = ()  # sibling convolutions that can be made as one, see `tile.siblings`
    strips: int = 1

    @property
    def images(self) -> int:
        """n of every tensor."""
        return self.storages[0].n

    @property
    def macs(self) -> int:
        return sum(spec.macs for spec in self.kernels) * self.images

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
