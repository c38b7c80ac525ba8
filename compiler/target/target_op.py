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
    """Position of a strip's operator in the whole tensors, in blocks of a row: the first block read of its main input, the first block
    made of its result, and blocks [first_owned, first_owned + owned) of the result that go to DDR."""

    read: int
    first_made: int
    first_owned: int
    owned: int


UbKind = Literal["constants", "out", "residual", "overlaid", "arriving", "expanded"]


class UbBuffers(NamedTuple):
    """Buffers in UB of an operator: `slots` of `size` blocks.  resident: for the whole segment if that is repeated."""

    kind: UbKind
    slots: int
    size: int
    resident: bool = False


class EmitInputs(NamedTuple):
    """Inputs of an operator's emission, from its segment: the first block of each buffer slot.

    weights: in L1; all that follows it: in UB (`segment.memory_plan`).  inside: whether its result stays on chip.
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
    """Constants that an operator needs from its first block on: `blocks` blocks of DDR go to a memory, in pieces of so many."""

    memory: Memory
    source: int
    target: int
    blocks: int
    piece: int = 1 << 30


@dataclass(frozen=True, eq=False)
class TargetOp(ABC):
    """An operator of a target graph.  reads[0] is the main input; `signature` names all that its cost depends on.

    index: in the target graph.  named: its index in the graph that names the operators, if that is another (`segment.reorder`), else -1.
    strip: None for whole rows; else in_w and out_w are the widths of the strip.
    """

    word: ClassVar[str]  # of its kind in signatures, which stay when classes are renamed
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
        """The text under which tasks are shared: all that the cost depends on beside block and tiling.  storages: of the target graph."""
        planes = [[piece.planes, storages[piece.storage].planes] for piece in (*self.reads, self.y)]
        sizes = {"in": [self.in_h, self.in_w], "out": [self.out_h, self.out_w], "planes": planes, **self.described()}
        types = [storages[piece.storage].dtype for piece in (*self.reads, self.y)]
        if not all(dtype.is_float for dtype in types):
            sizes["types"] = [dtype.name for dtype in types]
        return " ".join([self.word, *(f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in sizes.items())])

    def described(self) -> dict[str, object]:
        """Fields of the signature beside the sizes of tensors: JSON values by name, in a fixed order."""
        return {}

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        """Key of equal tilings and features among operators of a machine and data type; the operator itself if it shares them with none."""
        return (self,)

    def placed(self, address: Callable[[str], int]) -> Self:
        """Itself, once tensors have their DDR blocks."""
        del address
        return self

    # what it reads, and where from

    @property
    def pixels_only(self) -> tuple[bool, ...]:
        """Which operands are one pixel of every channel."""
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
        """Rows of the main input that a block of so many rows of the result reads in the middle of the image."""
        size, stride, dilation, _ = self.operator.window()
        return min((rows - 1) * stride + (size - 1) * dilation + 1, self.in_h)

    # its parts

    @abstractmethod
    def channel_step(self, count: int, dtype: DataType) -> int | str:
        """Planes of the smallest run of channels that one of `count` cores may make; or the reason why none may."""

    @abstractmethod
    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        """The operator that makes planes [first, last) of the result; None where they are neither whole groups nor within one."""

    @property
    def strip_refusal(self) -> str:
        """The reason why it cannot be cut into strips, or ''."""
        return ""

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        """The operator that makes columns `out_columns` of the result from columns `in_columns` of its input."""
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size)

    # buffers in memories

    @abstractmethod
    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        """Buffers in L1 of its weights, and blocks of each: all of them in one, or two chunks."""

    @abstractmethod
    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        """Its constants and two slots of its tile, and of its residual's.  through_ub: whether a product's results go that way."""

    @abstractmethod
    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, l1_reads: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        """The computation of `rows` rows of the result; l1_reads: reads that the segment has in L1; inside: the result stays there."""

    # its records

    @abstractmethod
    def job_row(self, inputs: EmitInputs) -> tuple[type[tuple[Any, ...]], NDArray[np.int64]]:
        """The type of its job, a NamedTuple of numbers in `ops.registry`, and the numbers: parameters of its emitter."""

    def tables(self) -> list[NDArray[np.int64]]:
        """Arrays that its emitter reads beside its job, at most three."""
        return []

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        """Loads of constants once per segment, in contrast to those that come with tiles."""
        return []


def round_up(blocks: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-blocks // multiple) * multiple
