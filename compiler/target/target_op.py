"""Common interface of the operators of a target graph; `ops` has a subclass for each kind.

The defaults fit most operators of VECTOR.  `ops.conv` has those of the matrix unit.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Operator
from compiler.ir.region import Rows
from compiler.plan.plan import Infeasible, Tiling
from compiler.target.loop_nest import Nest
from compiler.target.storage import StorageSpec, TensorSlice
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Memory


class Strip(NamedTuple):
    """Position of a strip's operator in the whole tensors, in blocks of a row: first block read of its main input, first block
    computed of its result, and blocks [first_owned, first_owned + owned) of the result that are stored to DDR."""

    read: int
    first_made: int
    first_owned: int
    owned: int


UbKind = Literal["constants", "out", "residual", "overlaid", "arriving", "expanded"]


class UbBuffers(NamedTuple):
    """Buffers in UB of an operator: `slots` of `size` blocks.  resident: whether repeated buffers stay for the whole segment."""

    kind: UbKind
    slots: int
    size: int
    resident: bool = False


class EmitInputs(NamedTuple):
    """Inputs of an operator's emission, from its segment: the first block of each buffer slot.

    weights: in L1; fields after it: in UB (`segment.memory_plan`).  inside: whether the result stays on chip.
    """

    machine: Machine
    dtype: DataType
    storages: Sequence[StorageSpec]
    tiling: Tiling
    inside: bool
    weights: tuple[int, ...]
    constants: tuple[int, ...]
    tiles: tuple[int, ...]
    residuals: tuple[int, ...]
    overlaid: tuple[int, ...]
    arriving: tuple[int, ...]
    expanded: tuple[int, ...]


class Fetch(NamedTuple):
    """Constants that an operator needs from its first block on: `blocks` blocks go from DDR to a memory, in pieces."""

    memory: Memory
    source: int
    target: int
    blocks: int
    piece: int = 1 << 30


@dataclass(frozen=True, eq=False)
class TargetOp(ABC):
    """An operator of a target graph.  reads[0] is the main input; `signature` names all that its cost depends on.

    index: index in the target graph.  named: index in the graph that names the operators, if another one does (`segment.reorder`), else -1.
    strip: None for whole rows; else in_w and out_w are the widths of the strip.
    """

    word: ClassVar[str]  # name of its kind in signatures, independent of the name of the class
    runs_on: ClassVar[Literal["CUBE", "VECTOR"]]

    index: int
    name: str
    operator: Operator
    reads: tuple[TensorSlice, ...]
    y: TensorSlice
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
        """Multiply-accumulates of the model, without any padding."""
        return 0

    def signature(self, storages: Sequence[StorageSpec]) -> str:
        """Text that equal tasks share: everything besides block and tiling that the cost depends on.  storages: those of the target
        graph."""
        planes = [[piece.planes, storages[piece.storage].planes] for piece in (*self.reads, self.y)]
        sizes = {"in": [self.in_h, self.in_w], "out": [self.out_h, self.out_w], "planes": planes, **self.described()}
        types = [storages[piece.storage].dtype for piece in (*self.reads, self.y)]
        if not all(dtype.is_float for dtype in types):
            sizes["types"] = [dtype.name for dtype in types]
        return " ".join([self.word, *(f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in sizes.items())])

    def described(self) -> dict[str, object]:
        """Fields of the signature besides sizes of tensors: JSON values by name, in a fixed order."""
        return {}

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        """Key of equal tilings and features among operators of a machine and data type; the operator itself if it shares them with none."""
        return (self,)

    def placed(self, address: Callable[[str], int]) -> Self:
        """The operator with addresses filled in, once tensors have DDR blocks."""
        del address
        return self

    # operands, and where they are read from

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        """Per operand, whether it is one pixel per channel."""
        return (False,) * len(self.reads)

    @property
    def right(self) -> TensorSlice | None:
        """The right operand of a product of two tensors: every part of the result reads all of it, from L1 or in chunks."""
        return None

    @property
    def right_blocks(self) -> int:
        """Blocks of the right operand."""
        return 0

    @property
    def weight_blocks(self) -> int:
        """Blocks of its weights in L1."""
        return 0

    @property
    def stored_weight_blocks(self) -> int:
        """Blocks of its weights in DDR."""
        return self.weight_blocks

    @property
    def pixels_per_block(self) -> int:
        """Pixels of the main input in a block."""
        return 1

    def input_rows(self, rows: int) -> int:
        """Rows of the main input that a block of `rows` rows of the result reads in the middle of the image."""
        size, stride, dilation, _ = self.operator.window()
        return min((rows - 1) * stride + (size - 1) * dilation + 1, self.in_h)

    # splitting

    @abstractmethod
    def channel_step(self, count: int, dtype: DataType) -> int | str:
        """Planes of the smallest run of channels that one of `count` cores may make; or the reason why none may."""

    @abstractmethod
    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        """Operator for planes [first, last) of the result; None if these are neither whole groups nor within one group."""

    @property
    def strip_refusal(self) -> str:
        """The reason why it cannot be cut into strips, or ''."""
        return ""

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        """Operator that computes columns `out_columns` of the result from columns `in_columns` of its input."""
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size)

    # buffers in memories

    @abstractmethod
    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        """Buffers in L1 of its weights, and blocks of each: all of them in one, or two chunks."""

    @abstractmethod
    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        """Buffers: constants, two slots of its tile, two of its residual's tile.  through_ub: whether a product's results pass UB."""

    @abstractmethod
    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, l1_reads: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        """Loop nest of `rows` rows of the result.  l1_reads: indices of the operands in L1.  inside: whether the result stays on chip."""

    # code generation

    @abstractmethod
    def job_row(self, inputs: EmitInputs) -> tuple[type[tuple[Any, ...]], NDArray[np.int64]]:
        """The type of its job, a NamedTuple of numbers in `ops.registry`, and the numbers: parameters of its emitter."""

    def tables(self) -> list[NDArray[np.int64]]:
        """Arrays that its emitter reads besides its job, at most three."""
        return []

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        """Loads of constants once per segment; constants that come with tiles are not included."""
        return []


def round_up(blocks: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-blocks // multiple) * multiple
