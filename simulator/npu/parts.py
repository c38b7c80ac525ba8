"""Memories, engines, element types and product layouts, as records name them.

On-chip and DDR addresses are counted in *blocks* of 32 bytes (`BLOCK_BYTES`), the atom of the memory system: C0 lanes of an activation, one
burst granule.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simulator.npu.fractal_sizes import COLUMNS, ROWS

if TYPE_CHECKING:
    import numpy as np

BLOCK_BYTES = 32


class Memory(IntEnum):
    """Memories, in the order in which records name them.  DDR and SHARED are one for all cores, the others each core's own."""

    DDR = 0
    L1 = 1
    L0A = 2
    L0B = 3
    L0C = 4
    UB = 5
    SHARED = 6


class Engine(IntEnum):
    """Engines, in the order in which records name them and in which ties are broken."""

    MTE2 = 0
    MTE1 = 1
    CUBE = 2
    FIXPIPE = 3
    VECTOR = 4
    MTE3 = 5
    SCALAR = 6


DMAS = (Engine.MTE2, Engine.MTE3)
"""Engines that move data from DDR, and to DDR."""

_SIZE_BITS = (16, 32, 8, 8, 32)  # indexed by `DataType`


class DataType(IntEnum):
    """Element types of records."""

    float16 = 0
    float32 = 1
    int8 = 2
    uint8 = 3
    int32 = 4

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy type."""
        import numpy as np  # not at the top: commands that only name machines do without numpy

        return np.dtype(self.name)

    @property
    def size_bytes(self) -> int:
        return self.size_bits // 8

    @property
    def size_bits(self) -> int:
        return _SIZE_BITS[self]

    @property
    def lanes(self) -> int:
        """C0: elements of this type in one block."""
        return BLOCK_BYTES // self.size_bytes

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def product(self) -> DataType:
        """Type under which a matrix unit lists it: 8-bit integers are one type, signed or not (`ProductName`)."""
        return DataType.int8 if self in BYTES else self

    @property
    def sums(self) -> DataType:
        """The type of accumulators in L0C, and of biases, for operands of this type."""
        return DataType.float32 if self.is_float else DataType.int32


FLOATS = (DataType.float16, DataType.float32)
BYTES = (DataType.int8, DataType.uint8)
"""Integers that a matrix unit multiplies, each operand signed or not."""

DTypeName = Literal["float16", "float32"]  # type of the network's tensors on the NPU, where the model has no integers
ProductName = Literal["float16", "float32", "int8"]  # types that a matrix unit multiplies; int8: `BYTES`
TypeName = Literal["float16", "float32", "int8", "uint8", "int32"]  # names of `DataType` in files
SUM_BYTES = 4  # size of a sum, in every data type
L1_ALIGN_BLOCKS = 16  # alignment of buffers in L1: 512 bytes


class Fractal(NamedTuple):
    """Layout of product operands in L0 and in packed weights; independent of the shape that the unit multiplies (`machine_parts.Product`).

    Units of records, tiles and packed weights: mpad counts rows, a multiple of `rows`; k1 blocks of `lanes`, C0; n1 `columns`.
    weight_blocks: blocks of its columns by a block of k.  sum_blocks: blocks of a row of accumulators in L0C, or of the bias of its
    columns.  All fields are numbers, so kernels can take it as an argument.
    """

    rows: int
    lanes: int
    columns: int
    weight_blocks: int
    sum_blocks: int

    @classmethod
    def of(cls, rows: int, columns: int, dtype: DataType) -> Fractal:
        weights, sums = columns * dtype.lanes * dtype.size_bytes, columns * SUM_BYTES
        return cls(rows, dtype.lanes, columns, weights // BLOCK_BYTES, sums // BLOCK_BYTES)


FRACTALS = tuple(Fractal.of(ROWS, COLUMNS, dtype) for dtype in DataType)
"""Fractal by data type of the operands.  `rows` is the default of a machine (`Machine.fractal`); other fields are equal on all machines."""
