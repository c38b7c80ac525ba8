"""What machines are made of, as records name it: memories, engines, element types, and what the matrix unit multiplies at a time.

On-chip and DDR addresses are counted in *blocks* of 32 bytes (`BLOCK_BYTES`), the atom of the memory system: C0 lanes of an activation, one
burst granule.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.npu.tiles import M0, N0

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
"""Who loads from DDR, and who stores there."""

_SIZE_BITS = (16, 32, 8)  # in the order of `DataType`


class DataType(IntEnum):
    """Element types of records (int8 has its number reserved; nothing emits it yet)."""

    float16 = 0
    float32 = 1
    int8 = 2

    @property
    def storage(self) -> np.dtype[Any]:
        """As numpy holds it."""
        import numpy as np  # commands that only name machines do without it

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


SUMS = DataType.float32  # what the matrix unit adds up in, whatever it multiplies: accumulators in L0C, and biases
L1_ALIGN_BLOCKS = 16  # where a buffer in L1 may begin: 512 bytes


class CubeShape(NamedTuple):
    """What the matrix unit multiplies at a time, m0 rows by k0 by n0 columns, and what that comes to in blocks.

    Records, tiles and packed weights count in it: mpad in rows, a multiple of m0; k1 in k0 elements, a block of them; n1 in n0 channels.
    weight_blocks: of n0 columns by k0.  sum_blocks: of n0 accumulators, a row of them in L0C, or of n0 channels' bias.  planes: of C0
    channels, that n0 results fill.  Numbers alone, so kernels take it as it is.
    """

    m0: int
    k0: int
    n0: int
    weight_blocks: int
    sum_blocks: int
    planes: int

    @classmethod
    def of(cls, m0: int, n0: int, dtype: DataType) -> CubeShape:
        k0 = dtype.lanes
        return cls(m0, k0, n0, n0 * k0 * dtype.size_bytes // BLOCK_BYTES, n0 * SUMS.size_bytes // BLOCK_BYTES, n0 // dtype.lanes)


CUBE_SHAPES = tuple(CubeShape.of(M0, N0, dtype) for dtype in DataType)
"""By data type of the operands: what records mean, on any machine (`Machine.cube`)."""
